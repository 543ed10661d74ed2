"""The output log: the one home of what a run writes.

A log is append-only and addressed by byte offsets, which never change and never become invalid. It lives
on disk from its first byte, so memory stays small however much is written and a crash loses nothing. It
knows nothing of bash, of runs or of text.

Bounded size
    A log keeps its beginning and its end. The first half of `maximum` goes to the file itself, the head.
    What comes after goes to segments beside it, `NAME.HEAD.OFFSET`, each an eighth of the maximum; when
    there would be a fifth, the oldest is removed. The names carry the offsets, so that a log can be read
    after a crash without any other record. When the log is complete, `join` appends the segments to the
    head: the file then is the beginning and the end, and `extents` says which offsets it holds.

Full disk
    A write that fails loses the bytes of that write alone: they become a gap like those of removed
    segments, `lost` counts them, and the next try is made a mebibyte later. The writer never sees an error.
    The first 64 KiB of what the disk refuses can be read as long as this log is there: whoever asks how full
    the disk is (`df`) gets an answer.
"""

import contextlib
import errno
import os
import re
import stat
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Self

from msgspec import Struct

_SEGMENTS: Final = 4
_RETRY_AFTER: Final = 1024 * 1024
_COPY_SIZE: Final = 1024 * 1024
_MOST_REFUSED: Final = 64 * 1024
"""Bytes that the disk has refused and memory holds: what a command says of the disk is shorter."""
_SAFE: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
"""A command can have put a FIFO in the place of a log, where the event loop would wait for ever, or a link."""
_REPLACED: Final = frozenset((errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENXIO, errno.ESPIPE))
"""What the system says of a log that a command has removed, or has put something else in the place of."""
_OPEN: Final = os.O_RDWR | os.O_APPEND | _SAFE
_CREATE: Final = _OPEN | os.O_CREAT

Extents = tuple[tuple[int, int], ...]
"""The (offset, length) of each stretch of a log that its file holds, in order."""


class _Piece(Struct):
    """Bytes of the log that lie together: `length` of them, at `at` in the file `name`, or in memory."""

    start: int
    length: int
    name: str
    at: int
    refused: bytearray | None = None
    """What no file has: the disk has refused it."""

    @property
    def end(self) -> int:
        return self.start + self.length


class Chunk(Struct, frozen=True):
    """What a read gave: `data`, which begins at `start`; `dropped` bytes before it were not kept."""

    start: int
    data: bytes
    dropped: int

    @property
    def end(self) -> int:
        """The offset behind the data, where the next read goes on."""
        return self.start + len(self.data)


class OutputLog:
    """One output stream of one run. Appended to by one writer, read by any number of readers, in any thread."""

    def __init__(self, path: str, maximum: int) -> None:
        """Make a log at `path` of `maximum` bytes on disk at the most.

        Where there is no such file yet, `create` follows.
        """
        self._directory, _, self._name = path.rpartition("/")
        self._segment_size = max(1, maximum // (2 * _SEGMENTS))
        self._head_size = max(1, maximum // 2)
        self._pieces: list[_Piece] = []
        self._segments: list[str] = []
        self._file = self._name
        self._file_length = 0
        self._room = self._head_size
        self._fd = -1
        """The writer's, in its thread: it can be closed at any moment, and its number be that of another file."""
        self._writer = threading.get_ident()
        self._retry_at = 0
        self._content: bytes | None = None
        """All of it, where it is in memory."""
        self.size = 0
        """Bytes ever appended, kept or not: the offset of the end."""
        self.lost = 0
        """Bytes that the disk refused, whether memory holds them or not."""
        self._refused = 0
        """How many of those memory holds."""

    def create(self) -> Self:
        """Open the file, or make it. A disk that refuses is met again, and the loss counted, by `append`."""
        self._open(_CREATE)
        return self

    @classmethod
    def load(cls, path: str, maximum: int, extents: Sequence[tuple[int, int]] | None = None) -> Self:
        """Open the log that an earlier run, or an earlier daemon, has left at `path`.

        `extents` is what the joined log had; None when it had no gap, or was never joined.
        Raises `OSError` when there is no such file.
        """
        log = cls(path, maximum)
        name = log._name
        log._file_length = length = Path(path).stat().st_size
        log._head_size = max(log._head_size, length)
        log._room = log._head_size - length
        segments = _segments_of(path)
        if segments:
            length = log._head_size = min(length, segments[0][0])
        at = 0
        for start, kept in extents or [(0, length)]:
            log._pieces.append(_Piece(start, min(kept, length - at), name, at))
            at += kept
        log._pieces = [piece for piece in log._pieces if piece.length > 0] or log._pieces[:1]
        if log._pieces and length > at:
            log._pieces[-1].length += length - at
        for _, start, segment in segments:
            log._pieces.append(_Piece(start, Path(log._path(segment)).stat().st_size, segment, 0))
            log._segments.append(segment)
        log.size = log._pieces[-1].end
        return log

    @classmethod
    def of(cls, content: bytes, size: int | None = None) -> Self:
        """Return a log to read that is in memory, too short to be worth a file; it had `size` bytes, or as many."""
        log = cls("", 0)
        log.size = len(content) if size is None else size
        log.move_to_memory(content)
        return log

    def move_to_memory(self, content: bytes) -> None:
        """Hold what is kept of the log in memory from now on. Nothing can be appended any more."""
        self.close()
        self._content = content
        self._pieces = [_Piece(0, len(content), "", 0)] if content else []
        self._file, self._room, self._retry_at = "", sys.maxsize, sys.maxsize

    def move(self, directory: str) -> None:
        """Take note that the log lies in `directory` now."""
        self._directory = directory

    @property
    def extents(self) -> Extents:
        """Which offsets files hold."""
        merged: list[tuple[int, int]] = []
        for piece in self._pieces:
            if piece.refused is not None:
                continue
            if merged and sum(merged[-1]) == piece.start:
                merged[-1] = (merged[-1][0], merged[-1][1] + piece.length)
            elif piece.length:
                merged.append((piece.start, piece.length))
        return tuple(merged)

    @property
    def kept(self) -> int:
        """Bytes that can still be read."""
        return sum(piece.length for piece in self._pieces)

    @property
    def whole(self) -> bool:
        """Whether files hold all that was ever appended."""
        return self.kept - self._refused == self.size

    def append(self, data: bytes | memoryview) -> None:
        """Append `data`. Never fails: what the disk refuses is counted in `lost`."""
        view = memoryview(data)
        while view:
            if not self._room:
                self._next_segment()
            part = view[: self._room]
            self._keep(part)
            view = view[len(part) :]

    def read(self, offset: int, limit: int) -> Chunk:
        """Return up to `limit` bytes from `offset` on; where those are gone, from the next that are kept."""
        content = self._content
        if content is not None and offset < len(content):
            return Chunk(offset, content[offset : offset + limit], 0)
        while True:
            pieces = self._pieces
            chunk = self._chunk(pieces, offset, limit)
            if chunk.data or pieces is self._pieces:  # else the writer has just removed the file, in another thread
                return chunk

    def join(self) -> None:
        """Make the file hold all that is kept, in order. The segments stay until `discard_segments`.

        Copies up to half of the maximum: call it in a thread when `segmented`. Raises `OSError` where the disk
        refuses; the log is split then as it was before.
        """
        if not self.segmented:
            return
        self._reset_head()
        try:
            joined = self._append_segments()
        except OSError:
            self._reset_head()
            raise
        self._pieces = joined

    @property
    def segmented(self) -> bool:
        """Whether part of the log lies in segments beside the file."""
        return any(piece.name != self._name and piece.refused is None for piece in self._pieces)

    def discard_segments(self) -> None:
        """Remove the segments of a joined log, once its extents have been recorded."""
        for segment in self._segments:
            Path(self._path(segment)).unlink(missing_ok=True)
        if self._segments:
            self.close()
            self._segments.clear()
            self._file, self._room = self._name, self._segment_size
            self._file_length = Path(self._path(self._name)).stat().st_size
            self._head_size = self._file_length + self._room

    def close(self) -> None:
        """Release the descriptor. Reading goes on working, and appending takes a new one."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, flags: int) -> None:
        with contextlib.suppress(OSError):
            self._fd = os.open(self._path(self._file), flags, 0o600)
            if not stat.S_ISREG(os.fstat(self._fd).st_mode):  # a FIFO would take bytes, and give none
                self.close()

    def _next_segment(self) -> None:
        self.close()
        self._file = f"{self._name}.{self._head_size}.{self.size}"
        self._file_length = 0
        self._room = self._segment_size
        self._segments.append(self._file)
        if len(self._segments) > _SEGMENTS:
            oldest = self._segments.pop(0)
            self._pieces = [piece for piece in self._pieces if piece.name != oldest]
            Path(self._path(oldest)).unlink(missing_ok=True)
        self._open(_CREATE)

    def _keep(self, part: memoryview) -> None:
        written = self._write(part)
        if written:
            last = self._pieces[-1] if self._pieces else None
            if last and last.name == self._file and last.end == self.size:
                last.length += written
            else:
                self._pieces.append(_Piece(self.size, written, self._file, self._file_length))
            self._file_length += written
            self._room -= written
            self.size += written
        if written < len(part):
            self._hold(part[written:])

    def _hold(self, part: memoryview) -> None:
        """Take note that the disk has refused `part`, and hold the beginning of what it refuses."""
        held = part[: _MOST_REFUSED - self._refused]
        last = self._pieces[-1] if self._pieces else None
        if held and last and last.refused is not None and last.end == self.size:
            last.refused += held
            last.length += len(held)
        elif held:
            self._pieces.append(_Piece(self.size, len(held), "", 0, bytearray(held)))
        self._refused += len(held)
        self.lost += len(part)
        self.size += len(part)

    def _write(self, part: memoryview) -> int:
        """Write as much of `part` as the disk takes."""
        written = 0
        if self.size < self._retry_at:
            return written
        if self._fd < 0:
            self._open(_OPEN)
        try:
            while written < len(part):
                written += os.write(self._fd, part[written:])
        except OSError:
            self._retry_at = self.size + _RETRY_AFTER
        return written

    def _chunk(self, pieces: Sequence[_Piece], offset: int, limit: int) -> Chunk:
        for piece in pieces:
            if offset < piece.end:
                start = max(offset, piece.start)
                if piece.refused is not None:
                    at = start - piece.start
                    return Chunk(start, bytes(piece.refused[at : at + limit]), start - offset)
                data = self._read(piece.name, piece.at + start - piece.start, min(limit, piece.end - start))
                if not data and limit > 0:  # its file is gone or cut, as after a DELETE: a reader must get on
                    return Chunk(piece.end, b"", piece.end - offset)
                return Chunk(start, data, start - offset)
        end = max(offset, self.size)
        return Chunk(end, b"", end - offset)

    def _read(self, name: str, at: int, length: int) -> bytes:
        if name == self._file and self._fd >= 0 and threading.get_ident() == self._writer:
            return os.pread(self._fd, length, at)
        while True:
            path = self._path(name)
            try:
                descriptor = os.open(path, os.O_RDONLY | _SAFE)
                try:
                    return os.pread(descriptor, length, at)
                finally:
                    os.close(descriptor)
            except OSError as error:
                if error.errno not in _REPLACED:
                    raise
                if path == self._path(name):
                    return b""

    def _path(self, name: str) -> str:
        return f"{self._directory}/{name}"

    def _append_segments(self) -> list[_Piece]:
        """Copy what lies in segments to the end of the head; return where all lies then."""
        joined: list[_Piece] = []
        at = 0
        with open(os.open(self._path(self._name), os.O_WRONLY | os.O_APPEND | _SAFE), "ab") as head:
            for piece in self._pieces:
                if piece.refused is not None:
                    joined.append(piece)
                    continue
                if piece.name != self._name:
                    with open(os.open(self._path(piece.name), os.O_RDONLY | _SAFE), "rb") as segment:
                        segment.seek(piece.at)
                        _copy(segment.fileno(), head.fileno(), piece.length)
                joined.append(_Piece(piece.start, piece.length, self._name, at))
                at += piece.length
        return joined

    def _reset_head(self) -> None:
        """Cut off what a `join` that did not come to its end may have appended."""
        head = max((piece.at + piece.length for piece in self._pieces if piece.name == self._name), default=0)
        os.truncate(self._path(self._name), head)


def _segments_of(path: str) -> list[tuple[int, int, str]]:
    """Return (head size, offset, name) of each segment beside the log at `path`, in order."""
    name = re.compile(re.escape(Path(path).name) + r"\.(\d+)\.(\d+)")
    with os.scandir(Path(path).parent) as entries:  # of regular files: opening a FIFO would never return
        matches = [name.fullmatch(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)]
    return sorted((int(match[1]), int(match[2]), match[0]) for match in matches if match)


def _copy(source: int, target: int, length: int) -> None:
    while length:
        data = os.read(source, min(length, _COPY_SIZE))
        if not data:
            return
        length -= len(data)
        while data:  # a disk that is nearly full takes a part, and refuses the next write
            data = data[os.write(target, data) :]
