"""What only looks at files: the listing of a directory, the text of a file, its bytes in ranges and pieces.

Synchronous but for the pieces. Nothing here takes a lock: every change puts a whole file in the place of another, so
what is open is whole. Knows nothing of who asks.

Of a listing only the names that are shown are looked at closely; the others are counted. So a hundred thousand of them
are quick.

The size of a file is a promise only where the file is stored. Those of /proc and /sys are made up when they are read:
they have no size, or that of a page, and some have no end. So the first bytes are read at once, and show it.
"""

import contextlib
import functools
import heapq
import os
import posixpath
import stat
from collections.abc import AsyncIterator, Iterator

from shelld_py.errors import InvalidRequest, NotAFile, RangeNotSatisfiable
from shelld_py.files.blocking import Threads, check_stopped
from shelld_py.files.models import (
    ByteRange,
    Entry,
    FileType,
    ReadRequest,
    ReadResult,
    ViewRequest,
    ViewResult,
)
from shelld_py.files.open_file import OpenFile, check_readable, directory_needed, meaning
from shelld_py.files.paths import AllowedDirectories, Location, displayable, open_by_walk, readable
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.storage import chunks_of
from shelld_py.files.text_file import LineReader, count_lines
from shelld_py.linux.descriptors import DescriptorHolder
from shelld_py.models import utc_timestamp

MOST_ENTRIES = 1000
"""Entries of a listing that are shown."""
_MOST_COUNTED = 1_000_000
"""Entries after which no deeper level is counted."""
_PIECE = 256 << 10
"""Bytes read at once."""


class ReadOperations:
    """The operations that only look."""

    def __init__(self, directories: AllowedDirectories, policy: ReadPolicy, threads: Threads) -> None:
        """Look at files in `directories`, as far as `policy` lets them be read."""
        self._directories = directories
        self._policy = policy
        self._threads = threads

    def view(self, request: ViewRequest) -> ViewResult:
        """List a directory. Raises `FileNotFound`, `NotADirectory`, `PathNotAllowed`."""
        try:
            directory, path = self._directories.open_directory(request.path)
        except NotADirectoryError:
            raise directory_needed(posixpath.join(self._directories.base, request.path)) from None
        with directory:
            entries, total = listing_of(directory, depth=request.depth, hidden=request.hidden)
        return ViewResult(
            path=displayable(path),
            directories=tuple(entry.name for entry in entries if entry.type is FileType.DIRECTORY),
            files=tuple(entry.name for entry in entries if entry.type is not FileType.DIRECTORY),
            entries=entries,
            truncated=total > len(entries),
            total_entries=total,
        )

    def read(self, request: ReadRequest) -> ReadResult:
        """Read a text file, or lines of it.

        Raises, in this order: `PathNotAllowed`; `FileNotFound`, `NotAFile`; `ExtensionRefused`; `NotText`;
        `FileTooLarge`; `LineOutOfRange`; `TooManyTokens`.
        """
        with self._open(request.path) as (location, file):
            if request.view_range is None:
                body = file.text(self._policy).body
                lines = count_lines(body)
                part, part_size, view_range = body, file.status.st_size, (1, lines)
                etag = file.etag
            else:
                self._policy.check_name(location.name, location.path)
                reader = LineReader(request.view_range, self._policy, location.path)
                for data in chunks_of(file.descriptor, file.status.st_size):
                    reader.feed(data)
                read = reader.finish()
                part, part_size, view_range = read.content, read.size, (read.first, read.last)
                lines, etag = read.total_lines, read.etag
            self._policy.check_tokens(part, part_size, view_range[0], location.path)
            return ReadResult(
                path=displayable(location.path),
                content=part,
                total_lines=lines,
                view_range=view_range,
                size=file.status.st_size,
                etag=etag,
            )

    def open_raw(self, path: str, byte_range: ByteRange | None) -> "RawFile":
        """Open any regular file. Raises `FileNotFound`, `NotAFile`, `PathNotAllowed`, `RangeNotSatisfiable`."""
        with self._open(path) as (location, file):
            hashed = self._policy.fits(file.status.st_size)
            return RawFile(file, displayable(location.path), byte_range, self._threads, hashed=hashed)

    def open_descriptor(self, path: str) -> DescriptorHolder:
        """Open any regular file for a process. Raises what `open_raw` does."""
        with self._open(path) as (_, file):
            opened = DescriptorHolder()
            opened.descriptor = os.dup(file.descriptor)
            return opened

    @contextlib.contextmanager
    def _open(self, path: str) -> Iterator[tuple[Location, OpenFile]]:
        with self._directories.locate(path) as location:
            try:
                file = OpenFile(location)
            except FileNotFoundError:
                raise self._directories.missing(location) from None
            with file:
                check_readable(file.status, displayable(location.path))
                yield location, file


class RawFile(DescriptorHolder):
    """An open file, or a range of it, to be read once.

    Reads the file as it was when it was opened: later operations put a new file in its place.

    `path` is real, `size` the bytes of the whole file, `start` and `length` the range that is read,
    `modified_at` Unix time, `etag` null for a file too large to be hashed in passing. Of a file that is made up while
    it is read, `size` and `length` are null: there are no ranges of it, and it ends where it ends.
    """

    def __init__(
        self, file: OpenFile, path: str, byte_range: ByteRange | None, threads: Threads, *, hashed: bool
    ) -> None:
        """Read from a duplicate of the descriptor of `file`. Raises `InvalidRequest`, `RangeNotSatisfiable`."""
        self._threads = threads
        self.path = path
        self.modified_at = file.status.st_mtime
        self.size = file.status.st_size if _is_stored(file, path) else None
        self.etag = file.etag if hashed and self.size is not None else None
        self.start, self.length = 0, self.size
        if byte_range and self.size is not None:
            self.narrow(byte_range)
        self.descriptor = os.dup(file.descriptor)

    def narrow(self, byte_range: ByteRange) -> None:
        """Read only a range of the file. Raises `InvalidRequest`, `RangeNotSatisfiable`."""
        assert self.size is not None
        self.start, self.length = _span(byte_range, self.size, self.path)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the range, and close the file; fewer if something else cuts it short meanwhile.

        Raises what stands for what the system refuses.
        """
        position, end = self.start, None if self.length is None else self.start + self.length
        with self:
            while end is None or position < end:
                wanted = _PIECE if end is None else min(_PIECE, end - position)
                try:
                    data = await self._threads.run(functools.partial(os.pread, self.descriptor, wanted, position))
                except BlockingIOError:  # some of the kernel's files, such as /proc/kmsg, have nothing for the moment
                    return
                except OSError as error:
                    raise meaning(error, self.path) from error
                if not data:
                    return
                position += len(data)
                yield data


def _is_stored(file: OpenFile, path: str) -> bool:
    """Return whether the size of a file is a promise. Raises `NotAFile` for one that the kernel does not let be read.

    Only a file without blocks is doubtful: /proc, /sys, or a few bytes that lie in their inode.
    """
    if file.status.st_blocks:
        return True
    expected = min(_PIECE, file.status.st_size)
    try:
        return len(os.pread(file.descriptor, expected or _PIECE, 0)) == expected
    except PermissionError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise NotAFile(f"{path} is not a stored file, and the system does not let it be read: {reason}.") from None


def _span(wanted: ByteRange, size: int, path: str) -> tuple[int, int]:
    """Return the offset and the length of a range, by the rules of RFC 9110 (14.1.2)."""
    first, last = wanted.first, wanted.last
    if (first is None and last is None) or (first or 0) < 0 or (last or 0) < 0:
        raise InvalidRequest("A range of bytes needs a first or a last byte, neither of them negative.")
    if first is None:
        length = min(last or 0, size)
        if not length:
            raise RangeNotSatisfiable(f"The final 0 bytes of {path} are no range.", path=path, size=size)
        return size - length, length
    if last is not None and last < first:
        raise InvalidRequest(f"A range of bytes must not end ({last}) before it begins ({first}).")
    if first >= size and (first or last is not None):
        raise RangeNotSatisfiable(f"{path} has {size} bytes; byte {first} is behind its end.", path=path, size=size)
    end = size if last is None else min(last + 1, size)
    return first, end - first


def listing_of(directory: int, *, depth: int, hidden: bool) -> tuple[tuple[Entry, ...], int]:
    """Return the first entries of an open directory by name, `depth` levels of it, and how many there are in all.

    Names with a dot first only if `hidden`.

    Raises `OSError` when the directory itself cannot be read; deeper ones that cannot are shown empty.
    """
    names: list[str] = []
    listed = _names(directory, "", hidden=hidden)
    for level in range(depth):
        directories = []
        for name, is_directory in listed:
            names.append(name)
            if is_directory and level + 1 < depth:
                directories.append(name)
        if not directories or len(names) >= _MOST_COUNTED:
            break
        listed = _names_below(directory, directories, hidden=hidden)
    shown = heapq.nsmallest(MOST_ENTRIES, names)
    entries = tuple(entry for name in shown if (entry := _entry(directory, name)))
    return entries, len(names)


def _names_below(directory: int, paths: list[str], *, hidden: bool) -> Iterator[tuple[str, bool]]:
    for path in paths:
        check_stopped()
        with contextlib.suppress(OSError), open_by_walk(directory, path.split("/")) as descriptor:
            yield from _names(descriptor, path + "/", hidden=hidden)


def _names(directory: int, prefix: str, *, hidden: bool) -> Iterator[tuple[str, bool]]:
    """Yield the names in a directory with `prefix`, and whether each is a directory."""
    with readable(directory) as descriptor, os.scandir(descriptor) as entries:
        for entry in entries:
            if hidden or not entry.name.startswith("."):
                yield prefix + entry.name, entry.is_dir(follow_symlinks=False)


def _entry(directory: int, path: str) -> Entry | None:
    """Return the entry `path` below the directory, None when it has just gone."""
    *parents, name = path.split("/")
    try:
        with open_by_walk(directory, parents) as parent:
            status = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except OSError:
        return None
    return Entry(
        name=displayable(path),
        type=_file_type(status.st_mode),
        size=status.st_size,
        modified_at=utc_timestamp(status.st_mtime),
    )


def _file_type(mode: int) -> FileType:
    if stat.S_ISDIR(mode):
        return FileType.DIRECTORY
    if stat.S_ISREG(mode):
        return FileType.FILE
    return FileType.SYMLINK if stat.S_ISLNK(mode) else FileType.OTHER
