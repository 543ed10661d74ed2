"""What a caller asks for as text that bash understands: a command, and what is to be done around it.

Text in, text out; the driver's own commands are in driver.py.
"""

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from shelld_py.errors import InvalidRequest

_LONG: Final = 4096
VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Script(Struct, frozen=True):
    """A command with what is to be done around it."""

    text: str
    setup: Sequence[str] = ()
    cleanup: Sequence[str] = ()


class Directories(Struct, frozen=True):
    """Where a shell is, as bash has it: `$PWD` and `$OLDPWD`."""

    directory: str
    previous: str | None
    """None where it is not known."""


def script_of(
    command: str,
    *,
    directory: str | None,
    environment: Mapping[str, str] | None,
    stdin: str | None,
    place: Directories,
    saved: str | None,
) -> Script:
    """Write what `directory`, `environment` and `stdin`, the path of a file, mean in bash.

    The shell comes back to `place`, and variables to what they were: they are kept in the file `saved` meanwhile.
    """
    setup: list[str] = []
    cleanup: list[str] = []
    if environment:
        names = " ".join(shlex.quote(name) for name in environment)
        values = " ".join(f"{name}={_quote(value)}" for name, value in environment.items())
        # A name that is not set makes `declare` fail, which must not end a shell with `set -e`.
        keep = f"\\builtin declare -p {names} >|{saved} 2>|/dev/null || \\builtin :"
        setup += [keep, f"\\builtin export -- {values}"]
        cleanup += [f"\\builtin unset -v {names}", f"\\builtin . {saved}"]
    if directory or stdin:
        command = f"\\builtin eval -- {_quote(command)}"
        if stdin:
            command += f" <{shlex.quote(stdin)}"
        if directory:
            command = f"\\builtin cd -- {shlex.quote(directory)} && {command}"
            cleanup.append(f"\\builtin cd -- {shlex.quote(place.directory)}")
            if place.previous is not None:
                cleanup.append(f"OLDPWD={shlex.quote(place.previous)}")
    return Script(command, setup, cleanup)


def _quote(text: str) -> str:
    """Return `text` as a word of bash. To find out whether it has to be quoted takes long for megabytes."""
    return shlex.quote(text) if len(text) <= _LONG else quoted([text])


def quoted(argv: Sequence[str]) -> str:
    """Return the command that runs the program `argv[0]`, a builtin or a function with just these arguments.

    Every word stands in single quotes, in which nothing means anything to bash, whatever its modes: so no alias, no
    keyword, no assignment and no expansion comes of it.
    """
    return " ".join("'" + word.replace("'", "'\\''") + "'" for word in argv)


def check_argv(argv: Sequence[str]) -> None:
    """Raise `InvalidRequest` where there is no program, or a word that none can be given."""
    if not argv or not argv[0]:
        raise InvalidRequest('argv is empty: its first word names a program, such as ["ls", "-l"].')
    for position, word in enumerate(argv):
        check_encodable(f"argv[{position}]", word)
        if "\0" in word:
            raise InvalidRequest(f"argv[{position}] contains a NUL character, which no argument can hold.")


def check_command(text: str) -> None:
    """Raise `InvalidRequest` where bash cannot be given `text`."""
    if not text.isascii():
        check_encodable("command", text)
    if "\0" in text:
        raise InvalidRequest("The command contains a NUL character, which bash cannot take.")


def check_encodable(name: str, text: str) -> None:
    """Raise `InvalidRequest` where `text` has no bytes."""
    try:
        encoded(text)
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} contains a lone surrogate, which has no bytes in UTF-8.") from None


def check_environment(environment: Mapping[str, str]) -> None:
    """Raise `InvalidRequest` where a name cannot be one of a variable, or bash cannot be given a value."""
    for name, value in environment.items():
        if not VARIABLE.fullmatch(name):
            raise InvalidRequest(f"environment: {name!r} cannot be the name of a variable.")
        if "\0" in value:
            raise InvalidRequest(f"environment: the value of {name} contains a NUL character.")
        check_encodable(f"environment: the value of {name}", value)


def input_bytes(text: str) -> bytes:
    """Return what is typed for `text`. Raises `InvalidRequest` where it has no bytes."""
    check_encodable("text", text)
    return encoded(text)


def encoded(text: str) -> bytes:
    """Return the bytes of `text`; surrogates stand for bytes that were not UTF-8 (PEP 383)."""
    return text.encode("utf-8", "surrogateescape")
