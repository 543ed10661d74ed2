"""The part of an output that an answer shows: all of it, or its beginning and end with a mark in between.

Reads the log, which is where output lives; keeps nothing. Knows nothing of runs or HTTP.
"""

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from shelld_py.models import OutputFormat
from shelld_py.output.log import OutputLog
from shelld_py.output.text import INLINE, LINE_LIMIT, TextRenderer, character_boundary, is_plain

READ_SIZE: Final = 64 * 1024
"""Bytes that are read and rendered at once: so long others wait where a thread does it, and so much memory it takes."""
_FIRST_WINDOW: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class Cut:
    """How much to show: `maximum` characters (0: all), or else the first `begin` and the last `end`."""

    maximum: int
    begin: int
    end: int

    @classmethod
    def scaled(cls, maximum: int, begin: int, end: int) -> "Cut":
        """Return a cut to `maximum` that keeps the proportion of `begin` and `end`."""
        share = maximum * begin // (begin + end) if begin + end else maximum // 2
        return cls(maximum, share, maximum - share)


@dataclass(frozen=True, slots=True)
class Excerpt:
    """What is shown of an output, and how many characters there are in all."""

    text: str
    truncated: bool
    size: int


class SizeCounter:
    """How many characters the text of a growing log has: of plain text its bytes; anything else is rendered when asked.

    Belongs to an event loop. What is no longer kept (a log keeps its beginning and its end) counts by its bytes.
    """

    __slots__ = ("_ended", "_line", "_log", "_measuring", "_position", "_renderer", "_size", "_unfinished")

    def __init__(self, log: OutputLog) -> None:
        self._log = log
        self._line = 0
        """Where the unfinished line begins, as long as all was plain: what follows can redraw it."""
        self._renderer: TextRenderer | None = None
        """From the first bytes on that were not plain."""
        self._position = 0
        """Bytes that are counted."""
        self._size = self._unfinished = 0
        self._ended = False
        self._measuring = asyncio.Lock()

    def note(self, data: memoryview) -> None:
        """Take note of what has just been appended to the log."""
        if self._renderer:
            return
        content = bytes(data)
        if not (content.isascii() and is_plain(content)):
            self._size = self._position = self._line
            self._renderer = TextRenderer()
            return
        start = self._position
        self._position = self._size = start + len(content)
        if (line_feed := content.rfind(b"\n")) >= 0:
            self._line = start + line_feed + 1
        # Where the renderer breaks a line without end, nothing before the break can be redrawn.
        self._line += max(0, self._position - self._line - 1) // LINE_LIMIT * LINE_LIMIT

    def finish(self) -> None:
        """What is left unfinished counts as it is: nothing more will come."""
        self._ended = True

    @property
    def exact(self) -> bool:
        """Whether all that has come is counted."""
        if self._renderer is None:
            return True
        left = self._renderer.pending if self._ended else 0
        return not self._measuring.locked() and self._position == self._log.size and not left

    @property
    def size(self) -> int:
        """Characters so far, those of the unfinished line among them; what is not rendered yet counts by its bytes.

        `measure` makes it exact. A few bytes are rendered here.
        """
        if not self._measuring.locked() and self._behind <= INLINE:
            self._count()
        return self._size + self._unfinished + self._log.size - self._position

    async def measure(self) -> None:
        """Render what has come so far, and was not rendered yet: in a thread, unless it is little."""
        async with self._measuring:
            if self._behind > INLINE:
                await asyncio.to_thread(self._count)
            else:
                self._count()

    @property
    def _behind(self) -> int:
        """Bytes that have to be rendered to know the size, those of the unfinished line among them."""
        return self._log.size - self._position + self._renderer.pending if self._renderer else 0

    def _count(self) -> None:
        renderer, end = self._renderer, self._log.size
        if renderer is None or (self._position == end and not self._ended):
            return
        while self._position < end:
            chunk = self._log.read(self._position, READ_SIZE)
            self._size += min(chunk.dropped, end - self._position) + len(renderer.feed(chunk.data))
            self._position = chunk.end
        if self._ended:
            self._size += len(renderer.finish())
        self._unfinished = len(renderer.unfinished()[0])


def excerpt(log: OutputLog, size: int, form: OutputFormat, cut: Cut, mark: str, end: int | None = None) -> Excerpt:
    """Return what to show of `log` up to the offset `end` (None: all), which renders to `size` characters of text.

    What is written behind `end` meanwhile is not seen, so that text and figures are of one moment. `mark` is the
    line between the parts, with `{}` for the number of characters that are left out. In raw form bytes that are
    not UTF-8 become surrogates (PEP 383), and the characters are counted here. Reads the disk: a large log wants
    a thread.
    """
    end = log.size if end is None else end
    size = size if form is OutputFormat.TEXT else sum(len(piece) for piece in pieces(log, form, end=end))
    if cut.maximum == 0 or size <= cut.maximum:
        return Excerpt("".join(pieces(log, form, end=end)), truncated=False, size=size)
    head = _first(pieces(log, form, end=end), cut.begin)
    tail = _last(log, form, cut.end, end)
    separator = "" if not head or head.endswith("\n") else "\n"
    text = f"{head}{separator}{mark.format(size - cut.begin - cut.end)}\n{tail}"
    return Excerpt(text, truncated=True, size=size)


def pieces(log: OutputLog, form: OutputFormat, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the output from `start` to `end` in pieces of bounded size; without `end`, to where it ends now.

    It has an end also while a command goes on writing faster than anybody reads.
    """
    end = log.size if end is None else end
    renderer = TextRenderer() if form is OutputFormat.TEXT else None
    held = b""
    while start < end:
        chunk = log.read(start, min(READ_SIZE, end - start))
        start = chunk.end
        kept = chunk.data[: max(0, end - chunk.start)]
        if not kept:
            break
        if renderer:
            yield renderer.feed(kept)
        else:
            data = held + kept
            boundary = character_boundary(data)
            held = data[boundary:]
            yield data[:boundary].decode("utf-8", "surrogateescape")
    yield renderer.finish() if renderer else held.decode("utf-8", "surrogateescape")


def _first(source: Iterator[str], count: int) -> str:
    parts: list[str] = []
    for part in source:
        parts.append(part[:count])
        count -= len(parts[-1])
        if count <= 0:
            break
    return "".join(parts)


def _last(log: OutputLog, form: OutputFormat, count: int, end: int) -> str:
    """Render backwards: ever larger windows from the end, each from the beginning of a line."""
    if count == 0:
        return ""
    window = max(_FIRST_WINDOW, 2 * count)
    while True:
        start = max(0, end - window)
        if start and form is OutputFormat.TEXT:
            chunk = log.read(start, READ_SIZE)
            start = chunk.start + chunk.data.find(b"\n") + 1
        tail = ""
        for part in pieces(log, form, start, end):
            tail = (tail + part)[-count:]
        if len(tail) == count or start == 0:
            return tail
        window *= 4
