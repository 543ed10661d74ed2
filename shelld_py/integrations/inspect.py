"""shelld-py as the sandbox of Inspect AI: `sandbox="shelld"`. Made with inspect_ai 0.3.285.

The daemon is that of `SHELLD_URL` and `SHELLD_KEY`; it wants `files.allowed_directories = ["/"]` and a large
`server.max_body`. Each sample works in a directory of its own, which is removed at its end.
"""

import errno
import os
import uuid
from typing import Any, Literal, overload

from inspect_ai import util
from inspect_ai.util import ExecResult, SandboxEnvironment

from shelld_py import AsyncClient
from shelld_py.client import os_errors
from shelld_py.errors import InvalidRequest, UserNotAllowed

_LONGEST = 24 * 3600
_CANNOT_EXECUTE = 126


@util.sandboxenv(name="shelld")
class ShelldSandbox(SandboxEnvironment):
    """A directory in the computer of a daemon."""

    def __init__(self, client: AsyncClient, directory: str) -> None:
        super().__init__()
        self._client, self._directory = client, directory

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Make the directory of a sample."""
        client = AsyncClient()
        sandbox = cls(client, f"{(await client.metadata()).workspace_directory}/{uuid.uuid4().hex[:8]}")
        await client.exec(argv=["mkdir", "-p", sandbox._directory], streams="pipes")
        return {"default": sandbox}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Remove it."""
        for sandbox in environments.values():
            if isinstance(sandbox, cls):
                await sandbox._client.exec(argv=["rm", "-rf", sandbox._directory], streams="pipes")
                await sandbox._client.close()

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,  # noqa: A002
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a program. Raises `TimeoutError`, `PermissionError`, `OutputLimitExceededError`."""
        limits = util.SandboxEnvironmentLimits
        try:
            run = await self._client.exec(
                argv=cmd,
                stdin=input.encode() if isinstance(input, str) else input,
                directory=self._path(cwd or ""),
                environment=env,
                user=user,
                deadline=timeout or _LONGEST,
                streams="pipes",
                format="raw",
                max_output=limits.MAX_EXEC_OUTPUT_SIZE,
            )
        except UserNotAllowed as error:
            raise util.SandboxUserUnsupportedError(error.detail) from None
        except InvalidRequest as error:
            if not error.detail.startswith("user:"):
                raise
            return ExecResult(False, _CANNOT_EXECUTE, "", error.detail)  # there is no such user
        if run.cause == "deadline":
            raise TimeoutError(f"Command timed out after {timeout or _LONGEST} s")
        if run.truncated:
            raise util.OutputLimitExceededError(limits.MAX_EXEC_OUTPUT_SIZE_STR, run.stdout)
        out, err = (
            (text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            for text in (run.stdout, run.stderr)
        )
        if run.exit_code == _CANNOT_EXECUTE and "ermission denied" in err:
            raise PermissionError(errno.EACCES, err)
        code = 1 if run.exit_code is None else run.exit_code
        return ExecResult(code == 0, code, out, err)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Make or replace a file."""
        content = contents.encode() if isinstance(contents, str) else contents
        with os_errors(file):
            await self._client.files.write_raw(self._path(file), content)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return what a file holds. Raises `OutputLimitExceededError`."""
        limits = util.SandboxEnvironmentLimits
        with os_errors(file):
            raw = await self._client.files.read_raw(self._path(file), length=limits.MAX_READ_FILE_SIZE + 1)
        if len(raw.content) > limits.MAX_READ_FILE_SIZE:
            raise util.OutputLimitExceededError(limits.MAX_READ_FILE_SIZE_STR, None)
        return raw.content.decode() if text else raw.content

    def _path(self, file: str) -> str:
        return os.path.join(self._directory, file)
