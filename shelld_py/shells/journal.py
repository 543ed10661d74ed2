"""The journal: records of what has ended, each appended by one write(2), and found again after any crash.

    JOURNAL/00000001.journal        a segment: frames, one after the other
    frame = head, record, output    the head has the lengths and checksums of all three

A segment that has grown to 4 MiB is followed by the next. It is removed as a whole when all that it held has been
forgotten; what is erased before that is overwritten where it lies, and its head says so. There is no fsync: what was
appended survives the daemon, whatever kills it, but not the power's failure.

The bytes on the disk may be anything. Reading goes on at the next frame whose head is right, a frame that was cut
short by a crash is cut off, and a segment that holds what nobody understands is never removed but put aside.
Knows nothing of runs: records are bytes.
"""

import contextlib
import logging
import os
import re
import stat
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from shelld_py.linux.descriptors import Descriptor
from shelld_py.shells.data_directory import calling, own_directory

_SEGMENT_SIZE: Final = 4 * 1024 * 1024
_LARGEST_SEGMENT: Final = 4 * _SEGMENT_SIZE
"""Bytes of a segment that is read at the start: none of ours is so large."""
LARGEST_FRAME: Final = 1024 * 1024
"""Bytes of a record and its output: what is larger wants files of its own."""

_MAGIC: Final = b"\xf5run"
_HEAD: Final = struct.Struct("<4sBIIII")
"""Magic, kind, length and checksum of the record, length and checksum of the output."""
_CHECKED_HEAD: Final = struct.Struct(f"{_HEAD.format}I")
"""The head with its own checksum."""
_HEAD_SIZE: Final = _CHECKED_HEAD.size
_RECORD: Final = 1
_ERASED: Final = 2
_NAME: Final = re.compile(r"([0-9]{8,18})\.journal")
_LARGEST_NUMBER: Final = 10**17
"""Of a segment: what has a larger one is none of ours, and a name after it could not be found again."""
_OPEN: Final = os.O_RDWR | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


class _Segment:
    """One file of the journal."""

    __slots__ = ("damaged", "kept", "path", "size")

    def __init__(self, path: str) -> None:
        self.path = path
        self.size = 0
        self.kept = 0
        """How many records in it have not been forgotten."""
        self.damaged = False
        """Whether it holds bytes that are no frames."""


class FrameLocation:
    """Where a record of `length` bytes lies."""

    __slots__ = ("length", "offset", "segment")

    def __init__(self, segment: _Segment, offset: int, length: int) -> None:
        self.segment = segment
        self.offset = offset
        self.length = length


class Frame(NamedTuple):
    """A record as it was read, with its output; `length` is what that had, and it is empty where it is damaged.

    Both are read at once: what lies there may be erased at any later moment.
    """

    record: bytes
    output: bytes
    length: int


class Journal:
    """All segments in one directory, which is nobody else's; oldest first."""

    def __init__(self, directory: Path, logger: logging.Logger) -> None:
        self._directory = directory
        self._logger = logger
        self._segments: deque[_Segment] = deque()
        self._fd = -1
        """The last segment, where it is being appended to."""
        self._number = 0

    def open(self) -> Iterator[tuple[FrameLocation, bytes]]:
        """Make the directory, and yield all records that are in it, oldest first. Raises `ConfigError`."""
        self.make()
        with calling("opendir", self._directory):
            matches = [match for name in os.listdir(self._directory) if (match := _NAME.fullmatch(name))]
        found = sorted((int(match[1]), match[0]) for match in matches)
        for number, name in found:
            if number > _LARGEST_NUMBER:
                self._logger.warning("%s/%s is none of the daemon's, and is left as it is", self._directory, name)
                continue
            self._number = number
            segment = _Segment(f"{self._directory}/{name}")
            try:
                content = _read_segment(segment.path)
            except OSError as error:
                self._logger.warning("%s cannot be read, and is left as it is: %s", segment.path, error)
                continue
            for offset, record in _frames(content, segment):
                segment.kept += 1
                yield FrameLocation(segment, offset, len(record)), record
            if segment.damaged:
                self._logger.warning("%s is damaged: what cannot be read of it is left out", segment.path)
            self._segments.append(segment)
        self._sweep()

    def make(self) -> None:
        """Make the directory where it is missing: what was appended to may be gone. Raises `ConfigError`."""
        self.close()
        own_directory(self._directory, self._logger)

    def append(self, record: bytes, output: bytes = b"") -> FrameLocation:
        """Append a record with its output. Raises `OSError`, and then nothing has been appended."""
        if self._fd >= 0:
            self._check_last()
        if self._fd < 0 or self._segments[-1].size >= _SEGMENT_SIZE:
            self._begin_segment()
        segment = self._segments[-1]
        head = _HEAD.pack(_MAGIC, _RECORD, len(record), zlib.crc32(record), len(output), zlib.crc32(output))
        frame = b"".join((head, zlib.crc32(head).to_bytes(4, "little"), record, output))
        offset = segment.size
        written = -1
        try:
            written = os.write(self._fd, frame)
        finally:
            if written != len(frame):
                self._take_back(segment, offset)
        if written != len(frame):
            raise OSError(f"the disk took {written} of {len(frame)} bytes")
        segment.size = offset + written
        segment.kept += 1
        return FrameLocation(segment, offset, len(record))

    def read(self, place: FrameLocation) -> Frame:
        """Return what lies at a place. Raises `OSError`, also where that is no record."""
        # A command can have put a FIFO there, for which the event loop would wait.
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        with Descriptor(os.open(place.segment.path, flags)) as descriptor:
            head = _parsed(os.pread(descriptor, _HEAD_SIZE, place.offset), 0)
            if head is None or head[0] != _RECORD:
                raise OSError("there is no record")
            _, length, checksum, output_length, output_checksum = head
            at = place.offset + _HEAD_SIZE
            record = os.pread(descriptor, length, at)
            if zlib.crc32(record) != checksum:
                raise OSError("the record is damaged")
            output = os.pread(descriptor, output_length, at + length)
            whole = len(output) == output_length and zlib.crc32(output) == output_checksum
            return Frame(record, output if whole else b"", output_length)

    def forget(self, place: FrameLocation) -> None:
        """Take note that a record is not wanted any more; its segment goes when no other of it is."""
        place.segment.kept -= 1
        self._sweep()

    def erase(self, place: FrameLocation) -> None:
        """Overwrite a record and its output, and forget it. Raises `OSError`."""
        try:
            with Descriptor(os.open(place.segment.path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)) as descriptor:
                head = _parsed(os.pread(descriptor, _HEAD_SIZE, place.offset), 0)
                if head is not None and head[0] == _RECORD:
                    length = head[1] + head[3]
                    erased = _HEAD.pack(_MAGIC, _ERASED, 0, 0, length, 0)
                    frame = erased + zlib.crc32(erased).to_bytes(4, "little") + bytes(length)
                    os.pwrite(descriptor, frame, place.offset)
        finally:
            self.forget(place)

    def clear(self) -> None:
        """Remove all segments, and what was put aside."""
        self.close()
        self._segments.clear()
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):
                with contextlib.suppress(OSError):
                    os.unlink(f"{self._directory}/{name}")

    def close(self) -> None:
        """Release the descriptor. The next record begins a segment, or goes on with the last."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _begin_segment(self) -> None:
        """Open the segment that is appended to next: the last one, where there is room in it."""
        self.close()
        last = self._segments[-1] if self._segments else None
        if last and not last.damaged and last.size < _SEGMENT_SIZE:
            try:
                self._fd = os.open(last.path, _OPEN)
            except FileNotFoundError:  # a command has removed it
                last.damaged = True
            else:
                os.ftruncate(self._fd, last.size)  # a frame that was cut short by a crash
                return
        self._number += 1
        self._directory.mkdir(mode=0o700, exist_ok=True)
        segment = _Segment(f"{self._directory}/{self._number:08d}.journal")
        self._fd = os.open(segment.path, _OPEN | os.O_CREAT | os.O_EXCL, 0o600)
        self._segments.append(segment)
        self._sweep()

    def _check_last(self) -> None:
        """Leave the last segment where a command has removed or changed it: what is appended would not be found."""
        segment, status = self._segments[-1], os.fstat(self._fd)
        if not status.st_nlink or status.st_size != segment.size:
            if os.path.isdir(self._directory):  # else all of it was removed, which is told of
                self._logger.warning("%s was changed by somebody else; another one follows it", segment.path)
            segment.damaged = True
            self.close()

    def _take_back(self, segment: _Segment, offset: int) -> None:
        """Cut off a frame that the disk has not taken whole; where that fails too, go on in another segment."""
        try:
            os.ftruncate(self._fd, offset)
        except OSError:
            segment.damaged = True
            self.close()

    def _sweep(self) -> None:
        """Remove the segments of which nothing is wanted any more, but for the last, which is appended to."""
        for segment in [segment for segment in self._segments if not segment.kept]:
            if segment is self._segments[-1] and segment.size < _SEGMENT_SIZE and not segment.damaged:
                continue
            if segment is self._segments[-1]:
                self.close()
            self._segments.remove(segment)
            with contextlib.suppress(OSError):
                if segment.damaged:
                    os.rename(segment.path, f"{segment.path}.damaged")
                else:
                    os.unlink(segment.path)


def _read_segment(path: str) -> bytes:
    """Return the content of a segment. Raises `OSError`."""
    # Not blocking: what lies there may be a FIFO by now.
    with Descriptor(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)) as descriptor:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_SEGMENT:
            raise OSError(f"it is not a regular file of at most {_LARGEST_SEGMENT} bytes")
        return os.read(descriptor, _LARGEST_SEGMENT)


def _parsed(content: bytes, at: int) -> tuple[int, int, int, int, int] | None:
    """Return (kind, length, checksum, length of the output, its checksum) of the head at `at`; None for no head."""
    if len(content) - at < _HEAD_SIZE:
        return None
    magic, *head, checksum = _CHECKED_HEAD.unpack_from(content, at)
    if magic != _MAGIC or checksum != zlib.crc32(content[at : at + _HEAD.size]):
        return None
    kind, length, record_checksum, output_length, output_checksum = head
    return kind, length, record_checksum, output_length, output_checksum


def _frames(content: bytes, segment: _Segment) -> Iterator[tuple[int, bytes]]:
    """Yield (offset, record) of each frame in a segment that was neither erased nor is damaged.

    What is found is noted in the segment: how far it goes, and whether there is damage.
    """
    at, size = 0, len(content)
    unpack, checksum_of = _CHECKED_HEAD.unpack_from, zlib.crc32
    while size - at >= _HEAD_SIZE:
        magic, kind, length, checksum, output_length, _, head_checksum = unpack(content, at)
        if magic != _MAGIC or head_checksum != checksum_of(content[at : at + _HEAD.size]):
            segment.damaged = True
            at = content.find(_MAGIC, at + 1)
            if at < 0:
                return
            continue
        begin = at + _HEAD_SIZE
        end = begin + length + output_length
        if end > size:
            return  # cut short by a crash
        segment.size = end
        record = content[begin : begin + length]
        if kind == _RECORD and checksum_of(record) == checksum:
            yield at, record
        else:
            segment.damaged = segment.damaged or kind != _ERASED
        at = end
    # Less than a head is what a crash has cut short, if it begins as one.
    segment.damaged = segment.damaged or not _MAGIC.startswith(content[at : at + len(_MAGIC)])
