"""bash's own states, what it reports, and what is to be done then. No I/O: bytes in, actions out.

`Protocol` is told what happens (`hear`) and answers with the actions of the table, which interpreter.py does. The
table has an entry for each pair of state and event; docs/architecture.md shows the diagram that is made of it.
It knows nothing of the driver's scripts, of descriptors, or of runs.
"""

import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from msgspec import Struct, field
from msgspec.structs import replace

_FIELDS: Final = {b"R": 4, b"P": 4, b"B": 0, b"X": 4, b"U": 0, b"Y": 1}
_LONGEST_TOKEN: Final = 1 << 20
"""Bytes of a field, and of the listing of traps. Fields are cut by bash before; of a longer listing the first half
counts, which begins with EXIT, and the last, with the traps that the driver takes off."""
_CUT: Final = b"\n'\n"
"""Between the two: the trap that was cut ends here, and has no name."""
_LONGEST_REMEMBERED: Final = 4096
"""Bytes of a record that is compared with the next one, which may come a byte at a time."""
_STATE_TRAPS: Final = frozenset(("DEBUG", "ERR", "RETURN", "EXIT"))
_TRAP: Final = "trap -- '"
_LONGEST_NAME: Final = 15
_NAME: Final = re.compile(r"[A-Z][A-Z0-9+-]+")
_QUOTE_IN_QUOTES: Final = "'\\''"
_UNREAD: Final = "=:"
"""What the driver's variable tells where the text was not loaded."""
_LONGEST_PATH: Final = 65536
"""As bash cuts them (driver.bash)."""
_MOST_RETURNS: Final = 100
"""Interrupts can bring bash out of its loop before it has begun with a command, but hardly so often in a row."""


class ReportKind(StrEnum):
    """What bash reports about itself."""

    RAN = "R"
    """The command is over."""
    PROMPT = "P"
    """bash is back at reading lines: an interrupt has brought it there, or `return`."""
    LOOP = "B"
    """The loop begins (again)."""
    EXITED = "X"
    """The shell is exiting; it may come back with a LOOP report."""


class Report(Struct, frozen=True):
    """One report of bash. `status` is `$?`, `flags` is `$-`, `last_job` is `$!`."""

    kind: ReportKind
    status: int = 0
    loaded: bool = True
    """False where the text was not loaded: an interrupt came first, or it could not be read."""
    prepared: bool = True
    """False where the driver's line in front of the command was not executed."""
    returned: bool = False
    """Whether the command has ended the loop by `return`, and no interrupt has."""
    flags: str = ""
    last_job: str = "0"
    directory: str = ""
    previous_directory: str | None = ""
    """None where it is longer than any path."""
    prompts: bool = False
    """Whether PS1, PS0 or PROMPT_COMMAND are not the driver's."""
    traps: Mapping[str, str] = field(default_factory=dict)
    handled: frozenset[str] | None = None
    """Of a shell that exits, but executes no `exit`: the signals on which the user has traps. It may die of others."""


class ReportParser:
    """Turns the bytes of the report pipe into reports, however they are cut.

    It is total: what is no report is passed over. It looks at each byte once, and keeps a token at the most.
    """

    def __init__(self, tag: str) -> None:
        self.in_exit_trap = False
        """Whether the shell is exiting, and does now what the user wants done then."""
        self._tag = tag.encode()
        self._pieces: list[bytes] = []
        self._size = 0
        self._listing: bytes | None = None
        """What came before the tag of the record that is open."""
        self._record: list[bytes] = []
        self._exited: Report | None = None
        self.repeats = False
        """Whether the record that came last, or of which a part has come, is the one before over again."""
        self._last: tuple[bytes, list[Report]] = (b"", [])
        """A record, and what it reported."""
        self._same = b""
        """The beginning of a record that may become the last one once more."""
        self._open: bytes | None = None
        """What has come of the record that is open; None where it is long, or another has come in front of it."""

    def feed(self, data: bytes) -> Sequence[Report]:
        """Take the next bytes; return the reports that are complete with them."""
        begun = self._open
        between = not self._pieces and self._listing is None
        if between:
            begun, self.repeats = b"", False
        if between and self._exited is None and not self.in_exit_trap:
            # Most commands leave all as it was: then the report of the last one is this one's. A record comes in two
            # pieces where nobody is busy: bash writes the traps before the rest. Those of an exit mean nothing alone.
            data, self._same = self._same + data, b""
            last, reports = self._last
            self.repeats = bool(data) and last.startswith(data)
            if data == last:
                return reports
            if self.repeats:
                self._same = data
                return ()
        *tokens, rest = data.split(b"\0")
        taken = [self._take(self._joined(token)) for token in tokens]
        reports = [report for report in taken if report]
        self._keep(rest)
        record = None if begun is None or len(begun) + len(data) > _LONGEST_REMEMBERED else begun + data
        if not reports:
            self._open = record
        else:
            self._open = None
            # Not with another beside it: of two, the first would be held back when it comes alone.
            single = taken[-1] is not None and not rest and reports[0].kind is ReportKind.RAN
            if record and single and record.count(self._tag) == 1:
                self._last = (record, reports)
        return reports

    def _keep(self, piece: bytes) -> None:
        """Keep the beginning of a token; of one that is too long, the two ends: the last may be a tag."""
        if piece:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > 2 * _LONGEST_TOKEN:
                self._pieces = [_cut(b"".join(self._pieces))]
                self._size = len(self._pieces[0])

    def _joined(self, end: bytes) -> bytes:
        if not self._pieces:
            return _cut(end)
        token = _cut(b"".join((*self._pieces, end)))
        self._pieces.clear()
        self._size = 0
        return token

    def _take(self, token: bytes) -> Report | None:
        if token.endswith(self._tag):
            # Also in the middle of a record: an interrupt has cut that one short.
            self._listing, self._record = token[: -len(self._tag)], []
            return None
        if self._listing is None:
            return None
        self._record.append(token)
        fields = _FIELDS.get(self._record[0])
        if fields is None:
            self._listing = None
        elif len(self._record) == fields + 1:
            listing, self._listing = self._listing, None
            return self._report(self._record, listing)
        if self._record == [b"U"]:
            self.in_exit_trap = True
        return None

    def _report(self, record: Sequence[bytes], listing: bytes) -> Report | None:
        """Return the report that is complete with this record."""
        kind = record[0]
        if kind == b"U":
            self.in_exit_trap = True
            return None
        if kind == b"B":
            return Report(ReportKind.LOOP)
        if kind == b"Y":
            exited, self._exited, self.in_exit_trap = self._exited, None, False
            return replace(exited, status=_number(record[1], exited.status)) if exited else None
        report = _report(ReportKind(kind.decode()), record, listing)
        self._exited = report if kind == b"X" else None
        self.in_exit_trap = False
        return None if kind == b"X" else report


def _cut(token: bytes) -> bytes:
    """Return a token, shortened in its middle where it is too long."""
    half = _LONGEST_TOKEN // 2
    return token if len(token) <= _LONGEST_TOKEN else token[: half - len(_CUT)] + _CUT + token[-half:]


def _report(kind: ReportKind, record: Sequence[bytes], listing: bytes) -> Report:
    """Read a record: a summary (`$?`, `$-`, `$!`, the driver's variable), two directories, the prompts.

    In place of the prompts that of an exit has the beginning of the command that is being executed.

    The variable is unset by the line in front of a command. Else it holds `=` and: what it holds between commands,
    the text or the loop's callback (which begins with a blank), the summary of a report that was interrupted.
    """
    status, flags, last_job, state = (*_decode(record[1]).split(" ", 3), "", "", "")[:4]
    number = _number(status)
    word, _, rest = state.removeprefix("=").partition(" ")
    loaded = state != _UNREAD and (kind is ReportKind.RAN or not (word == "idle" or state == "=" or state[:2] == "= "))
    prepared = not state
    if loaded and state and word == "returned":
        number, prepared = _number(rest), True
    elif loaded and state and word.isdecimal():
        # An interrupt has cut off the command's own report: what that had said already holds. It may have been that the
        # text could not be loaded.
        interrupted, _, inner = (*rest.split(" ", 2), "", "")[:3]
        loaded = prepared = inner != _UNREAD
        number = _number(word)
        flags = "".join(dict.fromkeys(flags + interrupted))
    directory, previous = _decode(record[2]), _decode(record[3])
    traps, handled = _parse_traps(_decode(listing))
    return Report(
        kind,
        status=number,
        loaded=loaded,
        prepared=prepared,
        returned=prepared and word == "returned",
        flags=flags,
        last_job=last_job,
        directory=directory if len(record[2]) < _LONGEST_PATH else "",
        previous_directory=previous if len(record[3]) < _LONGEST_PATH else None,
        prompts=kind is not ReportKind.EXITED and record[4] not in (b"", b"\\[\\]"),
        traps=MappingProxyType(traps),
        handled=handled if kind is ReportKind.EXITED and record[4] != b"exit" else None,
    )


def _parse_traps(listing: str) -> tuple[dict[str, str], frozenset[str]]:
    """Read what `trap -p` printed: `trap -- 'ACTION' NAME` for each trap, a quote in an action as bash writes it.

    Returns the actions that the driver takes off, and the names of the signals that other traps are on. An interrupt
    can have cut a listing short, and traps of signals can have written in between: what is no trap is passed over.
    """
    traps: dict[str, str] = {}
    others: set[str] = set()
    place = listing.find(_TRAP)
    while place >= 0:
        begin = end = place + len(_TRAP)
        while (end := listing.find("'", end)) >= 0 and listing.startswith(_QUOTE_IN_QUOTES, end):
            end += len(_QUOTE_IN_QUOTES)
        name = listing[end + 1 : end + _LONGEST_NAME].partition("\n")[0].strip() if end >= 0 else ""
        if name in _STATE_TRAPS:
            traps[name] = listing[begin:end].replace(_QUOTE_IN_QUOTES, "'")
        elif name.startswith("SIG"):
            others.add(name)
        if _NAME.fullmatch(name):
            begin = end
        # Else one that was cut short: the next one may begin within what looks like its action.
        place = listing.find(_TRAP, begin)
    return traps, frozenset(others)


def _number(text: str | bytes, otherwise: int = 0) -> int:
    """Return a status; what is none, `otherwise`."""
    digits = _decode(text) if isinstance(text, bytes) else text
    return int(digits) if digits.isdecimal() and digits.isascii() and len(digits) < 10 else otherwise


def _decode(value: bytes) -> str:
    return value.decode("utf-8", "surrogateescape")


class BashState(StrEnum):
    """Where one bash is."""

    COMING = "coming"
    """On its way to the loop: it starts, comes back after an exit, or has been thrown out of the loop."""
    LISTENING = "listening"
    """In the loop, without a command."""
    EVALUATING = "evaluating"
    """It was given a command."""
    WAITING = "waiting"
    """A command waits, which it has been given but has not begun with when it was thrown out of the loop."""
    DEAD = "dead"


class BashEvent(StrEnum):
    """What can happen to it."""

    RUN = "run"
    """It is to be given a command."""
    RAN = "ran"
    """It reports the end of the command."""
    UNREAD = "unread"
    """It reports that it could not load the command's text."""
    THROWN = "thrown out"
    """It reports that it reads lines, and has begun with the command before (or might have)."""
    MISSED = "missed"
    """It reports that it reads lines, and has not begun with the command before."""
    LOOP = "loop"
    """It reports that the loop begins."""
    RESTORED = "restored"
    """It reports that it has exited, and comes back."""
    EXITS = "exits"
    """It reports that it exits, and will be gone."""
    DIED = "died"


class Action(StrEnum):
    """What is to be done then, in this order."""

    SEND_LOOP = "send the loop"
    """Take back what it has not heard, and send the line that begins the loop."""
    PLACE_TEXT = "place the text"
    """Put the text where bash reads next, and ring."""
    RING = "ring"
    """Have it load and evaluate the text."""
    END = "end"
    """The command is over."""


_Cell = tuple[BashState, tuple[Action, ...]]
_SEND, _PLACE, _RING, _END = Action.SEND_LOOP, Action.PLACE_TEXT, Action.RING, Action.END
_C, _L, _E, _W, _D = BashState


def _row(state: BashState, **cells: _Cell) -> dict[BashEvent, _Cell | None]:
    """Return a row of the table; what is not named leaves the state as it is, and does nothing."""
    row: dict[BashEvent, _Cell | None] = dict.fromkeys(BashEvent, (state, ()))
    row[BashEvent.RUN] = None
    row.update({BashEvent[name.upper()]: cell for name, cell in cells.items()})
    return row


TABLE: Final[Mapping[BashState, Mapping[BashEvent, _Cell | None]]] = {
    _C: _row(_C, thrown=(_C, (_SEND,)), missed=(_C, (_SEND,)), loop=(_L, ()), restored=(_C, (_SEND,)), died=(_D, ())),
    # A trap of the user on a signal can do anything between two commands, `exit` as well.
    _L: _row(
        _L, run=(_E, (_RING,)), thrown=(_C, (_SEND,)), missed=(_C, (_SEND,)), restored=(_C, (_SEND,)), died=(_D, ())
    ),
    _E: _row(
        _E, ran=(_L, (_END,)), unread=(_E, (_PLACE,)), thrown=(_C, (_SEND, _END)), missed=(_W, (_SEND,)),
        loop=(_E, (_RING,)), restored=(_C, (_SEND, _END)), died=(_D, (_END,)),
    ),
    # Nothing has been rung since it was thrown out: it says of a command what it has said already.
    _W: _row(
        _W, thrown=(_C, (_SEND, _END)), missed=(_W, (_SEND,)), loop=(_E, (_RING,)), restored=(_C, (_SEND, _END)),
        died=(_D, (_END,)),
    ),
    _D: _row(_D),
}  # fmt: skip
"""What follows; None where the event cannot be: a command is given to a bash that listens, and to no other."""


class Protocol:
    """Keeps the state of one bash. `tag` marks its reports, `restores` says whether it comes back after an exit."""

    def __init__(self, tag: str, *, restores: bool) -> None:
        self._parser = ReportParser(tag)
        self.reports = self._parser.feed
        """Takes the next bytes of the report pipe; returns the reports that are complete with them."""
        self.state = BashState.COMING
        self.command = 0
        """The number of the last command: who has waited can tell whether it is still the same."""
        self.expected = False
        """Whether a command is to come as soon as bash listens and what was written before it has been read."""
        self.damage: str | None = None
        """What is wrong with the result of the command that is under way."""
        self.reported_exit: int | None = None
        """The status with which the shell has said that it exits."""
        self._restores = restores
        self._returns = 0

    @property
    def report_repeats(self) -> bool:
        """Whether bash reports what it reported last, as far as it has come with it."""
        return self._parser.repeats

    @property
    def under_way(self) -> bool:
        """Whether bash was given a command that is not over."""
        return self.state in (BashState.EVALUATING, BashState.WAITING)

    @property
    def in_loop(self) -> bool:
        """Whether bash was last heard of in its loop."""
        return self.state in (BashState.LISTENING, BashState.EVALUATING)

    @property
    def in_exit_trap(self) -> bool:
        """Whether the shell is exiting, and does now what the user wants done then."""
        return self._parser.in_exit_trap

    @property
    def hopeless(self) -> bool:
        """Whether it was given the same command too often without beginning with it."""
        return self._returns > _MOST_RETURNS

    def run(self) -> tuple[Action, ...]:
        """Give it a command. It must listen."""
        self.command += 1
        self.expected = False
        self._returns = 0
        return self._step(BashEvent.RUN)

    def hear(self, report: Report, *, bell_heard: bool = True) -> tuple[Action, ...]:
        """Take a report; `bell_heard` says whether bash has taken the byte that it was rung with."""
        if report.kind is ReportKind.RAN:
            return self._step(BashEvent.RAN if report.loaded else BashEvent.UNREAD)
        if report.kind is ReportKind.EXITED:
            self.reported_exit = report.status
        elif report.kind is ReportKind.LOOP:
            self.reported_exit = None
        return self._step(self._event(report, bell_heard=bell_heard))

    def died(self) -> tuple[Action, ...]:
        """Take that bash is gone."""
        return self._step(BashEvent.DIED)

    def _event(self, report: Report, *, bell_heard: bool) -> BashEvent:
        if report.kind is ReportKind.EXITED:
            return BashEvent.RESTORED if self._restores else BashEvent.EXITS
        if report.kind is ReportKind.LOOP:
            return BashEvent.LOOP
        # What had to be repaired is never evaluated a second time.
        begun = self.state is BashState.EVALUATING and bell_heard and report.loaded
        return BashEvent.THROWN if begun or self.damage else BashEvent.MISSED

    def _step(self, event: BashEvent) -> tuple[Action, ...]:
        cell = TABLE[self.state][event]
        assert cell is not None, f"{event} while {self.state}"
        self.state, actions = cell
        if event in (BashEvent.MISSED, BashEvent.UNREAD):
            self._returns += 1
        return actions


def diagram() -> str:
    """Return the table as a diagram for Mermaid: all that changes the state or is answered by an action."""
    lines = ["stateDiagram-v2", "    [*] --> coming"]
    for state, row in TABLE.items():
        for event, cell in row.items():
            if cell and (cell[1] or cell[0] is not state):
                does = f" / {', '.join(cell[1])}" if cell[1] else ""
                lines.append(f"    {state} --> {cell[0]}: {event}{does}")
    return "\n".join(lines)
