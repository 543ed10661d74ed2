"""From the bytes of a terminal to what a person would read there.

Pure functions of bytes and text: no I/O, no bash, no runs. Used for answers, for reads by cursor, and
for counting what was written.

What is done to the bytes
    - Escape sequences (ECMA-48: CSI, OSC, DCS, APC, PM, SOS, nF and two-byte ones) are removed.
    - CR LF becomes LF. A carriage return, a backspace and the cursor movements within a line (CSI C, D
      and G) move the place where the next character lands, so that a redraw overwrites what it drew over;
      CSI K erases. A line reads as it last looked.
    - Invalid UTF-8 becomes U+FFFD, as `bytes.decode(errors="replace")` does it.
    - All else, other control characters too, is kept as it is.

Why it works line by line
    A later carriage return can change a line, but nothing can change a line after its line feed (movements
    between lines are removed, not followed). So a line can be rendered once, when it is complete, and the
    renderer needs no memory but the unfinished line. It also means that a text is the same however it is
    cut into reads, as long as each cut lies at the end of a line: `TextRenderer.pending` says how many
    bytes to step back to get there. To bound the memory, a line without end is broken after `LINE_LIMIT`
    bytes: a carriage return then goes back to the break.

What hostile bytes cannot do
    Nothing raises, whatever the bytes and the cuts. The work is linear: a byte is looked at a bounded number of
    times, however it is fed; no pattern can match from one ESC beyond the next, and a line is drawn backwards,
    so that a cell is written once and not as often as it was drawn over. What a line shows is at most its own
    characters and `WIDTH_LIMIT` columns of blanks. No single call of a C function gets more than `LINE_LIMIT`
    bytes, so that a thread that renders lets the others run.
"""

import codecs
import re
from bisect import bisect_left, bisect_right
from typing import Final

LINE_LIMIT: Final = 64 * 1024
"""Bytes after which a line without a line feed is rendered as if it were complete."""
WIDTH_LIMIT: Final = 1024
"""Columns that cursor movements can reach beyond the text of a line: a terminal stops at its width.

Wider than the terminals in use. Text itself is not wrapped, and can be wider."""

INLINE: Final = 8 * 1024
"""Bytes that may be rendered in the event loop where nothing is drawn. More goes to a thread."""
INLINE_DRAWN: Final = 512
"""Bytes that may be rendered in the event loop whatever they are.

The worst (each line of ten bytes becomes 1,024 columns) take 1 ms on a machine that is idle, 3 ms on one that is busy;
8 KiB of them take 13 to 49."""

_LONGEST_ESCAPE: Final = 256
_LONGEST_CHARACTER: Final = 4
_LONGEST_NUMBER: Final = 7
"""Digits of a parameter that are looked at, leading zeros left out: more than any line has columns."""

_DRAWN = rb"\[(?:[0-2]?K|[0-9]*[CDG])"
_STRING = rb"[PX^_][^\x1b\x18\x1a]*(?:\x1b\\|[\x18\x1a])"
_OSC = rb"\][^\x07\x1b\x18\x1a\n]*(?:[\x07\x18\x1a]|\x1b\\)?"
_CSI = rb"\[[0-?]*[ -/]*[@-~]?"
_SHORT = rb"[ -/]+[0-~]?|[0-~]?"

# ESC stands before all of it, not in each alternative: so the search is for one byte, which is three times as fast.
_ESCAPE = rb"(?!" + _DRAWN + rb")(?:" + rb"|".join((_STRING, _OSC, _CSI, _SHORT)) + rb")"
# But for the last, which looks at each line, these are compiled when they are first used, and `re` keeps them: a
# start does without.
_INVISIBLE = rb"\x1b" + _ESCAPE
_INVISIBLE_OR_REMOVED = rb"\x1b(?:\x1b|" + _ESCAPE + rb")"
_COLOUR = rb"\x1b\[[0-9;]*m"
_COLOUR_SAMPLE: Final = 2048
"""Bytes in which the colours of a text are looked for; a text has few different ones, and uses them early."""
_COLOURS_AT_ONCE: Final = 8
"""Different colours that are removed by `bytes.replace`. More passes than that would cost more than the pattern."""
_REMOVED: Final = b"\x1b\x1b"
# Strings that follow one another are found at once: what is between their line feeds is within them.
_STRINGS_OVER_LINES = rb"(?:\x1b[PX^_][^\x1b\x18\x1a\n]*\n[^\x1b\x18\x1a]*(?:\x1b\\|[\x18\x1a]|\x1b?\Z))++"
_UNFINISHED_ESCAPE = rb"\x1b(?:[ -/]*|\[[0-?]*[ -/]*|\][^\x07\x1b\x18\x1a\n]*\x1b?)\Z"
_DRAWING = re.compile(r"(\r|\x08+|\x1b\[[0-9]*[CDGK])")
_BLANK_LINES: Final = ("\r\x1b[K", "\r\x1b[0K", "\r\x1b[2K", "\x1b[2K\r")
"""What makes a line as if nothing had been written: how most progress bars begin each state."""
_SOLID: Final = {code: "x" for code in range(128) if code != ord("\r")}


class TextRenderer:
    """Renders bytes to text incrementally: complete lines at once, the unfinished line at the end."""

    __slots__ = ("_line", "_open", "_scanned")

    def __init__(self) -> None:
        self._line = bytearray()
        self._scanned = 0
        """Where the search for the end of the line goes on: before that there is none."""
        self._open = False
        """Whether a control string is known to have begun, and not ended."""

    @property
    def pending(self) -> int:
        """Bytes that were fed and not yet rendered: those of the unfinished line."""
        return len(self._line)

    def feed(self, data: bytes) -> str:
        """Take the next bytes, cut anywhere; return the text of the lines that they complete."""
        return "".join(map(_render_lines, self._completed(data)))

    def feed_size(self, data: bytes) -> int:
        """Do as `feed` does, but return only how many characters that text has, which takes a tenth of the time."""
        return sum(map(_size_of_lines, self._completed(data)))

    def _completed(self, data: bytes) -> list[bytes]:
        """Take the next bytes; return the lines that they complete, in pieces."""
        line = self._line
        completes = self._can_complete(data)
        line += data
        if not completes and len(line) <= LINE_LIMIT:
            return []
        parts = []
        end = 0
        # `end` is always the beginning of a line, so where a line is broken does not depend on the cuts.
        while len(line) - end > LINE_LIMIT:
            window = bytes(line[end : end + LINE_LIMIT])
            length = _complete_part(window, 0) or _break_of_line(window)
            parts.append(window[:length])
            end += length
        del line[:end]
        if length := _complete_part(line, 0 if end else self._scanned):
            parts.append(bytes(line[:length]))
            del line[:length]
        opened = _open_string(line)
        self._open = opened is not None
        # An ESC at the end may be the beginning of a control string.
        self._scanned = len(line) - line.endswith(b"\x1b") if opened is None else opened
        return parts

    def unfinished(self) -> tuple[str, int]:
        """Return the unfinished line as it looks now, and the bytes at its end that mean nothing yet.

        Those are an incomplete character or escape sequence. The line stays pending.
        """
        line = bytes(self._line)
        settled = _settled(line)
        return _render_lines(line[:settled]), len(line) - settled

    def finish(self) -> str:
        """Return the rest: nothing more will come."""
        text = _render_lines(bytes(self._line))
        self._line.clear()
        self._scanned, self._open = 0, False
        return text

    def _can_complete(self, data: bytes) -> bool:
        """Whether a line may be complete with `data` behind it."""
        if not self._open:
            return b"\n" in data
        return self._line.endswith(b"\x1b") or b"\x1b" in data or b"\x18" in data or b"\x1a" in data


class RawDecoder:
    """Decodes bytes incrementally, as they are: nothing is removed, and an incomplete character is held back.

    What is not UTF-8 becomes what `errors` says: U+FFFD ("replace") or surrogates ("surrogateescape", PEP 383).
    """

    __slots__ = ("_decoder",)

    def __init__(self, errors: str) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors)

    @property
    def pending(self) -> int:
        """Bytes that were fed and are held back."""
        return len(self._decoder.getstate()[0])

    def feed(self, data: bytes) -> str:
        """Take the next bytes, cut anywhere; return the characters that they complete."""
        return self._decoder.decode(data)

    def unfinished(self) -> tuple[str, int]:
        """Return what is shown of the bytes that are held back: nothing; and how many they are."""
        return "", self.pending

    def finish(self) -> str:
        """Return the rest: nothing more will come."""
        return self._decoder.decode(b"", final=True)


def render(data: bytes) -> str:
    """Return the text of a whole output."""
    if is_plain(data):
        return data.decode("utf-8", "replace")
    renderer = TextRenderer()
    return renderer.feed(data) + renderer.finish()


def plain_split(line: bytes, size: int) -> int:
    """Return how many bytes of a complete `line` can be read apart from its rest, `size` at the most.

    More where the first character is longer; 0 when the line redraws itself or holds escape sequences: its
    text is only known as a whole. Never splits a character, or a line's end.
    """
    content = line.removesuffix(b"\n").removesuffix(b"\r")
    if not is_plain(content):
        return 0
    if size >= len(line) or not content:
        return len(line)
    for length in range(size, size + _LONGEST_CHARACTER):
        if length >= len(content):
            return len(content)
        if part := character_boundary(line[:length]):
            return part
    return len(content)


def character_boundary(data: bytes) -> int:
    """Return the length of `data` without an incomplete UTF-8 character at its end."""
    for back in range(1, min(4, len(data) + 1)):
        byte = data[-back]
        if byte & 0xC0 == 0x80:
            continue
        expected = 4 if byte >= 0xF0 else 3 if byte >= 0xE0 else 2 if byte >= 0xC0 else 1
        return len(data) - back if expected > back else len(data)
    return len(data)


def is_plain(data: bytes) -> bool:
    """Whether nothing in `data` draws or is invisible. Each `in` is a memchr: it costs next to nothing."""
    return b"\x1b" not in data and b"\r" not in data and b"\x08" not in data


def is_quick(data: bytes) -> bool:
    """Whether `data` may be rendered in the event loop: it is short; or it is not long, and nothing in it draws."""
    size = len(data)
    return size <= INLINE_DRAWN or (size <= INLINE and (is_plain(data) or size_of_colours(data) is not None))


def _complete_part(data: bytes | bytearray, start: int) -> int:
    """Return the end of the last complete line that ends behind `start`; 0: there is none.

    A line feed inside of a control string ends no line. An ESC that does not end the string breaks it off: it was
    none, and what it held is text.
    """
    end = data.rfind(b"\n", start) + 1
    if not end or data.find(b"\x1b", start) < 0:
        return end
    for begin, stop in reversed([match.span() for match in re.compile(_STRINGS_OVER_LINES).finditer(data, start)]):
        if begin < end <= stop:
            end = data.rfind(b"\n", start, begin) + 1
    return end


def _open_string(data: bytearray) -> int | None:
    """Return where the control string begins in which `data` ends, if it ends in one."""
    escape = data.rfind(b"\x1b", 0, len(data) - 1)
    if (
        escape < 0
        or data[escape + 1] not in b"PX^_"
        or data.find(b"\x18", escape) > 0
        or data.find(b"\x1a", escape) > 0
    ):
        return None
    return escape


def _break_of_line(data: bytes) -> int:
    """Return where a line that is too long can be broken: not in a character, an escape, or CR LF."""
    end = _settled(data)
    return len(data[:end].rstrip(b"\r")) or end or len(data)


def _settled(data: bytes) -> int:
    """Return the length of `data` without an incomplete character or escape sequence at its end."""
    end = len(data)
    if unfinished := re.compile(_UNFINISHED_ESCAPE).search(data, max(0, end - _LONGEST_ESCAPE)):
        end = unfinished.start()
    return character_boundary(data[:end])


def _render_lines(data: bytes) -> str:
    """Render complete lines, or one unfinished line.

    What is removed leaves a mark until the bytes are decoded: those around it do not become one character.
    """
    if is_plain(data):
        return data.decode("utf-8", "replace")
    if b"\x1b" in data:
        text = _without_escapes(data).decode("utf-8", "replace").replace(_REMOVED.decode(), "")
    else:
        text = data.decode("utf-8", "replace")
    if "\r" in text and "\n" in text:  # CR CR LF is what CR LF becomes on its way through a second terminal
        text = text.replace("\r\n", "\n").replace("\r\n", "\n")
    if not _draws(text):
        return text
    lines = text.split("\n") if "\n" in text else [text]  # to find none, split takes forty times as long as `in`
    return "\n".join([_redraw(line) if _draws(line) else line for line in lines])


def _size_of_lines(data: bytes) -> int:
    """Return how many characters `_render_lines` would return, without making them where that can be counted."""
    size = size_of_colours(data)
    return len(_render_lines(data)) if size is None else size


def size_of_colours(data: bytes) -> int | None:
    """Return how many characters the text of complete lines has; None where there is more to it than ASCII in colours.

    In such lines no control string begins, and nothing is drawn.
    """
    if b"\r" in data or b"\x08" in data or not data.isascii():
        return None
    if b"\x1b" not in data:
        return len(data)
    colours = _colours(data)
    counts = list(map(data.count, colours))
    if sum(counts) != data.count(b"\x1b"):
        return None
    return len(data) - sum(count * len(colour) for count, colour in zip(counts, colours, strict=True))


def _colours(data: bytes) -> list[bytes]:
    """Return the different sequences of colours that a text begins with."""
    return list(dict.fromkeys(re.compile(_COLOUR).findall(data, 0, _COLOUR_SAMPLE)))[:_COLOURS_AT_ONCE]


def _without_escapes(data: bytes) -> bytes:
    """Return `data` with a mark in place of each escape sequence that draws nothing."""
    if _REMOVED in data:
        return re.compile(_INVISIBLE).sub(_REMOVED, data)
    colours = _colours(data)
    # Where there is nothing else, nothing can come together that was apart, and no mark is needed.
    alone = data.isascii() and sum(map(data.count, colours)) == data.count(b"\x1b")
    for colour in colours:
        data = data.replace(colour, b"" if alone else _REMOVED)
    if data.count(b"\x1b") == 2 * data.count(_REMOVED):
        return data
    return re.compile(_INVISIBLE_OR_REMOVED).sub(_REMOVED, data)


def _draws(text: str) -> bool:
    """Whether `text`, without what is invisible, moves or erases."""
    return "\r" in text or "\x08" in text or "\x1b" in text


def _redraw(line: str) -> str:
    """Return how a line looks after all that was drawn over it."""
    if "\x1b" in line:
        line = line[max((at + len(blank) for blank in _BLANK_LINES if (at := line.rfind(blank)) >= 0), default=0) :]
    if "\x1b" in line:
        return _drawn(line)
    if "\x08" not in line:
        return _overwritten(line.rstrip("\r"))
    if "\r" not in line and (parts := line.strip("\x08").split("\x08")) and all(parts):
        # Each backspace has a character before it, and another behind it that takes its place.
        return "".join([part[:-1] for part in parts[:-1]]) + parts[-1]
    return _drawn(line)


def _overwritten(line: str) -> str:
    """Return how a line looks in which nothing moves but carriage returns: behind the last part, longer ones show."""
    end = line.rfind("\r")
    text = line[end + 1 :]
    if end < 0:
        return text
    before = line[line.rfind("\r", 0, end) + 1 : end]
    width = len(before) + 1
    # With a CR at each multiple of its width, none is longer than the part before the last: most progress is like that.
    if line[end::-width] == "\r" * (end // width + 1):
        return text + before[len(text) :]
    # Whether any part is longer than the last is asked with two searches in C: parts can be as short as their CR.
    if line.isascii() and "x" * (len(text) + 1) not in line.translate(_SOLID):
        return text
    for part in reversed(line.split("\r")):
        if len(part) > len(text):
            text += part[len(text) :]
    return text


def _drawn(line: str) -> str:
    """Return how a line looks, whatever moves in it.

    First, from its beginning, where each stretch of text lands and what is erased. Then backwards: what was drawn
    last is seen, so each cell is painted once, and an erasure only narrows what can still be seen of all before it.
    """
    strokes: list[tuple[int, str]] = []
    column = width = 0
    parts = iter(_DRAWING.split(line))
    for text in parts:
        if text:
            strokes.append((column, text))
            column += len(text)
            width = max(width, column)
        movement = next(parts, "")
        action = movement[-1:]
        if action == "\r":
            column = 0
        elif action == "\x08":
            column = max(0, column - len(movement))
        elif action == "C":
            column = max(column, min(column + (_number(movement) or 1), max(width, WIDTH_LIMIT)))
        elif action == "D":
            column = max(0, column - (_number(movement) or 1))
        elif action == "G":
            column = min(_number(movement) or 1, max(width, WIDTH_LIMIT)) - 1
        elif movement == "\x1b[1K":
            strokes.append((-column - 1, ""))
        elif movement:
            width = 0 if movement == "\x1b[2K" else min(width, column)
            strokes.append((width, ""))
    return _painted(strokes, width)


def _number(movement: str) -> int:
    """Return the parameter of a cursor movement, 0 where there is none."""
    return int(movement[2:-1].lstrip("0")[:_LONGEST_NUMBER] or 0)


def _painted(strokes: list[tuple[int, str]], width: int) -> str:
    """Return `width` cells in which `strokes` were drawn, in order.

    A stroke is a column and its text; or, without text, an erasure: from a column on, or (a negative one) before it.
    """
    cells = [" "] * width
    starts: list[int] = []
    ends: list[int] = []  # of the stretches that are painted; they are apart, and in order
    left, right = 0, width  # nothing earlier is seen outside of these
    for column, text in reversed(strokes):
        if not text:
            left, right = (max(left, -column), right) if column < 0 else (left, min(right, column))
            continue
        start, end = max(column, left), min(column + len(text), right)
        cover = bisect_left(ends, end)
        if start >= end or (cover < len(ends) and starts[cover] <= start):
            continue
        first, last = bisect_left(ends, start), bisect_right(starts, end)
        at = start
        for index in range(first, last):
            if at < starts[index]:
                cells[at : starts[index]] = text[at - column : starts[index] - column]
            at = max(at, ends[index])
        if at < end:
            cells[at:end] = text[at - column : end - column]
        if first < last:
            start, end = min(start, starts[first]), max(end, ends[last - 1])
        starts[first:last], ends[first:last] = [start], [end]
    return "".join(cells)
