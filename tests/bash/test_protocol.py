"""The states of one bash: every state with every event, against a table written out here; and what is an event."""

import pytest

from shelld_py.bash.protocol import TABLE, Action, BashEvent, BashState, Protocol, Report, ReportKind, diagram

SEND, PLACE, RING, END = Action

EXPECTED = [
    # state, event, the state that follows (None: it cannot be), what is done
    ("coming", "run", None, []),
    ("coming", "ran", "coming", []),
    ("coming", "unread", "coming", []),
    ("coming", "thrown out", "coming", ["send the loop"]),
    ("coming", "missed", "coming", ["send the loop"]),
    ("coming", "loop", "listening", []),
    ("coming", "restored", "coming", ["send the loop"]),
    ("coming", "exits", "coming", []),
    ("coming", "died", "dead", []),
    ("listening", "run", "evaluating", ["ring"]),
    ("listening", "ran", "listening", []),
    ("listening", "unread", "listening", []),
    ("listening", "thrown out", "coming", ["send the loop"]),
    ("listening", "missed", "coming", ["send the loop"]),
    ("listening", "loop", "listening", []),
    ("listening", "restored", "coming", ["send the loop"]),
    ("listening", "exits", "listening", []),
    ("listening", "died", "dead", []),
    ("evaluating", "run", None, []),
    ("evaluating", "ran", "listening", ["end"]),
    ("evaluating", "unread", "evaluating", ["place the text"]),
    ("evaluating", "thrown out", "coming", ["send the loop", "end"]),
    ("evaluating", "missed", "waiting", ["send the loop"]),
    ("evaluating", "loop", "evaluating", ["ring"]),
    ("evaluating", "restored", "coming", ["send the loop", "end"]),
    ("evaluating", "exits", "evaluating", []),
    ("evaluating", "died", "dead", ["end"]),
    ("waiting", "run", None, []),
    ("waiting", "ran", "waiting", []),
    ("waiting", "unread", "waiting", []),
    ("waiting", "thrown out", "coming", ["send the loop", "end"]),
    ("waiting", "missed", "waiting", ["send the loop"]),
    ("waiting", "loop", "evaluating", ["ring"]),
    ("waiting", "restored", "coming", ["send the loop", "end"]),
    ("waiting", "exits", "waiting", []),
    ("waiting", "died", "dead", ["end"]),
    ("dead", "run", None, []),
    ("dead", "ran", "dead", []),
    ("dead", "unread", "dead", []),
    ("dead", "thrown out", "dead", []),
    ("dead", "missed", "dead", []),
    ("dead", "loop", "dead", []),
    ("dead", "restored", "dead", []),
    ("dead", "exits", "dead", []),
    ("dead", "died", "dead", []),
]


@pytest.mark.parametrize(("state", "event", "target", "actions"), EXPECTED)
def test_every_state_with_every_event(state: str, event: str, target: str | None, actions: list[str]) -> None:
    """Each cell of the table is as it is written here."""
    cell = TABLE[BashState(state)][BashEvent(event)]
    assert cell == (None if target is None else (BashState(target), tuple(Action(action) for action in actions)))


def test_the_table_is_complete() -> None:
    """There is a cell for each pair, and each is looked at above."""
    pairs = {(state, event) for state in BashState for event in BashEvent}
    assert {(state, event) for state, row in TABLE.items() for event in row} == pairs
    assert {(BashState(state), BashEvent(event)) for state, event, *_ in EXPECTED} == pairs


def test_the_diagram_shows_every_change_and_every_action_and_nothing_else() -> None:
    """The diagram of the documents is made from the table."""
    arrows = {line.strip() for line in diagram().splitlines() if "-->" in line} - {"[*] --> coming"}
    expected = {
        f"{state} --> {target}: {event}" + (f" / {', '.join(actions)}" if actions else "")
        for state, event, target, actions in EXPECTED
        if target is not None and (actions or target != state)
    }
    assert arrows == expected


def listening(**options: bool) -> Protocol:
    """Return the protocol of a bash that has come into its loop."""
    protocol = Protocol("tag", **{"restores": True, **options})
    assert protocol.hear(report(ReportKind.PROMPT, loaded=False)) == (SEND,)
    assert protocol.hear(report(ReportKind.LOOP)) == ()
    assert protocol.state is BashState.LISTENING
    return protocol


def report(kind: ReportKind, **fields: object) -> Report:
    """Return a report."""
    return Report(kind, **fields)  # type: ignore[arg-type]


def test_a_command_from_its_begin_to_its_end() -> None:
    """It is rung, and over with the report."""
    protocol = listening()
    protocol.expected = True
    assert protocol.run() == (RING,)
    assert (protocol.under_way, protocol.expected, protocol.in_loop, protocol.command) == (True, False, True, 1)
    assert protocol.hear(report(ReportKind.RAN)) == (END,)
    assert (protocol.under_way, protocol.state) == (False, BashState.LISTENING)


def test_an_interrupt_ends_a_command_that_has_begun() -> None:
    """bash reads lines: it gets the loop, and the command is over."""
    protocol = listening()
    protocol.run()
    assert protocol.hear(report(ReportKind.PROMPT)) == (SEND, END)
    assert not protocol.in_loop


@pytest.mark.parametrize(("loaded", "bell_heard"), [(False, True), (True, False), (False, False)])
def test_an_interrupt_before_a_command_has_begun_does_not_cost_it(loaded: bool, bell_heard: bool) -> None:
    """It waits for the loop and is rung again, and what a second interrupt has bash say of it counts for nothing."""
    protocol = listening()
    protocol.run()
    assert protocol.hear(report(ReportKind.PROMPT, loaded=loaded), bell_heard=bell_heard) == (SEND,)
    assert protocol.under_way
    assert protocol.hear(report(ReportKind.PROMPT, loaded=True)) == (SEND,)
    assert protocol.hear(report(ReportKind.LOOP)) == (RING,)
    assert protocol.hear(report(ReportKind.RAN)) == (END,)


def test_a_command_of_a_repaired_bash_is_never_rung_again() -> None:
    """Whether it has begun is not known then."""
    protocol = listening()
    protocol.run()
    protocol.damage = "damage"
    assert protocol.hear(report(ReportKind.PROMPT, loaded=False)) == (SEND, END)


def test_a_text_that_was_not_found_is_placed_anew() -> None:
    """Until it was tried too often."""
    protocol = listening()
    protocol.run()
    for _ in range(100):
        assert protocol.hear(report(ReportKind.RAN, loaded=False)) == (PLACE,)
        assert not protocol.hopeless
    protocol.hear(report(ReportKind.RAN, loaded=False))
    assert protocol.hopeless
    protocol.hear(report(ReportKind.RAN))
    protocol.run()
    assert not protocol.hopeless


@pytest.mark.parametrize(("restores", "actions"), [(True, (SEND, END)), (False, ())])
def test_an_exit_ends_the_command_where_the_shell_comes_back(restores: bool, actions: tuple[Action, ...]) -> None:
    """Where it does not, the command ends with its death, and the status is known."""
    protocol = listening(restores=restores)
    protocol.run()
    assert protocol.hear(report(ReportKind.EXITED, status=3)) == actions
    assert protocol.reported_exit == 3
    assert protocol.died() == (() if restores else (END,))
    assert protocol.state is BashState.DEAD


def test_a_late_report_is_about_no_later_command() -> None:
    """A report of a command that is over already does not end the next one."""
    protocol = listening()
    assert protocol.hear(report(ReportKind.RAN)) == ()
    protocol.run()
    assert protocol.hear(report(ReportKind.PROMPT), bell_heard=False) == (SEND,)
    assert protocol.hear(report(ReportKind.RAN)) == ()
    assert protocol.under_way


def test_a_command_is_given_to_a_bash_that_listens_alone() -> None:
    """Whoever has one must wait until then."""
    protocol = Protocol("tag", restores=True)
    with pytest.raises(AssertionError):
        protocol.run()
