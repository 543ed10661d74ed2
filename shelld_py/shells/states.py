"""The state machine of a shell, as one table. No I/O.

Rules of this file
    - It alone decides what is allowed in which state, and what a refusal says.
    - A state is changed by `transition` and by nothing else.
    - Every (state, event) pair has an entry: a state to go to, or the error to raise.

Theory of operation
    A shell is `available` until it is started, then `ready`, and `busy` while a command runs. It is
    `unrecoverable` when its bash has ended: crashed, killed, replaced by `exec`. Only a recycle, which
    starts a fresh bash, or the end of the shell leads out of that.

    Requests are START, RUN, KILL, STDIN, RESIZE, RECYCLE and END; FINISH (the command is over, bash lives)
    and BREAK (bash has ended) are what bash does. A request that does not change the state has an entry
    all the same: that it is allowed.
"""

from enum import StrEnum
from typing import Final

from shelld_py.errors import (
    Conflict,
    NoRunningCommand,
    ShellAlreadyStarted,
    ShellBusy,
    ShellNotStarted,
    ShellUnrecoverable,
)
from shelld_py.models import ShellState


class Event(StrEnum):
    """What can happen to a shell."""

    START = "start"
    RUN = "run"
    FINISH = "finish"
    BREAK = "break"
    KILL = "kill"
    STDIN = "stdin"
    RESIZE = "resize"
    RECYCLE = "recycle"
    END = "end"


AVAILABLE, READY, BUSY, UNRECOVERABLE = ShellState

MESSAGES: Final[dict[type[Conflict], str]] = {
    ShellNotStarted: "The shell has not been started.",
    ShellBusy: "The shell is busy executing another command.",
    ShellAlreadyStarted: "The shell is already started.",
    ShellUnrecoverable: "The shell is in an unrecoverable state and must be recycled.",
    NoRunningCommand: "No command is running.",
}

TABLE: Final[dict[ShellState, dict[Event, ShellState | type[Conflict]]]] = {
    AVAILABLE: {
        Event.START: READY,
        Event.RUN: ShellNotStarted,
        Event.FINISH: AVAILABLE,
        Event.BREAK: AVAILABLE,
        Event.KILL: ShellNotStarted,
        Event.STDIN: ShellNotStarted,
        Event.RESIZE: ShellNotStarted,
        Event.RECYCLE: ShellNotStarted,
        Event.END: AVAILABLE,
    },
    READY: {
        Event.START: ShellAlreadyStarted,
        Event.RUN: BUSY,
        Event.FINISH: READY,
        Event.BREAK: UNRECOVERABLE,
        Event.KILL: READY,
        Event.STDIN: NoRunningCommand,
        Event.RESIZE: READY,
        Event.RECYCLE: READY,
        Event.END: AVAILABLE,
    },
    BUSY: {
        Event.START: ShellAlreadyStarted,
        Event.RUN: ShellBusy,
        Event.FINISH: READY,
        Event.BREAK: UNRECOVERABLE,
        Event.KILL: BUSY,
        Event.STDIN: BUSY,
        Event.RESIZE: BUSY,
        Event.RECYCLE: READY,
        Event.END: AVAILABLE,
    },
    UNRECOVERABLE: {
        Event.START: ShellUnrecoverable,
        Event.RUN: ShellUnrecoverable,
        Event.FINISH: UNRECOVERABLE,
        Event.BREAK: UNRECOVERABLE,
        Event.KILL: UNRECOVERABLE,
        Event.STDIN: ShellUnrecoverable,
        Event.RESIZE: ShellUnrecoverable,
        Event.RECYCLE: READY,
        Event.END: AVAILABLE,
    },
}


def transition(state: ShellState, event: Event) -> ShellState:
    """Return the state that follows `state` on `event`, or raise the `Conflict` that refuses it."""
    target = TABLE[state][event]
    if isinstance(target, ShellState):
        return target
    raise target(MESSAGES[target], state=state.value)


def diagram() -> str:
    """Return the table as a Mermaid state diagram: the one in docs/architecture.md."""
    lines = ["stateDiagram-v2", "    [*] --> available"]
    for state, row in TABLE.items():
        for event, target in row.items():
            if isinstance(target, ShellState) and target is not state:
                lines.append(f"    {state} --> {target}: {event}")
    return "\n".join(lines)
