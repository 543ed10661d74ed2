"""The screen of a terminal: what a person would see where bytes of an output have been written to it.

What is here is the parser, total and linear whatever it is fed, and which function each control sequence stands for;
what the functions do is in cells.py. Knows no log and no run.
"""

import codecs
import re
from collections.abc import Callable
from typing import Final

from shelld_py.output.cells import BLANK, Cells, Row

_LONGEST_SEQUENCE: Final = 4096
"""Characters of a control sequence, or of a title, that are waited for; what is longer is passed over."""
_MOST_PARAMETERS: Final = 32
_LARGEST_PARAMETER: Final = 9999
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

APPLICATION_CURSOR: Final = 1 << 5
APPLICATION_KEYPAD: Final = 66 << 5
BRACKETED_PASTE: Final = 2004 << 5
"""As pyte has private modes."""


class Screen(Cells):
    """A terminal of `rows` and `cols`, to which output is written by `feed`."""

    def __init__(self, rows: int, cols: int) -> None:
        super().__init__(rows, cols)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""
        self._skipping = False
        """Whether what comes belongs to a string that is too long, up to its end."""

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
                self.rows = [Row(BLANK._replace(data="E")) for _ in self.rows]
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
