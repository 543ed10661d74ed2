"""shelld-py as a sandbox of OpenAI's Agents SDK. Made with openai-agents 0.24.0.

`SandboxRunConfig(client=ShelldSandboxClient())`; the daemon wants `files.allowed_directories = ["/"]`.
"""

import io
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from agents.sandbox import ExecResult, Manifest, User, errors
from agents.sandbox.session import BaseSandboxClient, BaseSandboxSession, SandboxSession, SandboxSessionState
from agents.sandbox.snapshot import resolve_snapshot

from shelld_py import AsyncClient, ShelldError

_PIPES: dict[str, Any] = {"streams": "pipes", "format": "raw", "max_output": 0}
_WRITE = 'mkdir -p -- "${1%/*}" && cat >"$1"'


class ShelldSandboxState(SandboxSessionState):
    """What is kept of a session: whether its directory is its own."""

    type: Literal["shelld"] = "shelld"
    owned: bool = False


class ShelldSandboxSession(BaseSandboxSession):
    """A directory in the computer of a daemon; each command in a shell of its own, killed when its time is over."""

    def __init__(self, client: AsyncClient, state: ShelldSandboxState) -> None:
        self.client, self.state = client, state

    async def _prepare_backend_workspace(self) -> None:
        await self.client.exec(argv=["mkdir", "-p", "--", self.state.manifest.root], streams="pipes")

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    async def exec(self, *command: Any, timeout: Any = None, shell: Any = True, user: Any = None) -> ExecResult:
        """Run a command. Raises `ExecTimeoutError`, `ExecTransportError`."""
        prepared = self._prepare_exec_command(*command, shell=shell, user=None)
        return await self._exec_internal(*prepared, timeout=timeout, user=user)

    async def _exec_internal(self, *command: Any, timeout: Any = None, user: Any = None, **more: Any) -> ExecResult:
        root, who = self.state.manifest.root, user.name if isinstance(user, User) else user
        with_it = {"environment": await self.state.manifest.environment.resolve(), "user": who, "deadline": timeout}
        try:
            run = await self.client.exec(argv=[*map(str, command)], directory=root, **with_it, **_PIPES, **more)
        except ShelldError as error:
            raise errors.ExecTransportError(command=command, cause=error) from error
        if run.cause == "deadline":
            raise errors.ExecTimeoutError(command=command, timeout_s=timeout)
        out, err = ((text or "").encode("utf-8", "surrogateescape") for text in (run.stdout, run.stderr))
        return ExecResult(stdout=out, stderr=err, exit_code=1 if run.exit_code is None else run.exit_code)

    async def read(self, path: Path, *, user: Any = None) -> io.IOBase:
        """Return what a file holds. Raises `WorkspaceReadNotFoundError`, `WorkspaceArchiveReadError`."""
        checked = await (self._check_read_with_exec(path, user=user) if user else self._validate_path_access(path))
        try:
            return io.BytesIO((await self.client.files.read_raw(str(checked))).content)
        except ShelldError as error:
            kinds = {"file_not_found": errors.WorkspaceReadNotFoundError}
            raise kinds.get(error.code, errors.WorkspaceArchiveReadError)(path=path, cause=error) from error

    async def write(self, path: Path, data: Any, *, user: Any = None) -> None:
        """Make or replace a file, with the directories above it. Raises `WorkspaceArchiveWriteError`."""
        target = await self._validate_path_access(path, for_write=True)
        done = await self._exec_internal("sh", "-c", _WRITE, "sh", target, user=user, stdin=data.read())
        if not done.ok():
            raise errors.WorkspaceArchiveWriteError(path=path, context={"stderr": done.stderr.decode(errors="replace")})

    async def running(self) -> bool:
        """Tell whether the daemon answers."""
        with suppress(ShelldError):
            return bool(await self.client.health())
        return False

    async def persist_workspace(self) -> io.IOBase:
        """Return the directory as a tar, without what the manifest says is not to be kept."""
        left_out, root = [f"/{path}" for path in self._persist_workspace_skip_relpaths()], self.state.manifest.root
        return io.BytesIO(await self.client.files.read_archive(root, format="tar", exclude=left_out))

    async def hydrate_workspace(self, data: Any) -> None:
        """Unpack a tar into the directory."""
        await self.client.files.write_archive(self.state.manifest.root, data.read(), format="tar")


class ShelldSandboxClient(BaseSandboxClient[None]):
    """Makes sessions in the computer of a daemon, each in a directory of its own unless its manifest names a root."""

    backend_id, supports_default_options = "shelld", True

    def __init__(self, url: str | None = None, key: str | None = None) -> None:
        self._client = AsyncClient(url, key)

    async def create(self, *, snapshot: Any = None, manifest: Any = None, options: Any = None) -> SandboxSession:
        """Make a session."""
        manifest, name = self._validate_manifest_for_create(manifest or Manifest()), uuid.uuid4()
        if owned := manifest.root == Manifest().root:
            root = f"{(await self._client.metadata()).workspace_directory}/{name.hex[:8]}"
            manifest = manifest.model_copy(update={"root": root}, deep=True)
        kept = resolve_snapshot(snapshot, str(name))
        return await self.resume(ShelldSandboxState(session_id=name, snapshot=kept, manifest=manifest, owned=owned))

    async def resume(self, state: Any) -> SandboxSession:
        """Go on with a session where it was, or where its snapshot says."""
        return self._wrap_session(ShelldSandboxSession(self._client, state))

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """Remove the directory of a session, if it was made for it."""
        if session.state.owned:
            await self._client.exec(argv=["rm", "-rf", "--", session.state.manifest.root], streams="pipes")
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Read what `serialize_session_state` wrote."""
        return self._deserialize_session_state_payload(payload, ShelldSandboxState)
