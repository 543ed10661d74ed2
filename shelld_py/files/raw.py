"""Bytes of any file on their way out, in ranges and pieces.

Works on an open file. Which file that is, and who may have it, was settled before.

The size of a file is a promise only where the file is stored. Those of /proc and /sys are made up when they are read:
they have no size, or that of a page, and some have no end. So the first bytes are read at once, and show it.
"""

import functools
import os
from collections.abc import AsyncIterator
from typing import Self

from shelld_py.errors import InvalidRequest, NotAFile, RangeNotSatisfiable
from shelld_py.files.models import ByteRange
from shelld_py.files.open_file import OpenFile
from shelld_py.files.threads import in_thread

_PIECE = 256 << 10
"""Bytes read at once."""


class RawFile:
    """An open file, or a range of it, to be read once.

    Reads the file as it was when it was opened: later operations put a new file in its place.

    `path` is real, `size` the bytes of the whole file, `start` and `length` the range that is read,
    `modified_at` Unix time, `etag` null for a file too large to be hashed in passing. Of a file that is made up while
    it is read, `size` and `length` are null: there are no ranges of it, and it ends where it ends.
    """

    def __init__(self, file: OpenFile, path: str, byte_range: ByteRange | None, *, hashed: bool) -> None:
        """Read from a duplicate of the descriptor of `file`. Raises `InvalidRequest`, `RangeNotSatisfiable`."""
        self._descriptor = -1
        self.path = path
        self.modified_at = file.status.st_mtime
        self.size = file.status.st_size if _is_stored(file, path) else None
        self.etag = file.etag if hashed and self.size is not None else None
        self.start, self.length = 0, self.size
        if byte_range and self.size is not None:
            self.narrow(byte_range)
        self._descriptor = os.dup(file.descriptor)

    def narrow(self, byte_range: ByteRange) -> None:
        """Read only a range of the file. Raises `InvalidRequest`, `RangeNotSatisfiable`."""
        assert self.size is not None
        self.start, self.length = _span(byte_range, self.size, self.path)

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield the bytes of the range; fewer if something else cuts the file short meanwhile."""
        position, end = self.start, None if self.length is None else self.start + self.length
        while end is None or position < end:
            wanted = _PIECE if end is None else min(_PIECE, end - position)
            data = await in_thread(functools.partial(os.pread, self._descriptor, wanted, position))
            if not data:
                return
            position += len(data)
            yield data

    def close(self) -> None:
        """Close the file. May be called twice."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        """A cancelled task drops what its thread answers; the descriptor must not stay open for that."""
        self.close()


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
