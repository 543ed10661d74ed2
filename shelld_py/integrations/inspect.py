"""shelld-py as the sandbox of Inspect AI: `sandbox="shelld"`. Made with inspect_ai 0.3.285.

The daemon is that of `SHELLD_URL` and `SHELLD_KEY`; it wants `files.allowed_directories = ["/"]` and a large
`server.max_body`. Each sample works in a directory of its own, which is removed at its end.
"""

import errno
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)

from shelld_py import AsyncClient
from shelld_py.errors import FileNotFound, NotADirectory, NotAFile, PermissionDenied, RangeNotSatisfiable

_LONGEST = 1800
_CANNOT_EXECUTE = 126


@sandboxenv(name="shelld")
class ShelldSandbox(SandboxEnvironment):
    """A directory in the computer of a daemon."""

    def __init__(self, client: AsyncClient, directory: str, user: str) -> None:
        super().__init__()
        self._client, self._directory, self._user = client, directory, user

    @classmethod
    async def sample_init(cls, task_name: str, config: Any, metadata: dict[str, str]) -> dict[str, SandboxEnvironment]:
        """Make the directory of a sample."""
        client = AsyncClient()
        computer = await client.metadata()
        sandbox = cls(client, f"{computer.workspace_directory}/{uuid.uuid4().hex[:8]}", computer.user)
        await client.exec(argv=["mkdir", "-p", sandbox._directory])
        return {"default": sandbox}

    @classmethod
    async def sample_cleanup(
        cls, task_name: str, config: Any, environments: dict[str, SandboxEnvironment], interrupted: bool
    ) -> None:
        """Remove it."""
        for sandbox in environments.values():
            if isinstance(sandbox, cls):
                await sandbox._client.exec(argv=["rm", "-rf", sandbox._directory])
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
        if user is not None and user != self._user:
            raise SandboxUserUnsupportedError(f"commands run as {self._user}, not as {user!r}")
        arguments, spool, client = list(cmd), "", self._client
        if input is not None:  # any bytes, and as many as one likes
            spool = f"/tmp/shelld-stdin-{uuid.uuid4().hex}"  # noqa: S108 - a name that nobody can guess
            await client.files.write_raw(spool, input.encode() if isinstance(input, str) else input)
            arguments = ["bash", "-c", 'exec "$@" <"$0"', spool, *arguments]
        try:
            result = await client.exec(
                argv=arguments,
                directory=self._path(cwd or ""),
                environment={"COLUMNS": "1000", **(env or {})},
                timeout=(timeout or _LONGEST) + 60,
                deadline=timeout or _LONGEST,
                streams="separate",
                format="raw",
                on_input="wait",
                max_output=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
                startup_file="",
            )
        finally:
            if spool:
                await client.files.delete(spool)
        if result.cause == "deadline":
            raise TimeoutError(f"Command timed out after {timeout} s")
        if result.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
        out, err = (
            (text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")
            for text in (result.stdout, result.stderr)
        )
        code = result.exit_code if result.exit_code is not None else 1
        if code == _CANNOT_EXECUTE and "ermission denied" in err:
            raise PermissionError(errno.EACCES, err)
        return ExecResult(code == 0, code, out, err)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """Make or replace a file."""
        with _errors(file):
            await self._client.files.write_raw(
                self._path(file), contents.encode() if isinstance(contents, str) else contents
            )

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...
    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """Return what a file holds. Raises `OutputLimitExceededError`."""
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        with _errors(file):
            try:
                content = (await self._client.files.read_raw(self._path(file), start=0, length=limit + 1)).content
            except RangeNotSatisfiable:  # it is empty
                content = b""
        if len(content) > limit:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None)
        return content.decode() if text else content

    def _path(self, file: str) -> str:
        return os.path.join(self._directory, file)


@contextmanager
def _errors(file: str) -> Iterator[None]:
    try:
        yield
    except FileNotFound:
        raise FileNotFoundError(errno.ENOENT, "no such file", file) from None
    except (NotAFile, NotADirectory):
        raise IsADirectoryError(errno.EISDIR, "is a directory", file) from None
    except PermissionDenied as error:
        raise PermissionError(errno.EACCES, error.detail, file) from None
