"""Reading an output by cursor: any part, at any time, in pieces that join to the whole.

A cursor is a byte offset in the log, so it is valid for ever. Raw reads may end anywhere but inside a
character. Text reads end at the end of a line: a line that is not finished can still be redrawn, so it is
held back until its line feed, or the end of the run, or until the program waits for input (then it is a
prompt). Inside of a line a read ends only if that line is complete and does not redraw itself. That is why
the texts of successive reads, joined, are the text of one read of it all, with one exception: a prompt that was
given out, and is redrawn afterwards. What was given cannot be taken back; the whole shows the line as it looked last.
"""

from enum import Enum, auto
from typing import Final

from msgspec import Struct

from shelld_py.models import OutputFormat
from shelld_py.output.log import OutputLog
from shelld_py.output.text import LINE_LIMIT, TextRenderer, character_boundary, plain_split, render

_LONGEST_CHARACTER: Final = 4
_MOST_TEXT: Final = 4
"""Characters of text for each byte of the limit, beyond which a read ends early: movements can blow up a text."""


class Unfinished(Enum):
    """What to do with a line that has no end yet."""

    HOLD = auto()
    """Keep it back: it may change."""
    SHOW = auto()
    """Show it as it looks now, but do not go past it: the next read gives it again."""
    TAKE = auto()
    """Give it and go past it: it is a prompt."""
    END = auto()
    """Give all of it: nothing more will come."""


class Reading(Struct, frozen=True):
    """What a read gave: `data` (text, or the bytes in raw form), and where the next one goes on."""

    cursor: int
    next_cursor: int
    data: str | bytes
    dropped: int


def read_output(log: OutputLog, cursor: int, limit: int, form: OutputFormat, unfinished: Unfinished) -> Reading:
    """Read about `limit` bytes of `log` from `cursor` on.

    More than `limit` is read only where a line that redraws itself is longer than that. Beyond a few KiB it wants a
    thread.
    """
    start, data, dropped = _gather(log, cursor, limit)
    at_end = start + len(data) >= log.size
    if form is OutputFormat.RAW:
        ended = at_end and unfinished is Unfinished.END
        length = len(data) if ended else character_boundary(data)
        if length == 0 and limit < _LONGEST_CHARACTER:
            return read_output(log, cursor, limit + 1, form, unfinished)
        return Reading(cursor, start + length, data[:length], dropped)
    renderer = TextRenderer()
    text, rendered = _fed(renderer, data, _MOST_TEXT * limit)
    end = start + rendered - renderer.pending
    if rendered < len(data):
        return Reading(cursor, end, text, dropped)
    ends = unfinished is Unfinished.END if at_end else log.read(start + len(data), 1).dropped > 0
    if ends:
        return Reading(cursor, start + len(data), text + renderer.finish(), dropped)
    if at_end and unfinished in (Unfinished.SHOW, Unfinished.TAKE):
        line, meaningless = renderer.unfinished()
        end = start + len(data) - meaningless if unfinished is Unfinished.TAKE else end
        return Reading(cursor, end, text + line, dropped)
    if end == start and not at_end:
        line_text, length = _long_line(log, start, limit, unfinished)
        return Reading(cursor, start + length, line_text, dropped)
    return Reading(cursor, end, text, dropped)


def _fed(renderer: TextRenderer, data: bytes, most: int) -> tuple[str, int]:
    """Feed `data` until the text has `most` characters or more; return the text, and how many bytes were fed."""
    parts: list[str] = []
    position = 0
    while position < len(data) and most >= 0:
        parts.append(renderer.feed(data[position : position + LINE_LIMIT]))
        most -= len(parts[-1])
        position = min(position + LINE_LIMIT, len(data))
    return "".join(parts), position


def _gather(log: OutputLog, cursor: int, limit: int) -> tuple[int, bytes, int]:
    """Return (start, data, dropped): up to `limit` bytes that lie together."""
    first = log.read(cursor, limit)
    parts, end = [first.data], first.end
    while end - first.start < limit:
        chunk = log.read(end, limit - (end - first.start))
        if chunk.dropped or not chunk.data:
            break
        parts.append(chunk.data)
        end = chunk.end
    return first.start, b"".join(parts), first.dropped


def _long_line(log: OutputLog, start: int, limit: int, unfinished: Unfinished) -> tuple[str, int]:
    """Read part of a line that is longer than `limit`, or all of it; return its text and its bytes."""
    length = 0
    for window in (min(4 * limit, LINE_LIMIT), 2 * LINE_LIMIT):
        _, data, _ = _gather(log, start, window)
        renderer = TextRenderer()
        renderer.feed(data)
        length = len(data) - renderer.pending
        if length:
            break
    if length and b"\x1b" not in data[:length]:
        length = data.find(b"\n") + 1 or length
    if length == 0 and unfinished is Unfinished.END:
        length = len(data)
    line = data[:length]
    part = plain_split(line, limit) or length
    return render(line[:part]), part


def start_of_last_line(log: OutputLog) -> int:
    """Return the cursor from which a reader who has seen all so far goes on: the unfinished line's start."""
    start = max(0, log.size - LINE_LIMIT)
    data = log.read(start, LINE_LIMIT).data
    return start + data.rfind(b"\n") + 1
