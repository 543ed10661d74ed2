"""The recording of a run, as an asciicast of version 2: https://docs.asciinema.org/manual/asciicast/v2/.

Made of its logs when somebody asks for it, in pieces of bounded size. Knows nothing of runs and of HTTP.
"""

import codecs
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from shelld_py.output.log import OutputLog
from shelld_py.output.timing import Moment

MEDIA_TYPE: Final = "application/x-asciicast"
_EVENT_SIZE: Final = 16 * 1024
"""Bytes of a log that one event has at the most."""
_READ_SIZE: Final = 64 * 1024
_PIECE: Final = 64 * 1024
_MOST_LINES: Final = 256
"""In one piece: it is made within a millisecond or two, while others wait for the interpreter's lock."""


class _Source:
    """One log as events, from its beginning on."""

    def __init__(self, log: OutputLog, end: int, sizes: Sequence[tuple[int, int, int]]) -> None:
        self._log = log
        self.end = end
        self._sizes = list(reversed(sizes))
        self._position = 0
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._block_start, self._block = 0, b""

    def events(self, end: int, at: float) -> Iterator[bytes]:
        """Yield what comes up to the offset `end`, as events `at` so many seconds."""
        end = min(end, self.end)
        while self._position < end:
            yield from self._resizes(at)
            stop = min(end, self._position + _EVENT_SIZE, self._sizes[-1][0] if self._sizes else end)
            start, data = self._read(stop)
            dropped, self._position = start - self._position, start + len(data)
            if dropped:
                yield from self._output(self._decoder.decode(b"", final=True), at)
                self._decoder.reset()
                yield _event(at, "m", f"{dropped} bytes of the output are not kept")
            yield from self._output(self._decoder.decode(data), at)

    def finish(self, at: float) -> Iterator[bytes]:
        """Yield what is left when nothing more will come."""
        yield from self._output(self._decoder.decode(b"", final=True), at)
        yield from self._resizes(at)

    def _resizes(self, at: float) -> Iterator[bytes]:
        while self._sizes and self._sizes[-1][0] <= self._position:
            _, rows, cols = self._sizes.pop()
            yield _event(at, "r", f"{cols}x{rows}")

    def _output(self, text: str, at: float) -> Iterator[bytes]:
        if text:  # a line feed of the daemon's terminals is no more than that; here it is what people mean by it
            yield _event(at, "o", text.replace("\n", "\r\n"))

    def _read(self, stop: int) -> tuple[int, bytes]:
        """Return what is kept from the position on, up to `stop`, and the offset where that begins."""
        position = self._position
        if not self._block_start <= position < self._block_start + len(self._block):
            chunk = self._log.read(position, min(_READ_SIZE, self.end - position))
            self._block_start, self._block = chunk.start, chunk.data
        start = max(position, self._block_start)
        return start, self._block[start - self._block_start : max(0, stop - self._block_start)]


def recording(
    header: Mapping[str, object],
    logs: Sequence[OutputLog],
    sizes: Sequence[tuple[int, int, int]],
    moments: Iterable[Moment],
    until: float,
    *,
    ended: bool,
) -> Iterator[bytes]:
    """Yield the recording in pieces, which may be empty: a line of JSON for the `header`, one for each event.

    The `sizes` of the terminal are (offset of the first log, rows, columns), the first of them that at the start.
    `moments` tell when there was how much of the logs; what they don't tell of comes at its end, `until` so many
    seconds, and nothing comes later. Unless the run has `ended`, the last character may not be complete.
    """
    _, rows, cols = sizes[0]
    sources = [_Source(log, log.size, () if index else sizes[1:]) for index, log in enumerate(logs)]
    lines = _lines(sources, moments, until, ended=ended)
    yield msgspec.json.encode({"version": 2, "width": cols, "height": rows, **header}) + b"\n"
    piece, size = [], 0
    for line in lines:
        piece.append(line)
        size += len(line)
        if size > _PIECE or len(piece) >= _MOST_LINES:
            yield b"".join(piece)
            piece, size = [], 0
    yield b"".join(piece)


def _lines(sources: Sequence[_Source], moments: Iterable[Moment], until: float, *, ended: bool) -> Iterator[bytes]:
    """Yield the events; nothing where a moment has none, so that others get their turn, however many there are."""
    for milliseconds, ends in moments:
        for source, end in zip(sources, ends, strict=True):
            yield from source.events(end, min(milliseconds / 1000, until))
        if any(end > source.end for source, end in zip(sources, ends, strict=True)):
            break  # what was written since, or none of ours
        yield b""
    for source in sources:
        yield from source.events(source.end, until)
        if ended:
            yield from source.finish(until)


def _event(at: float, kind: str, data: str) -> bytes:
    return msgspec.json.encode((round(at, 3), kind, data)) + b"\n"
