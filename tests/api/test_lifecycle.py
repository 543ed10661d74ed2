"""The daemon's own life: every way to end it, what it leaves, and what the next one finds."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.api.conftest import Gate
from tests.api.test_events import EVENTS
from tests.api.test_kill import Waiting
from tests.daemons import KEY, PATIENCE, RunningDaemon, alive, processes_with, wait_for


def exit_status(daemon: RunningDaemon, timeout: float = PATIENCE) -> int:
    """Wait for the end of the daemon; return its exit status."""
    return daemon.process.wait(timeout)


# --- /shutdown and signals ----------------------------------------------------------------------------------


def request_shutdown(daemon: RunningDaemon) -> None:
    answer = daemon.client.post("/shutdown")
    assert (answer.status_code, answer.text) == (200, "shutting down")


WAYS = {
    "request": request_shutdown,
    "SIGTERM": lambda daemon: daemon.process.send_signal(signal.SIGTERM),
    "SIGINT": lambda daemon: daemon.process.send_signal(signal.SIGINT),
}


@pytest.mark.parametrize("way", WAYS)
def test_orderly_end(start_daemon, way: str) -> None:
    """Every orderly end answers who waits, runs the hook, leaves no process, and has exit status 0."""
    daemon = start_daemon(hooks__on_shutdown='echo "$SHELLD_HOOK" >hook')
    daemon.fresh()
    daemon.run("setsid -f sleep 4321")
    shell = daemon.json("GET", "/status")["shell_pid"]
    waiting = Waiting(daemon, "POST", "/run", "echo before; trap '' INT TERM; sleep 60")
    following = Waiting(daemon, "GET", "/output", Accept="text/event-stream")
    wait_for(lambda: daemon.client.get("/output").text == "before\n")
    WAYS[way](daemon)
    assert exit_status(daemon) == 0
    answer = waiting.answer()
    assert answer.status == 200
    assert b'"status":"killed"' in answer.body
    assert b"before" in answer.body
    assert b"event: result" in following.answer().body
    assert (daemon.log.parent / "work" / "hook").read_text() == "shutdown\n"
    assert not alive(shell)
    assert processes_with("sleep\x004321") == []
    assert "stopped" in daemon.log.read_text()


@pytest.mark.parametrize("state", ["available", "unrecoverable"])
def test_shutdown_in_state(start_daemon, state: str) -> None:
    """/shutdown ends the daemon from every state."""
    daemon = start_daemon()
    if state != "available":
        daemon.client.post("/startup")
    if state == "unrecoverable":
        daemon.run("kill -KILL $$")
    answer = daemon.json("POST", "/shutdown")
    assert answer == {"state": "shutting down"}
    assert exit_status(daemon) == 0


def test_shutdown_is_in_time(start_daemon) -> None:
    """A hook that hangs does not keep the daemon longer than timeout.shutdown; it is gone with it."""
    daemon = start_daemon(hooks__on_shutdown="trap '' TERM INT; sleep 5432; sleep 5432", timeout__shutdown="400ms")
    daemon.fresh()
    started = time.monotonic()
    daemon.client.post("/shutdown")
    assert exit_status(daemon) == 0
    assert time.monotonic() - started > 0.3
    wait_for(lambda: processes_with("sleep\x005432") == [])
    assert "timeout.shutdown" in daemon.log.read_text()


def test_requests_during_the_shutdown(start_daemon) -> None:
    """While the daemon ends, new requests are 503, so is /ready without a key, and /health still answers."""
    daemon = start_daemon(hooks__on_shutdown="read -r _ <gate")
    gate = Gate(daemon.log.parent / "work" / "gate")
    assert daemon.ask("GET", "/ready").body == b"ready"
    daemon.client.post("/shutdown")
    assert daemon.ask("GET", "/ready").status == 503
    assert daemon.ask("GET", "/health").status == 200
    answer = daemon.ask("GET", "/status", key=KEY, headers={"Accept": "application/json"})
    assert (answer.status, answer.headers["content-type"]) == (503, "application/problem+json")
    assert b'"shutting_down"' in answer.body
    assert daemon.ask("GET", "/status", key="wrong").status == 401
    gate.open()
    assert exit_status(daemon) == 0


def test_second_signal_does_no_harm(start_daemon) -> None:
    """A second SIGTERM while the daemon ends changes nothing: the hook is run to its end."""
    daemon = start_daemon(hooks__on_shutdown="echo >begun; read -r _ <gate; echo done >hook")
    work = daemon.log.parent / "work"
    gate = Gate(work / "gate")
    daemon.process.send_signal(signal.SIGTERM)
    wait_for((work / "begun").exists)
    daemon.process.send_signal(signal.SIGTERM)
    daemon.process.send_signal(signal.SIGINT)
    gate.open()
    assert exit_status(daemon) == 0
    assert (work / "hook").read_text() == "done\n"


# --- /shutdown?recycle=true ---------------------------------------------------------------------------------


def test_reset_for_the_next_client(start_daemon) -> None:
    """With recycle=true the daemon stays, without shell, runs and lock: the next key locks, the old one is refused."""
    daemon = start_daemon(key=None, hooks__on_recycle='echo "$SHELLD_HOOK" >>hook')

    def ask(key: str, method: str, path: str, body: str | None = None) -> Any:
        return daemon.ask(method, path, key=key, body=body)

    assert ask("old", "POST", "/startup").status == 200
    assert (
        ask("old", "POST", "/run?run_id=secret", "cd /usr; V=secret; setsid -f sleep 6543; echo secret").status == 200
    )
    assert ask("old", "POST", "/run?timeout=0", "sleep 60").status == 202
    answer = ask("old", "POST", "/shutdown?recycle=true")
    assert (answer.status, answer.body) == (200, b"available")
    assert processes_with("sleep\x006543") == []
    assert (daemon.log.parent / "work" / "hook").read_text() == "recycle\n"
    assert ask("new", "GET", "/runs").body == b"[]"
    assert ask("old", "GET", "/status").status == 401
    assert ask("new", "GET", "/status").body == b"available"
    assert ask("new", "GET", "/output").status == 404
    assert [path.name for path in (daemon.data / "runs").iterdir()] == []
    assert not any(b"secret" in path.read_bytes() for path in daemon.data.rglob("*") if path.is_file())
    assert ask("new", "POST", "/startup").status == 200
    assert ask("new", "POST", "/run?run_id=secret", 'echo "[$V]"; pwd').body.startswith(b"[]\n/")
    assert (
        b'"last_run_id":"secret"'
        in daemon.ask("GET", "/status", key="new", headers={"Accept": "application/json"}).body
    )


def test_nothing_of_the_last_client_in_the_status(daemon: RunningDaemon) -> None:
    """After recycle=true the status names no run of the last client."""
    daemon.run("true", run_id=f"last-{time.monotonic_ns()}")
    assert daemon.client.post("/shutdown?recycle=true").text == "available"
    status = daemon.json("GET", "/status")
    assert (status["last_run_id"], status["run"], status["shell_pid"]) == (None, None, None)
    assert daemon.json("GET", "/runs") == []
    wait_for(lambda: not _logs_with_content(daemon.data))
    assert not list((daemon.data / "journal").iterdir())


def _logs_with_content(directory: Path) -> list[str]:
    """Return the logs that hold something; directories may be removed meanwhile."""
    found = [f"{root}/{name}" for root, _, names in os.walk(directory) for name in names if name.endswith(".log")]
    return [path for path in found if os.path.exists(path) and os.path.getsize(path)]


def test_preset_key_stays(daemon: RunningDaemon) -> None:
    """A key that was set in advance is the only one after recycle=true as well."""
    assert daemon.client.post("/shutdown?recycle=true").text == "available"
    assert daemon.ask("GET", "/status", key="other").status == 401
    assert daemon.ask("GET", "/status", key=KEY).status == 200


@pytest.mark.parametrize("value", ["yes", "", "1", "True"])
def test_malformed_recycle(ready_daemon: RunningDaemon, value: str) -> None:
    """Anything but true and false is 400, and ends nothing."""
    assert ready_daemon.client.post(f"/shutdown?recycle={value}").status_code == 400
    assert ready_daemon.client.post(f"/shutdown?force={value}").status_code == 400
    assert ready_daemon.state() == "ready"


def test_nothing_slips_in_during_a_reset(start_daemon) -> None:
    """What the old client asks for while recycle=true is under way is not there for the next client."""
    daemon = start_daemon(key=None, hooks__on_recycle="echo >begun; read -r _ <gate")
    work = daemon.log.parent / "work"
    gate = Gate(work / "gate")
    assert daemon.ask("POST", "/startup", key="old").status == 200
    waiting: list[Any] = []
    thread = threading.Thread(
        target=lambda: waiting.append(daemon.ask("POST", "/shutdown?recycle=true", key="old")), daemon=True
    )
    thread.start()
    wait_for((work / "begun").exists)
    late = threading.Thread(
        target=lambda: [
            daemon.ask("POST", "/startup", key="old"),
            daemon.ask("POST", "/run?run_id=late", key="old", body="V=secret"),
        ],
        daemon=True,
    )
    late.start()
    late.join(1)
    gate.open()
    thread.join(60)
    late.join(60)
    assert (waiting[0].status, waiting[0].body) == (200, b"available")
    assert daemon.ask("GET", "/status", key="new").body == b"available"
    assert daemon.ask("GET", "/runs", key="new").body == b"[]"


# --- the idle timer -----------------------------------------------------------------------------------------


def test_idle_shutdown(start_daemon) -> None:
    """Without a request for timeout.idle the daemon ends as /shutdown does, whatever its shell does."""
    daemon = start_daemon(timeout__idle="3s", hooks__on_shutdown="touch hook")
    with daemon.client.stream("POST", "/exec", json={"command": "sleep 600"}, headers=EVENTS):  # keeps it meanwhile
        daemon.fresh()
        daemon.start("sleep 600")
    assert exit_status(daemon) == 0
    assert (daemon.log.parent / "work" / "hook").exists()
    assert "timeout.idle" in daemon.log.read_text()


def test_rejected_requests_do_not_count_as_activity(start_daemon) -> None:
    """/health, /openapi.json and refused keys do not keep an idle daemon."""
    daemon = start_daemon(timeout__idle="400ms")

    def over() -> bool:
        try:
            daemon.ask("GET", "/health")
            daemon.ask("GET", "/openapi.json")
            daemon.ask("GET", "/status", key="wrong")
            daemon.ask("GET", "/status")
        except OSError:
            return True
        return daemon.process.poll() is not None

    wait_for(over)
    assert exit_status(daemon) == 0


def test_accepted_requests_keep_the_daemon(start_daemon) -> None:
    """A request that is still waiting keeps the daemon for longer than timeout.idle; the end comes after it."""
    daemon = start_daemon(timeout__idle="2s")
    body = {"command": "sleep 2.2; echo still here"}
    with daemon.client.stream("POST", "/exec", json=body, headers=EVENTS) as answer:
        assert daemon.json("GET", "/status")["idle_timeout"] == 2
        assert "still here" in "".join(answer.iter_text())
    assert exit_status(daemon) == 0


# --- a daemon that is killed --------------------------------------------------------------------------------


def test_killed_daemon_leaves_no_shell(start_daemon) -> None:
    """When the daemon is killed with SIGKILL, its bash and the foreground command are gone at once."""
    daemon = start_daemon()
    daemon.fresh()
    daemon.start("sleep 7654")
    shell = daemon.json("GET", "/status")["shell_pid"]
    wait_for(lambda: processes_with("sleep\x007654"))
    daemon.process.kill()
    daemon.process.wait()
    wait_for(lambda: not alive(shell))
    wait_for(lambda: processes_with("sleep\x007654") == [])


def test_next_daemon_finds_the_runs(start_daemon, tmp_path: Path) -> None:
    """After a crash the next daemon shows ended runs as they were, and those under way as lost with all they wrote."""
    data = {"server__data_directory": str(tmp_path / "data")}
    first = start_daemon(**data)
    first.fresh()
    done = first.run("echo done; (exit 3)", run_id="done", description="why")
    command = "seq 20000; echo err >&2; sleep 60"
    first.start(command, run_id="cut-off", streams="separate")
    wait_for(lambda: first.json("GET", "/runs/cut-off")["original_stderr_size"] == 4)
    wait_for(lambda: first.json("GET", "/runs/cut-off")["original_stdout_size"] == 108894)
    first.process.kill()
    first.process.wait()
    second = start_daemon(**data)
    assert [(run["run_id"], run["status"]) for run in second.json("GET", "/runs")] == [
        ("cut-off", "lost"), ("done", "completed")
    ]  # fmt: skip
    found = second.json("GET", "/runs/done")
    assert {**found, "state": None} == {**done, "state": None}
    lost = second.json("GET", "/runs/cut-off?max_output=0")
    assert lost["stdout"] == "".join(f"{number}\n" for number in range(1, 20001))
    assert (lost["stderr"], lost["original_stdout_size"], lost["exit_code"]) == ("err\n", 108894, None)
    assert (lost["cause"], lost["status"], lost["state"]) == ("daemon_restarted", "lost", "available")
    assert lost["error"]
    output = second.json("GET", "/runs/cut-off/output?cursor=108890")
    assert (output["output"], output["eof"], output["status"]) == ("000\n", True, "lost")
    assert second.client.get("/runs/cut-off/wait").status_code == 200
    second.client.post("/startup")
    assert second.run("echo done; (exit 3)", run_id="done", description="why")["started_at"] == done["started_at"]
    assert second.run(command, run_id="cut-off", streams="separate")["status"] == "lost"


def test_whatever_was_answered_survives_the_daemon(start_daemon, tmp_path: Path) -> None:
    """Quick runs one after the other, and a SIGKILL in the middle of them: each that was answered is kept as it was."""
    data = {"server__data_directory": str(tmp_path / "data")}
    answered: dict[str, dict[str, Any]] = {}
    for moment in (7, 60):
        first = start_daemon(**data)
        first.fresh()
        killer = threading.Thread(target=kill_after, args=(first, answered, moment))
        killer.start()
        with contextlib.suppress(httpx.HTTPError):
            for number in range(10_000):
                result = first.run(f"echo {number}; (exit {number % 100})")
                answered[result["run_id"]] = result
        killer.join()
        first.process.wait()
        second = start_daemon(**data)
        for run_id, result in answered.items():
            kept = second.json("GET", f"/runs/{run_id}")
            assert {**kept, "state": None} == {**result, "state": None}
        second.process.send_signal(signal.SIGTERM)
        assert exit_status(second) == 0
        answered.clear()


def kill_after(daemon: RunningDaemon, answered: dict[str, Any], count: int) -> None:
    """Kill a daemon at once when so many runs have been answered."""
    wait_for(lambda: len(answered) >= count)
    daemon.process.kill()


def test_ended_daemon_keeps_its_runs(start_daemon, tmp_path: Path) -> None:
    """After an orderly end the next daemon on the same directory shows the runs, the one under way as killed."""
    data = {"server__data_directory": str(tmp_path / "data")}
    first = start_daemon(**data)
    first.fresh()
    first.start("echo x; sleep 60", run_id="under-way")
    wait_for(lambda: first.client.get("/output").text == "x\n")
    first.process.send_signal(signal.SIGTERM)
    assert exit_status(first) == 0
    second = start_daemon(**data)
    run = second.json("GET", "/runs/under-way")
    assert (run["status"], run["cause"], run["stdout"]) == ("killed", "killed", "x\n")


def test_rubbish_in_the_data_directory(start_daemon, tmp_path: Path) -> None:
    """Files that make no run do not keep a daemon from starting."""
    runs = tmp_path / "data" / "runs"
    for name, content in (
        ("empty", None),
        ("torn", b'{"run_id": "torn", "sta'),
        ("wrong", b"[]"),
        ("binary", b"\xff\0"),
    ):
        (runs / name).mkdir(parents=True)
        if content is not None:
            (runs / name / "snapshot.json").write_bytes(content)
    (runs / "file").write_text("")
    daemon = start_daemon(server__data_directory=str(tmp_path / "data"))
    assert daemon.json("GET", "/runs") == []
    daemon.fresh()
    assert daemon.run("echo x", run_id="empty")["stdout"] == "x\n"


# --- directories --------------------------------------------------------------------------------------------


def test_data_is_private(ready_daemon: RunningDaemon) -> None:
    """The data directory, and everything in it, is the owner's alone."""
    run_id = ready_daemon.run("umask 000; echo x; sleep 0.1")["run_id"]
    names = ("runs", "journal", "backups", f"runs/{run_id}")
    directories = [ready_daemon.data, *(ready_daemon.data / name for name in names)]
    assert {stat.S_IMODE(path.stat().st_mode) for path in directories} == {0o700}
    files = list((ready_daemon.data / "runs" / run_id).iterdir())
    journal = list((ready_daemon.data / "journal").iterdir())
    assert {path.name for path in files} == {"output.log", "snapshot.json", "timing"}
    assert {stat.S_IMODE(path.stat().st_mode) for path in [*files, *journal, ready_daemon.data / "lock"]} == {0o600}


def test_existing_directory_is_made_private(start_daemon, tmp_path: Path) -> None:
    """A data directory that is there already is made private."""
    (tmp_path / "data").mkdir(mode=0o755)
    daemon = start_daemon(server__data_directory=str(tmp_path / "data"))
    assert daemon.client.get("/health").text == "ok"
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


@pytest.mark.parametrize("way", ["request", "SIGTERM"])
def test_temporary_directory_goes_with_the_daemon(start_daemon, tmp_path: Path, monkeypatch, way: str) -> None:
    """Without a data directory one is made under the system's directory for such, privately, and removed at the end."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    daemon = start_daemon(server__data_directory="")
    daemon.fresh()
    daemon.run("echo x")
    (made,) = (tmp_path / "tmp").iterdir()
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    WAYS[way](daemon)
    assert exit_status(daemon) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_second_daemon_on_a_directory(daemon: RunningDaemon) -> None:
    """A second daemon on the same data directory is refused with exit status 2; the first goes on."""
    environ = {**os.environ, "SHELLD_SERVER__PORT": "0", "SHELLD_SERVER__DATA_DIRECTORY": str(daemon.data)}
    second = subprocess.run(
        [sys.executable, "-m", "shelld_py"], env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert second.returncode == 2
    assert "in use" in second.stderr
    assert "Traceback" not in second.stderr
    assert daemon.run("echo fine")["stdout"] == "fine\n"


# --- leaks --------------------------------------------------------------------------------------------------


def test_nothing_leaks(start_daemon) -> None:
    """Hundreds of runs of all kinds and many recycles leave no descriptor, process, thread or memory file behind."""
    daemon = start_daemon(output__retain_runs="5", timeout__kill="200ms")
    daemon.fresh()
    process = Path(f"/proc/{daemon.process.pid}")

    def some_runs(number: int) -> None:
        daemon.run("echo $RANDOM; true | cat")
        daemon.run("echo err >&2", streams="separate", stdin="x", environment={"A": "1"}, directory="/")
        daemon.client.post("/run", content="echo x", headers={"Accept": "text/event-stream"})
        daemon.client.post("/run", content="(sleep 0.01 &)")
        if number % 10 == 0:
            daemon.run("exit 1")
            daemon.start("sleep 60")
            daemon.client.post("/kill")

    def held() -> tuple[list[str], int, int]:
        kinds = sorted(os.readlink(path).split(":")[0] for path in (process / "fd").iterdir())
        return kinds, len(daemon.children()), len(list((process / "task").iterdir()))

    some_runs(0)
    daemon.client.post("/recycle")
    some_runs(0)
    daemon.client.get("/runs")
    daemon.client.post("/recycle")
    daemon.run("true")
    before = held()
    for number in range(40):
        some_runs(number)
        if number % 4 == 0:
            assert daemon.client.post("/recycle").text == "ready"
    daemon.client.post("/recycle")
    daemon.run("true")
    wait_for(lambda: len(held()[0]) <= len(before[0]) and held()[1:] <= before[1:])
    assert len(list((daemon.data / "runs").iterdir())) <= 6
