"""Whose the data directory is: only in one that is ours anything is changed or removed.

A directory is ours when it bears our mark, a file that says so. It gets the mark when we made it, or found it
empty and our own; one that this daemon made before there was a mark is known by what lies in it. Any other
(somebody's project, a volume with `lost+found`, the root of a volume that is shared) is left as it is, but for a
subdirectory of it that we make. Knows nothing of runs.
"""

import contextlib
import fcntl
import logging
import os
import re
import secrets
import stat
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final, TypeVar

from shelld_py.errors import ConfigError
from shelld_py.linux.descriptors import DescriptorHolder

_T = TypeVar("_T")

MARK: Final = ".shelld-py"
_LOCK: Final = "lock"
_MARK_TEXT: Final = b"The data of a shelld-py daemon, which makes, changes and removes files here.\n"
_SUBDIRECTORY: Final = "shelld-py"
_PRIVATE: Final = 0o700
_OPEN_TO_OTHERS: Final = 0o077
_WRITABLE_BY_ANYBODY: Final = 0o002
_WRITABLE_BY_GROUP: Final = 0o020

_FILE_OF_A_RUN: Final = re.compile(r"snapshot\.json(\.new)?|(output|stderr)\.log(\.\d+\.\d+)?")
_MOST_LOOKED_AT: Final = 100_000
"""Entries of a directory that are looked at to know it again; one with more is nobody's that we know."""


class HeldDirectory(DescriptorHolder):
    """The data directory, which is locked by us from `take` until `close`."""

    def __init__(self, path: Path, names: Sequence[str], make: Callable[[], None], logger: logging.Logger) -> None:
        """`make` makes what is missing of `names`, the directories in it."""
        self._path = path
        self._names = names
        self._make = make
        self._logger = logger

    def take(self) -> None:
        """Make it where it is missing, and lock it. Raises `ConfigError`."""
        with calling("mkdir", self._path):
            self._path.mkdir(parents=True, exist_ok=True, mode=_PRIVATE)
        self.descriptor = _locked(self._path / _LOCK, self._logger)

    def use(self, work: Callable[[], _T]) -> _T:
        """Do what wants the directories: once more, when they had been removed and are made anew. Raises `OSError`."""
        try:
            return work()
        except FileNotFoundError:
            if not self._made_anew():
                raise
            return work()

    def _made_anew(self) -> bool:
        """Make what is missing, which a command may have removed; whether something was."""
        if self.descriptor < 0:
            return False
        if self._path.is_dir() and all((self._path / name).is_dir() for name in self._names):
            return False
        try:
            if claim(self._path, self._logger) != self._path:
                return False
            if not is_file(self._path / _LOCK):
                held, self.descriptor = self.descriptor, _locked(self._path / _LOCK, self._logger)
                os.close(held)
            self._make()
        except ConfigError as error:
            self._logger.error("%s", error)
            return False
        self._logger.warning(
            "%s was removed by somebody else, and is made anew: the runs that had ended are lost", self._path
        )
        return True


@contextlib.contextmanager
def calling(call: str, path: str | Path) -> Iterator[None]:
    """Turn an `OSError` of the system call `call` into a `ConfigError` that names it and the setting."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"server.data_directory: {call} {str(path)!r}: {error.strerror or error}") from None


def claim(directory: Path, logger: logging.Logger) -> Path:
    """Return where to work for `server.data_directory`: there, or in a subdirectory where it is not ours.

    Makes what is missing, with mode 0700. Raises `ConfigError`.
    """
    if _claimed(directory, logger):
        return directory
    # The second name is for a volume that daemons of several users share, and for a first that is no directory.
    for name in (_SUBDIRECTORY, f"{_SUBDIRECTORY}-{os.geteuid()}"):
        below = directory / name
        if not os.path.lexists(below):
            with calling("mkdir", below):
                below.mkdir(mode=_PRIVATE)
            _mark(below, logger)
        elif not _is_directory(below) or not os.access(below, os.W_OK | os.X_OK) or not _claimed(below, logger):
            continue
        logger.warning("server.data_directory: %s is not the daemon's own: it works in %s", directory, below)
        return below
    raise ConfigError(
        f"server.data_directory: {str(directory)!r} is not the daemon's own, and neither is {str(below)!r}: "
        "give it a directory that does not exist yet, or an empty one"
    )


def own_directory(path: Path, logger: logging.Logger) -> None:
    """Make `path`, a directory within a claimed one, private to us. Raises `ConfigError`."""
    if not _is_directory(path):
        put_aside(path, logger)
    with calling("mkdir", path):
        path.mkdir(mode=_PRIVATE, exist_ok=True)
    if stat.S_IMODE(path.stat().st_mode) & _OPEN_TO_OTHERS:
        with calling("chmod", path):
            path.chmod(_PRIVATE)


def _locked(path: Path, logger: logging.Logger) -> int:
    """Lock the directory of `path`, a file; return the descriptor that holds the lock. Raises `ConfigError`."""
    if not is_file(path):
        put_aside(path, logger)
    with calling("open", path):
        held = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        with calling("flock", path):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ConfigError(
                    f"server.data_directory: {path.parent} is in use by another daemon: "
                    "give each daemon a directory of its own"
                ) from None
    except BaseException:
        os.close(held)
        raise
    return held


def put_aside(path: Path, logger: logging.Logger) -> None:
    """Rename what stands where we need something else, if anything does. Raises `ConfigError`."""
    if os.path.lexists(path):
        aside = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
        with calling("rename", path):
            path.rename(aside)
        logger.warning("server.data_directory: what was in the place of %s is now %s", path, aside.name)


def _claimed(directory: Path, logger: logging.Logger) -> bool:
    """Return whether `directory` is ours; make it or mark it where it becomes ours now."""
    try:
        # The parents are made as mkdir(1) does it: they are nobody's in particular.
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.mkdir(mode=_PRIVATE)
    except FileExistsError:
        pass
    except OSError as error:
        # A mount point in a place where nothing can be made exists all the same.
        if not _is_directory(directory):
            raise ConfigError(f"server.data_directory: mkdir {str(directory)!r}: {error.strerror}") from None
    else:
        _mark(directory, logger)
        return True
    with calling("stat", directory):
        status = directory.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise ConfigError(f"server.data_directory: {str(directory)!r} is not a directory")
    if not (is_file(directory / MARK) or _free_to_take(directory, status) or _made_without_mark(directory, status)):
        return False
    if status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) & _OPEN_TO_OTHERS:
        try:
            directory.chmod(_PRIVATE)
        except OSError as error:  # a file system without modes; or one that is read-only, which the lock will tell
            logger.warning("server.data_directory: chmod %s: %s: others may read it", directory, error.strerror)
    _mark(directory, logger)
    return True


def _free_to_take(directory: Path, status: os.stat_result) -> bool:
    """Return whether a directory is empty and our own alone: not one that others are meant to write in."""
    shared = status.st_mode & _WRITABLE_BY_ANYBODY or (
        status.st_mode & _WRITABLE_BY_GROUP and status.st_gid != os.getegid()
    )
    return status.st_uid == os.geteuid() and not shared and next(_names(directory), None) is None


def _made_without_mark(directory: Path, status: os.stat_result) -> bool:
    """Return whether a daemon made this directory before there was a mark: it holds its lock, and runs alone.

    Such a daemon has set the mode 0700 of whatever directory it was given, so the runs decide.
    """
    lock, runs = directory / _LOCK, directory / "runs"
    if status.st_uid != os.geteuid() or not is_file(lock) or lock.stat().st_size:
        return False
    if not (_is_directory(runs) and _is_directory(directory / "unpublished")):
        return False
    looked_at = 0
    for run in _names(runs):
        for name in _names(runs / run):
            looked_at += 1
            if looked_at > _MOST_LOOKED_AT or not _FILE_OF_A_RUN.fullmatch(name):
                return False
    return all(name.isdecimal() for name in _names(directory / "unpublished"))


def _names(directory: Path) -> Iterator[str]:
    """Yield the names in a directory; that which is none, or cannot be read, has one that nobody gives."""
    try:
        with os.scandir(directory) as entries:
            yield from (entry.name for entry in entries)
    except OSError:
        yield "/"


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except OSError:
        return False


def is_file(path: Path) -> bool:
    """Return whether `path` is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def _mark(directory: Path, logger: logging.Logger) -> None:
    """Write the mark where it is missing. Where it cannot be written the directory is known by what will lie in it."""
    try:
        descriptor = os.open(directory / MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        return
    except OSError as error:
        logger.warning("server.data_directory: open %s: %s", directory / MARK, error.strerror)
        return
    with contextlib.closing(os.fdopen(descriptor, "wb", buffering=0)) as file, contextlib.suppress(OSError):
        file.write(_MARK_TEXT)  # the name is the mark: without its text it serves as well
