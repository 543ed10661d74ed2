"""Input for a running command, the size of its terminal, and what can be seen of the shell meanwhile."""

import hashlib
from typing import Any

import pytest

from tests.api.problems import problem, text_problem
from tests.daemons import RunningDaemon, wait_for

JSON = {"Accept": "application/json"}


def test_input_is_typed(daemon: RunningDaemon) -> None:
    """The raw body, or the text of a JSON object, reaches the command; the answer counts the bytes in all."""
    run_id = daemon.start('read -r a; read -r b; echo "[$a][$b]"')
    assert daemon.client.post("/stdin", content="grüße  \n").text == "10"
    assert daemon.json("POST", "/stdin", json={"text": "zwei\n"}) == {"accepted": 15}
    assert "[grüße][zwei]" in daemon.finished(run_id)["stdout"]


@pytest.mark.parametrize("send", [
    {"json": {"text": "", "eof": True}}, {"params": {"eof": "true"}}, {"json": {"eof": True}}, {"content": "\x04"},
])  # fmt: skip
def test_end_of_file(daemon: RunningDaemon, send: dict[str, Any]) -> None:
    """`eof` ends the command's input."""
    run_id = daemon.start("cat; echo over")
    daemon.client.post("/stdin", content="line\n")
    assert daemon.client.post("/stdin", **send).status_code == 200
    assert daemon.finished(run_id)["stdout"].endswith("over\n")


def test_end_of_file_within_a_line(daemon: RunningDaemon) -> None:
    """`eof` behind an unfinished line ends the input too, and the line arrives."""
    run_id = daemon.start("od -An -c; echo over")
    daemon.client.post("/stdin", json={"text": "ab", "eof": True})
    result = daemon.finished(run_id)["stdout"]
    assert "a   b" in result
    assert result.endswith("over\n")


def test_offset(daemon: RunningDaemon) -> None:
    """With `offset` a repeat is not typed twice, an overlap is completed, and a gap is 409 with the figure."""
    run_id = daemon.start('read -r a; read -r b; echo "[$a][$b]"')
    assert daemon.json("POST", "/stdin", json={"text": "one\n", "offset": 0}) == {"accepted": 4}
    assert daemon.json("POST", "/stdin", json={"text": "one\n", "offset": 0}) == {"accepted": 4}
    document = problem(daemon.client.post("/stdin?offset=9", content="x", headers=JSON), 409, "stdin_gap")
    assert document["accepted"] == 4
    assert daemon.client.post("/stdin?offset=0", content="one\ntwo").text == "7"
    assert daemon.client.post("/stdin?offset=4", content="two\n").text == "8"
    assert "[one][two]" in daemon.finished(run_id)["stdout"]


def test_offset_counts_per_run(daemon: RunningDaemon) -> None:
    """Each run counts its own input, in bytes."""
    for _ in range(2):
        run_id = daemon.start('read -r a; echo "[$a]"')
        assert daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": "ü\n", "offset": 0}) == {"accepted": 3}
        assert "[ü]" in daemon.finished(run_id)["stdout"]


@pytest.mark.parametrize("send", [
    {"json": {"text": "x", "offset": -1}}, {"json": {"text": "x", "offset": "0"}}, {"json": {"text": 1}},
    {"json": {"eof": "yes"}}, {"json": {"texts": "x"}}, {"params": {"offset": "-1"}, "content": "x"},
    {"params": {"offset": "x"}, "content": "x"}, {"params": {"eof": "maybe"}}, {"params": {"end": "1"}},
])  # fmt: skip
@pytest.mark.parametrize("path", ["/stdin", "/runs/{}/stdin"])
def test_malformed_input(daemon: RunningDaemon, path: str, send: dict[str, Any]) -> None:
    """Malformed input is 400, and nothing is typed."""
    run_id = daemon.start('read -r a; echo "[$a]"')
    problem(daemon.client.post(path.format(run_id), **send, headers=JSON), 400, "invalid_request")
    daemon.client.post("/stdin", content="right\n")
    assert "[right]" in daemon.finished(run_id)["stdout"]


def test_nothing_running(ready_daemon: RunningDaemon) -> None:
    """Input with nothing running is 409, for the shell and for a run that has ended."""
    assert text_problem(ready_daemon.client.post("/stdin", content="x"), 409) == "No command is running."
    run_id = ready_daemon.run("true")["run_id"]
    problem(ready_daemon.client.post(f"/runs/{run_id}/stdin", content="x"), 409, "no_running_command")
    problem(ready_daemon.client.post("/runs/nope/stdin", content="x"), 404, "run_not_found")


def test_input_of_an_ended_run_goes_nowhere(daemon: RunningDaemon) -> None:
    """Input for a run by its id never reaches the run that came after it."""
    first = daemon.run("true")["run_id"]
    run_id = daemon.start('read -r a; echo "[$a]"')
    assert daemon.client.post(f"/runs/{first}/stdin", content="wrong\n").status_code == 409
    daemon.client.post(f"/runs/{run_id}/stdin", content="right\n")
    assert "[right]" in daemon.finished(run_id)["stdout"]


def test_input_left_over_is_not_the_next_commands(daemon: RunningDaemon) -> None:
    """What a command did not read is neither executed nor read by the next command."""
    run_id = daemon.start("read -r a")
    daemon.client.post("/stdin", content="one\necho EXECUTED\ntouch executed\n")
    daemon.finished(run_id)
    result = daemon.run('read -rt 0.1 a; echo "[$a]"; ls executed 2>/dev/null')
    assert result["stdout"] == "[]\n"


def test_input_during_the_end_is_not_the_next_commands(daemon: RunningDaemon) -> None:
    """What is typed while a shell with much state is being restored belongs to the run that ends, and goes with it."""
    daemon.run('for i in {1..5000}; do declare "v$i=$i"; done')
    run_id = daemon.start("exit 3")
    while (answer := daemon.client.post("/stdin", content="late\n")).status_code == 200:
        pass
    assert answer.status_code == 409
    assert daemon.finished(run_id)["exit_code"] == 3
    assert daemon.run('read -rt 0.1 a; echo "[$a]"')["stdout"] == "[]\n"


def test_large_input(daemon: RunningDaemon) -> None:
    """A megabyte of lines reaches a command that reads slowly, whole."""
    lines = "".join(f"{number:063d}\n" for number in range(8000))
    run_id = daemon.start("stty -echo; head -n 8000 | md5sum; stty echo")
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}")["awaiting_input"])
    assert daemon.client.post("/stdin", content=lines).text == str(len(lines))
    assert hashlib.md5(lines.encode()).hexdigest() in daemon.finished(run_id)["stdout"]


def test_control_characters(daemon: RunningDaemon) -> None:
    """A typed Ctrl-C interrupts, as it does at a terminal."""
    run_id = daemon.start("sleep 60")
    wait_for(lambda: "sleep" in str(daemon.json("GET", "/status")["run"]["foreground"]))
    daemon.client.post("/stdin", content="\x03")
    assert daemon.finished(run_id)["signal"] == 2


# --- resize -------------------------------------------------------------------------------------------------


def test_resize(daemon: RunningDaemon) -> None:
    """A new size is the terminal's at once, also while a command runs, and stays."""
    assert daemon.client.post("/resize", json={"rows": 40, "cols": 120}).text == "ready"
    assert daemon.run("stty size")["stdout"] == "40 120\n"
    script = "import signal, sys; signal.signal(signal.SIGWINCH, lambda *_: sys.exit(7)); print('on'); signal.pause()"
    run_id = daemon.start(f'python3 -uc "{script}"; stty size')
    wait_for(lambda: daemon.client.get("/output").text == "on\n")
    assert daemon.client.post("/resize", json={"rows": 42, "cols": 122}).text == "busy"
    assert daemon.finished(run_id)["stdout"] == "on\n42 122\n"
    result = daemon.run("stty size >&2", streams="separate")
    assert result["stderr"] == "42 122\n"


@pytest.mark.parametrize("body", [
    {}, {"rows": 5}, {"rows": 0, "cols": 5}, {"rows": 5, "cols": 65536}, {"rows": 5.5, "cols": 5},
    {"rows": "5", "cols": 5},
    {"rows": True, "cols": 5}, {"rows": 5, "cols": 5, "depth": 1},
])  # fmt: skip
def test_malformed_sizes(daemon: RunningDaemon, body: dict[str, Any]) -> None:
    """A size that is none is 400 and changes nothing."""
    problem(daemon.client.post("/resize", json=body, headers=JSON), 400, "invalid_request")
    assert daemon.run("stty size")["stdout"] == "24 80\n"


# --- status and health --------------------------------------------------------------------------------------


def test_status_of_a_ready_shell(daemon: RunningDaemon) -> None:
    """The status has these members, and no run while nothing runs."""
    run_id = daemon.run("cd /usr")["run_id"]
    status = daemon.json("GET", "/status")
    assert {*status} == {
        "state", "version", "session_id", "working_directory", "shell_pid", "uptime", "idle", "idle_timeout",
        "sessions",
        "run", "last_run_id",
    }  # fmt: skip
    assert (status["state"], status["session_id"], status["working_directory"]) == ("ready", "main", "/usr")
    assert (status["run"], status["last_run_id"], status["sessions"]) == (None, run_id, 0)
    assert (status["idle_timeout"], status["shell_pid"]) == (1800, daemon.shells()[0])
    assert status["uptime"] > 0
    assert status["idle"] >= 0


def test_status_of_a_busy_shell(daemon: RunningDaemon) -> None:
    """While a command runs the status has its result so far without output, its foreground and what it uses."""
    run_id = daemon.start("cd /tmp; echo x; sleep 77; true", description="why")
    wait_for(lambda: daemon.json("GET", "/status")["run"]["foreground"]["command"] == "sleep 77")
    status = daemon.json("GET", "/status")
    run = status["run"]
    assert (status["state"], status["last_run_id"], status["working_directory"]) == ("busy", run_id, "/tmp")
    assert (run["run_id"], run["status"], run["description"], run["stdout"]) == (run_id, "running", "why", None)
    assert run["original_stdout_size"] == 2
    assert run["foreground"]["pid"] > 1
    assert run["resources"].keys() == {"cpu_percent", "memory_mb", "processes"}
    assert run["resources"]["processes"] == 2
    assert run["resources"]["memory_mb"] > 0


@pytest.mark.parametrize("headers", [{}, {"X-Shell-Key": "wrong"}, {"X-Shell-Key": ""}])
def test_health(ready_daemon: RunningDaemon, headers: dict[str, str]) -> None:
    """/health answers without a key, with any key, and to HEAD."""
    answer = ready_daemon.ask("GET", "/health", headers=headers)
    assert (answer.status, answer.body) == (200, b"ok")
    assert ready_daemon.ask("HEAD", "/health", headers=headers).status == 200
    assert ready_daemon.client.get("/health", headers=JSON).json() == {"status": "ok"}
