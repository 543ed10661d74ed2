"""The state machine of a shell: every state with every event, against a table written out here."""

import pytest

from shelld_py.errors import (
    Conflict,
    NoRunningCommand,
    ShellAlreadyStarted,
    ShellBusy,
    ShellNotStarted,
    ShellUnrecoverable,
)
from shelld_py.models import ShellState
from shelld_py.shells.states import TABLE, Event, diagram, transition

NOT_STARTED = "The shell has not been started."
BUSY = "The shell is busy executing another command."
STARTED = "The shell is already started."
UNRECOVERABLE = "The shell is in an unrecoverable state and must be recycled."
NOTHING_RUNS = "No command is running."

ERRORS: dict[str, tuple[type[Conflict], str]] = {
    NOT_STARTED: (ShellNotStarted, "shell_not_started"),
    BUSY: (ShellBusy, "shell_busy"),
    STARTED: (ShellAlreadyStarted, "shell_already_started"),
    UNRECOVERABLE: (ShellUnrecoverable, "shell_unrecoverable"),
    NOTHING_RUNS: (NoRunningCommand, "no_running_command"),
}

EXPECTED = [
    # state, event, the state that follows or the message of the refusal
    ("available", "start", "ready"),
    ("available", "run", NOT_STARTED),
    ("available", "finish", "available"),
    ("available", "break", "available"),
    ("available", "kill", NOT_STARTED),
    ("available", "stdin", NOT_STARTED),
    ("available", "resize", NOT_STARTED),
    ("available", "recycle", NOT_STARTED),
    ("available", "end", "available"),
    ("ready", "start", STARTED),
    ("ready", "run", "busy"),
    ("ready", "finish", "ready"),
    ("ready", "break", "unrecoverable"),
    ("ready", "kill", "ready"),
    ("ready", "stdin", NOTHING_RUNS),
    ("ready", "resize", "ready"),
    ("ready", "recycle", "ready"),
    ("ready", "end", "available"),
    ("busy", "start", STARTED),
    ("busy", "run", BUSY),
    ("busy", "finish", "ready"),
    ("busy", "break", "unrecoverable"),
    ("busy", "kill", "busy"),
    ("busy", "stdin", "busy"),
    ("busy", "resize", "busy"),
    ("busy", "recycle", "ready"),
    ("busy", "end", "available"),
    ("unrecoverable", "start", UNRECOVERABLE),
    ("unrecoverable", "run", UNRECOVERABLE),
    ("unrecoverable", "finish", "unrecoverable"),
    ("unrecoverable", "break", "unrecoverable"),
    ("unrecoverable", "kill", "unrecoverable"),
    ("unrecoverable", "stdin", UNRECOVERABLE),
    ("unrecoverable", "resize", UNRECOVERABLE),
    ("unrecoverable", "recycle", "ready"),
    ("unrecoverable", "end", "available"),
]


@pytest.mark.parametrize(("state", "event", "expected"), EXPECTED)
def test_every_state_with_every_event(state: str, event: str, expected: str) -> None:
    """An event leads to a state, or is refused with the contract's message, its code and the present state."""
    if expected in list(ShellState):
        assert transition(ShellState(state), Event(event)) is ShellState(expected)
        return
    with pytest.raises(Conflict) as refusal:
        transition(ShellState(state), Event(event))
    kind, code = ERRORS[expected]
    assert type(refusal.value) is kind
    assert refusal.value.detail == expected
    assert refusal.value.code == code
    assert refusal.value.status == 409
    assert refusal.value.extra == {"state": state}


def test_the_expected_table_is_complete() -> None:
    """No state and no event is missing here, and the machine has no entries beyond."""
    pairs = [(state, event) for state, event, _ in EXPECTED]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {(str(state), str(event)) for state in ShellState for event in Event}
    assert {(str(state), str(event)) for state, row in TABLE.items() for event in row} == set(pairs)


def test_the_diagram_shows_every_change_of_state_and_nothing_else() -> None:
    """The diagram of the documents is made from the table."""
    arrows = {line.strip() for line in diagram().splitlines() if "-->" in line}
    changes = {
        f"{state} --> {target}: {event}"
        for state, event, target in EXPECTED
        if target in list(ShellState) and target != state
    }
    assert arrows == changes | {"[*] --> available"}


def test_every_state_can_be_left_and_reached() -> None:
    """From `available` every state can be reached, and from every state `available`."""
    steps = {(state, target) for state, _, target in EXPECTED if target in list(ShellState)}
    for origin in ShellState:
        reached = {str(origin)}
        while more := {target for state, target in steps if state in reached} - reached:
            reached |= more
        assert reached == {str(state) for state in ShellState}
