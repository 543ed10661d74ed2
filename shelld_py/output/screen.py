"""The screen of a terminal: what a person would see where bytes of an output have been written to it.

pyte holds the cells and knows what most control functions do. What is here is what it lacks: a parser that is total and
linear whatever it is fed, the alternate screen, and work that is bounded for each byte. Knows no log and no run.

A line feed also returns the carriage: the terminals of shells pass LF on as it is, which is CR LF to a person.
"""

import codecs
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from pyte import charsets, modes
from pyte.screens import Char, Cursor, Margins, Savepoint, StaticDefaultDict
from pyte.screens import Screen as PyteScreen
from wcwidth import wcwidth

MOST_ROWS: Final = 500
MOST_COLS: Final = 500
"""A larger terminal is shown as if it had no more: what one control function does takes time for each row or cell."""
_LONGEST_SEQUENCE: Final = 4096
"""Characters of a control sequence, or of a title, that are waited for; what is longer is passed over."""
_MOST_PARAMETERS: Final = 32
_LARGEST_PARAMETER: Final = 9999
_LONGEST_CELL: Final = 8
"""Characters that a cell holds: one, and what combines with it."""
_LONGEST_TITLE: Final = 256

_TOKEN: Final = re.compile(
    r"""
      (?P<text>[^\x00-\x1f\x7f-\x9f]++)
    | (?P<control>[\x00-\x1a\x1c-\x1f\x7f-\x9f])
    | \x1b\[(?P<private>[<-?]?+)(?P<parameters>[0-9:;]*+)(?P<between>[ -/]*+)(?P<final>[@-~])
    | \x1b(?P<kind>[\]PX^_])(?P<string>[^\x07\x18\x1a\x1b]*+)(?:\x07|\x1b\\|(?=[\x18\x1a]|\x1b[^\\]))
    | \x1b(?P<charset>[ -/])(?P<code>[0-~])
    | \x1b(?P<escape>[0-OQ-WYZ\\`-~])
    | (?P<begun>\x1b(?:\[[0-?]*+[ -/]*+|[ -/]|[\]PX^_][^\x07\x18\x1a\x1b]*+\x1b?+)?+\Z)
    | \x1b(?P<malformed>(?:\[[0-?]*+[ -/]*+)?+)
    """,
    re.VERBOSE,
)
_END_OF_STRING: Final = re.compile(r"[\x07\x18\x1a]|\x1b\\?")
_FAULTS: Final = (ArithmeticError, AssertionError, AttributeError, LookupError, NameError, TypeError, ValueError)
"""What pyte raises at parameters that no terminal has: such a function does nothing."""

_ALTERNATE: Final = (47, 1047, 1049)
_SAVE_CURSOR: Final = 1048
APPLICATION_CURSOR: Final = 1 << 5
APPLICATION_KEYPAD: Final = 66 << 5
BRACKETED_PASTE: Final = 2004 << 5
"""As pyte has private modes."""

_Row = StaticDefaultDict[int, Char]


@dataclass
class _Buffer:
    """One of the two screens, while the other is shown."""

    rows: list[_Row]
    cursor: Cursor
    savepoint: Savepoint | None


class Screen(PyteScreen):
    """A terminal of `lines` rows and `columns`, to which output is written by `feed`."""

    def __init__(self, rows: int, cols: int) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._skipping = False
        """Whether what comes belongs to a string that is too long, up to its end."""
        self._other: _Buffer | None = None
        self._savepoint: Savepoint | None = None
        self._last = " "
        super().__init__(max(1, min(cols, MOST_COLS)), max(1, min(rows, MOST_ROWS)))

    # --- what can be seen of it -----------------------------------------------------------------------

    @property
    def texts(self) -> list[str]:
        """The rows as text, without trailing blanks."""
        columns = range(self.columns)
        return ["".join([row[x].data for x in columns]).rstrip() for row in self.rows]

    @property
    def alternate(self) -> bool:
        """Whether the alternate screen is shown."""
        return self._other is not None

    @property
    def default_char(self) -> Char:
        """An empty cell."""
        return _BLANK

    # --- what is written ------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Write `data` to it, which may begin and end anywhere. Never fails."""
        text = self._begun + self._decoder.decode(data)
        self._begun = ""
        position = 0
        while position < len(text):
            if self._skipping:
                end = _END_OF_STRING.search(text, position)
                position = end.end() if end else len(text)
                self._skipping = end is None
                continue
            token = _TOKEN.match(text, position)
            assert token is not None
            position = token.end()
            try:
                self._take(token)
            except _FAULTS:
                continue

    def _take(self, token: re.Match[str]) -> None:
        kind = token.lastgroup
        if kind == "text":
            self.draw(token["text"])
        elif kind == "control":
            if action := _CONTROLS.get(token["control"]):
                action(self)
        elif kind == "final":
            self._control_function(token["private"], token["parameters"], token["between"] + token["final"])
        elif kind == "string":
            code, _, title = token["string"].partition(";")
            if token["kind"] == "]" and code in ("0", "2"):
                self.title = title[:_LONGEST_TITLE]
        elif kind == "code":
            if token["charset"] in "()":
                self.define_charset(token["code"], mode=token["charset"])
            elif token["charset"] + token["code"] == "#8":
                self.rows = [_Row(_BLANK._replace(data="E")) for _ in self.rows]
        elif kind == "escape":
            if action := _ESCAPES.get(token["escape"]):
                action(self)
        elif kind == "begun":
            self._begin(token["begun"])

    def _begin(self, begun: str) -> None:
        """Keep the beginning of a sequence until the rest comes; one that is too long is passed over."""
        if len(begun) <= _LONGEST_SEQUENCE:
            self._begun = begun
        else:
            self._skipping = begun[1] != "["

    def _control_function(self, private: str, parameters: str, function: str) -> None:
        if function == "m" and not private:
            self.select_graphic_rendition(*_rendition(parameters))
            return
        values = [_number(item) for item in parameters.split(";", _MOST_PARAMETERS)[:_MOST_PARAMETERS]]
        if function in "hl" and private in ("", "?"):
            (self.set_mode if function == "h" else self.reset_mode)(*values, private=bool(private))
        elif function == "r" and not private:
            self.set_margins(values[0], values[1] if len(values) > 1 and values[1] else self.lines)
        elif function in "Hf" and not private:
            self.cursor_position(*values[:2])
        elif not private and (action := _FUNCTIONS.get(function)):
            action(self, values[0])

    def draw(self, data: str) -> None:
        """Write characters at the cursor, and move it on."""
        charset = self.g1_charset if self.charset else self.g0_charset
        if charset is not charsets.LAT1_MAP:
            data = data.translate(charset)
        if data.isascii() and modes.IRM not in self.mode:
            self._draw_narrow(data)
        else:
            for character in data:
                self._draw_one(character, wcwidth(character))
        if data:
            self._last = data[-1]

    def _draw_narrow(self, data: str) -> None:
        cursor, attributes, position = self.cursor, self.cursor.attrs, 0
        while position < len(data):
            self._wrap(1)
            x = cursor.x
            part = data[position : position + self.columns - x]
            position += len(part)
            if position < len(data) and modes.DECAWM not in self.mode:
                part, position = part[:-1] + data[-1], len(data)
            row = self.rows[cursor.y]
            _split_wide(row, x)
            _split_wide(row, x + len(part))
            row.update(zip(range(x, x + len(part)), [_cell(attributes, character) for character in part], strict=True))
            cursor.x = x + len(part)

    def _draw_one(self, character: str, width: int) -> None:
        cursor = self.cursor
        if width < 0:
            return
        if width == 0:
            self._combine(character)
            return
        width = min(width, self.columns)
        self._wrap(width)
        if modes.IRM in self.mode:
            self.insert_characters(width)
        row, x = self.rows[cursor.y], cursor.x
        _split_wide(row, x)
        _split_wide(row, x + width)
        row[x] = _cell(cursor.attrs, character)
        if width > 1:
            row[x + 1] = _cell(cursor.attrs, "")
        cursor.x = x + width

    def _wrap(self, width: int) -> None:
        """Go to the next line where there is no room for a character, or back where lines are not wrapped."""
        cursor = self.cursor
        if cursor.x + width > self.columns:
            if modes.DECAWM in self.mode:
                cursor.x = 0
                self.index()
            else:
                cursor.x = self.columns - width

    def _combine(self, character: str) -> None:
        """Add a character without width of its own to the one before it."""
        row, x = self.rows[self.cursor.y], self.cursor.x - 1
        if x > 0 and not row[x].data:
            x -= 1
        if x >= 0 and len(row[x].data) < _LONGEST_CELL:
            row[x] = row[x]._replace(data=row[x].data + character)

    # --- control functions that pyte has otherwise ----------------------------------------------------

    def reset(self) -> None:
        """Make all as it was at first."""
        self._other = self._savepoint = None
        self.rows = [_Row(_BLANK) for _ in range(self.lines)]
        self.title = ""
        self.tabstops = set(range(8, self.columns, 8))
        self.cursor = Cursor(0, 0, _BLANK)
        self.soft_reset()

    def soft_reset(self) -> None:
        """Set modes, margins, character sets and attributes back (DECSTR)."""
        self.mode = {modes.DECAWM, modes.DECTCEM}
        self.margins = None
        self.charset = 0
        self.g0_charset, self.g1_charset = charsets.LAT1_MAP, charsets.VT100_MAP
        self.cursor.attrs, self.cursor.hidden = _BLANK, False

    @property
    def rows(self) -> list[_Row]:
        """The rows of cells."""
        return self._rows

    @rows.setter
    def rows(self, rows: list[_Row]) -> None:
        self._rows = rows
        self.buffer = rows  # type: ignore[assignment]  # pyte takes rows by their numbers alone

    def resize(self, lines: int | None = None, columns: int | None = None) -> None:
        """Have another size. Rows go at the bottom as long as they are below the cursor, then at the top."""
        lines = max(1, min(lines or self.lines, MOST_ROWS))
        columns = max(1, min(columns or self.columns, MOST_COLS))
        _resize(self.rows, self.cursor, lines, columns)
        if self._other:
            _resize(self._other.rows, self._other.cursor, lines, columns)
        self.tabstops |= {stop for stop in range(8, columns, 8) if stop >= self.columns}
        self.lines, self.columns = lines, columns
        self.margins = None

    def set_mode(self, *numbers: int, private: bool = False, **_: Any) -> None:
        """Set modes."""
        for number in numbers:
            if private and number in _ALTERNATE:
                if number == max(_ALTERNATE):
                    self.save_cursor()
                self._show_alternate()
            elif private and number == _SAVE_CURSOR:
                self.save_cursor()
            elif private:
                self.mode.add(number << 5)
            else:
                self.mode.add(number)
            if private and number << 5 == modes.DECOM:
                self.cursor_position()
        self._adapt(numbers, private=private)

    def reset_mode(self, *numbers: int, private: bool = False, **_: Any) -> None:
        """Reset modes."""
        for number in numbers:
            if private and number in _ALTERNATE:
                self._show_main()
                if number == max(_ALTERNATE):
                    self.restore_cursor()
            elif private and number == _SAVE_CURSOR:
                self.restore_cursor()
            elif private:
                self.mode.discard(number << 5)
            else:
                self.mode.discard(number)
            if private and number << 5 == modes.DECOM:
                self.cursor_position()
        self._adapt(numbers, private=private)

    def _adapt(self, numbers: Sequence[int], *, private: bool) -> None:
        if private and modes.DECTCEM >> 5 in numbers:
            self.cursor.hidden = modes.DECTCEM not in self.mode

    def _show_alternate(self) -> None:
        if self._other is None:
            cursor = self.cursor
            self._other = _Buffer(self.rows, cursor, self._savepoint)
            self.cursor = Cursor(cursor.x, cursor.y, cursor.attrs)
            self.cursor.hidden = cursor.hidden
        self.rows = [_Row(_BLANK) for _ in range(self.lines)]

    def _show_main(self) -> None:
        if self._other is not None:
            hidden = self.cursor.hidden
            other, self._other = self._other, None
            self.rows, self.cursor, self._savepoint = other.rows, other.cursor, other.savepoint
            self.cursor.hidden = hidden

    def save_cursor(self) -> None:
        """Remember the cursor and what belongs to it (DECSC)."""
        cursor = Cursor(self.cursor.x, self.cursor.y, self.cursor.attrs)
        origin, wrap = modes.DECOM in self.mode, modes.DECAWM in self.mode
        self._savepoint = Savepoint(cursor, self.g0_charset, self.g1_charset, self.charset, origin, wrap)

    def restore_cursor(self) -> None:
        """Go back to what was saved, else to the top left (DECRC)."""
        saved = self._savepoint
        if saved is None:
            self.mode.discard(modes.DECOM)
            self.cursor_position()
            return
        self.g0_charset, self.g1_charset, self.charset = saved.g0_charset, saved.g1_charset, saved.charset
        for mode, on in ((modes.DECOM, saved.origin), (modes.DECAWM, saved.wrap)):
            (self.mode.add if on else self.mode.discard)(mode)
        self.cursor.x = min(saved.cursor.x, self.columns)
        self.cursor.y = min(saved.cursor.y, self.lines - 1)
        self.cursor.attrs = saved.cursor.attrs

    def cursor_position(self, line: int | None = None, column: int | None = None) -> None:
        """Go to a place, in origin mode within the margins."""
        top, bottom = self._region if modes.DECOM in self.mode else (0, self.lines - 1)
        self.cursor.y = min(top + (line or 1) - 1, bottom)
        self.cursor.x = min((column or 1) - 1, self.columns - 1)

    def cursor_to_line(self, line: int | None = None) -> None:
        """Go to a line of the same column."""
        self.cursor_position(line, min(self.cursor.x, self.columns - 1) + 1)

    @property
    def _region(self) -> tuple[int, int]:
        return self.margins or Margins(0, self.lines - 1)

    def linefeed(self) -> None:
        """Go to the beginning of the next line."""
        self.cursor.x = 0
        self.index()

    def index(self) -> None:
        """Go down a line; at the bottom, scroll."""
        if self.cursor.y == self._region[1]:
            self.scroll_up(1)
        elif self.cursor.y < self.lines - 1:
            self.cursor.y += 1

    def reverse_index(self) -> None:
        """Go up a line; at the top, scroll back."""
        if self.cursor.y == self._region[0]:
            self.scroll_down(1)
        elif self.cursor.y > 0:
            self.cursor.y -= 1

    def scroll_up(self, count: int) -> None:
        """Move the lines within the margins up."""
        self._delete_rows(self._region[0], count or 1)

    def scroll_down(self, count: int) -> None:
        """Move the lines within the margins down."""
        self._insert_rows(self._region[0], count or 1)

    def insert_lines(self, count: int | None = None) -> None:
        """Insert empty lines at the cursor, where that is within the margins."""
        if self._region[0] <= self.cursor.y <= self._region[1]:
            self._insert_rows(self.cursor.y, count or 1)
            self.cursor.x = 0

    def delete_lines(self, count: int | None = None) -> None:
        """Delete lines at the cursor, where that is within the margins."""
        if self._region[0] <= self.cursor.y <= self._region[1]:
            self._delete_rows(self.cursor.y, count or 1)
            self.cursor.x = 0

    def _insert_rows(self, at: int, count: int) -> None:
        bottom = self._region[1]
        count = min(count, bottom + 1 - at)
        del self.rows[bottom + 1 - count : bottom + 1]
        self.rows[at:at] = [self._blank_row() for _ in range(count)]

    def _delete_rows(self, at: int, count: int) -> None:
        bottom = self._region[1]
        count = min(count, bottom + 1 - at)
        del self.rows[at : at + count]
        self.rows[bottom + 1 - count : bottom + 1 - count] = [self._blank_row() for _ in range(count)]

    def _blank_row(self) -> _Row:
        return _Row(_blank(self.cursor.attrs.bg))

    def insert_characters(self, count: int | None = None) -> None:
        """Insert blanks at the cursor; what is behind it moves to the right."""
        self._move_cells(min(self.cursor.x, self.columns - 1), count or 1)

    def delete_characters(self, count: int | None = None) -> None:
        """Delete characters at the cursor; what is behind them moves to the left."""
        self._move_cells(min(self.cursor.x, self.columns - 1), -(count or 1))

    def _move_cells(self, x: int, by: int) -> None:
        row, blank = self.rows[self.cursor.y], _blank(self.cursor.attrs.bg)
        by = max(-(self.columns - x), min(by, self.columns - x))
        _split_wide(row, x)
        cells = [row[column] for column in range(x, self.columns)]
        cells = [blank] * by + cells[: len(cells) - by] if by > 0 else cells[-by:] + [blank] * -by
        if cells and not cells[0].data:
            cells[0] = blank
        row.update(enumerate(cells, x))
        _split_wide(row, self.columns)

    def erase_characters(self, count: int | None = None) -> None:
        """Make characters from the cursor on blanks."""
        self._erase(self.cursor.x, self.cursor.x + (count or 1))

    def erase_in_line(self, how: int = 0, *_: Any, **__: Any) -> None:
        """Make the line blank: from the cursor on, up to it, or all of it."""
        begin, end = {0: (self.cursor.x, self.columns), 1: (0, self.cursor.x + 1), 2: (0, self.columns)}[how]
        self._erase(begin, end)

    def _erase(self, begin: int, end: int) -> None:
        begin, end = min(begin, self.columns - 1), min(end, self.columns)
        if begin == 0 and end == self.columns:
            self.rows[self.cursor.y] = self._blank_row()
            return
        row = self.rows[self.cursor.y]
        _split_wide(row, begin)
        _split_wide(row, end)
        row.update(dict.fromkeys(range(begin, end), _blank(self.cursor.attrs.bg)))

    def erase_in_display(self, how: int = 0, *_: Any, **__: Any) -> None:
        """Make the screen blank: from the cursor on, up to it, or all of it."""
        if how in (0, 1):
            self.erase_in_line(how)
        y = self.cursor.y
        begin, end = {0: (y + 1, self.lines), 1: (0, y), 2: (0, self.lines), 3: (0, 0)}[how]
        blank = _blank(self.cursor.attrs.bg)
        for row in self.rows[begin:end]:
            row.clear()
            row.default = blank

    def tabs(self, count: int) -> None:
        """Go on by tab stops."""
        for _ in range(min(count or 1, self.columns)):
            self.tab()

    def tabs_back(self, count: int) -> None:
        """Go back by tab stops."""
        for _ in range(min(count or 1, self.columns)):
            self.cursor.x = max((stop for stop in self.tabstops if stop < self.cursor.x), default=0)

    def repeat(self, count: int) -> None:
        """Write the last character again."""
        self.draw(self._last * min(count or 1, self.columns))


_BLANK: Final = Char(" ")


@lru_cache(maxsize=512)
def _blank(background: str) -> Char:
    return _BLANK._replace(bg=background)


@lru_cache(maxsize=4096)
def _cell(attributes: Char, character: str) -> Char:
    return attributes._replace(data=character)


def _split_wide(row: _Row, x: int) -> None:
    """Make blanks of a wide character that what is written from, or up to, `x` takes one half of."""
    if x and x in row and not row[x].data:
        row[x] = row[x]._replace(data=" ")
        row[x - 1] = row[x - 1]._replace(data=" ")


def _resize(rows: list[_Row], cursor: Cursor, lines: int, columns: int) -> None:
    for row in rows:
        for x in [x for x in row if x >= columns]:
            del row[x]
    surplus = max(0, len(rows) - lines)
    below = min(surplus, len(rows) - 1 - cursor.y)
    del rows[len(rows) - below :]
    del rows[: surplus - below]
    rows.extend(_Row(_BLANK) for _ in range(lines - len(rows)))
    cursor.y = max(0, min(cursor.y - (surplus - below), lines - 1))
    cursor.x = min(cursor.x, columns)


def _number(digits: str) -> int:
    """Return a parameter; one that is left out, or has parts of its own, is 0."""
    return min(int(digits[:5]), _LARGEST_PARAMETER) if digits.isdigit() else 0


def _rendition(parameters: str) -> list[int]:
    """Return the parameters of SGR as pyte knows them: colours in parts (`38:2::r:g:b`) as several, the rest as one."""
    values: list[int] = []
    for item in parameters.split(";", _MOST_PARAMETERS)[:_MOST_PARAMETERS]:
        first, *parts = [_number(part) for part in item.split(":", 8)[:8]]
        if not parts:
            values.append(first)
        elif first in _COLOURS and parts[0] in (2, 5):
            values += [first, parts[0], *(parts[-3:] if parts[0] == 2 else parts[1:2])]
        elif first == _UNDERLINED:
            values.append(_UNDERLINED if parts[0] else _NOT_UNDERLINED)
    result: list[int] = []
    while values:
        value = values.pop(0)
        if value not in _COLOURS:
            result.append(value)
            continue
        length = {2: 4, 5: 2}.get(values[0], 1) if values else 0
        colour, values = [min(part, 255) for part in values[:length]], values[length:]
        if value != _UNDERLINE_COLOUR:
            result += [value, *colour]
    return result


_UNDERLINED: Final = 4
_NOT_UNDERLINED: Final = 24
_UNDERLINE_COLOUR: Final = 58
_COLOURS: Final = (38, 48, _UNDERLINE_COLOUR)

_CONTROLS: Final[dict[str, Callable[[Screen], None]]] = {
    "\b": Screen.backspace,
    "\t": Screen.tab,
    "\n": Screen.linefeed,
    "\v": Screen.linefeed,
    "\f": Screen.linefeed,
    "\r": Screen.carriage_return,
    "\x0e": Screen.shift_out,
    "\x0f": Screen.shift_in,
}
_ESCAPES: Final[dict[str, Callable[[Screen], None]]] = {
    "c": Screen.reset,
    "D": Screen.index,
    "E": Screen.linefeed,
    "M": Screen.reverse_index,
    "H": Screen.set_tab_stop,
    "7": Screen.save_cursor,
    "8": Screen.restore_cursor,
    "=": lambda screen: screen.mode.add(APPLICATION_KEYPAD),
    ">": lambda screen: screen.mode.discard(APPLICATION_KEYPAD),
}
_FUNCTIONS: Final[dict[str, Callable[[Screen, int], None]]] = {
    "@": Screen.insert_characters,
    "A": Screen.cursor_up,
    "B": Screen.cursor_down,
    "C": Screen.cursor_forward,
    "D": Screen.cursor_back,
    "E": Screen.cursor_down1,
    "F": Screen.cursor_up1,
    "G": Screen.cursor_to_column,
    "I": Screen.tabs,
    "J": Screen.erase_in_display,
    "K": Screen.erase_in_line,
    "L": Screen.insert_lines,
    "M": Screen.delete_lines,
    "P": Screen.delete_characters,
    "S": Screen.scroll_up,
    "T": Screen.scroll_down,
    "X": Screen.erase_characters,
    "Z": Screen.tabs_back,
    "`": Screen.cursor_to_column,
    "a": Screen.cursor_forward,
    "b": Screen.repeat,
    "d": Screen.cursor_to_line,
    "e": Screen.cursor_down,
    "g": Screen.clear_tab_stop,
    "s": lambda screen, _: screen.save_cursor(),
    "u": lambda screen, _: screen.restore_cursor(),
    "!p": lambda screen, _: screen.soft_reset(),
}
