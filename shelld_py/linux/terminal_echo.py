"""What somebody who looks on sees of typing into a line editor that shows nothing by itself.

readline looks for ECHO whenever it prepares the terminal for a prompt, and gives back what it found when it has a line.
So who comes while it waits at a prompt finds an editor that shows nothing, at no prompt to come either: each is
prepared with the modes that the one before has given back. There is no moment at which ECHO could be set for it:
between two prompts the terminal is in the modes of lines for microseconds, and a program that has turned ECHO off for a
password looks the same. So what is typed is shown in the place of the kernel, and no mode is touched.

It knows the modes of terminals, and nothing of programs.
"""

import termios
from typing import Any, Final

_IFLAG, _OFLAG, _LFLAG, _CC = 0, 1, 3, 6
_DISABLED: Final = b"\0"
"""What stands for no key (_POSIX_VDISABLE)."""

_ERASE: Final = b"\b\x7f"
_ENTER: Final = b"\r\n"
_PRINTABLE: Final = 0x20
_ESCAPE: Final = 0x1B


def is_line_editor(modes: list[Any], baseline: list[Any]) -> bool:
    """Whether `modes` are what readline makes of `baseline` for a prompt (rltty.c).

    Keys instead of lines, Enter as it is, Ctrl-V for itself, signals and output as they were. Editors and pagers
    change other things as well or leave these, and draw by themselves.
    """
    return bool(
        modes[_IFLAG] == baseline[_IFLAG] & ~(termios.ICRNL | termios.INLCR)
        and modes[_OFLAG] == baseline[_OFLAG]
        and modes[_LFLAG] == baseline[_LFLAG] & ~(termios.ICANON | termios.ECHO)
        and modes[_CC][termios.VLNEXT] == _DISABLED
    )


class LineEcho:
    """Shows one line after the other as it is typed: what can be printed, what is erased, and its end.

    Other keys are shown as nothing: what they do to the line is the editor's, and not known here.
    """

    def __init__(self) -> None:
        self._column = 0
        self._in_sequence = False

    def shown(self, data: bytes) -> bytes:
        """Return what to show for `data`; a sequence of a key (`ESC [ A`) may be cut anywhere."""
        parts = bytearray()
        for byte in data:
            if self._in_sequence:
                self._in_sequence = not (chr(byte).isalpha() or byte == ord("~"))
            elif byte == _ESCAPE:
                self._in_sequence = True
            elif byte in _ENTER:
                self._column = 0
                parts += b"\n"
            elif byte in _ERASE:
                if self._column:
                    self._column -= 1
                    parts += b"\b \b"
            elif byte >= _PRINTABLE:
                self._column += byte & 0xC0 != 0x80  # a character of UTF-8 is where it begins
                parts.append(byte)
        return bytes(parts)
