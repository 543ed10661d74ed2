"""What goes wrong on real machines, made to happen: limits, storms, full disks, endless output, crashes.

Each test drives a real daemon over HTTP. The form with 10 GB of output runs where SHELLD_TEST_HUGE is 1.
"""

import os
import random
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import RunningDaemon, alive, processes_with, running_daemon, wait_for

ROOT = Path(__file__).parent.parent
QUICK = {"limits__check_interval": "100ms", "timeout__kill": "300ms"}
MEBIBYTE = 1 << 20


def started(start_daemon: Callable[..., RunningDaemon], **options: str) -> RunningDaemon:
    """Return a daemon of the test's own with a main shell that is ready."""
    daemon = start_daemon(**{**QUICK, **options})
    daemon.fresh()
    return daemon


def open_session(daemon: RunningDaemon) -> str:
    """Open a session and return its id."""
    answer = daemon.client.post("/sessions")
    assert answer.status_code == 201, answer.text
    return answer.json()["session_id"]


def run_in(daemon: RunningDaemon, session_id: str, command: str, **fields: Any) -> dict[str, Any]:
    """Run a command in a session and return the result."""
    return daemon.json("POST", f"/sessions/{session_id}/run", json={"command": command, **fields})


def outcome(result: dict[str, Any]) -> tuple[Any, ...]:
    """Return what a result says of how the run ended."""
    return result["status"], result["cause"], result["exit_code"]


def works(daemon: RunningDaemon) -> bool:
    """Return whether the main shell runs a command as it should."""
    result = daemon.run("echo works")
    return (*outcome(result), result["stdout"]) == ("completed", "exit", 0, "works\n")


def read(daemon: RunningDaemon, run_id: str, **parameters: Any) -> dict[str, Any]:
    """Read output of a run by cursor."""
    return daemon.json("GET", f"/runs/{run_id}/output", params=parameters)


def resident_mb(pid: int) -> float:
    """Return how much memory of a process is resident."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


# --- the shell itself is attacked ---------------------------------------------------------------------------


def test_stopped_shell(daemon: RunningDaemon) -> None:
    """A command that stops its own shell completes anyway."""
    result = daemon.run("echo before; kill -STOP $$; echo after", timeout=60)
    assert (result["status"], result["stdout"]) == ("completed", "before\nafter\n")
    assert works(daemon)


def test_interrupts_at_any_moment(daemon: RunningDaemon) -> None:
    """Hardly an interrupt is lost, be it that bash is about to execute a program or that one is just ending.

    Two are allowed for: bash itself can go on with a command though it has taken the signal.
    """
    moment = random.Random(1)
    lost = 0
    for number in range(120):
        run_id = daemon.start("echo once; for i in {1..9}; do /bin/true; done; sleep 20; echo no")
        time.sleep(moment.random() * 0.015)
        if number % 2:
            daemon.client.post(f"/runs/{run_id}/kill", params={"signal": "INT"})
        else:
            daemon.client.post(f"/runs/{run_id}/stdin", content=b"\x03")
        result = daemon.json("GET", f"/runs/{run_id}/wait", params={"timeout": "1s"})
        if result["status"] == "running":
            lost += 1
            daemon.client.post("/recycle")
        else:
            assert (result["status"], result["exit_code"]) == ("killed", 130)
            assert result["stdout"] in ("once\n\n", "\n")
    assert lost <= 2


def test_interrupts_of_a_shell_that_exits(daemon: RunningDaemon) -> None:
    """Whenever the key comes, it does not cost the shell."""
    for _ in range(40):
        run_id = daemon.start("kept=1; exit 3")
        daemon.client.post(f"/runs/{run_id}/stdin", content=b"\x03")
        assert daemon.finished(run_id)["exit_code"] in (3, 130)
        assert works(daemon)


@pytest.mark.parametrize("limit", [5, 40, 200])
@pytest.mark.parametrize("taken", [True, False])
def test_exhausted_descriptors(daemon: RunningDaemon, limit: int, taken: bool) -> None:
    """A shell that may have few descriptors, or whose descriptors were all taken, can be used afterwards."""
    command = f"ulimit -Sn {limit}"
    if taken:
        command += "; for i in {1..200}; do exec {fd}</dev/null || break; done 2>/dev/null"
    result = daemon.run(command)
    assert result["status"] == "completed", result
    assert works(daemon)
    assert int(daemon.run("ulimit -Sn")["stdout"]) == 1024
    assert daemon.run("exit 3")["exit_code"] == 3
    assert works(daemon)


def test_deleted_working_directory(daemon: RunningDaemon, tmp_path: Path) -> None:
    """A shell in a directory that is gone runs commands, comes back from `exit`, and can leave it."""
    place = tmp_path / "gone"
    place.mkdir()
    assert daemon.run(f"cd {shlex.quote(str(place))} && rmdir {shlex.quote(str(place))}")["exit_code"] == 0
    assert works(daemon)
    assert daemon.run("exit 4")["exit_code"] == 4
    assert works(daemon)
    assert daemon.run("cd /")["working_directory"] == "/"
    assert works(daemon)


def test_leaving_a_deleted_working_directory(daemon: RunningDaemon, tmp_path: Path) -> None:
    """`cd` out of a directory that is gone says nothing."""
    place = tmp_path / "gone"
    place.mkdir()
    daemon.run(f"cd {shlex.quote(str(place))} && rmdir {shlex.quote(str(place))}")
    assert daemon.run("cd / && pwd")["stdout"] == "/\n"


@pytest.mark.parametrize(
    "damage",
    [
        "builtin() { echo no; }",
        "builtin() { :; }; printf() { echo no; }; eval() { echo no; }",
        "enable -n builtin",
        "enable -n printf mapfile",
        "enable -n eval",
    ],
)
def test_builtins_that_a_command_takes_away(daemon: RunningDaemon, tmp_path: Path, damage: str) -> None:
    """The command runs once, ends, and the next one finds a shell that works."""
    trace = tmp_path / "trace"
    result = daemon.run(f"echo ran >> {shlex.quote(str(trace))}; {damage}", timeout=60)
    assert result["status"] == "completed"
    assert works(daemon)
    assert trace.read_text() == "ran\n"


# --- much output --------------------------------------------------------------------------------------------


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of a few megabytes, unmounted afterwards."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "shelld-test", str(place)]
    if os.getuid() or subprocess.run(mount, capture_output=True, timeout=10, check=False).returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield place
    subprocess.run(["umount", "-l", str(place)], timeout=10, check=True)


@pytest.mark.root
def test_full_disk_for_the_log(small_disk: Path, tmp_path: Path) -> None:
    """With a full disk the run goes on, the loss is stated, and the daemon and the next run live."""
    data = str(small_disk / "data")
    with running_daemon(tmp_path / "daemon", server__data_directory=data) as daemon:
        daemon.fresh()
        result = daemon.run("head -c 20M /dev/zero | tr '\\0' x; echo; echo finished >witness")
        assert (result["status"], result["exit_code"]) == ("completed", 0), result
        assert (tmp_path / "daemon" / "work" / "witness").read_text() == "finished\n"
        lost = int((result["error"] or "0").split()[0])
        assert (20 - 4) * MEBIBYTE <= lost <= 20 * MEBIBYTE + 1, result["error"]
        path = f"/runs/{result['run_id']}/output"
        assert daemon.json("GET", f"{path}?cursor={result['cursor']}")["error"] == result["error"]
        for query in ("", f"?cursor={result['cursor']}"):  # all of it, and a read by cursor, as text
            assert "bytes" in daemon.client.get(path + query, headers={"Accept": "text/plain"}).headers["x-run-error"]
        events = daemon.client.get(f"{path}?cursor={result['cursor']}", headers={"Accept": "text/event-stream"})
        assert result["error"] in events.text.rpartition("event: result")[2]
        for command in ("echo short", "seq 20000"):  # the form of text says so as well, however much is lost
            answer = daemon.client.post("/run", content=command)
            assert answer.status_code == 200
            assert "bytes" in answer.headers["x-run-error"], (command, answer.headers)
        daemon.client.delete(f"/runs/{result['run_id']}")
        assert works(daemon)


def flood(daemon: RunningDaemon, mebibytes: int, timeout: float) -> None:
    """Let a command write so much while /status is asked; check memory and the count of bytes.

    How long an answer takes meanwhile is for scripts/bench.py to say.
    """
    size = mebibytes << 20
    run_id = daemon.start(f"head -c {size} /dev/zero")
    answers, memory = 0, 0.0
    deadline = time.monotonic() + timeout
    while daemon.json("GET", "/runs?limit=1")[0]["status"] == "running":
        assert time.monotonic() < deadline, "the output did not end in time"
        assert daemon.client.get("/status").status_code == 200
        answers += 1
        memory = max(memory, resident_mb(daemon.process.pid))
        time.sleep(0.02)
    result = daemon.json("GET", f"/runs/{run_id}?max_output=10")
    assert (outcome(result), result["cursor"]) == (("completed", "exit", 0), size)
    assert answers
    assert memory < 70


def test_a_flood_of_output(start_daemon) -> None:
    """While many megabytes are written other requests are answered, and memory stays small."""
    flood(started(start_daemon, output__log_max="16MiB"), 150, 600)


@pytest.mark.skipif(os.environ.get("SHELLD_TEST_HUGE") != "1", reason="SHELLD_TEST_HUGE is not 1")
def test_ten_gigabytes_of_output(start_daemon) -> None:
    """Ten gigabytes are no other than some."""
    flood(started(start_daemon), 10_240, 3600)


def test_log_maximum(start_daemon) -> None:
    """A log that is too large keeps its beginning and its end; reads say what was dropped; files stay bounded."""
    daemon = started(start_daemon, output__log_max="1MiB")
    result = daemon.run("echo BEGIN; head -c 8M /dev/zero | tr '\\0' x; echo; echo END", max_output=1000)
    size = 6 + 8 * MEBIBYTE + 1 + 4
    assert result["cursor"] == size
    assert result["stdout"].startswith("BEGIN\n")
    assert result["stdout"].endswith("\nEND\n")
    cursor = kept = dropped = 0
    while not (part := read(daemon, result["run_id"], cursor=cursor, format="raw", limit=100_000))["eof"]:
        assert part["next_cursor"] > cursor
        cursor, kept, dropped = part["next_cursor"], kept + len(part["output"]), dropped + part["dropped"]
    kept, dropped = kept + len(part["output"]), dropped + part["dropped"]
    assert part["output"].endswith("\nEND\n")
    assert dropped > 0
    assert kept + dropped == size
    files = [path for path in (daemon.data / "runs" / result["run_id"]).iterdir() if path.is_file()]
    assert sum(path.stat().st_blocks * 512 for path in files) < 1.5 * MEBIBYTE


# --- the end of the shell -----------------------------------------------------------------------------------


def test_exit_ends_the_shell(start_daemon) -> None:
    """With shell.on_exit at `end`, `exit` makes the run lost and the shell unrecoverable."""
    daemon = started(start_daemon, shell__on_exit="end")
    result = daemon.run("echo x; exit 5")
    assert outcome(result) == ("lost", "shell_exited", 5)
    assert result["error"]
    assert (result["state"], daemon.state()) == ("unrecoverable", "unrecoverable")
    daemon.fresh()
    assert works(daemon)


def test_exit_keeps_the_shell(daemon: RunningDaemon, tmp_path: Path) -> None:
    """`exit` ends the run alone: everything of the shell is kept, and the user's EXIT trap runs once."""
    place = tmp_path / "a place"
    place.mkdir()
    trapped = tmp_path / "trapped"
    daemon.run(
        f"""cd {shlex.quote(str(place))}
        plain=$'a\\nb\\xff\\'"'; export exported=yes; declare -i number=4
        list=(one 'two words' $'three\\n'); declare -A table=([k]=v ['a key']='a value')
        greet() {{ echo "hello $1"; }}
        shopt -s expand_aliases extglob; alias hi='echo aliased'
        umask 027; set -u
        trap 'echo once >>{shlex.quote(str(trapped))}' EXIT"""
    )
    show = (
        "declare -p plain exported number list table; greet you; pwd; umask; shopt -q extglob; echo $?; "
        "[[ $- == *u* ]]; echo $?"
    )
    before = daemon.run(show)
    assert before["exit_code"] == 0, before
    result = daemon.run("exit 6")
    assert (*outcome(result), result["restored"], result["state"]) == ("completed", "exit", 6, True, "ready")
    after = daemon.run(show)
    assert after["stdout"] == before["stdout"]
    assert daemon.run("hi")["stdout"] == "aliased\n"
    assert trapped.read_text() == "once\n"


def test_errexit_keeps_the_shell(daemon: RunningDaemon) -> None:
    """A command that fails under `set -e` ends the run alone, and errexit is off afterwards."""
    daemon.run("kept=1")
    result = daemon.run("set -e; false; echo not reached")
    assert (*outcome(result), result["restored"], result["stdout"]) == ("completed", "exit", 1, True, "")
    assert daemon.run("false; echo $kept $-")["stdout"].startswith("1 ")


def test_large_variable_survives(daemon: RunningDaemon) -> None:
    """A variable of 10 MB is the same after `exit`."""
    digest = 'printf %s "$large" | md5sum'
    daemon.run("large=$(head -c 10000000 /dev/zero | tr '\\0' v)$'\\nend'")
    before = daemon.run(f"echo ${{#large}}; {digest}")["stdout"]
    assert before.startswith("10000004\n")
    assert daemon.run("exit 1", timeout=30)["restored"] is True
    assert daemon.run(f"echo ${{#large}}; {digest}")["stdout"] == before


# --- background processes -----------------------------------------------------------------------------------


def test_background_output_stays_with_its_run(daemon: RunningDaemon, tmp_path: Path) -> None:
    """What a background process writes after its run is kept with it, and is in no other result."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    first = daemon.run(f"{{ read -r _ <{shlex.quote(str(gate))}; echo LATE; }} & echo $!")
    pid = int(first["stdout"].splitlines()[-1])
    assert first["background_pids"] == [pid]
    gate.write_text("go\n")
    wait_for(lambda: not alive(pid))
    wait_for(lambda: "LATE" in read(daemon, first["run_id"])["output"])
    second = daemon.run("echo second")
    assert second["stdout"] == "second\n"


def test_jobs_across_runs(daemon: RunningDaemon) -> None:
    """`$!`, `jobs`, `wait` and `fg` work in later runs than the one that started the job."""
    pid = int(daemon.run("(sleep 0.2; exit 7) & echo $!")["stdout"].splitlines()[-1])
    assert daemon.run("echo $!")["stdout"] == f"{pid}\n"
    assert daemon.run("wait $!")["exit_code"] == 7
    daemon.run("sleep 0.3 &")
    assert "sleep 0.3" in daemon.run("jobs")["stdout"]
    result = daemon.run("fg")
    assert (result["exit_code"], "sleep 0.3" in result["stdout"]) == (0, True)
    assert daemon.run("jobs")["stdout"] == ""


@pytest.mark.parametrize("how", ["{} &", "nohup {} >/dev/null 2>&1 &", "setsid {} &", "{} & disown"])
def test_servers_let_the_run_complete(daemon: RunningDaemon, how: str) -> None:
    """A server that is put into the background in any of the usual ways lets the run complete at once."""
    result = daemon.run(how.format("sleep 4716"), timeout="5m")
    assert result["status"] == "completed"
    assert 1 <= len(result["background_pids"]) <= 2, "setsid may not have parted with its child yet"
    wait_for(lambda: processes_with("4716"))  # the child may still be a copy of bash, about to execute it


# --- standard error apart -----------------------------------------------------------------------------------


def test_separate_streams(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Standard error comes apart, both are terminals, and `exec 2>file` lasts."""
    log = tmp_path / "errors"
    result = daemon.run("echo out; echo err >&2; [ -t 1 ] && [ -t 2 ] && echo terminals", streams="separate")
    assert (result["stdout"], result["stderr"]) == ("out\nterminals\n", "err\n")
    daemon.run(f"exec 2>{shlex.quote(str(log))}", streams="separate")
    result = daemon.run("echo out; echo lasting >&2", streams="separate")
    assert (result["stdout"], result["stderr"]) == ("out\n", "")
    result = daemon.run("echo merged >&2")
    assert result["stdout"] == ""
    assert log.read_text() == "lasting\nmerged\n"


# --- sessions and one-shot commands -------------------------------------------------------------------------


def test_sessions(daemon: RunningDaemon) -> None:
    """Sessions are opened, listed, used and closed, and share nothing with each other or the main shell."""
    first, second = open_session(daemon), open_session(daemon)
    assert {first, second} <= {session["session_id"] for session in daemon.json("GET", "/sessions")}
    run_in(daemon, first, "x=1; cd /usr; f() { :; }")
    for result in (run_in(daemon, second, "echo ${x-none} $PWD; type f"), daemon.run("echo ${x-none} $PWD; type f")):
        assert result["stdout"].startswith("none ")
        assert "/usr" not in result["stdout"]
        assert result["exit_code"] == 1
    assert run_in(daemon, first, "echo $x $PWD")["stdout"] == "1 /usr\n"
    described = daemon.json("GET", f"/sessions/{first}")
    assert (described["state"], described["working_directory"]) == ("ready", "/usr")
    assert {"created_at", "expires_at"} <= described.keys()
    for session_id in (first, second):
        pid = daemon.json("GET", f"/sessions/{session_id}")["shell_pid"]
        assert daemon.json("DELETE", f"/sessions/{session_id}") == {"session_id": session_id}
        assert daemon.client.get(f"/sessions/{session_id}").status_code == 404
        wait_for(lambda pid=pid: not alive(pid))


def test_too_many_sessions(start_daemon) -> None:
    """More sessions than limits.max_sessions are 429; closing one makes room."""
    daemon = started(start_daemon, limits__max_sessions="2")
    first, _ = open_session(daemon), open_session(daemon)
    assert daemon.client.post("/sessions").status_code == 429
    daemon.client.delete(f"/sessions/{first}")
    open_session(daemon)


def test_any_number_of_sessions(start_daemon) -> None:
    """With limits.max_sessions = 0 there is no limit, as everywhere among the limits."""
    daemon = started(start_daemon, limits__max_sessions="0")
    assert len({open_session(daemon) for _ in range(17)}) == 17


def test_idle_session(start_daemon) -> None:
    """A session that nobody uses ends by itself, and not while a run is going on."""
    daemon = started(start_daemon, timeout__session_idle="300ms")
    session_id = open_session(daemon)
    pid = daemon.json("GET", f"/sessions/{session_id}")["shell_pid"]
    result = run_in(daemon, session_id, "sleep 0.9; echo done")
    assert result["stdout"] == "done\n"
    wait_for(lambda: not alive(pid))
    assert daemon.client.get(f"/sessions/{session_id}").status_code == 404


def test_many_sessions_at_once(start_daemon) -> None:
    """Twenty sessions work side by side without a mix-up."""
    daemon = started(start_daemon, limits__max_sessions="20")

    def use(number: int) -> list[str]:
        session_id = open_session(daemon)
        run_in(daemon, session_id, f"n={number}")
        return [run_in(daemon, session_id, "echo $n")["stdout"] for _ in range(5)]

    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(use, range(20))) == [[f"{number}\n"] * 5 for number in range(20)]


def execute(daemon: RunningDaemon, command: str, **fields: Any) -> dict[str, Any]:
    """Run a command in a shell of its own and return the result."""
    return daemon.json("POST", "/exec", json={"command": command, **fields})


def test_exec(daemon: RunningDaemon) -> None:
    """A one-shot command has its streams apart, and no shell is left of it."""
    before = len(daemon.json("GET", "/sessions"))
    result = execute(daemon, "echo out; echo err >&2; (exit 3)")
    assert (result["stdout"], result["stderr"], result["exit_code"]) == ("out\n", "err\n", 3)
    wait_for(lambda: len(daemon.json("GET", "/sessions")) == before)


def test_exec_with_a_background_process(daemon: RunningDaemon) -> None:
    """A one-shot command's background process lives on; when it has ended no shell is left."""
    before = set(daemon.shells())
    result = execute(daemon, "sleep 4717 & echo $!")
    pid = int(result["stdout"].splitlines()[-1])
    assert (result["status"], result["background_pids"]) == ("completed", [pid])
    assert alive(pid)
    os.kill(pid, signal.SIGTERM)
    wait_for(lambda: set(daemon.shells()) <= before)


def test_many_one_shot_commands(daemon: RunningDaemon) -> None:
    """Thirty one-shot commands at once each give their own answer, and nothing is left of them."""
    before = set(daemon.shells())
    with ThreadPoolExecutor(30) as pool:
        results = list(pool.map(lambda number: execute(daemon, f"echo {number}; sleep 0.1; exit {number}"), range(30)))
    assert [(result.get("stdout"), result.get("exit_code")) for result in results] == [(f"{n}\n", n) for n in range(30)]
    wait_for(lambda: set(daemon.shells()) <= before)


# --- metadata and files -------------------------------------------------------------------------------------


def test_metadata(daemon: RunningDaemon) -> None:
    """The description of the machine has its members in the contract's form."""
    found = daemon.json("GET", "/metadata")
    assert found["shell"].startswith("bash GNU bash, version ")
    assert Path(found["workspace_directory"]).is_dir()
    assert found["operating_system"]
    assert found["version"]
    assert found["user"]
    assert found["cpus"] > 0
    assert found["memory_mb"] > 0
    assert isinstance(found["limits"], dict)
    assert isinstance(found["timeouts"], dict)
    assert found["allowed_directories"] == [found["workspace_directory"]]


def test_files(start_daemon) -> None:
    """Files are made, read, changed and set back over HTTP, and none outside of the allowed directories."""
    daemon = start_daemon()
    work = daemon.log.parent / "work"

    def change(operation: str, expected: int = 200, **fields: Any) -> dict[str, Any]:
        answer = daemon.client.post(f"/files/{operation}", json=fields)
        assert answer.status_code == expected, answer.text
        return answer.json()

    change("create", path="sub/a.txt", content="one\ntwo\n")
    assert change("read", path="sub/a.txt", view_range=[2, -1])["content"].strip("\n") == "two"
    assert change("replace", path="sub/a.txt", old_string="two", new_string="2")["replacements"] == 1
    assert (work / "sub/a.txt").read_text() == "one\n2\n"
    assert change("undo", path="sub/a.txt")["undo_depth"] == 1
    assert (work / "sub/a.txt").read_text() == "one\ntwo\n"
    change("create", 409, path="sub/a.txt", content="")
    (work / "way out").symlink_to("/etc")
    for path in ("/etc/passwd", "../../../../../../etc/passwd", "way out/passwd"):
        change("read", 403, path=path)


def test_raw_files(start_daemon) -> None:
    """Any bytes are put and fetched, whole and in ranges."""
    daemon = start_daemon()
    content = bytes(range(256)) * 4
    assert daemon.client.put("/files/raw?path=blob.dat", content=content).status_code == 200
    assert daemon.client.get("/files/raw?path=blob.dat").content == content
    for wanted, part in {
        "bytes=10-19": content[10:20],
        "bytes=-5": content[-5:],
        "bytes=1000-": content[1000:],
    }.items():
        answer = daemon.client.get("/files/raw?path=blob.dat", headers={"Range": wanted})
        assert (answer.status_code, answer.content) == (206, part)
    assert daemon.client.get("/files/raw?path=blob.dat", headers={"Range": "bytes=5000-"}).status_code == 416
    assert daemon.client.get("/files/raw?path=/etc/passwd").status_code == 403


# --- crashes and endurance ----------------------------------------------------------------------------------


def test_killed_daemon(tmp_path: Path) -> None:
    """After SIGKILL the log holds all that a reader had seen, and the next daemon shows the run as lost."""
    with running_daemon(tmp_path / "daemon") as daemon:
        daemon.fresh()
        run_id = daemon.start("for ((i = 0; ; i++)); do echo line $i; done")
        wait_for(lambda: read(daemon, run_id, cursor=100_000)["output"])
        seen = read(daemon, run_id, cursor=0, format="raw")["output"]
        assert len(seen) > 50_000
        daemon.process.kill()
        daemon.process.wait(60)
        log = (daemon.data / "runs" / run_id / "output.log").read_bytes()
        assert log.startswith(seen.encode())
    with running_daemon(tmp_path / "daemon") as daemon:
        result = daemon.json("GET", f"/runs/{run_id}")
        assert (result["status"], result["cause"]) == ("lost", "daemon_restarted")
        assert result["duration"] > 0.02, "until it last wrote something"
        assert result["stdout"].startswith("line 0\nline 1\n")
        assert read(daemon, run_id, cursor=0, format="raw", limit=len(seen))["output"] == seen


def test_soak() -> None:
    """A short form of the soak test finds no wrong answer and nothing that grows."""
    command = [sys.executable, "scripts/soak.py", "700"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
