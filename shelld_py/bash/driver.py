r"""The scripts that drive bash, and the text around a command. It starts no process and opens no file of a shell.

The scripts are in driver.bash; here they are filled in for one shell.

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
    While it runs: the EXIT trap (below), that it is in a sourced file (`${BASH_SOURCE[0]}`), and bash's own
    descriptors 244 and above. Programs inherit none of them.

Texts
    bash reads the texts of its commands one after the other from one memory file, each up to its NUL, and so
    knows itself where the next one begins. Only where the loop begins anew is the file opened anew, at 0.

Reports
    A record is what `trap -p` prints, TAG NUL KIND NUL, and fields, each ended by NUL. The tag is random, and
    NUL can occur in nothing that bash holds.

exit
    An EXIT trap dumps the state of the shell into a memory file and executes bash again in place: same pid,
    same children, same descriptors. A trap that the user sets on EXIT is run before that, in a subshell.
"""

import re
import secrets
import shlex
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

from shelld_py.bash.protocol import Report, ReportKind

BELL_DESCRIPTOR: Final = 249
"""bash's descriptor of the bell pipe: open in the loop, closed while a command is executed."""
TEXT_DESCRIPTOR: Final = 244
"""bash's descriptor of the memory file with the texts, in the loop."""
_BUILTINS: Final = (
    "builtin printf mapfile trap jobs set eval unset return exec declare alias shopt umask cd export "
    "test kill disown ulimit unalias exit pushd"
)
"""Those that the scripts need, besides `.`, `:` and `enable`."""
_ON_EXIT: Final = "--on-exit"
_TRAP: Final = re.compile(r"\btrap\b")
_EXIT: Final = re.compile(r"""[\s'"](?:EXIT|[-+]?0+)\b""", re.IGNORECASE)
_SOURCES: Final = re.compile(r"(?:^|[\s;&|({!])(?:\.|source)\s")
_MAY_SET: Final = re.compile(rf"{_TRAP.pattern}|{_SOURCES.pattern}")
"""One search that finds nothing in most commands: only where it finds something is looked closer."""
_LONGEST_SEARCHED: Final = 32 * 1024
"""Characters of a command that are searched, in the event loop: they take 2 ms. Nobody looks closer at a longer one."""
_FUNCTION: Final = re.compile(r"\(\s*\)|\bfunction\s")
_PLACEHOLDER: Final = re.compile(r"@([a-z_]+)@")


class Paths(Struct, frozen=True):
    """Where bash finds the daemon's private pipes and memory files: paths that open them anew."""

    boot: str
    bell: str
    reports: str
    terminal: str
    text: str
    loop: str
    script: str
    scratch: str
    shell: str


class Carried(Struct, frozen=True):
    """What one command leaves for the next, and the driver has taken away in between."""

    status: int = 0
    flags: str = ""
    traps: Mapping[str, str] = field(default_factory=dict)
    """The DEBUG, ERR and RETURN traps of the user, by name."""
    exit_action: str | None = None
    """What the user's own EXIT trap does."""
    exit_trap_set: bool = True
    """Whether the driver's EXIT trap is in place."""
    last_job: str = "0"
    """`$!`."""
    children: bool = False
    """Whether bash had children."""
    jobs: bool = False
    """Whether bash may have jobs, whose end it would report in the middle of the next command's output."""
    prompts: bool = False
    """Whether PS1, PS0 or PROMPT_COMMAND are not the driver's."""
    trap_function: bool = False
    """Whether the function `trap` was defined for the command."""
    keeps_trap_function: bool = False
    """Whether a function of the user's may set an EXIT trap whenever it is called."""


def sets_exit_trap(command: str) -> bool:
    """Return whether `command` may set an EXIT trap and exit as well: it names both, or sources a file.

    More commands are taken for such than are. They get a function that costs a little; missing one costs the shell.
    """
    return len(command) > _LONGEST_SEARCHED or _names_exit_trap(command) or bool(_SOURCES.search(command))


def defines_exit_trap(command: str) -> bool:
    """Return whether `command` may define a function that sets an EXIT trap."""
    if len(command) > _LONGEST_SEARCHED:
        return "trap" in command  # a search for one text, in C: a hundred times as fast
    return _names_exit_trap(command) and bool(_FUNCTION.search(command))


def _may_set_trap(command: str) -> bool:
    return len(command) > _LONGEST_SEARCHED or bool(_MAY_SET.search(command))


def _names_exit_trap(command: str) -> bool:
    found = _TRAP.search(command)
    return bool(found and _EXIT.search(command, found.end()))


def _trap(action: str, name: str) -> str:
    return f"\\builtin trap -- {shlex.quote(action)} {name}"


@cache
def _sections() -> Mapping[str, Sequence[str]]:
    """Return the lines of each section of driver.bash, by its name, without comments."""
    sections: dict[str, list[str]] = {}
    lines: list[str] = []
    for line in Path(__file__).with_name("driver.bash").read_text(encoding="utf-8").splitlines():
        if line.startswith("### "):
            lines = sections.setdefault(line[4:].partition(":")[0], [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return sections


class Driver:
    r"""The scripts that bash is given, with the paths and the tag of one shell filled in.

    The tag begins with a letter: in a format of printf's, a digit behind `\\0` would belong to the escape.
    """

    def __init__(self, paths: Paths, tag: str, *, restore: bool) -> None:
        self._paths = paths
        self._restore = restore
        # bash looks at each letter of it, and often: of 25 letters, that is a tenth of what a command costs bash.
        self._variable = f"_{secrets.token_hex(4)}"
        fields = {name: getattr(paths, name) for name in Paths.__struct_fields__}
        self._words = {**fields, "tag": tag, "builtins": _BUILTINS, "digits": str(secrets.randbelow(10**9))}
        self._words["room"] = self._line("room")
        self._words["exiting"] = self._line("exiting")
        self._exit_action = self._line("exit_action")
        self._words["exit_action"] = shlex.quote(self._exit_action)
        self._words["summary"] = self._line("summary")
        self._words["report_ran"] = self._report(ReportKind.RAN, "summary", "then_ran")
        self._words["report_prompt"] = self._report(ReportKind.PROMPT, "nothing", "then_prompt")
        self._words["callback"] = shlex.quote(self._line("callback"))
        self._unset = f"\\builtin unset -v {self._variable}"
        self._line_for: tuple[Carried | None, str] = (None, "")
        """What a command of no consequence found the last time, and the line in front of it: mostly the next one's."""
        self._unchanging: tuple[Report | None, Carried | None] = (None, None)
        """A report that leaves what is carried as it was, and that."""

    @property
    def files(self) -> Mapping[str, str]:
        """What each memory file must hold, by its path."""
        leaving = (
            ("exit", "unlimited", "dump", "limited", "on_exit", "put_back", "again")
            if self._restore
            else ("exit", "on_exit")
        )
        # What is sourced without arguments sees those of the user: the exit, told by the driver's variable, and at last
        # a bash that comes back. The other sections are named by a word that begins with the tag, which no user knows.
        script = "".join((
            self._script("status"),
            *(f"{self._called(name)} || {self._evaluated(name)}\n" for name in ("prompt", "leave", "start")),
            f'\\builtin test "${{{self._variable}+set}}" = "" || {self._evaluated(*leaving)}\n',
            self._script("restart", "start"),
        ))  # fmt: skip
        return {self._paths.loop: self._script("loop"), self._paths.script: script}

    @property
    def exit_action(self) -> str:
        """What precedes the user's own action on EXIT."""
        return self._exit_action

    def dump_script(self, file: str) -> str:
        """Return the script that has bash write its state into `file`, in sections that `dump_sections` knows."""
        return self._script("dump").replace(self._paths.scratch, file)

    def dump_sections(self, dump: bytes) -> list[bytes]:
        """Return the sections of what bash has written: functions, variables, aliases, options, traps, the rest."""
        return dump.split(f"\\builtin : {self._words['tag']}\n".encode())

    @staticmethod
    def read_text(script: str, errors: str) -> str:
        """Return what has bash read the file `script`, whatever its options; it complains into the file `errors`.

        The quotes are for `sets_exit_trap`: nobody's function `trap` is to be defined for it.
        """
        return f"{{ \\builtin '.' {script}; }} >|/dev/null 2>|{errors} || \\builtin :"

    @property
    def start_lines(self) -> bytes:
        """What bash reads first of all. It is sent the loop when it has reported, as after an interrupt."""
        return f" \\builtin . {self._paths.script} {self._words['tag']}start;".encode() + self.prompt_line

    @property
    def loop_lines(self) -> bytes:
        """The loop, and the prompt line behind it. Together they fit into one read of bash's (1024 bytes)."""
        return self._script("loop_line").encode() + self.prompt_line

    @property
    def prompt_line(self) -> bytes:
        """The line that reports that bash reads lines."""
        return self._script("prompt_line").encode()

    @property
    def repair_lines(self) -> bytes:
        """What gives a shell its builtins back after a command has replaced or disabled them."""
        return self._script("repair").encode() + self.prompt_line

    @property
    def rescue_line(self) -> bytes:
        """What is typed to a bash that has lost the boot pipe and reads lines from the terminal."""
        return f" \\exec <{self._paths.boot}\n".encode()

    def command_text(self, command: str, carried: Carried, setup: Sequence[str] = ()) -> str:
        """Return what bash evaluates: `command`, with a line of what must be in force for it before.

        The order matters: `trap` and `set` reset `$?`, so the status comes behind them; but a DEBUG trap
        would see all that comes behind it, so it comes last, and `$?` is 0 then (likewise for RETURN).
        """
        plain = not (setup or carried.keeps_trap_function or _may_set_trap(command))
        if plain and self._line_for[0] is carried:
            return self._line_for[1] + command
        traps = carried.traps
        # `jobs` comes first: directly before an `exit` it would count as the warning about stopped jobs.
        steps = ["\\builtin jobs >|/dev/null"] if carried.jobs else []
        steps.append(self._unset)
        if carried.prompts:
            # They can be readonly.
            steps.append("{ \\builtin unset -v PROMPT_COMMAND PS0; \\builtin printf -v PS1 %s '\\[\\]'; } 2>|/dev/null")
        if carried.trap_function:
            steps.append("\\builtin unset -f trap")
        steps += setup
        if not carried.exit_trap_set:
            steps.append(_trap(self._exit_trap(carried.exit_action), "EXIT"))
        if not plain and (carried.keeps_trap_function or sets_exit_trap(command)):
            steps.append(self._line("trap"))
        steps += [f"\\builtin set -{flag}" for flag in "vx" if flag in carried.flags]
        steps += [_trap(traps[name], name) for name in ("ERR",) if name in traps]
        if carried.status and not {"DEBUG", "RETURN"} & traps.keys():
            status = f"{self._paths.script} {self._words['tag']}status {carried.status}"
            steps.append(f"{{ \\builtin . {status} && \\builtin :; }} 2>|/dev/null")
        steps += [_trap(traps[name], name) for name in ("RETURN", "DEBUG") if name in traps]
        if len(steps) > 1:
            steps.insert(0, f"\\builtin enable . {_BUILTINS}")
        line = ";".join(steps) + "\n"
        if plain:
            self._line_for = carried, line
        return line + command

    def carry(self, report: Report, before: Carried, command: str, *, children: bool) -> Carried:
        """Return what the next command must find, after `command`, which `report` is about.

        `children` says whether bash has any now. A job is a child of this command or of an earlier one.
        """
        plain = not (children or _may_set_trap(command))
        if plain and (report, before) == self._unchanging:
            return before
        jobs = children or before.children or report.last_job != before.last_job
        if not report.prepared:
            return replace(before, status=report.status, children=children, jobs=jobs or before.jobs)
        traps = dict(report.traps)
        action = traps.pop("EXIT", None)
        exited = report.kind is ReportKind.EXITED
        if exited:
            # A sourced script, which the EXIT trap is, sees neither of these two without functrace.
            traps = {name: before.traps[name] for name in ("DEBUG", "RETURN") if name in before.traps} | traps
        ours = exited or (action or "").startswith(self._exit_action)
        carried = Carried(
            status=report.status,
            flags=report.flags.replace("e", "") if exited else report.flags,
            traps=traps,
            exit_action=None if exited else before.exit_action if ours else action,
            exit_trap_set=ours,
            last_job=report.last_job,
            children=children,
            jobs=jobs,
            prompts=report.prompts,
            trap_function=before.keeps_trap_function or sets_exit_trap(command),
            keeps_trap_function=before.keeps_trap_function or defines_exit_trap(command),
        )
        if plain and carried == before:
            self._unchanging = report, before
            return before
        return carried

    def _exit_trap(self, action: str | None) -> str:
        return self._exit_action if action is None else f"{self._exit_action} {_ON_EXIT} {shlex.quote(action)}"

    def _report(self, kind: ReportKind, first: str, then: str) -> str:
        words = {"kind": kind.value, "first": self._line(first), "then": self._line(then)}
        return _PLACEHOLDER.sub(lambda found: words.get(found[1], found[0]), self._line("report"))

    def _called(self, name: str) -> str:
        """Return a test that fails where the script was called for the section `name`."""
        return f'\\builtin test "${{1-}}" != {self._words["tag"]}{name}'

    def _evaluated(self, *sections: str) -> str:
        """Return a command that evaluates sections and leaves the script, whatever lines they have."""
        lines = self._script(*sections) + "\\builtin return"
        return f"\\builtin eval -- {shlex.quote(lines)}"

    def _script(self, *sections: str) -> str:
        return "".join(f"{line}\n" for section in sections for line in self._filled(section))

    def _line(self, section: str) -> str:
        return " ".join(self._filled(section))

    def _filled(self, section: str) -> list[str]:
        """Return the lines of a section, with what stands for something filled in."""
        words = self._words
        return [
            _PLACEHOLDER.sub(lambda found: words.get(found[1], found[0]), line.replace("__shelld", self._variable))
            for line in _sections()[section]
        ]
