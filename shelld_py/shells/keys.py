"""Names of keys, and the bytes that a terminal (xterm) sends for them. Knows no terminal, only the modes of one."""

import re
from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from shelld_py.bash.command import input_bytes
from shelld_py.errors import InvalidRequest
from shelld_py.validation import nearest, shown

_PLAIN: Final = {
    "Enter": "\r", "Tab": "\t", "Escape": "\x1b", "Space": " ", "Backspace": "\x7f",
}  # fmt: skip
_LETTERS: Final = {
    "Up": "A", "Down": "B", "Right": "C", "Left": "D", "Home": "H", "End": "F",
    "F1": "P", "F2": "Q", "F3": "R", "F4": "S",
}  # fmt: skip
"""Sent as `CSI letter`; F1 to F4, and in application mode the others, as `SS3 letter`."""
_NUMBERS: Final = {
    "Insert": 2, "Delete": 3, "PageUp": 5, "PageDown": 6, "F5": 15, "F6": 17, "F7": 18, "F8": 19, "F9": 20,
    "F10": 21, "F11": 23, "F12": 24,
}  # fmt: skip
"""Sent as `CSI number ~`."""
NAMES: Final = (*_PLAIN, "BackTab", *_LETTERS, *_NUMBERS)
_WITH_CONTROL: Final = {"Space": "\0", "Backspace": "\b", "?": "\x7f"}
_BACK_TAB: Final = "\x1b[Z"
_SHIFT, _META, _CONTROL = 1, 2, 4
_MODIFIERS: Final = {"S": _SHIFT, "M": _META, "C": _CONTROL}
_MODIFIED: Final = re.compile(r"((?:[CMS]-)+)([\s\S]*)")
_FUNCTION_KEY: Final = re.compile(r"F[0-9]{1,3}")
_LONGEST: Final = 64
"""Characters of what could be meant as a key: all that is longer is text."""
_LINE_BREAK: Final = re.compile(r"\r\n?|\n")


class KeyModes(Struct, frozen=True):
    """What a program has asked of its terminal: how it is sent cursor keys, and what is pasted."""

    application_cursor: bool = False
    bracketed_paste: bool = False


def check_keys(keys: Sequence[str]) -> None:
    """Raise `InvalidRequest` where an entry looks like a key and is none."""
    typed(keys, KeyModes())


def typed(keys: Sequence[str], modes: KeyModes) -> bytes:
    """Return what is sent for `keys`: each the name of a key, or text. Raises `InvalidRequest`."""
    return input_bytes("".join([_entry(entry, modes) for entry in keys]))


def pasted(text: str, modes: KeyModes) -> bytes:
    """Return what is sent for text that is pasted: line breaks as Enter.

    In brackets it holds no ESC, which could end them: what comes after would be taken for keys.
    """
    text = _LINE_BREAK.sub("\r", text)
    if modes.bracketed_paste:
        text = f"\x1b[200~{text.replace(chr(0x1B), '')}\x1b[201~"
    return input_bytes(text)


def _entry(entry: str, modes: KeyModes) -> str:
    if entry in NAMES:
        return _key(entry, 0, modes)
    if len(entry) > _LONGEST:
        return entry
    if modified := _MODIFIED.fullmatch(entry):
        modifiers = 0
        for name in modified[1].split("-")[:-1]:
            modifiers |= _MODIFIERS[name]
        key = modified[2]
        if key in NAMES or (len(key) == 1 and _has_byte(key, modifiers)):
            return _key(key, modifiers, modes)
        if re.search(r"\s", key):
            return entry
        raise _unknown(entry, modified[1], key)
    if _FUNCTION_KEY.fullmatch(entry):
        raise _unknown(entry, "", entry)
    return entry


def _has_byte(character: str, modifiers: int) -> bool:
    return not modifiers & _CONTROL or character == "?" or "@" <= character.upper() <= "_"


def _key(key: str, modifiers: int, modes: KeyModes) -> str:
    if key in _LETTERS or key in _NUMBERS:
        letter, number = _LETTERS.get(key, "~"), _NUMBERS.get(key, 1)
        if modifiers:
            return f"\x1b[{number};{1 + modifiers}{letter}"
        if letter == "~":
            return f"\x1b[{number}~"
        return f"\x1b{'O' if modes.application_cursor or key.startswith('F') else '['}{letter}"
    meta = "\x1b" if modifiers & _META else ""
    if key == "BackTab" or (key == "Tab" and modifiers & _SHIFT):
        return meta + _BACK_TAB
    if modifiers & _CONTROL and (key in _WITH_CONTROL or key not in _PLAIN):
        return meta + (_WITH_CONTROL.get(key) or chr(ord(key.upper()) & 0x1F))
    return meta + _PLAIN.get(key, key.upper() if modifiers & _SHIFT else key)


def _unknown(entry: str, prefix: str, key: str) -> InvalidRequest:
    near = "F12" if key.startswith("F") and key[1:].isdigit() else nearest(key, NAMES) if key else "c"
    hint = f" Do you mean {prefix}{near}?" if near else ""
    return InvalidRequest(
        f"keys: {shown(entry)} is no key.{hint} There are: {', '.join(NAMES)}; C-, M- and S- go before one, or before "
        "a character (C-c). Text that only looks like a key goes as text."
    )
