"""When the output of a run came: a file beside its logs, with a few bytes for each piece.

    entry = milliseconds since the entry before, then for each log the bytes that came; all are varints (LEB128)

What comes within 10 ms is one piece. So there are a hundred entries a second at the most, of four or five bytes where
much is written: the file grows by some 30 KB a minute, however the output comes.

The bytes on the disk may be anything. They are read up to the first that cannot be ours; of what was written after
that, nobody knows when. Knows nothing of runs.
"""

import os
import stat
from collections.abc import Iterator
from typing import Final

TIMING: Final = "timing"
"""The name of the file."""

_KEPT_AFTER: Final = 0.05
"""Seconds that a run lasts before it is worth a file: what is quicker is seen at once."""
_MERGED: Final = 10
"""Milliseconds in which all that comes is one piece: no eye sees more than a hundred pictures a second."""
_CREATE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""Not blocking: what lies there may be a FIFO."""
_BLOCK: Final = 16 * 1024
_MOST_BITS: Final = 56
"""Of a number: a longer one is none of ours."""

Moment = tuple[int, tuple[int, ...]]
"""Milliseconds since the start of a run, and how much each of its logs had by then."""


class Timing:
    """When the output of one run came. Written by one thread, read by any."""

    def __init__(self, directory: str, logs: int) -> None:
        """Of a run with so many logs; the file lies in `directory`, or will where there is something to tell."""
        self._directory = directory
        self._logs = logs
        self._fd = -1
        self._refused = False
        self._unwritten = bytearray()
        self._last = 0
        """When the last entry was (milliseconds)."""
        self._began = 0
        """When the piece that is coming began."""
        self._coming = [0] * logs
        """The bytes of that piece."""

    def move(self, directory: str) -> None:
        """Take note that the file lies in `directory` now."""
        self._directory = directory

    def note(self, log: int, size: int, at: float) -> None:
        """Note that `size` bytes of the log of this number have come, `at` seconds after the start."""
        self.flush(at)
        if not any(self._coming):
            self._began = int(at * 1000)
        self._coming[log] += size

    def flush(self, at: float) -> None:
        """Write what is known `at` this moment; a piece that may still grow is left out."""
        if int(at * 1000) - self._began >= _MERGED:
            self._end_piece()
        if at >= _KEPT_AFTER and self._unwritten:
            self._write()

    def finish(self, at: float) -> None:
        """The run has ended `at` this moment: nothing more will come."""
        self._end_piece()
        self.flush(at)
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def moments(self) -> Iterator[Moment]:
        """Yield when there was how much, in order; of a file that cannot be read, nothing."""
        at, sizes = 0, [0] * self._logs
        numbers = _numbers(f"{self._directory}/{TIMING}")
        for passed in numbers:
            pieces = [next(numbers, 0) for _ in range(self._logs)]
            if not any(pieces):  # cut short, or none of ours
                return
            at += passed
            sizes = [size + piece for size, piece in zip(sizes, pieces, strict=True)]
            yield at, tuple(sizes)

    def _end_piece(self) -> None:
        """Make an entry of the piece that is coming, if there is one."""
        if any(self._coming):
            self._unwritten += b"".join(map(_varint, (self._began - self._last, *self._coming)))
            self._last = self._began
            self._coming = [0] * self._logs

    def _write(self) -> None:
        """Append what is unwritten. Where the disk refuses, nothing more is kept: an entry counts from the last."""
        entries, self._unwritten = self._unwritten, bytearray()
        if self._refused:
            return
        try:
            if self._fd < 0:
                self._fd = os.open(f"{self._directory}/{TIMING}", _CREATE, 0o600)
            self._refused = os.write(self._fd, entries) < len(entries)
        except OSError:
            self._refused = True


def _varint(number: int) -> bytes:
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _numbers(path: str) -> Iterator[int]:
    """Yield the numbers in a file, up to what is none; nothing where it is no regular file."""
    try:
        with open(os.open(path, _READ), "rb", buffering=0) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return
            number = shift = 0
            while block := file.read(_BLOCK):
                for byte in block:
                    number |= (byte & 0x7F) << shift
                    shift += 7
                    if byte <= 0x7F:
                        yield number
                        number = shift = 0
                    elif shift >= _MOST_BITS:
                        return
    except OSError:  # there is none, or it was taken away: then nobody knows
        return
