"""Directories for runs, made before they are needed, and shown when there is something to show.

On a journaling file system each file that is created costs a tenth of a millisecond (ext4, measured), and
each rename a hundredth, which is more than a quick command takes. So a spare directory with its files lies
ready. A run takes it as it is; with its first snapshot it is published, by one rename: until then it lies
beside the directory of all runs, and what lies there is nobody's after a crash. The next spare is made
after a run has been answered, out of the directory of a run that is no longer kept if there is one: then
nothing is created or removed at all.
"""

import os
from pathlib import Path
from typing import Final

from shelld_py.linux.removal import remove_tree

OUTPUT_LOG: Final = "output.log"
STDERR_LOG: Final = "stderr.log"
SNAPSHOT: Final = "snapshot.json"
NEW_SNAPSHOT: Final = "snapshot.json.new"

_READY_FILES: Final = (OUTPUT_LOG, SNAPSHOT)
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class RunDirectories:
    """The directories below `root`, one for each run; those that are not published yet lie below `private`.

    Both must be of one file system, and nobody else's.
    """

    def __init__(self, root: Path, private: Path) -> None:
        self._root = root
        self._private = private
        self._made = 0
        self._spare: str | None = None
        self._unpublished: dict[str, str] = {}

    def open(self) -> None:
        """Make the two directories where they are missing, and remove what an earlier daemon had not published.

        Raises `OSError`.
        """
        self._root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._private.mkdir(exist_ok=True, mode=0o700)
        for name in os.listdir(self._private):
            remove_tree(f"{self._private}/{name}")

    def path(self, run_id: str) -> str:
        """Return where the files of a run lie."""
        return self._unpublished.get(run_id) or f"{self._root}/{run_id}"

    def take(self, run_id: str) -> None:
        """Make the directory of a run. Raises `OSError`."""
        self._unpublished[run_id] = self._spare or self._made_spare()
        self._spare = None

    def published(self, run_id: str) -> bool:
        """Return whether the directory of a run has its own name already."""
        return run_id not in self._unpublished

    def prepare(self, expired: str | None) -> None:
        """Make the spare directory, out of that of the run `expired` if there is one. Raises `OSError`."""
        if expired is not None and (self._spare or not self._reused(expired)):
            self.remove(expired)
        if self._spare is None:
            self._spare = self._made_spare()

    def replace_snapshot(self, run_id: str, snapshot: bytes) -> bool:
        """Replace the snapshot of a run, atomically; return whether that has published its directory.

        Raises `OSError`.
        """
        path = self.path(run_id)
        unpublished = run_id in self._unpublished
        written_to = f"{path}/{SNAPSHOT if unpublished else NEW_SNAPSHOT}"
        _write_file(written_to, snapshot)
        if unpublished:
            os.rename(path, f"{self._root}/{run_id}")
            del self._unpublished[run_id]
        else:
            os.rename(written_to, f"{path}/{SNAPSHOT}")
        return unpublished

    def read_snapshot(self, run_id: str) -> bytes:
        """Return the snapshot of a run. Raises `OSError`."""
        with open(f"{self.path(run_id)}/{SNAPSHOT}", "rb", buffering=0) as file:
            return file.readall()

    def remove(self, run_id: str) -> None:
        """Remove the directory of a run."""
        remove_tree(self.path(run_id))
        self._unpublished.pop(run_id, None)

    def found(self) -> list[str]:
        """Return the runs that have a directory."""
        return os.listdir(self._root)

    def _next_private(self) -> str:
        self._made += 1
        return f"{self._private}/{self._made}"

    def _made_spare(self) -> str:
        path = self._next_private()
        os.mkdir(path, 0o700)
        for name in _READY_FILES:
            os.close(os.open(f"{path}/{name}", _WRITE, 0o600))
        return path

    def _reused(self, run_id: str) -> bool:
        """Make the directory of a run the spare one; its old snapshot is overwritten before it is seen again."""
        path, private = self.path(run_id), self._next_private()
        try:
            for entry in list(os.scandir(path)):
                if entry.name not in _READY_FILES:
                    os.unlink(entry.path)
                elif entry.name == OUTPUT_LOG and entry.stat().st_size:
                    os.truncate(entry.path, 0)
            os.rename(path, private)
        except OSError:
            return False
        self._spare = private
        return True


def _write_file(path: str, content: bytes) -> None:
    """Make `content` that of a file, without freeing first what it occupies."""
    descriptor = os.open(path, _WRITE, 0o600)
    try:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        if os.fstat(descriptor).st_size > written:
            os.ftruncate(descriptor, written)
    finally:
        os.close(descriptor)
