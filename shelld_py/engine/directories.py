"""Directories for runs, made before they are needed.

On a journaling file system each file that is created costs a tenth of a millisecond (ext4, measured), which
is more than a quick command takes. So one spare directory with its files lies ready, and becomes a run's by
a rename. It is made after a run has been answered, out of the directory of a run that is no longer kept if
there is one: then nothing is created or removed at all.
"""

import os
import shutil
from pathlib import Path
from typing import Final

OUTPUT_LOG: Final = "output.log"
STDERR_LOG: Final = "stderr.log"
SNAPSHOT: Final = "snapshot.json"
NEW_SNAPSHOT: Final = "snapshot.json.new"

_READY_FILES: Final = (OUTPUT_LOG, NEW_SNAPSHOT)
_SPARE: Final = "+spare"
"""No run can be called that: see `RunId`."""
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


class RunDirectories:
    """The directories below `root`, one for each run."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._spare = f"{root}/{_SPARE}"
        self._ready = False

    def path(self, run_id: str) -> str:
        """Return where the files of a run lie."""
        return f"{self._root}/{run_id}"

    def take(self, run_id: str) -> None:
        """Make the directory of a run. Raises `OSError`."""
        self.prepare(None)
        self._ready = False
        os.rename(self._spare, self.path(run_id))

    def prepare(self, expired: str | None) -> None:
        """Make the spare directory, out of that of the run `expired` if there is one. Raises `OSError`."""
        if self._ready:
            if expired is not None:
                self.remove(expired)
            return
        if expired is None or not self._reuse(expired):
            shutil.rmtree(self._spare, ignore_errors=True)
            os.mkdir(self._spare, 0o700)
            for name in _READY_FILES:
                os.close(os.open(f"{self._spare}/{name}", _WRITE, 0o600))
        self._ready = True

    def replace_snapshot(self, run_id: str, snapshot: bytes) -> None:
        """Replace the snapshot of a run, atomically. Raises `OSError`."""
        path = self.path(run_id)
        with open(os.open(f"{path}/{NEW_SNAPSHOT}", _WRITE, 0o600), "wb", buffering=0) as file:
            written = 0
            while written < len(snapshot):
                written += file.write(snapshot[written:])
            if os.fstat(file.fileno()).st_size > written:
                file.truncate(written)
        os.rename(f"{path}/{NEW_SNAPSHOT}", f"{path}/{SNAPSHOT}")

    def read_snapshot(self, run_id: str) -> bytes:
        """Return the snapshot of a run. Raises `OSError`."""
        with open(f"{self.path(run_id)}/{SNAPSHOT}", "rb", buffering=0) as file:
            return file.readall()

    def remove(self, run_id: str) -> None:
        """Remove the directory of a run."""
        shutil.rmtree(self.path(run_id), ignore_errors=True)

    def found(self) -> list[str]:
        """Return the runs that have a directory. What an earlier daemon had made in advance is removed."""
        shutil.rmtree(self._spare, ignore_errors=True)
        return os.listdir(self._root)

    def _reuse(self, run_id: str) -> bool:
        """Make the directory of a run the spare one. Its old snapshot becomes the file for a new one."""
        path = self.path(run_id)
        try:
            for entry in list(os.scandir(path)):
                if entry.name == SNAPSHOT:
                    os.rename(entry.path, f"{path}/{NEW_SNAPSHOT}")
                elif entry.name != OUTPUT_LOG:
                    os.unlink(entry.path)
                elif entry.stat().st_size:
                    os.truncate(entry.path, 0)
            os.rename(path, self._spare)
        except OSError:
            self.remove(run_id)
            return False
        return True
