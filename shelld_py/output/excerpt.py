"""What an answer shows of an output: all of it, or its beginning and end with a mark in between; and how much there is.

Reads the log, which is where output lives; keeps nothing of it. Knows results, but nothing of HTTP, of tools, or of
who waits.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Self

import msgspec
from msgspec import Struct

from shelld_py.config import OutputSettings
from shelld_py.models import OutputFormat, RunResult, Stream
from shelld_py.output.log import OutputLog
from shelld_py.output.text import (
    INLINE,
    INLINE_DRAWN,
    LINE_LIMIT,
    RawDecoder,
    TextRenderer,
    is_plain,
    is_quick,
    render,
    size_of_colours,
)

LARGE: Final = 1024 * 1024
"""Bytes beyond which all of an output is sent piece by piece."""
READ_SIZE: Final = 64 * 1024
"""Bytes that are read and rendered at once: so long others wait where a thread does it, and so much memory it takes."""
_COUNTED_AT_ONCE: Final = 192 * 1024
"""Bytes that are read at once to be counted, as long as they are text in colours: a search takes less than 0.5 ms.

With more malloc would give the pages back each time, and they would be made anew."""
_FIRST_WINDOW: Final = 64 * 1024
"""Bytes from the end in which the last part of an output is looked for first."""

WhereToRead = Callable[[str, Stream], str]


class OutputChoice(Struct, frozen=True):
    """How an output is wanted: its form, and `maximum` characters of it (0: all), or the first and last so many."""

    form: OutputFormat
    maximum: int
    begin: int
    end: int

    @classmethod
    def of(cls, form: OutputFormat, maximum: int | None, settings: OutputSettings) -> Self:
        """Return the choice for somebody who asks for `maximum` characters, or for none in particular.

        A cut to another size than the settings' own keeps the proportion of beginning and end.
        """
        begin, end = settings.begin_size, settings.end_size
        limit = settings.max_size if maximum is None else maximum
        if maximum is None and begin + end <= limit:
            return cls(form, limit, begin, end)
        share = limit * begin // (begin + end) if begin + end else limit // 2
        return cls(form, limit, share, limit - share)


class Excerpt(Struct, frozen=True):
    """What is shown of an output, and how many characters there are in all."""

    text: str
    truncated: bool
    size: int


_NOTHING: Final = Excerpt("", truncated=False, size=0)


class SizeCounter:
    """How many characters the text of a growing log has: of plain text its bytes; anything else is rendered when asked.

    Belongs to an event loop. What is no longer kept (a log keeps its beginning and its end) counts by its bytes.
    """

    __slots__ = ("_ended", "_line", "_log", "_measuring", "_position", "_renderer", "_size", "_stopped", "_unfinished")

    def __init__(self, log: OutputLog) -> None:
        self._log = log
        self._line = 0
        """Where the unfinished line begins, as long as all was plain: what follows can redraw it."""
        self._renderer: TextRenderer | None = None
        """From the first bytes on that were not plain."""
        self._position = 0
        """Bytes that are counted."""
        self._size = self._unfinished = 0
        self._ended = self._stopped = False
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

    def stop(self) -> None:
        """Count no more, and break off what a thread is counting: what is left counts by its bytes."""
        self._stopped = True

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
        if not self._measuring.locked() and self._quick:
            self._count()
        return self._size + self._unfinished + self._log.size - self._position

    async def measure(self) -> None:
        """Render what has come so far, and was not rendered yet: in a thread, unless it is little."""
        async with self._measuring:
            if self._quick:
                self._count()
            else:
                await asyncio.to_thread(self._count)

    @property
    def _behind(self) -> int:
        """Bytes that have to be rendered to know the size, those of the unfinished line among them."""
        return self._log.size - self._position + self._renderer.pending if self._renderer else 0

    @property
    def _quick(self) -> bool:
        """Whether what is behind may be rendered in the event loop."""
        behind = self._behind
        pending = self._renderer is not None and self._renderer.pending
        return behind <= INLINE_DRAWN or (not pending and quick_to_read(self._log, self._position, behind))

    def _count(self) -> None:
        renderer, end = self._renderer, self._log.size
        if renderer is None or (self._position == end and not self._ended):
            return
        at_once = _COUNTED_AT_ONCE
        while self._position < end:
            if self._stopped:
                return
            chunk = self._log.read(self._position, at_once)
            lines = chunk.data[: chunk.data.rfind(b"\n") + 1] if not renderer.pending else b""
            size = size_of_colours(lines) if lines else None
            if size is None and at_once > READ_SIZE:
                at_once = READ_SIZE  # what has to be rendered takes longer, and can be stopped in between
                continue
            self._size += min(chunk.dropped, end - self._position)
            if size is None:
                self._size += renderer.feed_size(chunk.data)
                self._position = chunk.end
            else:  # what the renderer would do, which is at the beginning of a line; it gets the rest
                self._size += size
                self._position = chunk.start + len(lines)
        if self._ended:
            self._size += len(renderer.finish())
        self._unfinished = len(renderer.unfinished()[0])


def quick_to_read(log: OutputLog, start: int, size: int, form: OutputFormat = OutputFormat.TEXT) -> bool:
    """Whether `size` bytes of a log, from the beginning of a line on, may be rendered in the event loop."""
    if form is OutputFormat.RAW or size <= INLINE_DRAWN:
        return size <= INLINE
    return size <= INLINE and is_quick(log.read(start, size).data)


def text_size(log: OutputLog) -> int:
    """Return the characters of the text of a log that is complete; what is not kept counts by its bytes."""
    return log.size - log.kept + sum(len(piece) for piece in pieces(log, OutputFormat.TEXT))


async def with_output(
    result: RunResult, logs: Mapping[Stream, OutputLog], choice: OutputChoice, where: WhereToRead
) -> RunResult:
    """Return `result`, which has the true sizes of the texts, with the part of its output that is wanted.

    `where` says how all of a stream can be read, by run id: the mark in a cut output tells it.
    """
    sizes = {Stream.STDOUT: result.original_stdout_size, Stream.STDERR: result.original_stderr_size}
    shown = {Stream.STDOUT: _NOTHING, Stream.STDERR: _NOTHING}
    for stream, log in logs.items():
        if end := log.size:
            mark = f"... [{{}} characters omitted; the full output: {where(result.run_id, stream)}] ..."
            arguments = (log, sizes[stream], choice, mark, end)
            quick = quick_to_read(log, 0, end, choice.form)
            shown[stream] = excerpt(*arguments) if quick else await asyncio.to_thread(excerpt, *arguments)
    stdout, stderr = shown[Stream.STDOUT], shown[Stream.STDERR]
    return msgspec.structs.replace(
        result,
        stdout=stdout.text,
        stderr=stderr.text,
        truncated=stdout.truncated or stderr.truncated,
        original_stdout_size=stdout.size,
        original_stderr_size=stderr.size,
    )


def excerpt(log: OutputLog, size: int, choice: OutputChoice, mark: str, end: int) -> Excerpt:
    """Return what to show of `log` up to the offset `end`, which renders to `size` characters of text.

    What is written behind `end` meanwhile is not seen, so that text and figures are of one moment. `mark` is the
    line between the parts, with `{}` for the number of characters that are left out. In raw form bytes that are
    not UTF-8 become surrogates (PEP 383), and the characters are counted here. Reads the disk: a large log wants
    a thread.
    """
    form = choice.form
    if end <= INLINE and len(data := log.read(0, end).data) == end:  # at once, and nothing of it is gone
        whole = render(data) if form is OutputFormat.TEXT else data.decode("utf-8", "surrogateescape")
        size = size if form is OutputFormat.TEXT else len(whole)
        if choice.maximum == 0 or size <= choice.maximum:
            return Excerpt(whole, truncated=False, size=size)
    size = size if form is OutputFormat.TEXT else sum(len(piece) for piece in pieces(log, form, end=end))
    if choice.maximum == 0 or size <= choice.maximum:
        return Excerpt("".join(pieces(log, form, end=end)), truncated=False, size=size)
    head = _first(pieces(log, form, end=end), choice.begin)
    tail = _last(log, form, choice.end, end)
    separator = "" if not head or head.endswith("\n") else "\n"
    text = f"{head}{separator}{mark.format(size - choice.begin - choice.end)}\n{tail}"
    return Excerpt(text, truncated=True, size=size)


def pieces(log: OutputLog, form: OutputFormat, start: int = 0, end: int | None = None) -> Iterator[str]:
    """Yield the output from `start` to `end` in pieces of bounded size; without `end`, to where it ends now.

    It has an end also while a command goes on writing faster than anybody reads.
    """
    end = log.size if end is None else end
    decoded = decoder(form)
    while start < end:
        chunk = log.read(start, min(READ_SIZE, end - start))
        start = chunk.end
        kept = chunk.data[: max(0, end - chunk.start)]
        if not kept:
            break
        yield decoded.feed(kept)
    yield decoded.finish()


def decoder(form: OutputFormat, errors: str = "surrogateescape") -> TextRenderer | RawDecoder:
    """Return what turns the bytes of an output into `form`; `errors` is for raw output alone."""
    return TextRenderer() if form is OutputFormat.TEXT else RawDecoder(errors)


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
        tail, length = deque[str](), 0
        for part in pieces(log, form, start, end):
            tail.append(part)
            length += len(part)
            while length - len(tail[0]) >= count:  # joined once, at the end: a tail may be as long as the log
                length -= len(tail.popleft())
        if length >= count or start == 0:
            return "".join(tail)[-count:]
        window *= 4
