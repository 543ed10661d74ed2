"""The state machine of a shell, as one table. No I/O.

Rules of this file
    - It alone decides what is allowed in which state, and what a refusal says.
    - A state is changed by `StateMachine.take` and by nothing else.
    - Every (state, event) pair has an entry: a state to go to, or the error to raise.

Theory of operation
    A shell is `available` until it is started, then `ready`, and `busy` while a command runs. It is
    `unrecoverable` when its bash has ended: crashed, killed, replaced by `exec`. Only a recycle, which
    starts a fresh bash, or the end of the shell leads out of that.

    While it is recycled, the old bash ends and the new one starts: `recycling`. That state is the daemon's own.
    Clients go on seeing the one before it, until the new bash is there, or is known not to come.

    Requests are START, RUN, KILL, STDIN, RESIZE, RECYCLE and END. FINISH (the command is over, bash lives)
    and BREAK (bash has ended) are what bash does; STARTED and FAILED say what came of a recycle. An event that
    does not change the state has an entry all the same: that it is allowed.
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


class State(StrEnum):
    """The states of a shell: those that clients see, and the one between two bashes."""

    AVAILABLE = "available"
    READY = "ready"
    BUSY = "busy"
    UNRECOVERABLE = "unrecoverable"
    RECYCLING = "recycling"


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
    STARTED = "started"
    FAILED = "failed"
    END = "end"


AVAILABLE, READY, BUSY, UNRECOVERABLE, RECYCLING = State

MESSAGES: Final[dict[type[Conflict], str]] = {
    ShellNotStarted: "The shell has not been started.",
    ShellBusy: "The shell is busy executing another command.",
    ShellAlreadyStarted: "The shell is already started.",
    ShellUnrecoverable: "The shell is in an unrecoverable state and must be recycled.",
    NoRunningCommand: "No command is running.",
}

TABLE: Final[dict[State, dict[Event, State | type[Conflict]]]] = {
    AVAILABLE: {
        Event.START: READY,
        Event.RUN: ShellNotStarted,
        Event.FINISH: AVAILABLE,
        Event.BREAK: AVAILABLE,
        Event.KILL: ShellNotStarted,
        Event.STDIN: ShellNotStarted,
        Event.RESIZE: ShellNotStarted,
        Event.RECYCLE: ShellNotStarted,
        Event.STARTED: AVAILABLE,
        Event.FAILED: AVAILABLE,
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
        Event.RECYCLE: RECYCLING,
        Event.STARTED: READY,
        Event.FAILED: READY,
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
        Event.RECYCLE: RECYCLING,
        Event.STARTED: BUSY,
        Event.FAILED: BUSY,
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
        Event.RECYCLE: RECYCLING,
        Event.STARTED: UNRECOVERABLE,
        Event.FAILED: UNRECOVERABLE,
        Event.END: AVAILABLE,
    },
    RECYCLING: {
        Event.START: ShellAlreadyStarted,
        Event.RUN: ShellBusy,
        Event.FINISH: RECYCLING,
        Event.BREAK: RECYCLING,
        Event.KILL: RECYCLING,
        Event.STDIN: NoRunningCommand,
        Event.RESIZE: ShellBusy,
        Event.RECYCLE: RECYCLING,
        Event.STARTED: READY,
        Event.FAILED: UNRECOVERABLE,
        Event.END: AVAILABLE,
    },
}


_SHOWN: Final = {state: ShellState(state) for state in State if state is not RECYCLING}


class StateMachine:
    """The state of one shell."""

    def __init__(self) -> None:
        self.state = AVAILABLE
        self.shown = ShellState.AVAILABLE
        """The state as clients see it."""

    def after(self, event: Event) -> State:
        """Return the state that would follow on `event`, or raise the `Conflict` that refuses it."""
        target = TABLE[self.state][event]
        if isinstance(target, State):
            return target
        raise target(MESSAGES[target], state=self.shown.value)

    def take(self, event: Event) -> None:
        """Go to the state that follows on `event`, or raise the `Conflict` that refuses it."""
        target = TABLE[self.state][event]
        self.state = target if isinstance(target, State) else self.after(event)
        self.shown = _SHOWN.get(self.state, self.shown)


def diagram() -> str:
    """Return the table as a Mermaid state diagram: the one in docs/architecture.md."""
    lines = ["stateDiagram-v2", "    [*] --> available"]
    for state, row in TABLE.items():
        for event, target in row.items():
            if isinstance(target, State) and target is not state:
                lines.append(f"    {state} --> {target}: {event}")
    return "\n".join(lines)
