"""A terminal in a WebSocket: what it shows, what is typed, and what becomes of clients that are slow or hostile."""

import contextlib
import re
import socket
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from wsproto.events import Message

from tests.api.conftest import Gate
from tests.daemons import KEY, PATIENCE, RunningDaemon, wait_for
from tests.websockets import TERMINAL, Refused, frame, websocket


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
        run_id = daemon.start("echo begun; sleep 100")
        terminal.until(lambda: terminal.shown)
        terminal.tell("signal", signal="TERM")
        ended = terminal.until_told("run", status="killed")
        assert (ended["signal"], ended["typed_by_person"]) == (15, True)
    assert daemon.json("GET", f"/runs/{run_id}")["typed_by_person"] is True


def test_a_person_ends_a_command(daemon: RunningDaemon) -> None:
    """As a kill does, so that one that is deaf to the first signal ends too; its result says who has ended it."""
    run_id = daemon.start("(trap '' INT; echo begun; sleep 100)")
    with websocket(daemon.url) as terminal:
        terminal.until(lambda: terminal.shown)
        terminal.tell("kill")
        ended = terminal.until_told("run", status="killed")
        assert (ended["error"], ended["typed_by_person"]) == ("Killed by a person.", True)
    assert daemon.json("GET", f"/runs/{run_id}")["typed_by_person"] is True


@pytest.mark.parametrize(("kind", "more"), [("kill", {}), ("signal", {"signal": "KILL"})])
def test_an_end_that_was_meant_for_one_run_reaches_no_other(
    daemon: RunningDaemon, kind: str, more: dict[str, str]
) -> None:
    """With the `run_id` of one that has ended meanwhile it is refused; with that of the one that goes on it is done."""
    over = daemon.run("true")["run_id"]
    with websocket(daemon.url) as terminal:
        terminal.tell(kind, run_id=over, **more)
        terminal.until_told("error", code="no_running_command")
        run_id = daemon.start("sleep 100")
        terminal.until_told("run", run_id=run_id)
        terminal.tell(kind, run_id=over, **more)
        terminal.until_told("error", code="no_running_command")
        assert "typed_by_person" not in daemon.json("GET", f"/runs/{run_id}")
        terminal.tell(kind, run_id=run_id, **more)
        assert terminal.until_told("run", status="killed")["run_id"] == run_id


def test_a_command_that_a_person_has_typed_says_so_from_its_begin(daemon: RunningDaemon) -> None:
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="true")
        assert terminal.until_told("run", status="running")["typed_by_person"] is True
        assert terminal.until_told("run", status="completed")["typed_by_person"] is True


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
    with websocket(daemon.url, subprotocols=()) as terminal:
        assert terminal.subprotocol is None
    answer = daemon.ask("GET", "/terminal", key="test-key")
    assert (answer.status, b"upgrade_required" in answer.body) == (426, True)


# --- ends -------------------------------------------------------------------------------------------------


def test_it_ends_with_its_session(daemon: RunningDaemon) -> None:
    """What ran is told to have ended before."""
    session_id = daemon.json("POST", "/sessions")["session_id"]
    with websocket(daemon.url, f"/sessions/{session_id}/terminal") as terminal:
        terminal.tell("run", command="echo begun; sleep 100")
        terminal.until(lambda: terminal.shown == b"begun\n")
        daemon.client.delete(f"/sessions/{session_id}")
        terminal.until_told("run", status="killed")
        assert terminal.until_closed() == (1000, "The session has ended.")
    with pytest.raises(Refused) as refused, websocket(daemon.url, f"/sessions/{session_id}/terminal"):
        pass
    assert (refused.value.status, refused.value.code) == (404, "session_not_found")


def test_it_goes_on_in_a_fresh_bash(daemon: RunningDaemon) -> None:
    """A recycle of the shell ends its run, and no connection; what is typed is shown there, too."""
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="sleep 100")
        terminal.until_told("run")
        daemon.client.post("/recycle")
        terminal.until_told("run", cause="recycled")
        terminal.tell("run", command="read -r line")
        terminal.type(b"seen\r")
        terminal.until(lambda: terminal.shown == b"seen\n")
    wait_for(lambda: " -echo " in daemon.run("stty -a")["stdout"])


def test_it_ends_with_the_key_and_with_the_daemon(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon(key=None)
    daemon.fresh()
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="sleep 100")
        terminal.until_told("run")
        assert daemon.client.post("/shutdown?recycle=true").status_code == 200
        assert terminal.until_closed()[0] == 1001
        assert terminal.told[-1]["status"] == "killed"
    with websocket(daemon.url, key="next") as terminal:
        terminal.until_told("state", state="available")
        daemon.process.terminate()
        assert terminal.until_closed()[0] == 1001


def test_a_key_that_looks_may_watch_until_it_is_withdrawn(daemon: RunningDaemon) -> None:
    made = daemon.json("POST", "/observers")
    with pytest.raises(Refused) as refused, websocket(daemon.url, key=made["key"]):
        pass
    assert (refused.value.status, refused.value.code) == (403, "observer_key")
    with websocket(daemon.url, "/terminal?watch=true", key=made["key"]) as terminal:
        daemon.run("echo seen")
        terminal.until(lambda: terminal.shown == b"seen\n")
        daemon.client.delete(f"/observers/{made['observer_id']}")
        assert terminal.until_closed()[0] == 1001


def test_typing_is_activity_and_being_there_is_none(start_daemon: Callable[..., RunningDaemon]) -> None:
    """A session ends beneath one who only sits there, and lives as long as somebody types."""
    daemon = start_daemon(timeout__session_idle="1s")
    idle = daemon.json("POST", "/sessions")["session_id"]
    typed = daemon.json("POST", "/sessions")["session_id"]
    with (
        websocket(daemon.url, f"/sessions/{idle}/terminal") as quiet,
        websocket(daemon.url, f"/sessions/{typed}/terminal") as busy,
    ):
        quiet.socket.settimeout(0.1)
        while quiet.closed is None:
            busy.tell("resize", rows=30, cols=90)
            with contextlib.suppress(TimeoutError):
                quiet.take()
        assert quiet.closed[0] == 1000
        busy.tell("run", command="echo alive")
        busy.until(lambda: busy.shown == b"alive\n")
        assert daemon.json("GET", "/status")["idle"] == 0


def test_one_that_vanishes_takes_nothing_with_it(daemon: RunningDaemon) -> None:
    """Its run goes on, and there is no echo any more."""
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="echo begun; read -r line; stty -a")
        terminal.until(lambda: terminal.shown)
        terminal.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert daemon.state() == "busy"
    with websocket(daemon.url, "/terminal?watch=true") as watching:
        watching.until_told("run")
        wait_for(lambda: "GET /terminal 101" in daemon.log.read_text())
        daemon.client.post("/stdin", content=b"unseen\n")
        watching.until_told("run", status="completed")
        assert b"unseen" not in watching.shown


# --- who is slow, and who is hostile ----------------------------------------------------------------------


def test_who_does_not_read_is_told_to_come_again(daemon: RunningDaemon) -> None:
    """With over 1 MiB waiting. It comes again, and goes on with what is written last."""
    with websocket(daemon.url, receive_buffer=4096) as slow:
        daemon.run("yes | head -c 6000000")
        code, _ = slow.until_closed()
        assert code == 1013
        assert len(slow.shown) < 6_000_000
    assert daemon.state() == "ready"


def test_much_output_takes_no_memory_for_those_who_do_not_read(daemon: RunningDaemon) -> None:
    """100 MB, measured by what the process has had at the most."""
    with websocket(daemon.url, receive_buffer=4096), websocket(daemon.url, "/terminal?watch=true", receive_buffer=4096):
        daemon.run("yes | head -c 1000000")
        with most_memory(daemon) as taken:
            run_id = daemon.start("yes | head -c 100000000")
            wait_for(lambda: daemon.state() == "ready")
        assert taken() < 24_000_000
        daemon.client.delete(f"/runs/{run_id}")


def test_input_that_nobody_reads_takes_no_memory(daemon: RunningDaemon) -> None:
    """The daemon stops to take it; it goes on when the program is gone."""
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="stty raw; echo begun; sleep 100")
        terminal.until(lambda: b"begun" in terminal.shown)
        with most_memory(daemon) as taken:
            terminal.socket.settimeout(0.5)
            with pytest.raises(TimeoutError):
                terminal.socket.sendall(frame(0x82, b"x" * 1_000_000) * 100)
        assert taken() < 16_000_000
        assert daemon.client.post("/kill").status_code == 200


def test_who_leaves_while_input_waits_is_not_kept(daemon: RunningDaemon) -> None:
    """Though the program that is to read it goes on."""

    def served() -> int:
        return daemon.log.read_text().count("GET /terminal 101")

    before = served()
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command="stty raw; echo begun; sleep 100")
        terminal.until(lambda: b"begun" in terminal.shown)
        terminal.type(b"x" * 300_000)
    wait_for(lambda: served() > before)
    assert daemon.state() == "busy"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(0x82, b"x", masked=False), 1002),
        (frame(0xC2, b"x"), 1002),
        (frame(0x83, b"x"), 1002),
        (frame(0x09, b"x"), 1002),
        (frame(0x89, b"x" * 126), 1002),
        (frame(0x80, b"x"), 1002),
        (frame(0x02, b"x") + frame(0x82, b"y"), 1002),
        (frame(0x82, b"", length=1 << 62), 1009),
        (frame(0x02, b"x" * 600_000) + frame(0x80, b"", length=500_000), 1009),
        (frame(0x81, b"\xff"), 1007),
        (frame(0x88, b"x"), 1002),
        (frame(0x88, struct.pack("!H", 1005)), 1002),
        (frame(0x88, struct.pack("!H", 1000) + b"\xff"), 1007),
        (frame(0x88, struct.pack("!H", 4321) + b"bye"), 4321),
    ],
)
def test_what_breaks_the_protocol_ends_the_connection(daemon: RunningDaemon, data: bytes, code: int) -> None:
    """With the code that says so (RFC 6455, 7.4.1); that of a good end is given back."""
    with websocket(daemon.url) as terminal:
        terminal.socket.sendall(data)
        assert terminal.until_closed()[0] == code


@pytest.mark.parametrize(
    "text",
    [
        "", "ls\n", "{", "[]", "null", "7", "[" * 100_000, "{}",
        '{"type": null}', '{"type": []}', '{"type": "none"}', '{"type": "resize"}',
        '{"type": "resize", "rows": "24", "cols": 80}', '{"type": "resize", "rows": 0, "cols": 80}',
        '{"type": "resize", "rows": 24, "cols": 80, "more": 1}',
        '{"type": "signal"}', '{"type": "signal", "signal": 9}', '{"type": "signal", "signal": "NONE"}',
        '{"type": "run"}', '{"type": "run", "command": ["ls"]}', '{"type": "run", "command": " "}',
        '{"type": "run", "command": "a\\u0000b"}', '{"type": "run", "command": "\\ud800"}',
    ],
)  # fmt: skip
def test_what_cannot_be_understood_is_an_error(daemon: RunningDaemon, text: str) -> None:
    """And nothing else: the connection stays."""
    with websocket(daemon.url) as terminal:
        terminal.send(Message(data=text))
        assert terminal.until_told("error")["code"] == "invalid_request"
        terminal.tell("run", command="echo fine")
        terminal.until(lambda: terminal.shown == b"fine\n")


def test_what_the_shell_refuses_is_an_error(daemon: RunningDaemon) -> None:
    with websocket(daemon.url) as terminal:
        terminal.type(b"to nobody")
        terminal.until_told("error", code="no_running_command")
        terminal.tell("run", command="sleep 100")
        terminal.until_told("run")
        terminal.tell("run", command="true")
        terminal.until_told("error", code="shell_busy")


def test_messages_may_come_in_parts_and_floods(daemon: RunningDaemon) -> None:
    """In frames of a byte, pings between them; others are answered meanwhile."""
    with websocket(daemon.url) as terminal:
        terminal.tell("run", command='read -r line; echo "${#line}"')
        parts = [frame(0x02, b"x"), *(frame(0x00, b"x") + frame(0x89, b"") for _ in range(3000)), frame(0x80, b"\r")]
        terminal.socket.sendall(b"".join(parts))
        assert daemon.client.get("/health").status_code == 200
        terminal.until_told("run", status="completed")
        assert terminal.shown.endswith(b"3001\n")
        terminal.until(lambda: terminal.pongs == 3000)


def test_what_comes_with_the_handshake_is_not_lost(daemon: RunningDaemon) -> None:
    head = (
        f"GET /terminal HTTP/1.1\r\nHost: localhost\r\nUpgrade: WebSocket\r\nConnection: keep-alive, Upgrade\r\n"
        f"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
        f"Sec-WebSocket-Protocol: {TERMINAL}\r\nX-Shell-Key: {KEY}\r\n\r\n"
    )
    port = int(daemon.url.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), PATIENCE) as connection:
        connection.sendall(head.encode() + frame(0x81, b'{"type": "run", "command": "echo early"}'))
        answer = b""
        while b"early\n" not in answer:
            data = connection.recv(65536)
            assert data, answer
            answer += data
    assert answer.startswith(b"HTTP/1.1 101 ")


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-WebSocket-Version": "12"}, 426),
        ({"Sec-WebSocket-Key": "short"}, 400),
        ({"Sec-WebSocket-Key": "é"}, 400),
        ({"Sec-WebSocket-Protocol": "key.???, shelld.terminal.v1", "X-Shell-Key": ""}, 401),
        ({"Sec-WebSocket-Protocol": "key.d3Jvbmc=, shelld.terminal.v1", "X-Shell-Key": None}, 401),
        ({"Host": "elsewhere.example"}, 403),
        ({"Content-Length": "5"}, 426),
    ],
)
def test_handshakes_that_are_none(daemon: RunningDaemon, headers: dict[str, Any], status: int) -> None:
    good = {
        "X-Shell-Key": KEY, "Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA==", "Sec-WebSocket-Protocol": TERMINAL,
    }  # fmt: skip
    sent = {name: value for name, value in {**good, **headers}.items() if value is not None}
    answer = daemon.ask("GET", "/terminal", headers=sent, body=b"12345" if "Content-Length" in headers else None)
    assert answer.status == status


@contextlib.contextmanager
def most_memory(daemon: RunningDaemon) -> Iterator[Callable[[], int]]:
    """Give what tells by how many bytes the memory of the process has been above what it was, at the most."""
    process = Path(f"/proc/{daemon.process.pid}")
    (process / "clear_refs").write_text("5")  # the mark of the most is set back (proc(5))

    def mark() -> int:
        return 1024 * int(re.findall(r"VmHWM:\s+(\d+) kB", (process / "status").read_text())[0])

    before = mark()
    yield lambda: mark() - before
