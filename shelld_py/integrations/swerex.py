"""shelld-py as a runtime of SWE-ReX. Made with swe-rex 1.4.0.

The daemon is that of `url` and `key`, or of `SHELLD_URL` and `SHELLD_KEY`. It wants
`files.allowed_directories = ["/"]`.
"""

import io
import shlex
import tarfile
from pathlib import Path
from typing import Any

from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
)
from swerex.runtime.abstract import (
    AbstractRuntime,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionResponse,
    CloseResponse,
    CommandResponse,
    CreateBashSessionResponse,
    IsAliveResponse,
    ReadFileResponse,
    UploadResponse,
    WriteFileResponse,
)

from shelld_py import AsyncClient, ShelldError
from shelld_py.errors import FileNotFound

_LONGEST = 1800.0


class ShelldRuntime(AbstractRuntime):
    """The computer of a daemon; its sessions are sessions there."""

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self._client = AsyncClient(url, key)
        self._sessions: dict[str, Any] = {}

    async def is_alive(self, *, timeout: float | None = None) -> IsAliveResponse:
        """Tell whether the daemon answers."""
        try:
            await self._client.health()
        except ShelldError as error:
            return IsAliveResponse(is_alive=False, message=error.detail)
        return IsAliveResponse(is_alive=True)

    async def create_session(self, request: Any) -> CreateBashSessionResponse:
        """Open a shell."""
        if request.session in self._sessions:
            raise SessionExistsError(f"session {request.session} exists")
        shell = self._sessions[request.session] = await self._client.sessions.open()
        for source in request.startup_source:
            await shell.run(f"source {shlex.quote(source)}", timeout=request.startup_timeout)
        return CreateBashSessionResponse(output="")

    async def run_in_session(self, action: Any) -> BashObservation:
        """Run a command, type into one that asks, or interrupt it. A timeout ends the command and keeps the shell."""
        shell = self._shell(action.session)
        if isinstance(action, BashInterruptAction):
            await shell.kill()
            return BashObservation(output=(await shell.output()).output, exit_code=0)
        seconds = action.timeout or _LONGEST
        if (going := (await shell.status()).run) is not None:
            before = (await shell.output()).next_cursor
            await shell.stdin(action.command + "\n")
            run = await self._client.runs.wait(going.run_id, timeout=seconds, until=["input", "exit"])
            part = await self._client.runs.output(going.run_id, cursor=before)
            return BashObservation(output=part.output, exit_code=0 if run.status == "running" else run.exit_code)
        interactive = action.is_interactive_command
        run = await shell.run(
            action.command, timeout=seconds + 60, deadline=None if interactive else seconds, max_output=0,
            on_input="return" if interactive else "wait",
        )  # fmt: skip
        if run.cause == "deadline":
            raise CommandTimeoutError(f"timeout after {seconds} s: {action.command!r}")
        if action.check == "raise" and run.exit_code not in (0, None):
            if "syntax error" in (run.stdout or ""):
                raise BashIncorrectSyntaxError(f"{action.command!r}: {run.stdout}")
            raise NonZeroExitCodeError(f"{action.error_msg or action.command}: exit code {run.exit_code}: {run.stdout}")
        return BashObservation(output=run.stdout or "", exit_code=0 if run.awaiting_input else run.exit_code)

    async def close_session(self, request: Any) -> CloseBashSessionResponse:
        """End a shell."""
        await self._shell(request.session).close()
        del self._sessions[request.session]
        return CloseBashSessionResponse()

    async def execute(self, command: Any) -> CommandResponse:
        """Run a command in a shell of its own."""
        seconds = command.timeout or _LONGEST
        options: Any = {"argv": command.command} if isinstance(command.command, list) else {"command": command.command}
        run = await self._client.exec(
            timeout=seconds + 60, deadline=seconds, environment=command.env, directory=command.cwd, on_input="wait",
            streams="merged" if command.merge_output_streams else "separate", max_output=0, startup_file="", **options,
        )  # fmt: skip
        if run.cause == "deadline":
            raise CommandTimeoutError(f"Timeout ({command.timeout}s) exceeded while running command")
        if command.check and run.exit_code:
            raise NonZeroExitCodeError(f"{command.error_msg} exit code {run.exit_code}: {run.stdout}{run.stderr}")
        return CommandResponse(stdout=run.stdout or "", stderr=run.stderr or "", exit_code=run.exit_code)

    async def read_file(self, request: Any) -> ReadFileResponse:
        """Return the text of a file."""
        try:
            content = (await self._client.files.read_raw(request.path)).content
        except FileNotFound:
            raise FileNotFoundError(request.path) from None
        return ReadFileResponse(content=content.decode(request.encoding or "utf-8", request.errors or "strict"))

    async def write_file(self, request: Any) -> WriteFileResponse:
        """Make or replace a file."""
        await self._client.files.write_raw(request.path, request.content.encode())
        return WriteFileResponse()

    async def upload(self, request: Any) -> UploadResponse:
        """Put a file or a directory of this machine into the daemon's."""
        source = Path(request.source_path)
        if source.is_file():
            await self._client.files.write_raw(request.target_path, source.read_bytes())
            return UploadResponse()
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz") as tar:
            tar.add(source, arcname=".")
        await self._client.files.write_archive(request.target_path, packed.getvalue())
        return UploadResponse()

    async def close(self) -> CloseResponse:
        """End all sessions."""
        for shell in self._sessions.values():
            await shell.close()
        self._sessions.clear()
        await self._client.close()
        return CloseResponse()

    def _shell(self, name: str) -> Any:
        if name not in self._sessions:
            raise SessionDoesNotExistError(f"session {name!r} does not exist")
        return self._sessions[name]
