"""What is needed to undo: for each file its last changes, with the content before in a private directory.

Keeps steps and hands them out; whether a step may be undone and the undoing itself are the service's. Backups
serve this process only: the directory is emptied at start and end, so they need no syncing. The index is guarded
by a lock, for operations on different files come from different threads.

A diff is kept as it was told when the change was made. To make it later would need what the file was after the change,
which nobody keeps where a command has changed it since.
"""

import contextlib
import errno
import fcntl
import itertools
import os
import re
import secrets
import signal
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from shelld_py.errors import ConfigError
from shelld_py.files.models import Operation
from shelld_py.files.open_file import OpenFile
from shelld_py.files.storage import NO_ROOM, Attributes, FileIdentity, Fingerprint, clone, copy_content
from shelld_py.linux.descriptors import Descriptor
from shelld_py.linux.users import own_files
from shelld_py.units import format_size

_BACKUP_NAME = re.compile(r"[0-9a-f]{32}\.backup")
_MOST_DIFFS = 4 << 20
"""Characters of diffs that are kept in all, of the newest changes: those of some thousand edits."""


class Backup(Struct, frozen=True):
    """What a regular file was before a change: a copy of its content and its attributes."""

    name: str
    attributes: Attributes


class LinkBackup(Struct, frozen=True):
    """What a symbolic link said before it was deleted."""

    target: str


class NoBackup(Struct, frozen=True):
    """That no copy could be kept, and why: the change cannot be undone, nor what was done before it."""

    reason: str


class Step(Struct, frozen=True):
    """A change that can be undone. `before` and `after` are None where there was or is no file.

    `made` are the directories that were made for the file, parents first; `at` is the time on the clock, `changed_at`
    Unix time. Numbers grow with each change of any file. A forced undo holds the steps that it has taken back in
    `reverted`, the oldest first.
    """

    operation: Operation
    before: Backup | LinkBackup | None
    after: Fingerprint | None
    made: tuple[str, ...]
    at: float
    changed_at: float
    number: int
    reverted: tuple["Step", ...] = ()

    @property
    def weight(self) -> int:
        """How many steps this is with those that it holds."""
        return 1 + sum(step.weight for step in self.reverted)


class History:
    """The steps of all files, by real path, the oldest first."""

    def __init__(
        self, directory: str, *, ttl: float, max_events: int, clock: Callable[[], float], links: bool = True
    ) -> None:
        """Keep backups in `directory`, which is made if need be.

        Without `links` no backup is the file itself: it would belong to the user whose it was, not to us.

        Steps are kept for `ttl` seconds of `clock` (0: for ever), at most `max_events` of each file (0: none).

        Raises `ConfigError` when the directory cannot be private: others' things, or not ours.
        """
        self._directory = directory
        self._ttl = ttl
        self._max_events = max_events
        self._clock = clock
        self._links = links
        self._steps: dict[str, list[Step]] = {}
        self._numbers = itertools.count()
        self._diffs: dict[int, str] = {}
        """By the numbers of their steps, the oldest first; those that are empty are left out."""
        self._diff_size = 0
        self._guard = threading.Lock()
        _make_private(directory)
        self.clear()

    def save(self, file: OpenFile) -> Backup | NoBackup:
        """Keep the whole content and the attributes of an open file that is about to lose its name.

        The cheapest way that is safe: the file itself by a second name, shared blocks, or a copy with the same holes.
        Nothing is kept where that leaves no room for as much again: a file is often deleted because the disk is full,
        and a kept one would hold on to its blocks. Nor where the directory is gone or read-only: the file is not to
        suffer for that.
        """
        size = file.status.st_blocks * 512
        no_room = NoBackup(f"there is no room for a copy of {format_size(size)} in files.backup_directory")
        try:
            with own_files():
                disk = os.statvfs(self._directory)
                if size > disk.f_bavail * disk.f_frsize:
                    return no_room
                name = f"{secrets.token_hex(16)}.backup"
                if not (self._links and self._link(file, name)):
                    self._copy(file, name)
        except OSError as error:
            if error.errno in NO_ROOM:
                return no_room
            return NoBackup(f"no copy can be kept in files.backup_directory: {error.strerror}")
        return Backup(name, Attributes.of(file.descriptor))

    def _link(self, file: OpenFile, name: str) -> bool:
        """Give the file a second name in the directory; return whether it could be done and is safe.

        It is, when nobody can write into the file any more once its own name is gone: no other name leads to it, and
        nobody has it open for writing.
        """
        if file.status.st_nlink != 1:
            return False
        with _no_writers(file.descriptor) as alone:
            if not alone or FileIdentity.from_status(os.fstat(file.descriptor)) != file.identity:
                return False
            path = f"/proc/self/fd/{file.descriptor}"
            try:  # `src_dir_fd` counts for nothing here, but without one Python calls link(2), which does not follow
                os.link(path, self._path(name), src_dir_fd=file.descriptor, follow_symlinks=True)
            except OSError:  # another file system, one without links, or fs.protected_hardlinks (proc(5))
                return False
            file.identity = FileIdentity.from_status(os.fstat(file.descriptor))  # link(2) sets the time of change
        return True

    def _copy(self, file: OpenFile, name: str) -> None:
        with Descriptor(
            os.open(self._path(name), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        ) as target:
            try:
                if not clone(file.descriptor, target):
                    copy_content(file.descriptor, target, file.status.st_size)
            except BaseException:
                os.unlink(self._path(name))
                raise

    def open(self, backup: Backup) -> Descriptor:
        """Return a descriptor to read the content of `backup` from.

        Raises `FileNotFoundError` where a command has removed it, or put something else in its place.
        """
        with own_files():
            if not stat.S_ISREG(os.lstat(self._path(backup.name)).st_mode):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            return Descriptor(os.open(self._path(backup.name), flags))

    def discard(self, backup: Backup | LinkBackup | NoBackup | None) -> None:
        """Remove what is kept for a step that will not be, or is no more."""
        if isinstance(backup, Backup):
            with own_files(), contextlib.suppress(FileNotFoundError):
                os.unlink(self._path(backup.name))

    @contextlib.contextmanager
    def discarding(self, backup: Backup | LinkBackup | NoBackup | None) -> Iterator[None]:
        """Discard the backup for a change that fails."""
        try:
            yield
        except BaseException:
            self.discard(backup)
            raise

    def add(
        self,
        path: str,
        operation: Operation,
        before: Backup | LinkBackup | NoBackup | None,
        after: Fingerprint | None,
        made: tuple[str, ...] = (),
    ) -> None:
        """Remember a change of `path`; the oldest beyond the limit is forgotten, and all where one is missing."""
        with self._guard:
            if isinstance(before, NoBackup):
                self._drop(path, len(self._steps.get(path, ())))
            else:
                self._append(path, self._step(operation, before, after, made))

    def describe(self, path: str, diff: str) -> None:
        """Keep what the last change of `path` has made of it."""
        with self._guard:
            if diff and (steps := self._steps.get(path)):
                self._diffs[steps[-1].number] = diff
                self._diff_size += len(diff)
                while self._diff_size > _MOST_DIFFS:
                    self._forget_diff(next(iter(self._diffs)))

    def changes(self, path: str) -> list[tuple[str, Step, str]]:
        """Return the steps of the file `path`, or of all below it, the newest first, with their paths and diffs."""
        with self._guard:
            self._expire(*self._steps)
            below = path.rstrip("/") + "/"
            found = [
                (each, step, self._diffs.get(step.number, ""))
                for each, steps in self._steps.items()
                if each == path or each.startswith(below)
                for step in steps
            ]
        return sorted(found, key=lambda each: each[1].number, reverse=True)

    def last(self, path: str, *, past_undos: bool = False) -> Sequence[Step]:
        """Return the steps that an undo of `path` takes back, the one whose state it restores first.

        That is the most recent one; with `past_undos` the most recent one that is no forced undo, if there is one,
        and all after it. Empty when no step is kept.
        """
        with self._guard:
            self._expire(path)
            steps = self._steps.get(path, [])
            undos = 0
            if past_undos:
                undos = len(list(itertools.takewhile(lambda step: step.operation is Operation.UNDO, reversed(steps))))
            return steps[-undos - 1 :] if undos < len(steps) else steps[-1:]

    def take_back(self, path: str, step: Step) -> None:
        """Forget the last step, which was undone; those that it had taken back are there again."""
        with self._guard:
            steps = self._steps.get(path, [])
            if steps and steps[-1] is step:  # else it grew too old in the meantime
                steps.pop()
                self._forget_diff(step.number)
                self.discard(step.before)
                steps += step.reverted
                if not steps:
                    del self._steps[path]

    def fold(
        self,
        path: str,
        taken: Sequence[Step],
        before: Backup | NoBackup | None,
        after: Fingerprint | None,
        made: tuple[str, ...],
    ) -> None:
        """Put a forced undo in the place of the last steps `taken`, which it has taken back."""
        with self._guard:
            if isinstance(before, NoBackup):
                self._drop(path, len(self._steps.get(path, ())))
                return
            steps = self._steps.get(path, [])
            held = tuple(step for step in taken if step in steps)
            if held:
                del steps[-len(held) :]
            self._append(path, self._step(Operation.UNDO, before, after, made, held))

    def depth(self, path: str) -> int:
        """Return how many steps of `path` can be undone."""
        with self._guard:
            self._expire(path)
            return len(self._steps.get(path, ()))

    def forget(self, path: str) -> None:
        """Forget all steps of `path`."""
        with self._guard:
            self._drop(path, len(self._steps.get(path, ())))

    def expire(self) -> None:
        """Forget what is older than the time to live."""
        with self._guard:
            self._expire(*self._steps)

    def clear(self) -> None:
        """Forget everything and empty the directory, of leftovers of other processes too."""
        with self._guard:
            self._steps.clear()
            self._diffs.clear()
            self._diff_size = 0
            # A command can have removed the directory, or put something else in its place: that must not keep the
            # daemon from its end.
            with own_files(), contextlib.suppress(OSError):
                for name in os.listdir(self._directory):
                    if _BACKUP_NAME.fullmatch(name):
                        with contextlib.suppress(OSError):
                            os.unlink(self._path(name))

    def _step(
        self,
        operation: Operation,
        before: Backup | LinkBackup | None,
        after: Fingerprint | None,
        made: tuple[str, ...],
        reverted: tuple[Step, ...] = (),
    ) -> Step:
        return Step(operation, before, after, made, self._clock(), time.time(), next(self._numbers), reverted)

    def _append(self, path: str, step: Step) -> None:
        """Add a step, and forget the oldest beyond the limit; of those in forced undos as many again are kept."""
        if isinstance(step.before, Backup):
            with own_files(), contextlib.suppress(OSError):  # a command can have removed it
                # What was linked has the mode that it had, set-id bits too.
                os.chmod(self._path(step.before.name), 0o600)
        self._expire(path)
        steps = self._steps.setdefault(path, [])
        steps.append(step)
        surplus = len(steps) - self._max_events
        while surplus < len(steps) - 1 and sum(kept.weight for kept in steps[surplus:]) > 2 * self._max_events:
            surplus += 1
        self._drop(path, max(surplus, 0))

    def _expire(self, *paths: str) -> None:
        if self._ttl:
            oldest = self._clock() - self._ttl
            for path in paths:
                self._drop(path, sum(step.at < oldest for step in self._steps.get(path, ())))

    def _drop(self, path: str, count: int) -> None:
        """Forget the `count` oldest steps of `path`."""
        if not count:
            return
        steps = self._steps[path]
        self._discard_all(steps[:count])
        del steps[:count]
        if not steps:
            del self._steps[path]

    def _discard_all(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self.discard(step.before)
            self._forget_diff(step.number)
            self._discard_all(step.reverted)

    def _forget_diff(self, number: int) -> None:
        self._diff_size -= len(self._diffs.pop(number, ""))

    def _path(self, name: str) -> str:
        return os.path.join(self._directory, name)


def _make_private(directory: str) -> None:
    """Make `directory` with mode 0700, or take over one that is ours and private, or can be made so."""
    try:
        os.makedirs(directory, mode=0o700, exist_ok=True)
        status = os.lstat(directory)
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
            raise ConfigError(f"files.backup_directory: {directory} must be a directory of the daemon's own user")
        if status.st_mode & 0o077:
            if any(not _BACKUP_NAME.fullmatch(name) for name in os.listdir(directory)):
                fault = f"is open to others (mode {stat.S_IMODE(status.st_mode):04o}) and holds other files"
                raise ConfigError(f"files.backup_directory: {directory} {fault}; name an empty directory")
            os.chmod(directory, 0o700)
    except OSError as error:
        raise ConfigError(f"files.backup_directory: {directory} cannot be used: {error.strerror}") from None


@contextlib.contextmanager
def _no_writers(descriptor: int) -> Iterator[bool]:
    """Tell whether nobody has the file open for writing; as long as that lasts, nobody can open it so.

    A read lease (fcntl(2), Leases) is refused where there is a writer, mapped memory included, and where the file
    belongs to somebody else. Whoever opens the file meanwhile waits, and we get a signal: SIGURG, which does
    nothing, rather than SIGIO, whose default action would end the daemon.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGURG)
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_UNLCK)
