"""The directory below which an archive is unpacked: what may come out of an archive, and where it goes.

An archive is hostile. Names are relative; slashes at their beginning are dropped, `..` is refused. Each directory on
the way is opened from the destination downwards without following links, so nothing that the archive or anybody else
puts there leads elsewhere. A file is written beside its name and takes it in one step, so nothing is written through a
link or into another name of a file. A symbolic link must stay below the destination: its `..` stand at its beginning
and are at most as many as the directories above it, which are real ones. A hard link is one to a file below the
destination. Devices, fifos and sparse files are refused. Of a mode the nine bits of permission count. Directories get
theirs at the end, so that one which is read-only can be filled.

A zip file has its modes, and which of its entries are links, at its end. So entries are files at first, and amended.
Knows nothing of the forms of archives.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Callable
from typing import NoReturn

from msgspec import Struct
from msgspec.structs import replace

from shelld_py.errors import BadArchive, FileAlreadyExists, FileTooLarge, NotADirectory
from shelld_py.files.models import ArchiveResult
from shelld_py.files.open_file import check_writable
from shelld_py.files.paths import DirectoryOpener, Location, displayable
from shelld_py.files.storage import Attributes, FileIdentity, NewFile, place_link, status_of
from shelld_py.linux.descriptors import Descriptor
from shelld_py.units import format_size

_MOST_NAME = 4096
"""Bytes of a name, as of any path (PATH_MAX)."""
_MOST_NAMES = 32 << 20
"""Bytes of all names: they are remembered. That is 300 for each of the entries that an archive has by default."""
_MOST_LINK = 4096
"""Bytes of what a symbolic link says (PATH_MAX)."""


class Limits(Struct, frozen=True):
    """What may come out of an archive: bytes, and entries. 0 is no limit."""

    size: int
    entries: int


class Destination:
    """The directory below which an archive is unpacked, and what has been written there."""

    def __init__(
        self,
        place: Location,
        opener: DirectoryOpener,
        limits: Limits,
        written: Callable[[str], None],
        *,
        overwrite: bool,
    ) -> None:
        """Write below the directory of `place`; `written` is told the path of each file that was replaced or made."""
        self._top = place.directory
        self.path = os.path.dirname(place.path)
        self._opener = opener
        self._limits = limits
        self._written = written
        self._overwrite = overwrite
        self._parent: tuple[str, int] = ("", -1)
        self._made: set[str] = set()
        self._modes: list[tuple[str, int]] = []
        self._replaced: FileIdentity | None = None
        self._new: NewFile | None = None
        self._name = ""
        self.entry = ""
        """The name of the entry that is being unpacked."""
        self.entries = 0
        """Those that have been unpacked."""
        self.size = 0
        self._begun = 0
        self._names = 0
        self.stopped = False
        """Whether nothing more is to be written. Set by another thread."""

    def begin(self, name: str) -> str:
        """Count an entry, and return its name, cleaned. Raises `BadArchive`, `FileTooLarge`."""
        self.entry = name
        self._count()
        length = len(os.fsencode(name))
        if length > _MOST_NAME or "\0" in name:
            self.refuse("has a name that cannot be one")
        self._names += length
        if self._names > _MOST_NAMES:
            raise FileTooLarge(
                f"The names in the archive have more than {format_size(_MOST_NAMES)}; send it in parts.",
                limit=_MOST_NAMES,
            )
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if ".." in parts:
            self.refuse("has .. in its name, which may lead out of the directory")
        return "/".join(parts)

    def _count(self) -> None:
        """Count an entry, or a directory that is made on the way to one: a single name can have two thousand."""
        if self.stopped:
            raise BadArchive("Unpacking was stopped.")
        self._begun += 1
        if self._limits.entries and self._begun > self._limits.entries:
            detail = (
                f"The archive has more than {self._limits.entries} entries (files.max_archive_entries), "
                "with the directories that are made for them."
            )
            raise FileTooLarge(detail, limit=self._limits.entries)

    def refuse(self, why: str) -> NoReturn:
        """Raise the error for the entry at hand."""
        raise BadArchive(f"The entry {displayable(self.entry[:200])!r} {why}.")

    def directory(self, name: str, mode: int | None) -> None:
        """Make a directory, or take one that is there."""
        self.entries += 1
        if not name:
            return
        parent, last = self._enter(name)
        try:
            os.mkdir(last, dir_fd=parent)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(last, dir_fd=parent, follow_symlinks=False).st_mode):
                raise NotADirectory(f"{self._full(name)} is there already and is no directory.") from None
            return
        self._made.add(name)
        if mode is not None:
            self._modes.append((name, mode & 0o777))

    def open_file(self, name: str) -> None:
        """Begin a file, which `write` fills and `close_file` puts in its place."""
        if not name:
            self.refuse("is a file without a name")
        parent, self._name = self._enter(name)
        self._replaced = self._free(parent, self._name, name)
        self._new = NewFile(parent)

    def write(self, data: bytes) -> None:
        """Append to the file. Raises `FileTooLarge`."""
        assert self._new
        if self.stopped:
            raise BadArchive("Unpacking was stopped.")
        self.size += len(data)
        if self._limits.size and self.size > self._limits.size:
            limit = format_size(self._limits.size)
            raise FileTooLarge(f"The archive has more than {limit} (files.max_archive_size).", limit=self._limits.size)
        self._new.write(data)

    def close_file(self, name: str, mode: int | None, modified: float | None) -> None:
        """Put the file in its place."""
        assert self._new
        with self._new as new:
            if modified is not None:
                with contextlib.suppress(OSError, OverflowError, ValueError):  # a time that the file system lacks
                    os.utime(new.descriptor, (modified, modified))
            attributes = None
            if mode is not None:
                attributes = replace(Attributes.of(new.descriptor), mode=mode & 0o777)
            path = self._full(name)
            new.publish(self._name, attributes, self._replaced, path, sync=False)
            self._written(path)
        self._new = None
        self.entries += 1

    def symbolic_link(self, name: str, target: str) -> None:
        """Make a symbolic link that stays below the destination."""
        self._check_target(name, target)
        parent, last = self._enter(name)
        self._link(parent, last, name, lambda free: os.symlink(target, free, dir_fd=parent))
        self.entries += 1

    def hard_link(self, name: str, target: str) -> None:
        """Give a file below the destination another name."""
        parts = [part for part in target.split("/") if part not in ("", ".")]
        if target.startswith("/") or ".." in parts or not parts or "\0" in target:
            self.refuse(f"is a hard link to {displayable(target[:200])!r}, outside of the directory")
        parent, last = self._enter(name)
        try:
            source = self._opener(self._top, parts[:-1])
        except OSError:
            self.refuse(f"is a hard link to {displayable(target[:200])!r}, which is not there")
        with source:
            status = status_of(source, parts[-1])
            if status is None or not stat.S_ISREG(status.st_mode):
                self.refuse(f"is a hard link to {displayable(target[:200])!r}, which is no file that is there")
            self._link(
                parent,
                last,
                name,
                lambda free: os.link(parts[-1], free, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False),
            )
        self.entries += 1

    def amend(self, name: str, mode: int) -> None:
        """Give a file that was unpacked its mode; or make the link of it that it stands for."""
        if not name:
            return
        parent, last = self._enter(name)
        if stat.S_ISDIR(mode):
            if name in self._made:
                self._modes.append((name, mode & 0o777))
            return
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with Descriptor(os.open(last, flags, dir_fd=parent)) as descriptor:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                self.refuse("is no longer the file that was unpacked")
            if stat.S_ISLNK(mode):
                target = os.read(descriptor, _MOST_LINK + 1)
                self._check_target(name, os.fsdecode(target))
                self._link(parent, last, name, lambda free: os.symlink(target, free, dir_fd=parent), replace=True)
            elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                os.fchmod(descriptor, mode & 0o777)
            else:
                self.refuse("is neither a file nor a directory nor a link")

    def finish(self) -> ArchiveResult:
        """Give the directories their modes, the deepest first."""
        for name, mode in sorted(self._modes, reverse=True):
            with contextlib.suppress(OSError):  # gone or another by now
                parent, last = self._enter(name)
                flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
                with Descriptor(os.open(last, flags, dir_fd=parent)) as descriptor:
                    os.fchmod(descriptor, mode)
        return ArchiveResult(path=displayable(self.path), entries=self.entries, bytes=self.size)

    def close(self) -> None:
        """Release what is open; a file that is not whole is gone."""
        if self._new:
            self._new.close()
        _, descriptor = self._parent
        self._parent = ("", -1)
        if descriptor >= 0:
            os.close(descriptor)

    def _enter(self, name: str) -> tuple[int, str]:
        """Return the directory of `name`, made where it is missing, and the last part of the name."""
        parent, _, last = name.rpartition("/")
        if self._parent[1] < 0 or self._parent[0] != parent:
            descriptor = self._opened(parent.split("/") if parent else [])
            if self._parent[1] >= 0:
                os.close(self._parent[1])
            self._parent = (parent, descriptor)
        return self._parent[1], last

    def _opened(self, parts: list[str]) -> Descriptor:
        """Open the directory that `parts` lead to, and make what is missing of it."""
        with contextlib.suppress(OSError):  # it is there, most often; what else it may be the walk tells
            return self._opener(self._top, parts)
        current = self._opener(self._top, [])
        for depth, part in enumerate(parts, 1):
            try:
                with current:
                    current = self._entered(current, part)
            except OSError as error:
                if error.errno not in (errno.ENOTDIR, errno.ELOOP):
                    raise
                path = self._full("/".join(parts[:depth]))
                raise NotADirectory(f"{path} is or leads through a link or a file, not a directory.") from None
        return current

    def _entered(self, parent: int, name: str) -> Descriptor:
        try:
            return self._opener(parent, [name])
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=parent)
                self._count()
            return self._opener(parent, [name])

    def _free(self, parent: int, last: str, name: str) -> FileIdentity | None:
        """Return what `name` stands for and may be replaced; None where it is free."""
        status = status_of(parent, last)
        if status is None:
            return None
        path = self._full(name)
        if not self._overwrite:
            raise FileAlreadyExists(f"{path} exists already, and overwrite is false.", path=path)
        if stat.S_ISDIR(status.st_mode):
            raise FileAlreadyExists(f"{path} is a directory, and no file can take its place.", path=path)
        if stat.S_ISREG(status.st_mode):
            check_writable(parent, last, status, path)
        return FileIdentity.from_status(status)

    def _link(self, parent: int, last: str, name: str, make: Callable[[str], None], *, replace: bool = False) -> None:
        """Make a link under a hidden name and rename it."""
        if not last:
            self.refuse("is a link without a name")
        replaced = replace or self._free(parent, last, name) is not None
        place_link(parent, last, make, replace=replaced)
        self._written(self._full(name))

    def _check_target(self, name: str, target: str) -> None:
        parts = [part for part in target.split("/") if part not in ("", ".")]
        up = 0
        while up < len(parts) and parts[up] == "..":
            up += 1
        if not target or len(os.fsencode(target)) > _MOST_LINK or "\0" in target:
            self.refuse("is a symbolic link to what cannot be a path")
        if target.startswith("/") or up > name.count("/") or ".." in parts[up:]:
            self.refuse(f"is a symbolic link to {displayable(target[:200])!r}, which may lead out of the directory")

    def _full(self, name: str) -> str:
        return os.path.join(self.path, name)
