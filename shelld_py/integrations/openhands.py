"""shelld-py as a workspace of OpenHands. Made with openhands-sdk 1.58.0.

`ShelldWorkspace(working_dir="/workspace")`; the daemon is that of `url` and `key`, or of `SHELLD_URL` and
`SHELLD_KEY`. It wants `files.allowed_directories = ["/"]`. There is no pausing: an idle daemon costs nothing.
"""

from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from openhands.sdk.git.models import GitChange, GitChangeStatus, GitDiff
from openhands.sdk.workspace import BaseWorkspace
from openhands.sdk.workspace.models import CommandResult, FileOperationResult

from shelld_py import Client, ShelldError

_STATUS = {"A": GitChangeStatus.ADDED, "?": GitChangeStatus.ADDED, "D": GitChangeStatus.DELETED}


class ShelldWorkspace(BaseWorkspace):
    """The computer of a daemon: each command in a shell of its own, killed when its time is over."""

    url: str | None = None
    key: str | None = None

    @cached_property
    def client(self) -> Client:
        """What speaks to the daemon."""
        return Client(self.url, self.key)

    def execute_command(self, command: str, cwd: str | Path | None = None, timeout: float = 30.0) -> CommandResult:
        """Run a command."""
        run = self.client.exec(
            command, directory=str(cwd or self.working_dir), deadline=timeout, streams="pipes", max_output=0
        )
        late = run.cause == "deadline"
        code = -1 if late or run.exit_code is None else run.exit_code
        return CommandResult(
            command=command, exit_code=code, stdout=run.stdout or "", stderr=run.stderr or "", timeout_occurred=late
        )

    def file_upload(self, source_path: str | Path, destination_path: str | Path) -> FileOperationResult:
        """Put a file of this machine into the workspace."""

        def copy() -> int:
            self.client.files.upload(source_path, self._path(destination_path))
            return Path(source_path).stat().st_size

        return _tried(copy, source_path, destination_path)

    def file_download(self, source_path: str | Path, destination_path: str | Path) -> FileOperationResult:
        """Get a file of the workspace."""

        def copy() -> int:
            content = self.client.files.read_raw(self._path(source_path)).content
            Path(destination_path).parent.mkdir(parents=True, exist_ok=True)
            return Path(destination_path).write_bytes(content)

        return _tried(copy, source_path, destination_path)

    def git_changes(self, path: str | Path) -> list[GitChange]:
        """Return what differs from the last commit."""
        found = self._git(path, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
        entries = [(line[:2].strip()[:1], line[3:]) for line in found.split("\0") if line]
        return [GitChange(status=_STATUS.get(kind, GitChangeStatus.UPDATED), path=Path(name)) for kind, name in entries]

    def git_diff(self, path: str | Path) -> GitDiff:
        """Return a file as the last commit has it, and as it is."""
        where = Path(self._path(path))
        run = self.client.exec(
            argv=["git", "show", f"HEAD:./{where.name}"], directory=str(where.parent), streams="pipes", max_output=0
        )
        now = self.client.exec(argv=["cat", "--", str(where)], streams="pipes", max_output=0)
        return GitDiff(
            original=run.stdout if run.exit_code == 0 else None, modified=now.stdout if now.exit_code == 0 else None
        )

    def _git(self, path: str | Path, *arguments: str) -> str:
        run = self.client.exec(
            argv=["git", *arguments], directory=self._path(path), streams="pipes", format="raw", max_output=0
        )
        if run.exit_code:
            raise RuntimeError(run.stderr)
        return run.stdout or ""

    def _path(self, path: str | Path) -> str:
        return str(Path(self.working_dir, path))


def _tried(copy: Callable[[], int], source: str | Path, destination: str | Path) -> FileOperationResult:
    paths = {"source_path": str(source), "destination_path": str(destination)}
    try:
        return FileOperationResult(success=True, file_size=copy(), **paths)
    except (ShelldError, OSError) as error:
        return FileOperationResult(success=False, error=str(error), **paths)
