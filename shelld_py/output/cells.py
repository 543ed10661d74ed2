"""The cells of a screen, and what the control functions of a terminal do to them.

pyte holds the cells and knows what most functions do. What is here is what it lacks or has otherwise: the alternate
screen, wide characters that are cut in two, and work that is bounded for each byte. Knows no bytes: screen.py has them.

A line feed also returns the carriage: the terminals of shells pass LF on as it is, which is CR LF to a person.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from msgspec import Struct
from pyte import charsets, modes
from pyte.screens import Char, Cursor, Margins, Savepoint, StaticDefaultDict
from pyte.screens import Screen as PyteScreen
from wcwidth import wcwidth

MOST_ROWS: Final = 500
MOST_COLS: Final = 500
"""A larger terminal is shown as if it had no more: what one control function does takes time for each row or cell."""
_LONGEST_CELL: Final = 8
"""Characters that a cell holds: one, and what combines with it."""

_ALTERNATE: Final = (47, 1047, 1049)
_SAVE_CURSOR: Final = 1048

Row = StaticDefaultDict[int, Char]
BLANK: Final = Char(" ")


class _Buffer(Struct):
    """One of the two screens, while the other is shown."""

    rows: list[Row]
    cursor: Cursor
    savepoint: Savepoint | None


class Cells(PyteScreen):
    """The cells of a terminal of `rows` and `cols`, its cursor, and its modes."""

    def __init__(self, rows: int, cols: int) -> None:
        self._other: _Buffer | None = None
        self._savepoint: Savepoint | None = None
        self._last = " "
        super().__init__(max(1, min(cols, MOST_COLS)), max(1, min(rows, MOST_ROWS)))

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
        return BLANK

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

    def reset(self) -> None:
        """Make all as it was at first."""
        self._other = self._savepoint = None
        self.rows = [Row(BLANK) for _ in range(self.lines)]
        self.title = ""
        self.tabstops = set(range(8, self.columns, 8))
        self.cursor = Cursor(0, 0, BLANK)
        self.soft_reset()

    def soft_reset(self) -> None:
        """Set modes, margins, character sets and attributes back (DECSTR)."""
        self.mode = {modes.DECAWM, modes.DECTCEM}
        self.margins = None
        self.charset = 0
        self.g0_charset, self.g1_charset = charsets.LAT1_MAP, charsets.VT100_MAP
        self.cursor.attrs, self.cursor.hidden = BLANK, False

    @property
    def rows(self) -> list[Row]:
        """The rows of cells."""
        return self._rows

    @rows.setter
    def rows(self, rows: list[Row]) -> None:
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
        self.rows = [Row(BLANK) for _ in range(self.lines)]

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

    def _blank_row(self) -> Row:
        return Row(_blank(self.cursor.attrs.bg))

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


@lru_cache(maxsize=512)
def _blank(background: str) -> Char:
    return BLANK._replace(bg=background)


@lru_cache(maxsize=4096)
def _cell(attributes: Char, character: str) -> Char:
    return attributes._replace(data=character)


def _split_wide(row: Row, x: int) -> None:
    """Make blanks of a wide character that what is written from, or up to, `x` takes one half of."""
    if x and x in row and not row[x].data:
        row[x] = row[x]._replace(data=" ")
        row[x - 1] = row[x - 1]._replace(data=" ")


def _resize(rows: list[Row], cursor: Cursor, lines: int, columns: int) -> None:
    for row in rows:
        for x in [x for x in row if x >= columns]:
            del row[x]
    surplus = max(0, len(rows) - lines)
    below = min(surplus, len(rows) - 1 - cursor.y)
    del rows[len(rows) - below :]
    del rows[: surplus - below]
    rows.extend(Row(BLANK) for _ in range(lines - len(rows)))
    cursor.y = max(0, min(cursor.y - (surplus - below), lines - 1))
    cursor.x = min(cursor.x, columns)
