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
"""

import re
from typing import Final

LINE_LIMIT: Final = 64 * 1024
"""Bytes after which a line without a line feed is rendered as if it were complete."""

_LONGEST_ESCAPE: Final = 256
_LONGEST_CHARACTER: Final = 4

_ERASE = rb"\x1b\[[0-2]?K"
_MOVE = rb"\x1b\[[0-9]*[CDG]"
_STRING = rb"\x1b[PX^_][^\x1b\x18\x1a]*(?:\x1b\\|\x18|\x1a)"
_OSC = rb"\x1b\][^\x07\x1b\x18\x1a\n]*(?:\x07|\x1b\\|\x18|\x1a)?"
_CSI = rb"\x1b\[[0-?]*[ -/]*[@-~]?"
_SHORT = rb"\x1b[ -/]+[0-~]?|\x1b[0-~]?"

_INVISIBLE = re.compile(rb"(?!" + _ERASE + rb"|" + _MOVE + rb")(?:" + rb"|".join((_STRING, _OSC, _CSI, _SHORT)) + rb")")
_REMOVED: Final = b"\x1b\x1b"
_LINE_END = re.compile(r"\r+\n")
_STRING_OPEN = re.compile(rb"\x1b[PX^_]")
_STRING_WHOLE = re.compile(_STRING)
_UNFINISHED_ESCAPE = re.compile(rb"\x1b(?:[ -/]*|\[[0-?]*[ -/]*|\][^\x07\x1b\x18\x1a\n]*\x1b?)\Z")
_DRAWING = re.compile(r"\r|\x08|\x1b\[([0-9]*)([CDGK])")


class TextRenderer:
    """Renders bytes to text incrementally: complete lines at once, the unfinished line at the end."""

    __slots__ = ("_unfinished",)

    def __init__(self) -> None:
        self._unfinished = b""

    @property
    def pending(self) -> int:
        """Bytes that were fed and not yet rendered: those of the unfinished line."""
        return len(self._unfinished)

    def feed(self, data: bytes) -> str:
        """Take the next bytes, cut anywhere; return the text of the lines that they complete."""
        data = self._unfinished + data if self._unfinished else data
        parts = []
        end = 0
        if _is_plain(data):
            end = data.rfind(b"\n") + 1
            parts.append(data[:end].decode("utf-8", "replace"))
        # From here on `end` is always the beginning of a line, so where a line is broken does not depend on the cuts.
        while len(data) - end > LINE_LIMIT:
            window = data[end : end + LINE_LIMIT]
            length = _complete_part(window) or _break_of_line(window)
            parts.append(_render_lines(window[:length]))
            end += length
        rest = data[end:]
        length = _complete_part(rest)
        parts.append(_render_lines(rest[:length]))
        self._unfinished = rest[length:]
        return "".join(parts)

    def unfinished(self) -> tuple[str, int]:
        """Return the unfinished line as it looks now, and the bytes at its end that mean nothing yet.

        Those are an incomplete character or escape sequence. The line stays pending.
        """
        settled = _settled(self._unfinished)
        return _render_lines(self._unfinished[:settled]), len(self._unfinished) - settled

    def finish(self) -> str:
        """Return the rest: nothing more will come."""
        text, self._unfinished = _render_lines(self._unfinished), b""
        return text


def render(data: bytes) -> str:
    """Return the text of a whole output."""
    renderer = TextRenderer()
    return renderer.feed(data) + renderer.finish()


def plain_split(line: bytes, size: int) -> int:
    """Return how many bytes of a complete `line` can be read apart from its rest, `size` at the most.

    More where the first character is longer; 0 when the line redraws itself or holds escape sequences: its
    text is only known as a whole. Never splits a character, or a line's end.
    """
    content = line.removesuffix(b"\n").removesuffix(b"\r")
    if not _is_plain(content):
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


def _complete_part(data: bytes) -> int:
    """Return the end of the last complete line; a line feed inside a control string ends no line."""
    if b"\x1b" not in data or not (opened := _STRING_OPEN.search(data)):
        return data.rfind(b"\n") + 1
    spans = [match.span() for match in _STRING_WHOLE.finditer(data, opened.start())]
    unclosed = _STRING_OPEN.search(data, spans[-1][1] if spans else opened.start())
    limit = unclosed.start() if unclosed else len(data)
    end = data.rfind(b"\n", 0, limit) + 1
    for start, stop in reversed(spans):
        if start < end <= stop:
            end = data.rfind(b"\n", 0, start) + 1
    return end


def _break_of_line(data: bytes) -> int:
    """Return where a line that is too long can be broken: not in a character, an escape, or CR LF."""
    end = _settled(data)
    return len(data[:end].rstrip(b"\r")) or end or len(data)


def _settled(data: bytes) -> int:
    """Return the length of `data` without an incomplete character or escape sequence at its end."""
    end = len(data)
    if unfinished := _UNFINISHED_ESCAPE.search(data, max(0, end - _LONGEST_ESCAPE)):
        end = unfinished.start()
    return character_boundary(data[:end])


def _is_plain(data: bytes) -> bool:
    """Whether nothing in `data` draws or is invisible. Each `in` is a memchr: it costs next to nothing."""
    return b"\x1b" not in data and b"\r" not in data and b"\x08" not in data


def _render_lines(data: bytes) -> str:
    """Render complete lines, or one unfinished line.

    What is removed leaves a mark until the bytes are decoded: those around it do not become one character.
    """
    if b"\x1b" in data:
        data = _INVISIBLE.sub(_REMOVED, data)
    text = data.decode("utf-8", "replace")
    if _is_plain(data):
        return text
    text = _LINE_END.sub("\n", text.replace(_REMOVED.decode(), ""))
    return "\n".join(_redraw(line) for line in text.split("\n")) if _DRAWING.search(text) else text


def _redraw(line: str) -> str:
    """Return how a line looks after all that was drawn over it."""
    if not _DRAWING.search(line):
        return line
    cells: list[str] = []
    column = position = 0
    for match in _DRAWING.finditer(line):
        column = _write(cells, column, line[position : match.start()])
        position = match.end()
        count, action = int(match[1] or 0), match[2] or match[0]
        if action == "\r":
            column = 0
        elif action == "\x08":
            column = max(0, column - 1)
        elif action == "K":
            _erase(cells, column, count)
        elif action == "C":
            column += min(count or 1, LINE_LIMIT)
        elif action == "D":
            column = max(0, column - (count or 1))
        else:
            column = min(count or 1, LINE_LIMIT) - 1
    _write(cells, column, line[position:])
    return "".join(cells)


def _write(cells: list[str], column: int, text: str) -> int:
    """Put `text` into the cells from `column` on; return the column behind it."""
    if not text:
        return column
    if column > len(cells):
        cells.extend(" " * (column - len(cells)))
    cells[column : column + len(text)] = text
    return column + len(text)


def _erase(cells: list[str], column: int, part: int) -> None:
    """Erase to the end of the line (0), from its beginning (1), or all of it (2): ECMA-48, EL."""
    if part == 0:
        del cells[column:]
    elif part == 1:
        cells[: column + 1] = " " * min(column + 1, len(cells))
    else:
        cells.clear()
