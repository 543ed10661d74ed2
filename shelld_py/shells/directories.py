"""Directories for runs, made before they are needed, and shown when there is something to show.

On a journaling file system each file that is created costs a tenth of a millisecond (ext4, measured), and
each rename a hundredth, which is more than a quick command takes. So a spare directory with its files lies
ready. A run takes it as it is; with its first snapshot it is published, by one rename: until then it lies
beside the directory of all runs, and what lies there is nobody's after a crash. The next spare is made
after a run has been answered, out of the directory of a run that is no longer kept if there is one: then
nothing is created or removed at all.
"""

import logging
import os
import stat
import threading
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Final

from shelld_py.linux.descriptors import Descriptor
from shelld_py.linux.removal import remove_tree
from shelld_py.models import Stream
from shelld_py.shells.data_directory import calling, own_directory

LOG_NAMES: Final = {Stream.STDOUT: "output.log", Stream.STDERR: "stderr.log"}
SNAPSHOT: Final = "snapshot.json"
NEW_SNAPSHOT: Final = "snapshot.json.new"

LARGEST_SNAPSHOT: Final = 256 * 1024 * 1024
"""Bytes of a snapshot that is believed: a command of `server.max_body` that is escaped throughout is far below."""

_READY_FILES: Final = (LOG_NAMES[Stream.STDOUT], SNAPSHOT)
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_FEW_FILES: Final = 16
_FEW_BYTES: Final = 16 * 1024 * 1024
"""What is removed at once: freeing the blocks of so much takes about a millisecond, on ext4."""


class RunDirectories:
    """The directories below `root`, one for each run; those that are not published yet lie below `private`.

    Both must be of one file system, and nobody else's.
    """

    def __init__(self, root: Path, private: Path) -> None:
        self.root = root
        self._private = private
        self._made = 0
        self._spare: str | None = None
        self._unpublished: dict[str, str] = {}
        self._vacated: list[str] = []

    def open(self, logger: logging.Logger) -> None:
        """Make the two directories where they are missing, and remove what an earlier daemon had not published.

        Raises `ConfigError`.
        """
        self.make(logger)
        with calling("opendir", self._private):
            left = [name for name in os.listdir(self._private) if name.isdecimal()]
        self._made = max(map(_number, left), default=0)
        self._remove_in_background([f"{self._private}/{name}" for name in left])

    def make(self, logger: logging.Logger) -> None:
        """Make the two directories where they are missing. Raises `ConfigError`."""
        own_directory(self.root, logger)
        own_directory(self._private, logger)

    @property
    def ready(self) -> bool:
        """Whether there is a directory for the next run, and nothing to be put in order."""
        return self._spare is not None and not self._vacated

    def path(self, run_id: str) -> str:
        """Return where the files of a run lie."""
        return self._unpublished.get(run_id) or f"{self.root}/{run_id}"

    def log_path(self, run_id: str, stream: Stream) -> str:
        """Return where a log of a run lies."""
        return f"{self.path(run_id)}/{LOG_NAMES[stream]}"

    def take(self, run_id: str) -> None:
        """Make the directory of a run. Raises `OSError`."""
        spare, self._spare = self._spare, None
        # A command may have removed it.
        self._unpublished[run_id] = spare if spare and os.path.isdir(spare) else self._made_spare()

    def published(self, run_id: str) -> bool:
        """Return whether the directory of a run has its own name already."""
        return run_id not in self._unpublished

    def give_back(self, run_id: str) -> None:
        """Take back the directory of a run that needs none, and was never shown: it can be the spare one."""
        if path := self._unpublished.pop(run_id, None):
            self._vacated.append(path)

    def prepare(self, expired: str | None) -> None:
        """Make the spare directory, out of one that is not needed any more, such as that of the run `expired`.

        Raises `OSError`.
        """
        vacated, self._vacated = self._vacated, []
        for path in vacated:
            if self._spare or not self._reused(path, path):
                self._remove(path)
        if expired is not None:
            if self._spare or not self._reused(self.path(expired), self._next_private()):
                self.remove_all([expired])
            self._unpublished.pop(expired, None)
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
            os.rename(path, f"{self.root}/{run_id}")
            del self._unpublished[run_id]
        else:
            os.rename(written_to, f"{path}/{SNAPSHOT}")
        return unpublished

    def read_snapshot(self, run_id: str) -> bytes:
        """Return the snapshot of a run. Raises `OSError`."""
        # Not blocking: what lies there may be a FIFO by now.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with open(os.open(f"{self.path(run_id)}/{SNAPSHOT}", flags), "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_size > LARGEST_SNAPSHOT:
                raise OSError(f"{SNAPSHOT} is not a regular file of at most {LARGEST_SNAPSHOT} bytes")
            return file.readall()

    def remove_all(self, run_ids: Iterable[str]) -> None:
        """Remove the directories of runs: gone from among the runs at once, from the disk later if they are large."""
        left = []
        for run_id in run_ids:
            path, private = self.path(run_id), self._next_private()
            self._unpublished.pop(run_id, None)
            with suppress(OSError):
                os.rename(path, private)
                left.append(private)
        if len(left) > 1 or (left and not _removed_at_once(left[0])):
            self._remove_in_background(left)

    def _remove(self, path: str) -> None:
        if not _removed_at_once(path):
            self._remove_in_background([path])

    def found(self) -> list[str]:
        """Return the names of what lies among the runs. Raises `ConfigError`."""
        with calling("opendir", self.root):
            return os.listdir(self.root)

    def files(self, run_id: str) -> list[str]:
        """Return the names of the files in the directory of a run; none where it is no directory."""
        try:
            return os.listdir(self.path(run_id))
        except OSError:
            return []

    def changed_at(self, run_id: str) -> float:
        """Return when the directory of a run was changed, in seconds since the epoch; 0 where nobody knows."""
        try:
            return os.lstat(self.path(run_id)).st_mtime
        except OSError:
            return 0.0

    def _remove_in_background(self, paths: list[str]) -> None:
        """Remove directories in a thread. It is a daemon's: nobody waits for it at the end, the next start goes on."""
        if paths:
            threading.Thread(target=_remove_all, args=(paths,), name="removal", daemon=True).start()

    def _next_private(self) -> str:
        self._made += 1
        return f"{self._private}/{self._made}"

    def _made_spare(self) -> str:
        path = self._next_private()
        os.mkdir(path, 0o700)
        for name in _READY_FILES:
            os.close(os.open(f"{path}/{name}", _WRITE, 0o600))
        return path

    def _reused(self, path: str, private: str) -> bool:
        """Make the directory of a run the spare one; its old snapshot is overwritten before it is seen again."""
        try:
            for entry in list(os.scandir(path)):
                if entry.name not in _READY_FILES or not entry.is_file(follow_symlinks=False):
                    os.unlink(entry.path)
                elif entry.name == LOG_NAMES[Stream.STDOUT] and entry.stat().st_size:
                    os.truncate(entry.path, 0)
            os.rename(path, private)
        except OSError:
            return False
        self._spare = private
        return True


def _write_file(path: str, content: bytes) -> None:
    """Make `content` that of a file, without freeing first what it occupies."""
    with Descriptor(os.open(path, _WRITE, 0o600)) as descriptor:
        written = 0
        while written < len(content):
            written += os.write(descriptor, content[written:])
        if os.fstat(descriptor).st_size > written:
            os.ftruncate(descriptor, written)


def _number(name: str) -> int:
    """Return the number that a private directory has for a name; 0 for one that is not as they are given."""
    return int(name) if len(name) < 20 and name.isascii() else 0


def _removed_at_once(path: str) -> bool:
    """Remove a directory that holds but a few small files; return whether it was such a one."""
    try:
        with os.scandir(path) as found:
            entries = [entry for entry, _ in zip(found, range(_FEW_FILES), strict=False)]
        if sum(entry.stat(follow_symlinks=False).st_blocks * 512 for entry in entries) > _FEW_BYTES:
            return False
        for entry in entries:
            os.unlink(entry.path)
        os.rmdir(path)
    except OSError:
        return False
    return True


def _remove_all(paths: list[str]) -> None:
    for path in paths:
        remove_tree(path)
