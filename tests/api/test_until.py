"""GET /runs/ID/wait?until=...: waiting for a line, a port, silence, a question, the end; whichever comes first."""

import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Gate
from tests.api.problems import problem
from tests.daemons import KEY, RunningDaemon, processes_with, wait_for

SERVER = """
import socket, sys, time
family = socket.AF_INET6 if sys.argv[1] == "6" else socket.AF_INET
server = socket.socket(family)
server.bind(("::1" if sys.argv[1] == "6" else "127.0.0.1", int(sys.argv[2])))
server.listen()
time.sleep(60)
"""
MATCHERS = "--helper\0lines"


@pytest.fixture
def port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return server.getsockname()[1]


@pytest.fixture
def server(tmp_path: Path) -> Callable[[str, int], str]:
    """A function that gives the command of a server on a port of IPv4 or IPv6."""
    program = tmp_path / "server.py"
    program.write_text(SERVER)
    return lambda family, port: f"{sys.executable} -S {program} {family} {port}"


@pytest.fixture
def background() -> Any:
    """A function that sends a request in the background."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def ask(daemon: RunningDaemon, run_id: str, *conditions: str, **parameters: Any) -> httpx.Response:
    """Wait for conditions, on a connection of its own; return the answer."""
    query = {"until": list(conditions), "timeout": "20s", **parameters}
    with httpx.Client(base_url=daemon.url, headers={"X-Shell-Key": KEY}, timeout=30, verify=False) as client:
        return client.get(f"/runs/{run_id}/wait", params=query)


def until(daemon: RunningDaemon, run_id: str, *conditions: str, **parameters: Any) -> tuple[int, str | None, Any]:
    """Wait for conditions; return the status, what was reached, and the result."""
    answer = ask(daemon, run_id, *conditions, **parameters)
    assert answer.status_code in (200, 202), answer.text
    result = answer.json()
    return answer.status_code, result["reached"], result


def reached(daemon: RunningDaemon, run_id: str, *conditions: str, **parameters: Any) -> str | None:
    """Wait for conditions; return the one that was reached."""
    return until(daemon, run_id, *conditions, **parameters)[1]


# --- lines --------------------------------------------------------------------------------------------------


def test_line_to_come(daemon: RunningDaemon, gate: Gate, background: Callable[..., Future[Any]]) -> None:
    """A line that comes while somebody waits ends the wait; the run goes on, so the status is 202."""
    run_id = daemon.start(f"echo one; {gate}; echo 'Listening on 8000'; sleep 60")
    waiting = background(until, daemon, run_id, "output:^Listening on [0-9]+$")
    gate.open()
    status, text, result = waiting.result(20)
    assert (status, text, result["status"]) == (202, "output:^Listening on [0-9]+$", "running")
    assert result["stdout"] == "one\nListening on 8000\n"


@pytest.mark.parametrize(("command", "pattern"), [
    ("seq 3", "^2$"), ("seq 3", "3"), ("printf 'a\\n\\nb\\n'", "^$"), ("printf '\\e[32mready\\e[0m\\r\\n'", "^ready$"),
    ("printf '10%%\\r100%%\\n'", "^100%$"), ("printf 'Grüße\\n'", "ü.e"), ("printf 'last'", "^last$"),
    ("printf 'x\\xe4'", "\N{REPLACEMENT CHARACTER}$"), ("echo A", "(?i)a"),
])  # fmt: skip
def test_line_there_already(ready_daemon: RunningDaemon, command: str, pattern: str) -> None:
    """Lines of an ended run are found as they read; the pattern may match anywhere in a line."""
    run_id = ready_daemon.run(command)["run_id"]
    assert until(ready_daemon, run_id, f"output:{pattern}")[:2] == (200, f"output:{pattern}")


@pytest.mark.parametrize(("command", "pattern"), [
    ("seq 3", "4"), ("printf 'a\\nb\\n'", "a.b"), ("printf 'a\\nb\\n'", r"a\sb"), ("seq 3", "^$"), ("true", "^"),
    ("printf '10%%\\r100%%\\n'", "^10%$"),
])  # fmt: skip
def test_line_that_never_comes(ready_daemon: RunningDaemon, command: str, pattern: str) -> None:
    """When the run has ended without the line, the wait is over: 200, and nothing was reached."""
    run_id = ready_daemon.run(command)["run_id"]
    assert until(ready_daemon, run_id, f"output:{pattern}")[:2] == (200, None)


def test_unfinished_line(daemon: RunningDaemon) -> None:
    """A prompt has no line feed and is found all the same."""
    run_id = daemon.start("echo hello; printf 'Continue? [y/n] '; sleep 60")
    assert reached(daemon, run_id, r"output:\[y/n\] $") == r"output:\[y/n\] $"


def test_line_in_pieces(daemon: RunningDaemon, gates: Callable[[str], Gate]) -> None:
    """A line that comes piece by piece is matched as the whole that it is."""
    first = gates("first")
    run_id = daemon.start(f"printf 'rea'; {first}; printf 'dy\\n'; sleep 60")
    assert reached(daemon, run_id, "output:rea") == "output:rea"
    assert until(daemon, run_id, "output:^ready$", timeout="0")[:2] == (202, None)
    first.open()
    assert reached(daemon, run_id, "output:^ready$") == "output:^ready$"


def test_lines_past_a_cursor(daemon: RunningDaemon, gate: Gate) -> None:
    """With a cursor only the text past it counts."""
    run_id = daemon.start(f"echo ready; {gate}; echo ready; sleep 60")
    assert reached(daemon, run_id, "output:ready", cursor=0) == "output:ready"
    assert until(daemon, run_id, "output:ready", cursor=6, timeout="100ms")[:2] == (202, None)
    gate.open()
    assert reached(daemon, run_id, "output:ready", cursor=6) == "output:ready"
    assert until(daemon, run_id, "output:ready", cursor=10**6, timeout="0")[:2] == (202, None)


def test_lines_of_both_streams(daemon: RunningDaemon) -> None:
    """Lines are looked for in both streams, unless `stream`, or a cursor, which belongs to one, says otherwise."""
    run_id = daemon.run("echo out; echo err >&2", streams="separate")["run_id"]
    for pattern, parameters, found in [
        ("out", {}, True), ("err", {}, True), ("out", {"stream": "stdout"}, True), ("err", {"stream": "stdout"}, False),
        ("err", {"stream": "stderr"}, True), ("err", {"cursor": 0}, False),
        ("err", {"cursor": 0, "stream": "stderr"}, True), ("rr", {"cursor": 1, "stream": "stderr"}, True),
        ("err", {"cursor": 1, "stream": "stderr"}, False),
    ]:  # fmt: skip
        expected = f"output:{pattern}" if found else None
        assert reached(daemon, run_id, f"output:{pattern}", **parameters) == expected, (pattern, parameters)


def test_first_of_several_lines(daemon: RunningDaemon) -> None:
    """Of several patterns the one that an earlier line matches was first, whatever the order given."""
    run_id = daemon.run("echo starting; echo failed; echo done")["run_id"]
    assert reached(daemon, run_id, "output:done", "output:failed") == "output:failed"


def test_line_in_a_large_output(start_daemon) -> None:
    """Many megabytes are searched in pieces, in a process of its own: the daemon answers meanwhile and stays small."""
    daemon = start_daemon()
    daemon.fresh()
    run_id = daemon.start("head -c 30000000 /dev/zero | tr '\\0' 'x' | fold -w 100; echo; echo needle; sleep 600")
    answers = 0
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(until, daemon, run_id, "output:^needle$")
        while not waiting.done():
            assert daemon.state() == "busy"
            answers += 1
            time.sleep(0.02)
    assert waiting.result()[1] == "output:^needle$"
    assert answers
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    assert int(status.partition("VmHWM:")[2].split()[0]) < 90_000


def test_line_behind_a_gap(start_daemon) -> None:
    """What the log no longer holds is skipped; the lines on either side of the gap do not become one."""
    daemon = start_daemon(output__log_max="64KiB")
    daemon.fresh()
    run_id = daemon.run("echo first; seq 200000; echo last", max_output=10)["run_id"]
    assert reached(daemon, run_id, "output:^last$") == "output:^last$"
    assert reached(daemon, run_id, "output:^100000$") is None
    assert reached(daemon, run_id, r"output:\d{7}") is None


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "[z-a]", "(?P<x>a)(?P<x>b)", "*", "(" * 5000 + ")" * 5000])
def test_malformed_pattern(ready_daemon: RunningDaemon, pattern: str) -> None:
    """A pattern that is no regular expression is 400, whatever else is asked for."""
    run_id = ready_daemon.run("echo x")["run_id"]
    answer = ready_daemon.client.get(f"/runs/{run_id}/wait", params={"until": ["exit", f"output:{pattern}"]})
    assert "regular expression" in problem(answer, 400, "invalid_request")["detail"]


def test_catastrophic_pattern(daemon: RunningDaemon, background: Callable[..., Future[Any]]) -> None:
    """A pattern that takes for ever is given up with 422; the daemon answers all the while."""
    run_id = daemon.start("echo aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab; sleep 600")
    waiting = background(ask, daemon, run_id, "output:(a+)+$")
    answers = 0
    while not waiting.done():
        assert daemon.state() == "busy"
        answers += 1
        time.sleep(0.02)
    assert "simpler" in problem(waiting.result(), 422, "pattern_too_slow")["detail"]
    assert answers
    assert not processes_with(MATCHERS)


# --- ports --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["4", "6"])
def test_port(daemon: RunningDaemon, port: int, server: Callable[..., str], gate: Gate, family: str) -> None:
    """A port is reached when a process of the shell listens there."""
    run_id = daemon.start(f"{gate}; {server(family, port)}")
    assert until(daemon, run_id, f"port:{port}", timeout="0")[:2] == (202, None)
    gate.open()
    assert until(daemon, run_id, f"port:{port}")[:2] == (202, f"port:{port}")


def test_port_of_somebody_else(daemon: RunningDaemon) -> None:
    """A port that others listen on is none of the shell."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        run_id = daemon.start("sleep 60")
        assert until(daemon, run_id, f"port:{stranger.getsockname()[1]}", timeout="0.3")[:2] == (202, None)


def test_connection_is_no_listener(daemon: RunningDaemon) -> None:
    """A process that has a connection from the port does not listen there."""
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        run_id = daemon.start(f"exec 9<>/dev/tcp/127.0.0.1/{port}; echo connected; sleep 60")
        assert reached(daemon, run_id, "output:connected", f"port:{port}") == "output:connected"
        assert until(daemon, run_id, f"port:{port}", timeout="0")[:2] == (202, None)


def test_port_of_a_server_in_the_background(
    daemon: RunningDaemon, port: int, server: Callable[..., str], gate: Gate, background: Callable[..., Future[Any]]
) -> None:
    """A wait goes on beyond the end of the command, as long as what it left behind lives: servers open ports late."""
    run_id = daemon.run(f"({gate}; {server('4', port)}) &")["run_id"]
    assert until(daemon, run_id, f"port:{port}", timeout="0")[:2] == (200, None)
    waiting = background(until, daemon, run_id, f"port:{port}")
    gate.open()
    assert waiting.result(20)[:2] == (200, f"port:{port}")


def test_server_that_fails(
    daemon: RunningDaemon, port: int, gate: Gate, background: Callable[..., Future[Any]]
) -> None:
    """When the server ends without having opened its port, in the foreground or not, the wait is over."""
    run_id = daemon.start(f"echo 'no such module' >&2; {gate}; (exit 1)", streams="separate")
    waiting = background(until, daemon, run_id, f"port:{port}")
    gate.open()
    status, text, result = waiting.result(20)
    assert (status, text, result["exit_code"], result["stderr"]) == (200, None, 1, "no such module\n")
    run_id = daemon.run(f"({gate}; exit 1) &")["run_id"]
    waiting = background(until, daemon, run_id, f"port:{port}")
    gate.open()
    assert waiting.result(20)[:2] == (200, None)


def test_exit_ends_a_wait_for_a_port(daemon: RunningDaemon, port: int) -> None:
    """With `exit` the end of the command is the end of the wait, whatever it has left in the background."""
    run_id = daemon.run("sleep 60 &")["run_id"]
    assert until(daemon, run_id, f"port:{port}", "exit")[:2] == (200, "exit")


def test_exec_and_a_port(daemon: RunningDaemon, port: int, server: Callable[..., str]) -> None:
    """A one-shot command has a shell of its own, and its port is seen there, and nowhere else."""
    other = daemon.start("sleep 60")
    run_id = daemon.client.post("/exec?timeout=0", content=server("4", port)).json()["run_id"]
    assert reached(daemon, run_id, f"port:{port}") == f"port:{port}"
    assert until(daemon, other, f"port:{port}", timeout="0")[:2] == (202, None)
    daemon.client.delete(f"/runs/{run_id}")


# --- silence, questions, the end ----------------------------------------------------------------------------


def test_quiet(daemon: RunningDaemon) -> None:
    """Quiet is counted from the last output; earlier output does not delay it."""
    run_id = daemon.start("for i in 1 2 3 4 5; do echo $i; sleep 0.1; done; sleep 60")
    started = time.monotonic()
    status, text, result = until(daemon, run_id, "quiet:600ms", "quiet:30s")
    assert (status, text, result["stdout"]) == (202, "quiet:600ms", "1\n2\n3\n4\n5\n")
    assert time.monotonic() - started > 0.6
    assert until(daemon, run_id, "quiet:600ms", timeout="0")[1] == "quiet:600ms"


def test_input_breaks_the_quiet(daemon: RunningDaemon) -> None:
    """What was typed counts as well, so that the answer to it is waited for."""
    run_id = daemon.start("read line; sleep 0.2; echo $line; sleep 60")
    assert reached(daemon, run_id, "input") == "input"
    assert reached(daemon, run_id, "quiet:0.1") == "quiet:0.1"
    daemon.client.post("/stdin", content="x\n")
    _, text, result = until(daemon, run_id, "quiet:0.5")
    assert (text, result["stdout"]) == ("quiet:0.5", "x\n")


def test_quiet_of_an_ended_run(daemon: RunningDaemon) -> None:
    """An ended run is not waited for."""
    run_id = daemon.run("echo x")["run_id"]
    assert until(daemon, run_id, "quiet:0")[:2] == (200, None)


def test_input(daemon: RunningDaemon, gate: Gate, background: Callable[..., Future[Any]]) -> None:
    """`input` is reached when the command is seen waiting for terminal input, and not before."""
    run_id = daemon.start(f"{gate}; read -rp 'Name? ' name; echo $name; sleep 60")
    assert until(daemon, run_id, "input", timeout="0")[:2] == (202, None)
    waiting = background(until, daemon, run_id, "input", "exit")
    gate.open()
    status, text, result = waiting.result(20)
    assert (status, text, result["awaiting_input"]) == (202, "input", True)
    daemon.client.post("/stdin", content="Ada\n")
    assert reached(daemon, run_id, "input", "output:Ada") == "output:Ada"


def test_exit(daemon: RunningDaemon, gate: Gate, background: Callable[..., Future[Any]]) -> None:
    """`exit` is reached by the end of the run, however it ends; on an ended run at once."""
    run_id = daemon.start(f"{gate}; echo bye; (exit 3)")
    waiting = background(until, daemon, run_id, "exit", "output:never")
    gate.open()
    status, text, result = waiting.result(20)
    assert (status, text, result["exit_code"], result["stdout"]) == (200, "exit", 3, "bye\n")
    assert until(daemon, run_id, "exit")[:2] == (200, "exit")
    run_id = daemon.start("sleep 60")
    waiting = background(until, daemon, run_id, "exit")
    daemon.client.post("/kill")
    assert waiting.result(20)[2]["status"] == "killed"


def test_last_line_comes_before_the_exit(daemon: RunningDaemon) -> None:
    """What the output says at the end was there before the end, in whatever order it is asked for."""
    for run_id in (daemon.run("printf done")["run_id"], daemon.start("sleep 0.2; printf done")):
        assert reached(daemon, run_id, "exit", "output:done") == "output:done"


def test_order_given(daemon: RunningDaemon) -> None:
    """Where several conditions hold when the request comes, the first in the order given is told."""
    run_id = daemon.start("echo Name; read name")
    wait_for(lambda: daemon.json("GET", "/status")["run"]["awaiting_input"])
    for conditions in (["output:Name", "input"], ["input", "output:Name"], ["quiet:0", "input"], ["input", "quiet:0"]):
        assert reached(daemon, run_id, *conditions) == conditions[0]


def test_condition_as_it_was_given(daemon: RunningDaemon) -> None:
    """`reached` is the condition with its very characters, and stands beside all members of the result."""
    run_id = daemon.run("echo a+b")["run_id"]
    _, text, result = until(daemon, run_id, r"output:a\+b|ü: ")
    assert text == r"output:a\+b|ü: "
    assert result == {**daemon.json("GET", f"/runs/{run_id}"), "reached": text}
    assert "reached" not in daemon.json("GET", f"/runs/{run_id}/wait")


def test_run_of_an_earlier_daemon(start_daemon, tmp_path: Path) -> None:
    """The lines of a run of which only the files are left are found, and nothing is waited for."""
    data = str(tmp_path / "kept")
    first = start_daemon(server__data_directory=data)
    first.fresh()
    run_id = first.run("echo x")["run_id"]
    first.stop()
    second = start_daemon(server__data_directory=data)
    assert until(second, run_id, "output:x")[:2] == (200, "output:x")
    assert until(second, run_id, "output:y", "port:1", "quiet:0", "input")[:2] == (200, None)
    assert until(second, run_id, "input", "exit")[:2] == (200, "exit")


def test_deleted_while_waited_for(daemon: RunningDaemon, background: Callable[..., Future[Any]]) -> None:
    """A wait for a run that is deleted ends: there is no such run any more."""
    run_id = daemon.start("sleep 60")
    waiting = background(ask, daemon, run_id, "output:x", "port:1", "quiet:50s")
    wait_for(lambda: processes_with(MATCHERS))
    daemon.client.delete(f"/runs/{run_id}")
    problem(waiting.result(20), 404, "run_not_found")


def test_client_that_goes_away(daemon: RunningDaemon) -> None:
    """A wait ends with its client: no process and no look at ports stays behind. The run goes on."""
    run_id = daemon.start("sleep 60")
    with pytest.raises(httpx.ReadTimeout):
        daemon.client.get(f"/runs/{run_id}/wait?until=output:x&until=port:1", timeout=0.3)
    wait_for(lambda: not processes_with(MATCHERS))
    assert daemon.state() == "busy"


def test_shutdown_answers_who_waits(start_daemon, background: Callable[..., Future[Any]]) -> None:
    """At the end of the daemon what is waited for can come no more, and who waits is told."""
    daemon = start_daemon()
    daemon.fresh()
    left_behind = daemon.run("sleep 60 &")["run_id"]
    running = daemon.start("sleep 60")
    waits = [background(until, daemon, left_behind, "port:1"), background(until, daemon, running, "output:x", "input")]
    wait_for(lambda: processes_with(MATCHERS))
    daemon.client.post("/shutdown")
    assert [wait.result(20)[:2] for wait in waits] == [(200, None), (200, None)]
    assert daemon.process.wait(60) == 0


@pytest.mark.parametrize(("condition", "hint"), [
    ("", "There are"), ("done", "output:REGEX"), ("Exit", "exit"), ("exit:", "exit"), ("input:x", "input"),
    ("output", "output:REGEX"), ("output:", "Listening"), ("port", "port:NUMBER"), ("port:", "65535"),
    ("port:0", "65535"), ("port:65536", "65535"), ("port:http", "65535"), ("port:-1", "65535"), ("port:٣", "65535"),
    ("quiet", "quiet:DURATION"), ("quiet:", "30s"), ("quiet:soon", "30s"), ("quiet:-1s", "30s"),
])  # fmt: skip
def test_malformed_conditions(ready_daemon: RunningDaemon, condition: str, hint: str) -> None:
    """What is no condition is 400, and told what would be right."""
    run_id = ready_daemon.run("true")["run_id"]
    answer = ready_daemon.client.get(f"/runs/{run_id}/wait", params={"until": ["exit", condition]})
    assert hint in problem(answer, 400, "invalid_request")["detail"]


def test_many_waits_at_once(daemon: RunningDaemon, gate: Gate) -> None:
    """Any number of clients may wait for one run, each for its own condition."""
    run_id = daemon.start(f"{gate}; seq 10; sleep 60")
    found: list[str | None] = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(reached(daemon, run_id, f"output:^{n}$")))
        for n in range(1, 11)
    ]
    for thread in threads:
        thread.start()
    gate.open()
    for thread in threads:
        thread.join(60)
    assert sorted(found) == sorted(f"output:^{n}$" for n in range(1, 11))
    assert not processes_with(MATCHERS)
