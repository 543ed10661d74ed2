"""A deadline: the command is killed when it is over, as by a kill, and its shell stays."""

import time
from pathlib import Path

import pytest

from tests.daemons import KEY, RunningDaemon, alive, wait_for


@pytest.mark.parametrize("path", ["/run", "/sessions/{}/run", "/exec"])
def test_a_command_is_killed_at_its_deadline(daemon: RunningDaemon, path: str) -> None:
    """In every shell: its output is kept, the wait for it is over, and the shell takes the next command."""
    session = daemon.json("POST", "/sessions")["session_id"]
    path = path.format(session)
    result = daemon.json("POST", path, json={"command": "echo begun; sleep 987", "deadline": "200ms"})
    assert (result["status"], result["cause"]) == ("killed", "deadline")
    assert (result["signal"], result["exit_code"], result["stdout"].rstrip()) == (2, 130, "begun")
    assert result["error"] == "Killed at its deadline of 200ms."
    assert result["timed_out"] is False
    assert daemon.json("POST", path, json={"command": "echo next", "deadline": 60})["stdout"] == "next\n"
    daemon.client.delete(f"/sessions/{session}")


def test_what_ignores_the_interrupt_is_killed(start_daemon) -> None:
    """After `timeout.kill`, by SIGKILL; the variables of the shell are as they were."""
    daemon = start_daemon(timeout__kill="100ms")
    daemon.fresh()
    daemon.run("kept=yes")
    result = daemon.run("sh -c 'trap \"\" INT; echo deaf; sleep 987'", deadline=0.1)
    assert (result["status"], result["cause"], result["signal"]) == ("killed", "deadline", 9)
    assert daemon.run("echo $kept")["stdout"] == "yes\n"


def test_a_deadline_is_no_wait(daemon: RunningDaemon) -> None:
    """A request that waits shorter is answered while the command goes on; what ends before is not concerned."""
    started = time.monotonic()
    run_id = daemon.start("sleep 987", deadline="300ms")
    result = daemon.finished(run_id)
    assert (result["cause"], result["status"]) == ("deadline", "killed")
    assert time.monotonic() - started >= 0.3
    assert daemon.run("exit 3", deadline=0.5)["cause"] == "exit"


def test_nothing_is_left_of_an_exec_at_its_deadline(daemon: RunningDaemon, tmp_path: Path) -> None:
    """What it has put in the background goes with its shell."""
    pid = tmp_path / "pid"
    command = f"setsid sleep 987 & echo $! >{pid}; sleep 987"
    assert daemon.json("POST", "/exec", json={"command": command, "deadline": 0.3})["cause"] == "deadline"
    wait_for(lambda: not alive(int(pid.read_text())))


@pytest.mark.parametrize(("deadline", "told"), [(0, "longer than 0"), ("0s", "longer than 0"), ("soon", "30s")])
def test_deadlines_that_are_none(daemon: RunningDaemon, deadline: object, told: str) -> None:
    answer = daemon.json("POST", "/run", json={"command": "true", "deadline": deadline})
    assert (answer["status"], answer["code"]) == (400, "invalid_request")
    assert "deadline" in answer["detail"]
    assert told in answer["detail"]


def test_a_deadline_in_a_query_string(daemon: RunningDaemon) -> None:
    """And it belongs to the request: the same run id with another one is another request."""
    asked = {"headers": {"Accept": "application/json"}, "key": KEY}
    assert b'"deadline"' in daemon.ask("POST", "/run?deadline=50ms&run_id=late", body="sleep 987", **asked).body
    assert daemon.ask("POST", "/run?deadline=50ms&run_id=late", body="sleep 987", **asked).status == 200
    assert daemon.ask("POST", "/run?deadline=60ms&run_id=late", body="sleep 987", **asked).status == 409
