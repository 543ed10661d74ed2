"""Ending a run, and beginning anew: /kill with its escalation, /recycle and what it leaves of the old shell."""

import shlex
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.api.conftest import Gate
from tests.api.problems import problem
from tests.daemons import KEY, RunningDaemon, alive, processes_with, wait_for

ESCAPEES = {
    "background": "sleep 987 & echo $! >{pids}",
    "disowned": "sleep 987 & disown; echo $! >{pids}",
    "nohup": "nohup sleep 987 >/dev/null 2>&1 & echo $! >{pids}",
    "setsid": "setsid sh -c 'echo $$ >{pids}; exec sleep 987' &",
    "setsid fork": "setsid -f sh -c 'echo $$ >{pids}; exec sleep 987'",
    "double fork": "( ( setsid sh -c 'echo $$ >{pids}; exec sleep 987' & ) & )",
    "deaf": "setsid sh -c 'trap \"\" TERM INT HUP; echo $$ >{pids}; while :; do sleep 987; done' &",
    "stopped": "sh -c 'echo $$ >{pids}; kill -STOP $$; exec sleep 987' &",
    "environment dropped": "env -i setsid -f /bin/sh -c 'echo $$ >{pids}; exec sleep 987'",
    "daemon": (
        "python3 -c 'import os,time\n"
        "if os.fork(): os._exit(0)\n"
        "os.setsid()\n"
        "if os.fork(): os._exit(0)\n"
        "os.closerange(0, 1000); os.chdir(\"/\")\n"
        "open(\"{pids}\", \"w\").write(str(os.getpid())); time.sleep(987)'"
    ),
}  # fmt: skip


def in_foreground(daemon: RunningDaemon, command: str) -> None:
    """Wait until the leader of the foreground process group shows `command`."""

    def seen() -> bool:
        run = daemon.json("GET", "/status")["run"]
        return bool(run and command in (run["foreground"] or {}).get("command", ""))

    wait_for(seen)


class Waiting:
    """A request that waits in a thread of its own."""

    def __init__(self, daemon: RunningDaemon, method: str, path: str, body: str | None = None, **headers: str) -> None:
        self._answers: list[Any] = []
        sent = {"Accept": "application/json", **headers}
        self._thread = threading.Thread(
            target=lambda: self._answers.append(daemon.ask(method, path, key=KEY, headers=sent, body=body))
        )
        self._thread.start()

    def answer(self) -> Any:
        """Return what it was answered."""
        self._thread.join(60)
        assert self._answers, "the request was not answered"
        return self._answers[0]


# --- kill ---------------------------------------------------------------------------------------------------


def test_kill_interrupts(daemon: RunningDaemon) -> None:
    """A kill ends the command with SIGINT, answers the waiting request, and keeps the shell and its state."""
    daemon.run("V=kept; cd /usr")
    pid = daemon.json("GET", "/status")["shell_pid"]
    waiting = Waiting(daemon, "POST", "/run", "echo before; sleep 60; echo never")
    in_foreground(daemon, "sleep 60")
    run_id = daemon.json("GET", "/status")["last_run_id"]
    killed = daemon.json("POST", "/kill")
    assert killed == {"state": "ready", "run": run_id, "killed": True, "survivors": []}
    assert waiting.answer().status == 200
    result = daemon.json("GET", f"/runs/{run_id}")
    assert (result["status"], result["cause"], result["signal"], result["exit_code"]) == ("killed", "killed", 2, 130)
    assert result["error"]
    assert result["stdout"].startswith("before\n")
    assert "never" not in result["stdout"]
    after = daemon.run('echo "$V"; pwd')
    assert (after["stdout"], daemon.json("GET", "/status")["shell_pid"]) == ("kept\n/usr\n", pid)


@pytest.mark.parametrize("accept", ["text/plain", "application/json"])
def test_kill_with_nothing_running(daemon: RunningDaemon, accept: str) -> None:
    """With nothing running a kill does nothing, and says so."""
    daemon.run("V=kept")
    answer = daemon.client.post("/kill", headers={"Accept": accept})
    assert answer.status_code == 200
    if accept == "text/plain":
        assert answer.text == "ready"
    else:
        assert answer.json() == {"state": "ready", "run": None, "killed": False, "survivors": []}
    assert daemon.run("echo $V")["stdout"] == "kept\n"


@pytest.mark.parametrize("command", [
    "sh -c 'trap \"\" INT; sleep 61; sleep 61'", "trap '' INT; sleep 61", "nohup sleep 61", "setsid -w sleep 61",
    "sh -c 'trap \"\" INT; sleep 61' | cat", "python3 -c 'import signal,time; signal.signal(2, 1); time.sleep(61)'",
])  # fmt: skip
def test_kill_escalates(impatient_daemon: RunningDaemon, command: str) -> None:
    """What ignores SIGINT is killed after timeout.kill; the shell survives with its state."""
    daemon = impatient_daemon
    daemon.run("V=kept")
    run_id = daemon.start(command)
    wait_for(lambda: processes_with("61"))
    killed = daemon.json("POST", "/kill")
    assert (killed["state"], killed["run"], killed["killed"]) == ("ready", run_id, True)
    result = daemon.finished(run_id)
    assert (result["status"], result["cause"]) == ("killed", "killed")
    assert daemon.run("trap - INT; echo $V")["stdout"] == "kept\n"


@pytest.mark.parametrize(
    "command",
    [
        "(trap '' INT; sleep 67); (trap '' INT; sleep 68); true",
        "nohup sleep 67; sleep 68; echo never",
        "(trap '' INT; sleep 67) || (trap '' INT; sleep 68)",
        "trap '' INT; for i in 1 2; do sleep 67; done",
    ],
)
def test_kill_of_a_list_that_goes_on(impatient_daemon: RunningDaemon, command: str) -> None:
    """What bash starts when a command of a list was killed is killed as well; the shell survives with its state."""
    daemon = impatient_daemon
    daemon.run("V=kept")
    run_id = daemon.start(command)
    wait_for(lambda: processes_with("sleep\x0067"))
    killed = daemon.json("POST", "/kill")
    assert (killed["state"], killed["killed"], killed["survivors"]) == ("ready", True, [])
    result = daemon.finished(run_id)
    assert (result["status"], "never" in result["stdout"]) == ("killed", False)
    assert processes_with("sleep\x0067") + processes_with("sleep\x0068") == []
    assert daemon.run("trap - INT; echo $V")["stdout"] == "kept\n"


def test_unkillable_bash_is_killed_itself(impatient_daemon: RunningDaemon) -> None:
    """Where bash itself does not come back, it is killed: the shell is unrecoverable, and the run is answered."""
    daemon = impatient_daemon
    run_id = daemon.start("echo x; trap '' INT; while :; do :; done")
    wait_for(lambda: daemon.client.get("/output").text == "x\n")
    waiting = Waiting(daemon, "GET", f"/runs/{run_id}/wait")
    killed = daemon.json("POST", "/kill")
    assert (killed["state"], killed["killed"]) == ("unrecoverable", True)
    assert waiting.answer().status in (200, 202)
    result = daemon.finished(run_id)
    assert (result["status"], result["cause"], result["signal"]) == ("killed", "killed", 9)
    assert (result["stdout"], result["state"]) == ("x\n", "unrecoverable")
    assert daemon.client.post("/run", content="true").status_code == 409
    assert daemon.client.post("/recycle").text == "ready"
    assert daemon.run("echo fine")["stdout"] == "fine\n"


@pytest.mark.parametrize(("name", "number"), [
    ("TERM", 15), ("SIGTERM", 15), ("term", 15), ("15", 15), ("HUP", 1), ("KILL", 9), ("USR1", 10), ("INT", 2)
])  # fmt: skip
def test_one_signal(daemon: RunningDaemon, name: str, number: int) -> None:
    """`signal` sends that one signal to the foreground and returns at once."""
    run_id = daemon.start("sleep 60")
    in_foreground(daemon, "sleep 60")
    answer = daemon.json("POST", f"/kill?signal={name}")
    assert (answer["run"], answer["killed"], answer["survivors"]) == (run_id, True, [])
    result = daemon.finished(run_id)
    assert (result["status"], result["cause"], result["signal"]) == ("killed", "killed", number)
    assert result["exit_code"] == 128 + number
    assert daemon.state() == "ready"


def test_signal_that_is_handled(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A signal that the command handles does not end it: the state stays busy, and it ends as it likes."""
    ready = tmp_path / "ready"
    script = (
        "import signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(3)); "
        f"open('{ready}', 'w').close(); time.sleep(60)"
    )
    run_id = daemon.start(f"python3 -c {shlex.quote(script)}; code=$?; echo caught; (exit $code)")
    wait_for(ready.exists)
    assert daemon.client.post("/kill?signal=CONT").text == "busy"
    daemon.client.post("/kill?signal=USR1")
    result = daemon.finished(run_id)
    assert (result["stdout"], result["exit_code"], result["cause"]) == ("caught\n", 3, "exit")


@pytest.mark.parametrize(
    "query", ["signal=NOPE", "signal=", "signal=0", "signal=65", "signal=-9", "signal=9x", "sig=9"]
)
def test_malformed_signals(daemon: RunningDaemon, query: str) -> None:
    """An unknown signal or parameter is 400, and nothing is sent."""
    run_id = daemon.start("sleep 60")
    for path in ("/kill", f"/runs/{run_id}/kill"):
        problem(daemon.client.post(f"{path}?{query}", headers={"Accept": "application/json"}), 400, "invalid_request")
    assert daemon.state() == "busy"


def test_survivors(daemon: RunningDaemon) -> None:
    """What a killed run had put into the background survives an interrupt, and is listed."""
    run_id = daemon.start("sleep 62 & sleep 63")
    in_foreground(daemon, "sleep 63")
    killed = daemon.json("POST", "/kill")
    (pid,) = killed["survivors"]
    assert alive(pid)
    assert Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x0062\0"
    assert daemon.json("GET", f"/runs/{run_id}")["background_pids"] == [pid]


def test_escalation_leaves_no_survivors(impatient_daemon: RunningDaemon) -> None:
    """SIGKILL goes to everything the command started, what is in the background among it, but to no earlier run's."""
    daemon = impatient_daemon
    (earlier,) = daemon.run("sleep 64 &")["background_pids"]
    run_id = daemon.start("sleep 65 & setsid sleep 65 & sh -c 'trap \"\" INT; sleep 66'")
    wait_for(lambda: len(processes_with("sleep\x0065")) == 2 and processes_with("sleep\x0066"))
    killed = daemon.json("POST", f"/runs/{run_id}/kill")
    assert (killed["state"], killed["survivors"]) == ("ready", [])
    assert processes_with("sleep\x0065") == []
    assert alive(earlier)


def test_kill_with_all_that_is_in_the_background(daemon: RunningDaemon) -> None:
    """`all` also kills what the run has left running, in sessions of its own too; what other runs left goes on."""
    (earlier,) = daemon.run("sleep 64 &")["background_pids"]
    run_id = daemon.start("sleep 65 & setsid sh -c 'sleep 65; true' & sleep 66")
    wait_for(lambda: len(processes_with("sleep\x0065")) == 2 and processes_with("sleep\x0066"))
    killed = daemon.json("POST", f"/runs/{run_id}/kill?all=true")
    assert killed == {"state": "ready", "run": run_id, "killed": True, "survivors": []}
    assert processes_with("sleep\x0065") == []
    assert alive(earlier)
    ended = daemon.run("sleep 65 & true")
    later = daemon.start("sleep 67")
    in_foreground(daemon, "sleep 67")
    killed = daemon.json("POST", f"/runs/{ended['run_id']}/kill?all=true")
    assert killed == {"state": "busy", "run": ended["run_id"], "killed": True, "survivors": []}
    assert not any(map(alive, ended["background_pids"]))
    assert alive(earlier)
    assert processes_with("sleep\x0067")
    assert daemon.json("POST", f"/runs/{ended['run_id']}/kill?all=true")["killed"] is False
    refused = daemon.client.post(f"/runs/{later}/kill?all=true&signal=TERM")
    problem(refused, 400, "invalid_request")


def test_kill_of_a_one_shot_leaves_nothing(daemon: RunningDaemon) -> None:
    """Its shell is its own: all that it has started goes with it, also where the command itself has ended."""
    for command, status in (("sleep 65 & setsid sleep 65 & sleep 66", "killed"), ("sleep 65 &", "completed")):
        run_id = daemon.json("POST", "/exec", json={"command": command, "timeout": 0})["run_id"]
        wait_for(lambda: processes_with("sleep\x0065"))
        if status == "completed":
            daemon.finished(run_id)
        killed = daemon.json("POST", f"/runs/{run_id}/kill")
        assert killed == {"state": "available", "run": run_id, "killed": True, "survivors": []}
        assert processes_with("sleep\x0065") == processes_with("sleep\x0066") == []
        assert daemon.finished(run_id)["status"] == status
        assert daemon.json("POST", f"/runs/{run_id}/kill")["killed"] is False


def test_signal_to_a_run_that_has_hardly_begun(daemon: RunningDaemon) -> None:
    """It is never lost to a run that goes on: either it was sent, or the run is over by then."""
    for _ in range(40):
        run_id = daemon.start("sleep 60")
        answer = daemon.json("POST", f"/runs/{run_id}/kill?signal=TERM")
        assert answer["killed"] is True
        assert daemon.finished(run_id)["status"] == "killed"
        quick = daemon.start("true")
        answer = daemon.json("POST", f"/runs/{quick}/kill?signal=TERM")
        assert answer["killed"] or answer["state"] == "ready"
        daemon.finished(quick)


def test_result_of_an_escalated_kill(impatient_daemon: RunningDaemon) -> None:
    """A command that SIGKILL ended died of that: its result says so, and its output has no word of a stopped job."""
    daemon = impatient_daemon
    run_id = daemon.start("sh -c 'trap \"\" INT; sleep 66'")
    wait_for(lambda: processes_with("sleep\x0066"))
    daemon.client.post("/kill")
    result = daemon.finished(run_id)
    assert "Stopped" not in result["stdout"]
    assert (result["exit_code"], result["signal"]) == (137, 9)
    assert daemon.run("jobs")["stdout"] == ""


def test_kill_where_processors_are_scarce(start_daemon: Callable[..., RunningDaemon]) -> None:
    """A bash that hardly gets to run is interrupted and killed as any other, and is not lost."""
    daemon = start_daemon(timeout__kill="300ms")
    daemon.fresh()
    daemon.run("for i in 1 2 3 4 5 6; do (ulimit -t 10; while :; do :; done) & done; renice -n 19 $$")
    interrupted = daemon.start("echo first; sleep 66; echo never")
    wait_for(lambda: processes_with("sleep\x0066"))
    assert daemon.json("POST", "/kill?signal=INT")["killed"]
    result = daemon.finished(interrupted)
    assert (result["stdout"].startswith("first\n"), "never" in result["stdout"]) == (True, False)
    assert result["exit_code"] == 130
    killed = daemon.start("sh -c 'trap \"\" INT; sleep 67'")
    answer = daemon.json("POST", f"/runs/{killed}/kill")
    assert (answer["state"], answer["run"], answer["killed"]) == ("ready", killed, True)
    wait_for(lambda: not any(map(alive, answer["survivors"])))  # they need a processor to die, too
    result = daemon.finished(killed)
    assert (result["status"], result["signal"], "Stopped" in result["stdout"]) in [
        ("killed", 9, False), ("killed", 2, False)
    ]  # fmt: skip
    daemon.fresh()


def test_killed_run_by_its_id(daemon: RunningDaemon) -> None:
    """/runs/ID/kill kills that run alone: once it has ended it does nothing, whatever runs then."""
    first = daemon.start("sleep 60")
    assert daemon.json("POST", f"/runs/{first}/kill")["killed"] is True
    daemon.start("sleep 60")
    again = daemon.json("POST", f"/runs/{first}/kill")
    assert (again["killed"], again["state"]) == (False, "busy")
    assert daemon.json("POST", f"/runs/{first}/kill?signal=KILL")["killed"] is False
    assert daemon.state() == "busy"
    problem(daemon.client.post("/runs/no-such-run/kill"), 404, "run_not_found")


def test_simultaneous_kills(impatient_daemon: RunningDaemon) -> None:
    """Several kills at a time end the run once, and all are answered with the state after it."""
    daemon = impatient_daemon
    daemon.start("sh -c 'trap \"\" INT; sleep 60'")
    in_foreground(daemon, "trap")
    waiting = [Waiting(daemon, "POST", "/kill") for _ in range(4)]
    assert {item.answer().status for item in waiting} == {200}
    assert daemon.state() == "ready"
    assert daemon.run("echo fine")["stdout"] == "fine\n"


def test_next_run_after_many_kills(daemon: RunningDaemon) -> None:
    """A shell may be killed at any moment, again and again, and the next command is its own."""
    for number in range(15):
        run_id = daemon.start("while :; do :; done" if number % 2 else "cat /dev/zero | tr '\\0' x")
        assert daemon.client.post("/kill").text == "ready"
        assert daemon.finished(run_id)["status"] == "killed"
        assert daemon.run(f"echo {number}")["stdout"] == f"{number}\n"


# --- recycle ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/recycle", "/shutdown?recycle=true"])
@pytest.mark.parametrize("kind", ESCAPEES)
def test_nothing_escapes(daemon: RunningDaemon, tmp_path: Path, kind: str, path: str) -> None:
    """Whatever a shell has started is gone once the recycle is answered, however it made itself independent."""
    pids = tmp_path / "pids"
    daemon.run(ESCAPEES[kind].format(pids=pids))
    pid = int(wait_for(lambda: pids.exists() and pids.read_text()))
    wait_for(lambda: "987" in Path(f"/proc/{pid}/cmdline").read_text())
    assert daemon.client.post(path).status_code == 200
    assert not alive(pid)


def test_recycled_shell_is_fresh(daemon: RunningDaemon) -> None:
    """Nothing of the old shell is left in the new one: no variables, no directory, no output."""
    daemon.run(
        "V=old; cd /usr; f() { :; }; alias a=b; umask 0; stty cols 33; exec 2>/dev/null; "
        "{ while :; do echo old; done; } &"
    )
    before = daemon.json("GET", "/status")
    assert daemon.client.post("/recycle").text == "ready"
    after = daemon.json("GET", "/status")
    assert after["shell_pid"] != before["shell_pid"]
    assert not alive(before["shell_pid"])
    result = daemon.run('echo "[$V]"; pwd; type f a; umask; tput cols; echo err >&2')
    assert "old" not in result["stdout"]
    assert result["stdout"].startswith("[]\n" + str(daemon.log.parent / "work") + "\n")
    assert result["stdout"].endswith("0022\n80\nerr\n")


def test_recycle_answers_who_waits(daemon: RunningDaemon, gate: Gate) -> None:
    """A request that waits for a run is answered when the shell is recycled: killed, recycled, with its output."""
    waiting = Waiting(daemon, "POST", "/run", f"echo before; {gate}")
    wait_for(lambda: daemon.state() == "busy" and daemon.client.get("/output").text == "before\n")
    run_id = daemon.json("GET", "/status")["last_run_id"]
    assert daemon.client.post("/recycle").text == "ready"
    assert waiting.answer().status == 200
    result = daemon.json("GET", f"/runs/{run_id}")
    assert (result["status"], result["cause"], result["stdout"]) == ("killed", "recycled", "before\n")
    assert daemon.json("GET", "/status")["run"] is None


def test_recycle_of_deaf_foreground(daemon: RunningDaemon) -> None:
    """A recycle asks nobody: a command that ignores every signal is gone at once."""
    daemon.start("trap '' INT TERM HUP; sleep 88 & while :; do :; done")
    wait_for(lambda: processes_with("sleep\x0088"))
    assert daemon.client.post("/recycle").text == "ready"
    assert processes_with("sleep\x0088") == []
    assert daemon.run("echo fine")["stdout"] == "fine\n"


def test_fork_storm_ends(daemon: RunningDaemon) -> None:
    """Processes that keep forking do not outrun a recycle."""
    daemon.run("storm() { sleep 0.02; storm 91919 & }; for i in 1 2 3; do storm 91919 & done 2>/dev/null")
    assert daemon.client.post("/recycle").text == "ready"
    assert daemon.run("echo fine")["stdout"] == "fine\n"
    wait_for(lambda: len(daemon.shells()) == 1)


def test_simultaneous_recycles(daemon: RunningDaemon) -> None:
    """Several recycles at a time are all answered, and one shell is left."""
    waiting = [Waiting(daemon, "POST", "/recycle") for _ in range(5)]
    assert {item.answer().status for item in waiting} <= {200, 409}
    assert daemon.state() == "ready"
    wait_for(lambda: len(daemon.shells()) == 1)
    assert daemon.run("echo fine")["stdout"] == "fine\n"


@pytest.mark.parametrize("command", [
    "stty raw -echo", "exec >/dev/null 2>&1 </dev/null", "set -e; set -u; set -x; set -v; set -n", "PATH=",
    "ulimit -n 20",
    "trap 'echo trapped' DEBUG EXIT ERR", "enable -n printf echo builtin", "shopt -s extdebug",
    "unset HOME PWD; cd /; IFS=x",
    "kill -STOP $$ & sleep 0.01", "exec 0<&- 1>&- 2>&-", "printf() { echo fooled; }; eval() { :; }; trap() { :; }",
])  # fmt: skip
def test_recycle_mends_everything(impatient_daemon: RunningDaemon, command: str) -> None:
    """Whatever a command did to its shell, a recycle gives a good one."""
    daemon = impatient_daemon
    daemon.client.post("/run", content=command)
    assert daemon.client.post("/recycle").text == "ready"
    assert daemon.run("echo fine; pwd >/dev/null; printf '%s' end")["stdout"] == "fine\nend"


@pytest.mark.parametrize("name", ["USR1", "ALRM", "HUP"])
def test_a_signal_that_ends_bash_itself(daemon: RunningDaemon, name: str) -> None:
    """A loop of builtins is bash: the run is killed, its shell comes back; a trap of the user's decides otherwise."""
    loop = "while :; do :; done"
    number = getattr(signal, f"SIG{name}")
    for before, wanted in (
        ("", ("killed", "killed", 128 + number, number, True)),
        (f"trap 'exit 7' {name}; ", ("completed", "exit", 7, None, True)),
    ):
        run_id = daemon.start(f"echo begun; {before}{loop}")
        wait_for(lambda run_id=run_id: daemon.json("GET", f"/runs/{run_id}")["cursor"] > 0)
        assert daemon.json("POST", f"/kill?signal={name}")["killed"]
        run = daemon.json("GET", f"/runs/{run_id}/wait")
        assert (run["status"], run["cause"], run["exit_code"], run["signal"], run["restored"]) == wanted, run
        assert daemon.run(f"trap - {name}; echo on")["stdout"] == "on\n"
