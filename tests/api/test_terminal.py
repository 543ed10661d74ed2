"""A terminal in a WebSocket: what it shows, what is typed, and what becomes of clients that are slow or hostile."""

import pytest

from tests.api.conftest import Gate
from tests.daemons import RunningDaemon
from tests.websockets import TERMINAL, Refused, websocket


def test_what_runs_is_told_and_shown(daemon: RunningDaemon) -> None:
    """The state first; then of each run that it begins, what it writes, that it ends, and the state after it."""
    with websocket(daemon.url) as terminal:
        assert terminal.subprotocol == TERMINAL
        terminal.until_told("state", state="ready")
        run = daemon.run("printf 'one\\n\\377'; exit 3", run_id="shown")
        begun = terminal.until_told("run", run_id="shown")
        ended = terminal.until_told("run", run_id="shown")
        assert (begun["status"], ended["status"], ended["exit_code"]) == ("running", "completed", run["exit_code"])
        assert terminal.shown == b"one\n\xff"
        assert ended["stdout"] is None


def test_a_command_is_run_and_typed_into(daemon: RunningDaemon) -> None:
    """A person runs a command, and types; that is seen by whoever reads, and said in the result."""
    with websocket(daemon.url) as terminal, websocket(daemon.url) as other:
        terminal.tell("run", command='read -r line; echo "<$line>"')
        terminal.type(b"hello\r")
        ended = terminal.until_told("run", status="completed")
        assert terminal.shown == b"hello\n<hello>\n"
        assert ended["typed_by_person"] is True
        other.until_told("run", status="completed")
        assert other.shown == terminal.shown
    stored = daemon.json("GET", f"/runs/{ended['run_id']}")
    assert (stored["stdout"], stored["typed_by_person"], list(stored)[-1]) == (
        "hello\n<hello>\n",
        True,
        "typed_by_person",
    )
    assert "typed_by_person" not in daemon.run("true")


def test_the_size_is_set(daemon: RunningDaemon) -> None:
    with websocket(daemon.url) as terminal:
        terminal.tell("resize", rows=31, cols=97)
        terminal.tell("run", command="stty size")
        terminal.until(lambda: terminal.shown == b"31 97\n")


def test_a_signal_is_sent(daemon: RunningDaemon) -> None:
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="echo begun; sleep 100")
        terminal.until(lambda: terminal.shown)
        terminal.tell("signal", signal="TERM")
        assert terminal.until_told("run", status="killed")["signal"] == 15


@pytest.mark.parametrize(("query", "shown"), [("", b"0123456789"), ("?replay=4", b"6789"), ("?replay=0", b"")])
def test_what_was_written_before_is_replayed(daemon: RunningDaemon, gate: Gate, query: str, shown: bytes) -> None:
    """So many bytes; the message of the run says where they end."""
    run_id = daemon.start(f"printf 0123456789; {gate}; printf !")
    daemon.json("GET", f"/runs/{run_id}/wait?cursor=9")
    with websocket(daemon.url, f"/terminal{query}") as terminal:
        assert terminal.until_told("run")["cursor"] == 10
        gate.open()
        terminal.until_told("run", status="completed")
        assert terminal.shown == shown + b"!"


def test_who_watches_types_nothing(daemon: RunningDaemon) -> None:
    """All that is sent is refused, and there is no echo for somebody who only looks."""
    daemon.start('read -r line; echo "<$line>"')
    with websocket(daemon.url, "/terminal?watch=true") as terminal:
        for send in (lambda: terminal.type(b"x\r"), lambda: terminal.tell("signal", signal="KILL")):
            send()
            terminal.until_told("error", code="watch_only")
        daemon.client.post("/stdin", content=b"typed\n")
        ended = terminal.until_told("run", status="completed")
        assert terminal.shown == b"<typed>\n"
        assert "typed_by_person" not in ended


def test_without_the_key_or_an_upgrade_there_is_none(daemon: RunningDaemon) -> None:
    """The key is taken from a subprotocol, too, as browsers need it."""
    with pytest.raises(Refused) as refused, websocket(daemon.url, key=None):
        pass
    assert refused.value.status == 401
    with pytest.raises(Refused) as refused, websocket(daemon.url, headers={"Origin": "https://elsewhere.example"}):
        pass
    assert (refused.value.status, refused.value.code) == (403, "origin_not_allowed")
    with pytest.raises(Refused) as refused, websocket(daemon.url, subprotocols=("other",)):
        pass
    assert refused.value.status == 400
    with websocket(daemon.url, key=None, subprotocols=(TERMINAL, "key.dGVzdC1rZXk")) as terminal:
        assert terminal.subprotocol == TERMINAL
    answer = daemon.ask("GET", "/terminal", key="test-key")
    assert (answer.status, b"upgrade_required" in answer.body) == (426, True)
