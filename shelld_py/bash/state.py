"""The state of a shell as a document: made of the dump that bash writes, and made into a script that bash reads.

Text in, text out. It knows how bash prints declarations, aliases and traps, and that only its own quoting is to be
understood; what it does not understand it hands on as it is.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from msgspec import Struct

from shelld_py.bash.command import VARIABLE, encoded
from shelld_py.errors import InvalidRequest
from shelld_py.request_data import ShellDocument

LARGEST_PIECE: Final = 4 << 20
"""Bytes of one variable, alias or trap, and of all functions."""
LARGEST_SCRIPT: Final = 12 << 20
"""Bytes in all: so much fits into a request's body with the default of `server.max_body`, quoted as JSON."""
_MOST_MESSAGES: Final = 100
_LONGEST_MESSAGE: Final = 300

# These are compiled when they are first used, and `re` keeps them: a start does without.
_ENTRY: Final = rb"""(?:[^"'\\$\n]++|\\.|"(?:[^"\\]++|\\.)*+"|\$'(?:[^'\\]++|\\.)*+'|'[^']*+'|\$)*+\n"""
"""A line as bash prints it: it goes on behind a line feed within quotes."""
_DECLARATION: Final = rb"declare (-\S+) ([A-Za-z_][A-Za-z0-9_]*)(?:=(.*))?"
_TRAP: Final = rb"trap -- (.*) (\S+)"
_ELEMENT: Final = rb"""\[\d+\]=("(?:[^"\\]++|\\.)*+"|\$'(?:[^'\\]++|\\.)*+')"""
_PLACE: Final = r"^\S+: (?:/proc/\S+: )?(?:line \d+: )?"
"""What bash says before a message: its name, the file, the line."""
_ESCAPE: Final = rb"\\([0-7]{1,3}|.)"
_LETTERS: Final = {
    b"a": b"\a", b"b": b"\b", b"e": b"\033", b"E": b"\033", b"f": b"\f", b"n": b"\n", b"r": b"\r", b"t": b"\t",
    b"v": b"\v",
}  # fmt: skip
_DRIVEN_TRAPS: Final = (b"DEBUG", b"RETURN", b"ERR", b"EXIT")
_OWN: Final = frozenset(
    b"BASH BASHOPTS BASHPID BASH_ALIASES BASH_ARGC BASH_ARGV BASH_ARGV0 BASH_CMDS BASH_COMMAND BASH_LINENO "
    b"BASH_MONOSECONDS BASH_SOURCE BASH_SUBSHELL BASH_TRAPSIG BASH_VERSINFO BASH_VERSION COLUMNS COMP_WORDBREAKS "
    b"DIRSTACK EPOCHREALTIME EPOCHSECONDS EUID FUNCNAME GROUPS HISTCMD HOSTNAME HOSTTYPE LINENO LINES MACHTYPE OSTYPE "
    b"PIPESTATUS PPID PROMPT_COMMAND PS0 PS1 PWD RANDOM SECONDS SHELLOPTS SHLVL SRANDOM UID _".split()
)
"""Variables that each bash has of its own, and those of prompts, which are never shown."""
_LAST_OPTIONS: Final = (b"set -o xtrace", b"set -o verbose", b"set -o errexit")
"""Set in one step, last of all: else two would show what is set, and one would end a shell that cannot set it all."""
_OUR_PREFIX: Final = b"SHELLD_"


class Dump(Struct, frozen=True):
    """What the daemon knows of a shell, beside what bash has written; the sections are those of driver.bash."""

    sections: list[bytes]
    directory: str
    traps: Mapping[str, str]
    """DEBUG, ERR and RETURN: the driver has taken them away while bash writes."""
    exit_action: str
    """The driver's own action on EXIT, which precedes the user's."""
    left_out: tuple[str, ...]


def document_of(dump: Dump) -> ShellDocument:
    """Return the document. Takes time linear to the dump: a large one wants a thread."""
    functions, variables, aliases, options, traps, rest = dump.sections
    extglob, _, functions = functions.partition(b"\n")
    environment: dict[str, str] = {}
    pieces: list[tuple[str, bytes]] = []
    stack: list[bytes] = []
    version = ""
    for entry in _entries(variables):
        found = re.compile(_DECLARATION, re.DOTALL).fullmatch(entry)
        if found is None:
            continue
        flags, name, value = found.groups()
        if name == b"DIRSTACK" and value:
            stack = [_unquoted(element) for element in re.compile(_ELEMENT, re.DOTALL).findall(value)][1:]
        if name == b"BASH_VERSION" and value:
            version = _str(_unquoted(value))
        if name in _OWN or name.startswith(_OUR_PREFIX):
            continue
        if flags == b"-x" and value is not None and (text := _text(_unquoted(value))) is not None:
            environment[name.decode()] = text
        else:
            # bash takes arrays of no command but of this very word, so no `builtin` precedes it.
            pieces.append((name.decode(), entry))
    for entry in _entries(traps):
        if (found := re.compile(_TRAP, re.DOTALL).fullmatch(entry)) and found[2] not in _DRIVEN_TRAPS:
            pieces.append((f"the trap on {found[2].decode()}", b"\\builtin " + entry))
    for line in _entries(rest):
        pieces.append(("umask" if line.startswith(b"umask") else "positional parameters", b"\\builtin " + line))
    for directory in reversed(stack):
        pieces.append(("the directory stack", b"\\builtin pushd -n -- " + encoded(shlex.quote(_str(directory)))))
    if functions:
        pieces += [("functions", b"\\builtin shopt -s extglob"), ("functions", functions.rstrip(b"\n"))]
    # Without effect, but for a BASH_COMPAT that the shell did not have.
    lines = [line for line in options.splitlines() if not line.startswith(b"shopt -u compat")]
    last = [line for line in lines if line in _LAST_OPTIONS]
    pieces += [("options", b"\\builtin " + line) for line in (extglob, *lines) if line and line not in last]
    pieces += [(_str(entry.partition(b"=")[0]), b"\\builtin " + entry) for entry in _entries(aliases)]
    user_traps = {name.encode(): encoded(action) for name, action in dump.traps.items()}
    if action := _exit_action(traps, encoded(dump.exit_action)):
        user_traps[b"EXIT"] = action
    pieces += [
        (f"the trap on {name.decode()}", b"\\builtin trap -- " + encoded(shlex.quote(_str(action))) + b" " + name)
        for name, action in user_traps.items()
    ]
    if last:
        pieces.append(("options", b"\\builtin set " + b" ".join(line[4:] for line in last)))
    where = _text(encoded(dump.directory))
    if where is None:
        pieces.insert(0, ("working_directory", b"\\builtin cd -- " + encoded(shlex.quote(dump.directory))))
    script, too_large = _joined(pieces, len(str(environment)))
    return ShellDocument(
        bash=version,
        working_directory=where,
        environment=environment,
        script=script,
        left_out=(*dump.left_out, *too_large),
    )


def script_of_document(document: ShellDocument, *, unset: Sequence[str], directory: str | None, end: str) -> bytes:
    """Return what a fresh bash reads to become the shell of `document`.

    `unset` are variables that it has been given and the other did not have; `directory` goes before the document's;
    `end` is written to standard error at the end.
    """
    names = [name for name in unset if name.encode() not in _OWN]
    lines = ["\\builtin unalias -a", *(f"\\builtin unset -v {name}" for name in names)]
    where = directory or document.working_directory
    if where is not None:  # before OLDPWD is set
        lines.append(f"\\builtin cd -- {shlex.quote(where)}")
    lines += [f"\\builtin export -- {name}={shlex.quote(value)}" for name, value in document.environment.items()]
    lines += [document.script, f"\\builtin printf '%s\\n' {end} >&2", ""]
    return encoded("\n".join(lines))


def messages(errors: bytes, end: str) -> tuple[str, ...]:
    """Return what bash has complained of while it read a script that writes `end`, a sentence for each line."""
    lines = errors.decode("utf-8", "replace").splitlines()
    ended = end in lines
    # A shell with `set -x` or `set -v` has shown the command that writes it, too.
    lines = [re.compile(_PLACE).sub("", line) for line in lines if end not in line]
    found = [line[:_LONGEST_MESSAGE] for line in dict.fromkeys(lines) if line and line[0] != "`"][:_MOST_MESSAGES]
    return tuple(found if ended else [*found, "The script was not read to its end."])


def check_document(document: ShellDocument) -> None:
    """Raise `InvalidRequest` where no shell can be made of it."""
    for name, value in document.environment.items():
        if not VARIABLE.fullmatch(name):
            raise InvalidRequest(f"state.environment: {name!r} cannot be the name of a variable.")
        if "\0" in value:
            raise InvalidRequest(f"state.environment: the value of {name} contains a NUL character.")
    if "\0" in document.script:
        raise InvalidRequest("state.script contains a NUL character, which bash cannot take.")
    where = document.working_directory
    if where is not None and (not where.startswith("/") or "\0" in where):
        raise InvalidRequest(f"state.working_directory: {where!r} is no absolute path.")
    for text in (document.script, where or "", *document.environment.values()):
        try:
            encoded(text)
        except UnicodeEncodeError:
            raise InvalidRequest("state contains a lone surrogate, which has no bytes in UTF-8.") from None


def _entries(section: bytes) -> Iterator[bytes]:
    """Yield what bash has printed one by one, without the last line feed of each."""
    place = 0
    while place < len(section):
        found = re.compile(_ENTRY, re.DOTALL).match(section, place)
        end = found.end() if found else section.find(b"\n", place) + 1 or len(section)
        if entry := section[place:end].rstrip(b"\n"):
            yield entry
        place = end


def _joined(pieces: list[tuple[str, bytes]], size: int) -> tuple[str, list[str]]:
    """Return the script of these, and the names of those that are too large for it. It is UTF-8 in any case."""
    lines: list[str] = []
    left_out: list[str] = []
    for name, piece in pieces:
        text = _text(piece)
        if text is None:
            text = "\\builtin eval -- $'" + "".join(_escaped(byte) for byte in piece) + "'"
        size += len(text) + 1
        if len(text) > LARGEST_PIECE or size > LARGEST_SCRIPT:
            size -= len(text) + 1
            left_out.append(f"{name}: it has {len(piece)} bytes")
        else:
            lines.append(text)
    return "\n".join(lines), left_out


def _exit_action(traps: bytes, own: bytes) -> bytes:
    for entry in _entries(traps):
        if (found := re.compile(_TRAP, re.DOTALL).fullmatch(entry)) and found[2] == b"EXIT":
            action = _unquoted(found[1])
            if not action.startswith(own):
                return action
            _, _, wrapped = action[len(own) :].partition(b" --on-exit ")
            # The driver has quoted it, or bash has (`@Q`).
            return _unquoted(wrapped) if wrapped.startswith(b"$") else encoded("".join(shlex.split(_str(wrapped))))
    return b""


def _unquoted(value: bytes) -> bytes:
    """Return what bash means by one word that it has quoted itself."""
    if value.startswith(b"$'"):
        return re.compile(_ESCAPE, re.DOTALL).sub(_unescaped, value[2:-1])
    if value.startswith(b'"'):
        return re.sub(rb'\\([$`"\\\n])', rb"\1", value[1:-1])
    return b"'" if value == b"\\'" else value[1:-1].replace(b"'\\''", b"'")


def _unescaped(found: re.Match[bytes]) -> bytes:
    escape = found[1]
    if escape.isdigit():
        return bytes([int(escape, 8) & 0xFF])
    return _LETTERS.get(escape, escape)


def _escaped(byte: int) -> str:
    return chr(byte) if 0x20 <= byte < 0x7F and byte not in b"'\\" else f"\\{byte:03o}"


def _text(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None


def _str(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
