"""Connections that break: nothing is lost, nothing doubled, and no command runs twice."""

import signal
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from shelld_py import Client
from shelld_py.client import Output, Result, Retries, TransportError
from shelld_py.client.call import Answer
from shelld_py.errors import ShuttingDown
from shelld_py.models import Cause, RunStatus, ShellState, Stream
from tests.api.conftest import Gate
from tests.client.proxies import proxy
from tests.daemons import KEY, RunningDaemon, running_daemon, wait_for

QUICK = Retries(most=3, first=0.01)


def test_a_run_whose_answer_is_lost_is_not_run_twice(connect: Any, daemon: RunningDaemon, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with proxy(daemon.url, 0, 20, 150) as broken:
        result = connect(broken.url, retries=QUICK).run(f"echo once >>{mark}; echo done")
        assert broken.connections == 4
    assert result.stdout == "done\n"
    assert mark.read_text() == "once\n"


def test_an_exec_and_an_opened_session_are_not_repeated(connect: Any, daemon: RunningDaemon, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with proxy(daemon.url, 0, None, 0) as broken:
        client = connect(broken.url, retries=QUICK)
        before = len(client.sessions.list())
        client = connect(broken.url, retries=QUICK)
        with client.sessions.open():
            assert len(client.sessions.list()) == before + 1
    with proxy(daemon.url, 0) as broken:
        connect(broken.url, retries=QUICK).exec(f"echo once >>{mark}")
    assert mark.read_text() == "once\n"


def test_a_run_whose_daemon_was_killed_is_not_run_again_by_the_next(tmp_path: Path) -> None:
    """The Idempotency-Key does not outlive a daemon; the run's id does, so the retry finds the run, which is lost."""
    mark = tmp_path / "mark"
    with ExitStack() as stack:
        daemon = stack.enter_context(running_daemon(tmp_path / "d"))
        daemon.fresh()

        def succeed() -> None:
            daemon.process.wait(60)
            again = running_daemon(tmp_path / "d", server__port=daemon.url.rpartition(":")[2])
            stack.callback(stack.enter_context(again).process.kill)

        successor = threading.Thread(target=succeed)
        successor.start()
        client = stack.enter_context(Client(daemon.url, KEY, retries=Retries(most=200, first=0.05, longest=0.05)))
        command = f"echo once >>{mark}; sleep 0.1; kill -9 {daemon.process.pid}; sleep 100"
        result = client.run(command)
        successor.join()
        assert (result.status, result.cause) == (RunStatus.LOST, Cause.DAEMON_RESTARTED)
    assert mark.read_text() == "once\n"


def test_safe_requests_are_tried_again(connect: Any, daemon: RunningDaemon) -> None:
    with proxy(daemon.url, 0, 30) as broken:
        assert connect(broken.url, retries=QUICK).status().state is ShellState.READY
        assert broken.connections == 3


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.stdin("x\n"),
        lambda client: client.kill("CONT"),
        lambda client: client.files.create("once.txt", ""),
        lambda client: client.files.write_raw("once.bin", b""),
        lambda client: client.sessions.close("nobody"),
    ],
)
def test_what_might_be_done_twice_is_not_tried_again(connect: Any, daemon: RunningDaemon, ask: Any) -> None:
    with proxy(daemon.url, 0) as broken:
        with pytest.raises(TransportError) as caught:
            ask(connect(broken.url, retries=QUICK))
        assert caught.value.maybe_done
        assert broken.connections == 1
    for name in ("once.txt", "once.bin"):
        (daemon.data.parent / "work" / name).unlink(missing_ok=True)


def test_a_first_try_that_may_have_arrived_is_not_forgotten(connect: Any, daemon: RunningDaemon) -> None:
    """Though the last try reached nobody, the command may run."""
    for ask in (lambda client: client.run("true"), lambda client: [*client.stream("true")]):
        with proxy(daemon.url, 0, once=True) as broken:
            with pytest.raises(TransportError) as caught:
                ask(connect(broken.url, retries=QUICK))
            assert (broken.connections, caught.value.maybe_done) == (1, True)


def test_tries_come_to_an_end(connect: Any, daemon: RunningDaemon) -> None:
    with proxy(daemon.url, *[0] * 20) as broken:
        for ask, times in ((lambda client: client.status(), 4), (lambda client: [*client.stream("true")], 8)):
            with pytest.raises(TransportError):
                ask(connect(broken.url, retries=QUICK))
            assert broken.connections == times


PAUSES = [
    (0, None, 0.1), (1, None, 0.2), (2, None, 0.4), (3, None, 0.5), (4, None, None),
    (0, (503, "7"), 7), (0, (503, "0"), 0.1), (0, (503, "9999"), 30), (0, (503, "soon"), 0.1), (0, (503, ""), 0.1),
    (4, (503, "7"), None), (0, (500, "7"), None), (0, (409, ""), None), (0, (200, ""), None),
]  # fmt: skip


@pytest.mark.parametrize(("attempt", "answered", "pause"), PAUSES)
def test_pauses_between_tries(attempt: int, answered: tuple[int, str] | None, pause: float | None) -> None:
    """They double up to the longest; 503 is tried again, not before the time that it asks for; nothing else is."""
    answer = answered and Answer(answered[0], {"retry-after": answered[1]}, b"")
    assert Retries(most=4, first=0.1, longest=0.5).pause(attempt, answer or None) == pause


def test_a_daemon_that_is_not_ready_is_asked_again(connect: Any, daemon: RunningDaemon) -> None:
    """A safe request and one with a key; not another, which gets the refusal."""
    for ask in (
        lambda client: client.status(),
        lambda client: client.run("true"),
        lambda client: [*client.stream("true")],
    ):
        with proxy(daemon.url, refusals=2) as busy:
            ask(connect(busy.url, retries=QUICK))
            assert busy.connections == 3
    with proxy(daemon.url, refusals=1) as busy, pytest.raises(ShuttingDown):
        connect(busy.url, retries=QUICK).stdin("x")


# --- streams ----------------------------------------------------------------------------------------------

OUTPUTS = {
    "lines": "for i in 1 2 3 4 5; do echo line $i; sleep 0.01; done",
    "one line in parts": 'for i in 1 2 3 4 5; do printf "part $i "; sleep 0.01; done',
    "a line that redraws itself": r"for i in 1 22 333 44 5; do printf '\r%s%%' $i; sleep 0.01; done; echo",
    "characters in pieces": r"for i in 1 2 3; do printf 'ä€𝄞\xf0\x9d'; sleep 0.01; printf '\x84\x9e\n'; done",
    "escape sequences in pieces": r"for i in 1 2 3; do printf 'a\e['; sleep 0.01; printf '31mred\e[0m'; done; echo",
}


@pytest.mark.parametrize("form", ["text", "raw"])
def test_a_broken_stream_loses_and_doubles_nothing(connect: Any, daemon: RunningDaemon, form: str) -> None:
    """However often the connection breaks, and wherever, the texts join to the output."""
    cuts = [400, 0, 150, *(350 + 41 * n for n in range(20))]
    with proxy(daemon.url, *cuts) as broken:
        client = connect(broken.url, retries=Retries(most=40, first=0.001, longest=0.001))
        *events, last = client.stream("; ".join(OUTPUTS.values()), format=form)
        assert broken.connections > 10
    assert isinstance(last, Result)
    whole = daemon.json("GET", f"/runs/{last.run.run_id}", params={"format": form})["stdout"]
    assert (shown(events) if form == "text" else "".join(event.text for event in events)) == whole
    cursors = [event.cursor for event in events]
    assert cursors == sorted(cursors)


def test_a_broken_stream_of_much_output(connect: Any, daemon: RunningDaemon) -> None:
    with proxy(daemon.url, 300_000, 40_000, 400_000) as broken:
        *events, last = connect(broken.url, retries=QUICK).stream("seq 150000", format="text")
        assert broken.connections == 4
    assert shown(events) == "".join(f"{number}\n" for number in range(1, 150_001))
    assert last.run.cursor == events[-1].cursor


def test_both_streams_go_on_after_a_break(connect: Any, daemon: RunningDaemon, gate: Gate) -> None:
    command = f"printf out; printf bad >&2; {gate}; printf 'put\\n'; printf '\\rworse\\n' >&2"
    with proxy(daemon.url, 700) as broken:
        client = connect(broken.url, retries=QUICK)
        events = client.stream(command, streams="separate")
        first = [next(events), next(events)]
        wait_for(lambda: daemon.state() == "busy")
        broken.close()
    with proxy(daemon.url, None) as whole:
        run_id = daemon.json("GET", "/status")["last_run_id"]
        cursors = {event.stream: event.cursor for event in first}
        rest = connect(whole.url).runs.follow(
            run_id, cursor=cursors[Stream.STDOUT], stderr_cursor=cursors[Stream.STDERR]
        )
        gate.open()
        *others, _ = rest
    assert shown([*first, *others]) == "output\n"
    assert shown([*first, *others], Stream.STDERR) == "worse\n"


def test_a_stream_with_a_timeout_keeps_it_over_a_break(connect: Any, daemon: RunningDaemon) -> None:
    with proxy(daemon.url, 350) as broken:
        *_, last = connect(broken.url, retries=QUICK).stream("seq 100; sleep 100", timeout=0.4)
        assert broken.connections == 2
    assert last.run.timed_out
    daemon.client.post("/kill")


def test_a_stream_whose_daemon_is_gone_is_an_error(connect: Any, start_daemon: Any) -> None:
    daemon = start_daemon()
    daemon.fresh()
    events = connect(daemon.url, retries=Retries(most=1, first=0.01)).stream("echo begun; sleep 100")
    assert next(events).text == "begun\n"
    daemon.process.send_signal(signal.SIGKILL)
    with pytest.raises(TransportError):
        list(events)
    daemon.process.wait(60)


def shown(events: Any, stream: Stream = Stream.STDOUT) -> str:
    """Return what a reader of the events has in the end: a text that begins with CR replaces the last line."""
    text = ""
    for event in events:
        if not isinstance(event, Output) or event.stream is not stream:
            continue
        if event.text.startswith("\r"):
            text = text[: text.rfind("\n") + 1] + event.text[1:]
        else:
            text += event.text
    return text
