"""shelld-py as a runtime of SWE-ReX. Made with swe-rex 1.4.0.

The daemon is that of `url` and `key`, or `SHELLD_URL` and `SHELLD_KEY`; it wants `files.allowed_directories = ["/"]`.
"""

import shlex
from typing import Any

from swerex import exceptions
from swerex.runtime import abstract

from shelld_py import AsyncClient, ShelldError
from shelld_py.client import os_errors

_LONGEST = 1800.0


class ShelldRuntime(abstract.AbstractRuntime):
    """The computer of a daemon; its sessions are sessions there."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self._client = AsyncClient(url, key)
        self._sessions: dict[str, Any] = {}

    async def is_alive(self, *, timeout: float | None = None) -> abstract.IsAliveResponse:
        """Tell whether the daemon answers."""
        try:
            await self._client.health()
        except ShelldError as error:
            return abstract.IsAliveResponse(is_alive=False, message=error.detail)
        return abstract.IsAliveResponse(is_alive=True)

    async def create_session(self, request: Any) -> abstract.CreateBashSessionResponse:
        """Open a shell."""
        if request.session in self._sessions:
            raise exceptions.SessionExistsError(f"session {request.session} exists")
        shell = self._sessions[request.session] = await self._client.sessions.open()
        for source in request.startup_source:
            await shell.run(f"source {shlex.quote(source)}", timeout=request.startup_timeout)
        return abstract.CreateBashSessionResponse(output="")

    async def run_in_session(self, action: Any) -> abstract.BashObservation:
        """Run a command, type into one that asks, or interrupt it. A timeout ends the command and keeps the shell."""
        shell = self._shell(action.session)
        if isinstance(action, abstract.BashInterruptAction):
            await shell.kill()
            return abstract.BashObservation(output=(await shell.output()).output, exit_code=0)
        seconds = action.timeout or _LONGEST
        if (await shell.status()).run is not None:
            reply = await shell.stdin(action.command + "\n", wait=seconds)
            code = 0 if reply.status == "running" else (await self._client.runs.get(reply.run_id)).exit_code
            return abstract.BashObservation(output=reply.output, exit_code=code)
        if action.is_interactive_command:
            run = await shell.run(action.command, timeout=seconds, max_output=0)
        else:
            run = await shell.run(action.command, deadline=seconds, max_output=0, on_input="wait")
        if run.cause == "deadline":
            raise exceptions.CommandTimeoutError(f"timeout after {seconds} s: {action.command!r}")
        if action.check == "raise" and run.exit_code not in (0, None):
            if "syntax error" in (run.stdout or ""):
                raise exceptions.BashIncorrectSyntaxError(f"{action.command!r}: {run.stdout}")
            said = f"{action.error_msg or action.command}: exit code {run.exit_code}: {run.stdout}"
            raise exceptions.NonZeroExitCodeError(said)
        return abstract.BashObservation(output=run.stdout or "", exit_code=0 if run.awaiting_input else run.exit_code)

    async def close_session(self, request: Any) -> abstract.CloseBashSessionResponse:
        """End a shell."""
        await self._shell(request.session).close()
        del self._sessions[request.session]
        return abstract.CloseBashSessionResponse()

    async def execute(self, command: Any) -> abstract.CommandResponse:
        """Run a command in a shell of its own."""
        line, argv = (None, command.command) if isinstance(command.command, list) else (command.command, None)
        run = await self._client.exec(
            line,
            argv=argv,
            deadline=command.timeout or _LONGEST,
            environment=command.env,
            directory=command.cwd,
            streams="merged" if command.merge_output_streams else "pipes",
            on_input="wait",
            max_output=0,
        )
        if run.cause == "deadline":
            raise exceptions.CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        if command.check and run.exit_code:
            raise exceptions.NonZeroExitCodeError(f"{command.error_msg} exit {run.exit_code}: {run.stdout}{run.stderr}")
        return abstract.CommandResponse(stdout=run.stdout or "", stderr=run.stderr or "", exit_code=run.exit_code)

    async def read_file(self, request: Any) -> abstract.ReadFileResponse:
        """Return the text of a file."""
        with os_errors(request.path):
            content = (await self._client.files.read_raw(request.path)).content
        text = content.decode(request.encoding or "utf-8", request.errors or "strict")
        return abstract.ReadFileResponse(content=text)

    async def write_file(self, request: Any) -> abstract.WriteFileResponse:
        """Make or replace a file."""
        await self._client.files.write_raw(request.path, request.content.encode())
        return abstract.WriteFileResponse()

    async def upload(self, request: Any) -> abstract.UploadResponse:
        """Put a file or a directory of this machine into the daemon's."""
        await self._client.files.upload(request.source_path, request.target_path)
        return abstract.UploadResponse()

    async def close(self) -> abstract.CloseResponse:
        """End all sessions."""
        for shell in self._sessions.values():
            await shell.close()
        self._sessions.clear()
        await self._client.close()
        return abstract.CloseResponse()

    def _shell(self, name: str) -> Any:
        if name not in self._sessions:
            raise exceptions.SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]
