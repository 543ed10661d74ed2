r"""The bash side of the protocol: the driver, its reports, and the text of a command.

Text in, text out: this file starts no process and opens no file.

How bash is driven
    bash runs interactively on the terminal, but reads its own input lines from a private pipe (the boot
    pipe is its descriptor 0 when it starts). The first line sent there never returns: it sources a file that
    ends in a loop in C, `mapfile -C CALLBACK -c 1`, with the terminal as descriptor 0 for as long as it lasts.
    For each byte that arrives on a second pipe (the bell), mapfile evaluates the callback, and the callback
    loads the command's text from a memory file and evaluates it: at top level, outside of any function or
    loop, in a shell that is interactive, and that returns to no prompt in between. While it sources a file,
    bash's own `interactive` is 0: then it prints neither `exit` nor the number and pid of a job. So PS1,
    PROMPT_COMMAND, PS0, TMOUT, history and `set -t` have nothing to act on, the command's standard input is
    the terminal, and nothing that is typed there is ever executed.

    Only SIGINT and `return` bring bash out of the loop, back to reading lines. There one line waits always, the
    prompt line: it reports, and the daemon sends the loop again, and another prompt line.

    `mapfile` puts what it reads into an array. That array is DIRSTACK, with an index far beyond the stack's
    end: bash ignores such assignments to it (set_dirstack_element in builtins/pushd.def), so that nothing
    grows and no variable of ours appears. A command that unsets it leaves mapfile with a pointer to a variable
    that has been freed, so the callback then leaves mapfile by an interrupt, and the loop begins anew with an
    ordinary array of that name.

What a command can see of it
    Nothing while it runs, but the EXIT trap (below) and that it is in a sourced file (`${BASH_SOURCE[0]}`).
    The descriptors of the driver (247 to 249 inside of the loop) are closed around the command; bash keeps its
    own copies at 10 and above with close-on-exec.

Reports
    A record is TAG NUL type NUL fields, each ended by NUL. The tag is random, NUL cannot occur in anything
    that bash holds, and a record that an interrupt cut short is dropped when the next tag appears. What
    traps of the user print while the driver's own commands run falls between the records.

exit
    An EXIT trap dumps the state of the shell into a memory file and executes bash again in place: same pid,
    same children, same descriptors. The environment is passed by the dump alone (`exec -c`), so that no
    variable is too large for execve(2). A trap that the user sets on EXIT is run before that, in a subshell.
"""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import lru_cache
from typing import Final

_FIELDS: Final = {b"R": 6, b"P": 6, b"B": 6, b"X": 6, b"J": 1, b"U": 0, b"Z": 2}
_LONGEST_TAG: Final = 64
_LARGE_REPORT: Final = 65536
"""Bytes of a report from which on it is read piece by piece rather than when its last record has come."""
BELL_DESCRIPTOR: Final = 249
"""bash's descriptor of the bell pipe: open in the loop, closed while a command is executed."""
_ARRAY: Final = "DIRSTACK"
_BEYOND: Final = 1000000000
_IDLE: Final = "idle"
"""What the driver's variable holds between commands; a loaded command takes its place, and then unsets it."""
_RETURNED: Final = "returned "
"""What it begins with, and the status follows, where `return` has ended the loop, as it ends a sourced file."""
_UNSET: Final = "\\unset -v __shelld"
_NOTIFIES_IN_LISTS: Final = 503
"""From version 5.3 on an interactive bash says between the commands of a list which jobs have ended.

So the callback lists them before anything else: then it does not say so of those that ended before the command.
"""
_CALLBACK_BEGINS: Final = " \\bu"
_NEEDED: Final = ". builtin eval exec jobs mapfile printf set test trap unset"
"""What the loop is made of: a command may have disabled it (`enable -n`) for those behind it."""
_STATE_TRAPS: Final = ("DEBUG", "ERR", "RETURN", "EXIT")
_ON_EXIT: Final = "--on-exit"
_SETS_EXIT_TRAP: Final = re.compile(
    r"""\btrap\b(?:[^\n;'"]|'[^']*'|"(?:[^"\\]|\\.)*"|\\\n)*[\s'"](?:EXIT|exit|0)\b""", re.DOTALL
)
_SOURCES: Final = re.compile(r"(?:^|[\s;&|({!])(?:\.|source)\s")
_FUNCTION: Final = re.compile(r"\(\s*\)|\bfunction\s")


class ReportKind(StrEnum):
    """What bash reports about itself."""

    RAN = "R"
    """The command is over."""
    PROMPT = "P"
    """An interrupt has brought bash back to reading lines."""
    LOOP = "B"
    """The loop begins (again)."""
    EXITED = "X"
    """The shell is exiting; with `restored` it comes back with a LOOP report."""


@dataclass(slots=True)
class Report:
    """One report of bash. `status` is `$?`, `flags` is `$-`."""

    kind: ReportKind
    status: int = 0
    loaded: bool = True
    """False where the command was not loaded: an interrupt came first."""
    prepared: bool = True
    """False where the driver's line in front of the command was not executed, as an interrupt came first."""
    returned: bool = False
    """Whether the command has ended the loop by `return`, and no interrupt has."""
    flags: str = ""
    directory: str = ""
    previous_directory: str = ""
    traps: dict[str, str] = field(default_factory=dict)
    jobs: bool = False


@dataclass(frozen=True, slots=True)
class Paths:
    """Where bash finds the daemon's private pipes and memory files: paths that open them anew."""

    boot: str
    bell: str
    reports: str
    terminal: str
    text: str
    start: str
    restart: str
    loop: str
    leave: str
    prompt: str
    exit: str
    status: str
    dump: str
    saved: str
    scratch: str
    shell: str


@dataclass(frozen=True, slots=True)
class Carried:
    """What one command leaves for the next, and the driver has taken away in between."""

    status: int = 0
    flags: str = ""
    traps: Mapping[str, str] = field(default_factory=dict)
    """The DEBUG, ERR and RETURN traps of the user, by name."""
    exit_action: str | None = None
    """What the user's own EXIT trap does."""
    exit_trap_set: bool = True
    """Whether the driver's EXIT trap is in place."""
    jobs: bool = False
    """Whether bash has jobs, whose end it would report in the middle of the next command's output."""
    trap_function: bool = False
    """Whether the function `trap` was defined for the command."""
    keeps_trap_function: bool = False
    """Whether a function of the user's may set an EXIT trap whenever it is called."""


class ReportParser:
    """Turns the bytes of the report pipe into reports, however they are cut."""

    def __init__(self, tag: str) -> None:
        self._tag = tag.encode() + b"\0"
        self._last_record = self._tag + b"Z\0"
        self._buffer = b""
        self._open: Report | None = None

    def feed(self, data: bytes) -> Iterator[Report]:
        """Take the next bytes; yield each report when it is complete."""
        self._buffer += data
        if self._last_record not in self._buffer and len(self._buffer) < _LARGE_REPORT:
            return
        while (record := self._next_record()) is not None:
            kind, fields = record
            report = self._open
            if kind in (b"R", b"P", b"B", b"X"):
                self._open = _header(ReportKind(kind.decode()), fields, report)
            elif report and kind == b"J":
                report.jobs = bool(fields[0].strip())
            elif report and kind == b"Z" and fields[0].decode() == report.kind:
                report.status = int(fields[1] or report.status)
                self._open = None
                yield report

    @property
    def in_exit_trap(self) -> bool:
        """Whether the shell is exiting, and does now what the user wants done then."""
        return self._tag + b"U\0" in self._buffer

    def _next_record(self) -> tuple[bytes, list[bytes]] | None:
        while True:
            start = self._buffer.find(self._tag)
            if start < 0:
                self._buffer = self._buffer[-_LONGEST_TAG:]
                return None
            body = start + len(self._tag)
            torn = self._buffer.find(self._tag, body)
            kind = self._buffer[body : body + 1]
            count = _FIELDS.get(kind, 0)
            end = body
            for _ in range(count + 1):
                end = self._buffer.find(b"\0", end) + 1
                if end == 0:
                    break
            if torn >= 0 and (end == 0 or end > torn):
                self._buffer = self._buffer[torn:]
                continue
            if end == 0:
                self._buffer = self._buffer[start:]
                return None
            fields = self._buffer[body:end].split(b"\0")[1:-1]
            self._buffer = self._buffer[end:]
            return kind, fields


def _header(kind: ReportKind, fields: list[bytes], interrupted: Report | None) -> Report:
    """Open a report. One about an interrupt that cut off another report keeps what that had said already."""
    said = _decode(fields[1])
    returned = said.startswith(_RETURNED)
    report = Report(
        kind,
        status=int(said.removeprefix(_RETURNED) if returned else fields[0]),
        loaded=not said.startswith((_IDLE, _CALLBACK_BEGINS)),
        returned=returned,
        prepared=returned or not said,
        flags=fields[2].decode(),
        directory=_decode(fields[3]),
        previous_directory=_decode(fields[4]),
        traps=dict(_parse_traps(_decode(fields[5]))),
    )
    if kind is ReportKind.PROMPT and interrupted and interrupted.kind is ReportKind.RAN:
        report.status, report.prepared, report.loaded = interrupted.status, interrupted.prepared, True
        report.flags = "".join({*report.flags, *interrupted.flags})
        report.traps |= interrupted.traps
    elif kind is ReportKind.PROMPT and interrupted and interrupted.kind is ReportKind.PROMPT and interrupted.loaded:
        report.status, report.prepared, report.loaded = interrupted.status, interrupted.prepared, True
    return report


def sets_exit_trap(command: str) -> bool:
    """Return whether `command` may set an EXIT trap and exit as well: it names both, or sources a file."""
    return bool(_SETS_EXIT_TRAP.search(command) or _SOURCES.search(command))


def defines_exit_trap(command: str) -> bool:
    """Return whether `command` may define a function that sets an EXIT trap."""
    return bool(_SETS_EXIT_TRAP.search(command)) and bool(_FUNCTION.search(command))


def _trap(action: str, name: str) -> str:
    return f"\\builtin trap -- {shlex.quote(action)} {name}"


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


@lru_cache(maxsize=16)
def _parse_traps(listing: str) -> dict[str, str]:
    """Read what `trap -p` printed: `trap -- 'ACTION' NAME` for each trap."""
    words = shlex.split(listing)
    return {name: action for action, name in zip(words[2::4], words[3::4], strict=False) if name in _STATE_TRAPS}


def _put_away_stderr(target: str) -> str:
    """Return what makes `target` standard error, and keeps at 246 what it was, if it was open."""
    return f"{{ [[ ! -e /proc/$$/fd/2 ]] || \\exec 246>&2; \\exec 2>|{target}; }}"


class Driver:
    r"""The scripts that bash is given, with the paths and the tag of one shell filled in.

    The tag begins with a letter: in a format of printf's, a digit behind `\\0` would belong to the escape.
    """

    def __init__(self, paths: Paths, tag: str, *, restore: bool) -> None:
        self._paths = paths
        self._tag = tag
        self._restore = restore
        self._exit_action = (
            f'{{ __shelld="$? $-"; \\builtin trap -p DEBUG RETURN >|{paths.scratch}; \\builtin trap - DEBUG RETURN;'
            f" \\builtin set +xv; }} >|/dev/null 2>|/dev/null; \\builtin . {paths.exit}"
        )

    @property
    def files(self) -> Mapping[str, str]:
        """What each memory file must hold, by its path."""
        paths = self._paths
        private = f"247<>/dev/null 248>|{paths.reports}"
        return {
            paths.start: self._settle(),
            paths.restart: self._restart(),
            paths.loop: self._loop(private),
            paths.leave: (f"{_put_away_stderr('/dev/null')}\n\\builtin enable kill\n\\builtin kill -INT $$\n"),
            paths.prompt: f"{{ {self._report(ReportKind.PROMPT)}; }} {private}\n",
            paths.exit: self._exit(),
            paths.status: '\\builtin return "$1"\n',
        }

    @property
    def start_lines(self) -> bytes:
        """What bash reads first of all."""
        return f" \\builtin . {self._paths.start};".encode() + self.loop_lines

    @property
    def loop_lines(self) -> bytes:
        """The loop, and the prompt line behind it. Together they fit into one read of bash's (1024 bytes).

        What comes behind the loop on its line is executed after `return`, and not after an interrupt.
        """
        paths = self._paths
        return (
            f' \\builtin . {paths.loop}; {{ __shelld="{_RETURNED}$?"; }} >|/dev/null 2>&1\n'.encode() + self.prompt_line
        )

    @property
    def prompt_line(self) -> bytes:
        """The line that reports that bash reads lines. Its own trace (`set -x`) must not appear."""
        return f" {{ \\builtin . {self._paths.prompt}; }} >|/dev/null 2>&1\n".encode()

    @property
    def repair_lines(self) -> bytes:
        """What gives a shell its builtins back after a command has replaced or disabled them.

        In POSIX mode `unset` is found before a function of that name (bash(1), POSIX mode, item 24).
        """
        names = "builtin printf mapfile trap jobs set eval unset return exec declare alias shopt umask cd export"
        return (
            f" {{ POSIXLY_CORRECT=1; \\unset -f {names} enable; \\unset -v POSIXLY_CORRECT; \\enable {names};"
            " \\builtin trap - DEBUG; } 2>|/dev/null\n"
        ).encode() + self.prompt_line

    @property
    def rescue_line(self) -> bytes:
        """What is typed to a bash that has lost the boot pipe and reads lines from the terminal."""
        return f" \\exec <{self._paths.boot}\n".encode()

    def command_text(self, command: str, carried: Carried, setup: Sequence[str] = ()) -> str:
        """Return what bash evaluates: `command`, with a line of what must be in force for it before.

        The order matters: `trap` and `set` reset `$?`, so the status comes behind them; but a DEBUG trap
        would see all that comes behind it, so it comes last, and `$?` is 0 then (likewise for RETURN).
        """
        traps = carried.traps
        # `jobs` comes first: directly before an `exit` it would count as the warning about stopped jobs.
        steps = ["\\builtin jobs >|/dev/null"] if carried.jobs else []
        steps.append(_UNSET)
        if carried.trap_function:
            steps.append("\\builtin unset -f trap")
        steps += setup
        if not carried.exit_trap_set:
            steps.append(_trap(self._exit_trap(carried.exit_action), "EXIT"))
        if carried.keeps_trap_function or sets_exit_trap(command):
            steps.append(self._trap_function())
        steps += [f"\\builtin set -{flag}" for flag in "vx" if flag in carried.flags]
        steps += [_trap(traps[name], name) for name in ("ERR",) if name in traps]
        if carried.status and not {"DEBUG", "RETURN"} & traps.keys():
            steps.append(f"{{ \\builtin . {self._paths.status} {carried.status} && \\builtin :; }} 2>|/dev/null")
        steps += [_trap(traps[name], name) for name in ("RETURN", "DEBUG") if name in traps]
        return ";".join(steps) + "\n" + command

    def carry(self, report: Report, before: Carried, command: str) -> Carried:
        """Return what the next command must find, after `command`, which `report` is about."""
        if not report.prepared:
            return replace(before, status=report.status, jobs=report.jobs)
        traps = dict(report.traps)
        action = traps.pop("EXIT", None)
        exited = report.kind is ReportKind.EXITED
        if exited:
            # A sourced script, which the EXIT trap is, sees neither of these two without functrace.
            traps = {name: before.traps[name] for name in ("DEBUG", "RETURN") if name in before.traps} | traps
        ours = exited or (action or "").startswith(self._exit_action)
        return Carried(
            status=report.status,
            flags=report.flags.replace("e", "") if exited else report.flags,
            traps=traps,
            exit_action=None if exited else before.exit_action if ours else action,
            exit_trap_set=ours,
            jobs=report.jobs,
            trap_function=before.keeps_trap_function or sets_exit_trap(command),
            keeps_trap_function=before.keeps_trap_function or defines_exit_trap(command),
        )

    def _exit_trap(self, action: str | None) -> str:
        return self._exit_action if action is None else f"{self._exit_action} {_ON_EXIT} {shlex.quote(action)}"

    def _trap_function(self) -> str:
        """A `trap` that keeps the EXIT trap behind one that the command sets, for commands that set one."""
        scratch = self._paths.scratch
        return (
            'trap() { \\builtin trap "$@"; \\builtin set -- "$?"; [[ $BASHPID == "$$" ]] && {'
            f" \\builtin trap -p EXIT >|{scratch}; \\builtin mapfile -d '' -t -n 1 __shelld <{scratch};"
            ' \\builtin eval "__shelld=(${__shelld[0]-})";'
            f" [[ ${{__shelld[2]-}} == {shlex.quote(self._exit_action)}* ]] ||"
            f" \\builtin trap -- {shlex.quote(self._exit_action)}"
            f'"${{__shelld[2]+ {_ON_EXIT} ${{__shelld[2]@Q}}}}" EXIT;'
            ' \\builtin unset -v __shelld; }; \\builtin return "$1"; }'
        )

    def _report(self, kind: ReportKind) -> str:
        """Return the commands that report. The first three must not let a trap of the user write among them.

        The driver's variable is printed as far as it tells something: nothing when the command has unset
        it, `idle` when no command was loaded, and the text's first word when an interrupt came before its first line.
        """
        tag = f"{self._tag}\\0"
        return (
            rf"""{{ \builtin printf '{tag}{kind}\0%s\0%.16s\0%s\0%s\0%s\0' """
            r""""$?" "${__shelld-}" "$-" "${PWD-}" "${OLDPWD-}" >&248; """
            rf"""\builtin trap -p {" ".join(_STATE_TRAPS)} >&248; """
            r"""\builtin trap - DEBUG ERR RETURN; \builtin set +xv; } >&247 2>&247; """
            rf"""{{ \builtin printf '\0{tag}J\0'; \builtin jobs -l; """
            rf"""{{ __shelld={_IDLE}; \builtin unset -v PROMPT_COMMAND PS0; """
            r"""\builtin printf -v PS1 %s '\[\]'; } 2>&247 || """
            rf"""\builtin :; \builtin printf '\0{tag}Z\0{kind}\0\0'; }} >&248"""
        )

    def _loop(self, private: str) -> str:
        """The loop, a script to be sourced: bash's `interactive` is 0 in there, so it prints no words of its own.

        What is redirected last is undone first: an interrupted loop gets the boot pipe back as its descriptor 0
        before it loses the bell. mapfile's line has the number 0: then the lines of a command, which come behind one
        of the driver's, are counted from 1. A LINENO that the user has made readonly cannot be set.
        """
        paths = self._paths
        return (
            "[[ ! -e /proc/$$/fd/246 ]] || \\exec 2>&246 246>&-\n"
            f"{{ {self._report(ReportKind.LOOP)}; }} {private}\n"
            f"{{ {_ARRAY}[{_BEYOND - 1}]=; }} 2>|/dev/null\n"
            f"__shelld=({shlex.quote(self._callback())} LINENO=0,)\n"
            "[[ ${LINENO+${LINENO@a}} != *r* && ${LINENO+x} ]] || __shelld[1]=\n"
            f"(( BASH_VERSINFO[0] * 100 + BASH_VERSINFO[1] < {_NOTIFIES_IN_LISTS} ))"
            ' || __shelld[0]=" \\builtin jobs >&247 2>&1;${__shelld[0]}"\n'
            f"\\builtin mapfile -d '' -O \"$(( ${{__shelld[1]}} {_BEYOND} ))\" -c 1 -u 249"
            f' -C "${{__shelld[0]}}" {_ARRAY} 247<>/dev/null 248>|{paths.reports} 249<{paths.bell}'
            f" 0<>{paths.terminal}\n"
        )

    def _callback(self) -> str:
        """What mapfile evaluates; it appends ` INDEX BYTE` to it, which the last `:` takes.

        There are no reserved words in it: unfinished text before it can have left the parser in a state in which it
        does not know them. The array is looked for by its name: its value would be made anew, and in a directory that
        is gone bash would complain.
        """
        return (
            rf" \builtin enable {_NEEDED}; \builtin mapfile -d '' -n 1 __shelld <{self._paths.text} 2>&247; "
            r'\builtin eval -- "${__shelld-}" 247>&- 248>&- 249<&-; '
            + self._report(ReportKind.RAN)
            + rf'; \builtin test "${{!{_ARRAY}@}}" || \builtin . {self._paths.leave}; \builtin :'
        )

    def _settle(self) -> str:
        """What makes a fresh bash ours: no history, no prompt (but PS1 is not empty: scripts look at it).

        execfail: a failing `exec` ends a shell whose `interactive` is 0, as it is in the loop.
        """
        return (
            "\\builtin unset -v HISTFILE PROMPT_COMMAND PS0\n"
            "\\builtin history -d -1 2>|/dev/null\n"
            "\\builtin set +o history\n"
            "\\builtin shopt -s execfail\n"
            "PS1='\\[\\]'\n"
            f"\\builtin trap -- {shlex.quote(self._exit_action)} EXIT\n"
        )

    def _exit(self) -> str:
        """The EXIT trap, a script to be sourced: report, dump, do what the user's own trap does, come back."""
        tag, paths = f"{self._tag}\\0", self._paths
        private = f"247<>/dev/null 248>|{paths.reports} >&247 2>&247"
        steps = [
            '[[ ${BASHPID:-$$} == "$$" ]] || \\builtin return "${__shelld%% *}"',
            "{",
            (
                rf"""\builtin printf '{tag}X\0%s\0\0%s\0%s\0%s\0' """
                r""""${__shelld%% *}" "${__shelld#* }" "${PWD-}" "${OLDPWD-}" >&248; __shelld=${__shelld%% *}"""
            ),
            f"\\builtin mapfile -d '' -t -n 1 -O 1 __shelld <{paths.scratch}",
            r"""\builtin printf '%s\n' "${__shelld[1]-}" >&248; \builtin unset -v '__shelld[1]'""",
            r"\builtin trap -p ERR >&248; \builtin printf '\0' >&248",
            "\\builtin trap - ERR EXIT; \\builtin set +xve",
            f"}} {private}",
        ]
        if self._restore:
            steps += [
                "{",
                "\\builtin shopt -p extglob; \\builtin declare -fp; \\builtin declare -p; \\builtin alias -p",
                "\\builtin shopt -p; \\builtin set +o; \\builtin trap -p; \\builtin umask -p",
                f"[[ ${{1-}} == {_ON_EXIT} || $# == 0 ]] ||",
                "{ \\builtin printf 'set --'; \\builtin printf ' %q' \"$@\"; }",
                f"}} >|{paths.dump} 2>|/dev/null",
            ]
        steps += [
            "\\builtin trap '' INT",
            f"if [[ ${{1-}} == {_ON_EXIT} ]]; then",
            rf"\builtin printf '{tag}U\0' {private} >&248",
            f'( \\builtin trap - INT EXIT; \\builtin . {paths.status} "$__shelld"',
            '\\builtin eval -- "$2"; \\builtin exit "$__shelld" )',
            "__shelld=$?; fi",
            rf"""\builtin printf '{tag}Z\0X\0%s\0' "$__shelld" {private} >&248""",
        ]
        if self._restore:
            options = f"--noprofile --noediting --rcfile {paths.restart} -i"
            steps += [
                "\\builtin trap - INT",
                _put_away_stderr(paths.terminal),
                f'\\builtin exec -c -a "$0" {paths.shell} {options} <{paths.boot}',
            ]
        return "\n".join(steps) + "\n"

    def _restart(self) -> str:
        """The rcfile of a bash that comes back: what it sets by itself goes, what it had comes.

        While it starts, its standard error is the terminal: that is where bash looks for job control.
        """
        return (
            "if [[ -e /proc/$$/fd/246 ]]; then \\exec 2>&246 246>&-; else \\exec 2>&-; fi\n"
            "\\builtin unset -v HOME OLDPWD PATH SHELL TERM\n"
            f"{{ \\builtin . {self._paths.dump}; }} >|/dev/null 2>&1\n"
            "\\builtin set +t\n"
        ) + self._settle()
