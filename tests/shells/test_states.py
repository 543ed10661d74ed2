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
from shelld_py.shells.states import TABLE, Event, State, StateMachine, diagram

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
    ("available", "started", "available"),
    ("available", "failed", "available"),
    ("available", "end", "available"),
    ("ready", "start", STARTED),
    ("ready", "run", "busy"),
    ("ready", "finish", "ready"),
    ("ready", "break", "unrecoverable"),
    ("ready", "kill", "ready"),
    ("ready", "stdin", NOTHING_RUNS),
    ("ready", "resize", "ready"),
    ("ready", "recycle", "recycling"),
    ("ready", "started", "ready"),
    ("ready", "failed", "ready"),
    ("ready", "end", "available"),
    ("busy", "start", STARTED),
    ("busy", "run", BUSY),
    ("busy", "finish", "ready"),
    ("busy", "break", "unrecoverable"),
    ("busy", "kill", "busy"),
    ("busy", "stdin", "busy"),
    ("busy", "resize", "busy"),
    ("busy", "recycle", "recycling"),
    ("busy", "started", "busy"),
    ("busy", "failed", "busy"),
    ("busy", "end", "available"),
    ("unrecoverable", "start", UNRECOVERABLE),
    ("unrecoverable", "run", UNRECOVERABLE),
    ("unrecoverable", "finish", "unrecoverable"),
    ("unrecoverable", "break", "unrecoverable"),
    ("unrecoverable", "kill", "unrecoverable"),
    ("unrecoverable", "stdin", UNRECOVERABLE),
    ("unrecoverable", "resize", UNRECOVERABLE),
    ("unrecoverable", "recycle", "recycling"),
    ("unrecoverable", "started", "unrecoverable"),
    ("unrecoverable", "failed", "unrecoverable"),
    ("unrecoverable", "end", "available"),
    ("recycling", "start", STARTED),
    ("recycling", "run", BUSY),
    ("recycling", "finish", "recycling"),
    ("recycling", "break", "recycling"),
    ("recycling", "kill", "recycling"),
    ("recycling", "stdin", NOTHING_RUNS),
    ("recycling", "resize", BUSY),
    ("recycling", "recycle", "recycling"),
    ("recycling", "started", "ready"),
    ("recycling", "failed", "unrecoverable"),
    ("recycling", "end", "available"),
]

PATHS: dict[str, tuple[Event, ...]] = {
    "available": (),
    "ready": (Event.START,),
    "busy": (Event.START, Event.RUN),
    "unrecoverable": (Event.START, Event.BREAK),
    "recycling": (Event.START, Event.RECYCLE),
}


def machine_in(state: str) -> StateMachine:
    """Return a machine that has been brought to `state`."""
    machine = StateMachine()
    for event in PATHS[state]:
        machine.take(event)
    assert machine.state is State(state)
    return machine


@pytest.mark.parametrize(("state", "event", "expected"), EXPECTED)
def test_every_state_with_every_event(state: str, event: str, expected: str) -> None:
    """An event leads to a state, or is refused with the contract's message, its code and the present state."""
    machine = machine_in(state)
    if expected in list(State):
        assert machine.after(Event(event)) is State(expected)
        machine.take(Event(event))
        assert machine.state is State(expected)
        return
    with pytest.raises(Conflict) as refusal:
        machine.take(Event(event))
    assert machine.state is State(state)
    kind, code = ERRORS[expected]
    assert type(refusal.value) is kind
    assert refusal.value.detail == expected
    assert refusal.value.code == code
    assert refusal.value.status == 409
    assert refusal.value.extra == {"state": str(machine.shown)}


def test_the_expected_table_is_complete() -> None:
    """No state and no event is missing here, and the machine has no entries beyond."""
    pairs = [(state, event) for state, event, _ in EXPECTED]
    assert len(pairs) == len(set(pairs))
    assert set(pairs) == {(str(state), str(event)) for state in State for event in Event}
    assert {(str(state), str(event)) for state, row in TABLE.items() for event in row} == set(pairs)


def test_the_diagram_shows_every_change_of_state_and_nothing_else() -> None:
    """The diagram of the documents is made from the table."""
    arrows = {line.strip() for line in diagram().splitlines() if "-->" in line}
    changes = {
        f"{state} --> {target}: {event}"
        for state, event, target in EXPECTED
        if target in list(State) and target != state
    }
    assert arrows == changes | {"[*] --> available"}


def test_every_state_can_be_left_and_reached() -> None:
    """From `available` every state can be reached, and from every state `available`."""
    steps = {(state, target) for state, _, target in EXPECTED if target in list(State)}
    for origin in State:
        reached = {str(origin)}
        while more := {target for state, target in steps if state in reached} - reached:
            reached |= more
        assert reached == {str(state) for state in State}


@pytest.mark.parametrize(("before", "seen"), [((), "ready"), ((Event.RUN,), "busy"), ((Event.BREAK,), "unrecoverable")])
@pytest.mark.parametrize(("outcome", "after"), [(Event.STARTED, "ready"), (Event.FAILED, "unrecoverable")])
def test_a_recycle_shows_the_state_before_it(before: tuple[Event, ...], seen: str, outcome: Event, after: str) -> None:
    """Until the new bash is there, or known not to come, whatever the old one does."""
    machine = StateMachine()
    for event in (Event.START, *before):
        machine.take(event)
    for event in (Event.RECYCLE, Event.BREAK, Event.FINISH):
        machine.take(event)
        assert machine.shown == seen
    machine.take(outcome)
    assert machine.shown == after
