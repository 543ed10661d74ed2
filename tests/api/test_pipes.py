"""`streams: "pipes"`: a command without a terminal, whose output streams and input are exact."""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import PATIENCE, RunningDaemon, alive, processes_with, wait_for

SERVER = """\
import json, sys
for line in sys.stdin:
    call = json.loads(line)
    print(json.dumps({"id": call["id"], "result": call["params"][::-1]}), flush=True)
print("bye", file=sys.stderr)
"""


def execute(daemon: RunningDaemon, command: str | list[str], **fields: Any) -> dict[str, Any]:
    """Run a command with pipes; return its result."""
    what = {"command": command} if isinstance(command, str) else {"argv": command}
    content = json.dumps({**what, "streams": "pipes", **fields})
    return daemon.json("POST", "/exec", content=content, headers={"Content-Type": "application/json"})


def test_there_is_no_terminal(daemon: RunningDaemon) -> None:
    """None of the streams is one, bash is not interactive and reads no file, and standard input is empty."""
    Path(daemon.data.parent, "work", ".bashrc").write_text("echo bashrc; alias ls=false\n")
    shown = execute(
        daemon,
        "for i in 0 1 2; do test -t $i && echo terminal $i; done; [[ $- == *i* ]] && echo interactive; cat; "
        "ls /dev/null; echo err >&2; (: </dev/tty) 2>/dev/null && echo tty; exit 3",
    )
    Path(daemon.data.parent, "work", ".bashrc").unlink()
    assert (shown["stdout"], shown["stderr"]) == ("/dev/null\n", "err\n")
    assert (shown["status"], shown["cause"], shown["exit_code"], shown["state"]) == ("completed", "exit", 3, "ready")
    assert (shown["streams"], shown["restored"], shown["awaiting_input"]) == ("pipes", False, False)


def test_each_stream_is_exact(daemon: RunningDaemon) -> None:
    """Any byte, and as much as there is of it, in a log of its own."""
    code = "import os; [os.write(n, bytes(range(256)) * 4096) for n in (1, 2, 1)]"
    run_id = execute(daemon, [sys.executable, "-c", code])["run_id"]
    for stream, size in (("stdout", 2 << 20), ("stderr", 1 << 20)):
        asked = {"stream": stream, "cursor": 0, "limit": 1 << 23, "format": "raw"}
        answer = daemon.client.get(f"/runs/{run_id}/output", params=asked, headers={"Accept": "text/plain"})
        assert answer.content == bytes(range(256)) * (size // 256)


def test_a_flow_of_small_pieces_is_exact_and_goes_on_after_a_pause(daemon: RunningDaemon) -> None:
    """All of it is there while the command goes on, and what comes after a pause and at the end as well."""
    code = (
        "import os, sys; w = lambda: [os.write(1, b'%07d\\n' % i) for i in range(5000)]; w(); sys.stdin.readline(); w()"
    )
    run_id = execute(daemon, [sys.executable, "-c", code], stdin_open=True, timeout=0)["run_id"]
    whole = "".join(f"{number:07}\n" for number in range(5000))
    seen = ""
    while len(seen) < len(whole):
        asked = {"cursor": len(seen), "wait": PATIENCE}
        seen += daemon.json("GET", f"/runs/{run_id}/output", params=asked)["output"]
    assert seen == whole
    daemon.client.post(f"/runs/{run_id}/stdin", content=b"\n")
    assert daemon.finished(run_id)["exit_code"] == 0
    assert daemon.json("GET", f"/runs/{run_id}/output", params={"cursor": 0})["output"] == whole * 2


@pytest.mark.parametrize("streams", ["pipes", "merged"])
def test_input_that_nobody_reads_is_bounded(daemon: RunningDaemon, streams: str) -> None:
    """What would be too much is not taken at all; less is, and the daemon tells how much it has."""
    stdin_open = {"stdin_open": True} if streams == "pipes" else {}
    fields = {"command": "sleep 987", "streams": streams, "timeout": 0, **stdin_open}
    run_id = daemon.json("POST", "/exec", json=fields)["run_id"]
    piece = b"x" * (10 << 20)
    path = f"/runs/{run_id}/stdin"
    assert daemon.json("POST", path, content=piece) == {"accepted": len(piece)}
    refused = daemon.json("POST", f"{path}?eof=true", content=piece)
    assert (refused["status"], refused["code"], refused["accepted"]) == (409, "stdin_full", len(piece))
    assert "offset" in refused["hint"]
    assert daemon.json("POST", path, content=piece[:1000])["accepted"] == len(piece) + 1000
    daemon.client.post(f"/runs/{run_id}/kill")


@pytest.mark.parametrize("end", ["", " #" + "x" * 100_000])
def test_a_command_may_begin_like_an_option(daemon: RunningDaemon, end: str) -> None:
    """It is a command all the same, as in a terminal."""
    shown = execute(daemon, f"-x true{end}")
    assert (shown["exit_code"], "command not found" in shown["stderr"]) == (127, True)


def test_options_of_a_run(daemon: RunningDaemon, tmp_path: Path) -> None:
    """Directory, variables and input as everywhere; a very long command is one, too."""
    shown = execute(daemon, "pwd; echo $A $PWD; cat", directory=str(tmp_path), environment={"A": "b"}, stdin="in\udcff")
    assert shown["stdout"] == f"{tmp_path}\nb {tmp_path}\nin\ufffd"
    assert (shown["directory"], shown["working_directory"]) == (str(tmp_path), str(tmp_path))
    long = execute(daemon, f"echo {'x' * 200_000} | wc -c; ls /proc/$$/fd | grep -c 9; cat", stdin="in")
    assert long["stdout"] == "200001\n0\nin"


def test_a_program_is_executed_as_it_is(daemon: RunningDaemon, tmp_path: Path) -> None:
    """There is no bash between; what cannot be executed is told as by a shell."""
    shown = execute(daemon, [sys.executable, "-c", "import os; print(os.environ.get('SHLVL'))"])
    assert shown["stdout"] == f"{os.environ.get('SHLVL')}\n"
    assert execute(daemon, ["printf", "<%s>", "a  b", "$HOME", "'"])["stdout"] == "<a  b><$HOME><'>"
    missing = execute(daemon, ["no such program"])
    assert (missing["exit_code"], missing["stderr"]) == (127, "'no such program': command not found\n")
    plain = tmp_path / "plain"
    plain.write_text("echo\n")
    refused = execute(daemon, [str(plain)])
    assert (refused["exit_code"], refused["stderr"]) == (126, f"{plain}: Permission denied\n")


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [("kill -9 $$", 137, 9), ("sh -c 'kill -9 $$'; exit", 137, 9), ("exit 137", 137, None)],
)
def test_signals_that_a_command_died_of(daemon: RunningDaemon, command: str, code: int, number: int | None) -> None:
    """What the kernel says is sure; below bash it is judged as everywhere."""
    shown = execute(daemon, command)
    assert (shown["exit_code"], shown["signal"], shown["status"]) == (code, number, "completed")


@pytest.mark.parametrize(("trap", "number"), [("", 2), ("trap '' INT; ", 9)])
def test_a_kill_gets_all_that_was_started(
    start_daemon: Callable[..., RunningDaemon], tmp_path: Path, trap: str, number: int
) -> None:
    """SIGINT first, SIGKILL for what ignores it; what has left the process group goes with the rest."""
    daemon = start_daemon(timeout__kill="200ms")
    pids = tmp_path / "pids"
    command = f"setsid sleep 987 & echo $! >{pids}; {trap}sleep 986; sleep 987"
    run_id = execute(daemon, command, timeout=0)["run_id"]
    wait_for(lambda: pids.exists() and pids.read_text().strip())
    killed = daemon.json("POST", f"/runs/{run_id}/kill")
    assert (killed["killed"], killed["survivors"]) == (True, [])
    result = daemon.finished(run_id)
    assert (result["status"], result["cause"], result["signal"]) == ("killed", "killed", number)
    wait_for(lambda: not alive(int(pids.read_text())))


@pytest.mark.parametrize("which", [0, 1])
def test_what_starts_commands_is_replaced_where_it_was_killed(
    start_daemon: Callable[..., RunningDaemon], which: int
) -> None:
    """A command can kill any process of its user: the helper, and the keeper that was forked ahead."""
    daemon = start_daemon()
    assert execute(daemon, "echo 1")["stdout"] == "1\n"
    wait_for(lambda: len(daemon.children()) == 2)
    killed = sorted(daemon.children())[which]
    os.kill(killed, 9)
    wait_for(lambda: not alive(killed))
    assert execute(daemon, "echo 2")["stdout"] == "2\n"
    assert execute(daemon, "echo 3")["stdout"] == "3\n"


def test_signals_and_deadlines(daemon: RunningDaemon) -> None:
    """One signal reaches the command; a deadline ends it and keeps its output."""
    command = "trap 'echo got it; exit 4' TERM; echo ready; while :; do sleep 0.05; done"
    run_id = execute(daemon, command, timeout=0)["run_id"]
    daemon.json("GET", f"/runs/{run_id}/wait", params={"until": "output:ready"})
    daemon.json("POST", f"/runs/{run_id}/kill", params={"signal": "TERM"})
    assert (daemon.finished(run_id)["stdout"], daemon.finished(run_id)["exit_code"]) == ("ready\ngot it\n", 4)
    late = execute(daemon, "echo begun; sleep 987", deadline=0.2)
    assert (late["status"], late["cause"], late["stdout"]) == ("killed", "deadline", "begun\n")


def test_background_processes(daemon: RunningDaemon, tmp_path: Path) -> None:
    """They are told of, what they write afterwards goes to the log of its stream, and the shell waits for them."""
    go = tmp_path / "go"
    os.mkfifo(go)
    shown = execute(daemon, f"{{ read -r _ <{go}; echo late; echo late err >&2; }} & echo now")
    assert (shown["stdout"], len(shown["background_pids"])) == ("now\n", 1)
    go.write_text("\n")
    wait_for(lambda: daemon.json("GET", f"/runs/{shown['run_id']}")["stderr"] == "late err\n")
    assert daemon.json("GET", f"/runs/{shown['run_id']}")["stdout"] == "now\nlate\n"
    kept = execute(daemon, "sleep 987 &")
    assert daemon.json("POST", f"/runs/{kept['run_id']}/kill")["killed"] is True
    wait_for(lambda: not alive(kept["background_pids"][0]))


def test_a_server_of_json_is_driven(daemon: RunningDaemon) -> None:
    """Its input comes by requests, its output is read by cursor; repeats are not read twice, gaps are refused."""
    run_id = execute(daemon, [sys.executable, "-c", SERVER], stdin_open=True, timeout=0)["run_id"]
    sent = cursor = 0
    for number in range(5):
        line = json.dumps({"id": number, "params": f"call {number}"}) + "\n"
        for _ in range(2):  # as after a broken connection, of which nobody knows what has come
            answer = daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": line, "offset": sent})
            assert answer == {"accepted": sent + len(line)}
        sent += len(line)
        part = daemon.json("GET", f"/runs/{run_id}/output", params={"cursor": cursor, "wait": PATIENCE})
        assert json.loads(part["output"]) == {"id": number, "result": f"call {number}"[::-1]}
        cursor = part["next_cursor"]
    assert daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": "x", "offset": sent + 1})["code"] == "stdin_gap"
    line = '{"id": 9, "params": "turn"}\n'
    turn = daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": line, "wait": PATIENCE})
    assert (turn["output"], turn["awaiting_input"]) == ('{"id": 9, "result": "nrut"}\n', False)
    for _ in range(2):
        closed = daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": "", "eof": True})
        assert closed.get("accepted", closed.get("code")) in (sent + len(line), "no_running_command")
    result = daemon.finished(run_id)
    assert (result["exit_code"], result["stderr"], result["awaiting_input"]) == (0, "bye\n", False)


def test_large_input_by_requests(daemon: RunningDaemon) -> None:
    """What a program takes slowly is kept until it does; the text of the request for the run comes first."""
    run_id = execute(daemon, "sleep 0.1; sha256sum; echo end", stdin_open=True, stdin="first", timeout=0)["run_id"]
    for _ in range(3):
        daemon.client.post(f"/runs/{run_id}/stdin", content=b"x" * 1_000_000)
    daemon.client.post(f"/runs/{run_id}/stdin?eof=true")
    expected = hashlib.sha256(b"first" + b"x" * 3_000_000).hexdigest()
    assert daemon.finished(run_id)["stdout"] == f"{expected}  -\nend\n"


@pytest.mark.parametrize("streams", ["pipes", "merged"])
def test_input_from_a_file(daemon: RunningDaemon, streams: str) -> None:
    """Whatever is in it; the path is contained as in any file operation, links included."""
    content = bytes(range(256)) * 10_000
    daemon.client.put("/files/raw", params={"path": "input.bin"}, content=content)
    shown = execute(daemon, "sha256sum", stdin_path="input.bin", streams=streams)
    assert shown["stdout"] == f"{hashlib.sha256(content).hexdigest()}  -\n"
    daemon.run("ln -sf /etc/passwd outside; mkfifo -m 600 fifo")
    for path, code in (
        ("outside", "path_not_allowed"),
        ("../x", "path_not_allowed"),
        ("none", "file_not_found"),
        ("fifo", "not_a_file"),
    ):
        assert execute(daemon, "cat", stdin_path=path)["code"] == code
    assert execute(daemon, "cat", stdin_path="input.bin", stdin="x")["code"] == "invalid_request"


def test_input_that_nobody_can_give(daemon: RunningDaemon) -> None:
    """Standard input that was not left open, or is closed, is no terminal to type into."""
    run_id = execute(daemon, "sleep 987", timeout=0)["run_id"]
    answer = daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": "x"})
    assert (answer["status"], answer["code"]) == (409, "stdin_closed")
    daemon.client.post(f"/runs/{run_id}/kill")
    run_id = execute(daemon, "exec <&-; echo closed; sleep 987", stdin_open=True, timeout=0)["run_id"]
    daemon.json("GET", f"/runs/{run_id}/wait", params={"until": "output:closed"})
    daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": "nobody reads it"})
    assert daemon.json("POST", f"/runs/{run_id}/stdin", json={"text": "x"})["code"] == "stdin_closed"
    daemon.client.post(f"/runs/{run_id}/kill")


@pytest.mark.parametrize(
    ("path", "fields", "told"),
    [
        ("/run", {"streams": "pipes"}, "/exec"),
        ("/exec", {"stdin_open": True}, "pipes"),
        ("/exec", {"streams": "pipes", "startup_file": ""}, "startup_file"),
        ("/exec", {"streams": "pipes", "directory": "/not/there"}, "directory"),
        ("/exec", {"streams": "pipes", "environment": {"A-B": "c"}}, "A-B"),
    ],
)
def test_what_does_not_fit(daemon: RunningDaemon, path: str, fields: dict[str, Any], told: str) -> None:
    answer = daemon.json("POST", path, json={"command": "true", **fields})
    assert (answer["status"], answer["code"]) == (400, "invalid_request")
    assert told in answer["detail"]


def test_nothing_is_left_when_the_daemon_is_killed(start_daemon: Callable[..., RunningDaemon], tmp_path: Path) -> None:
    """The keeper sees to that, for there is no terminal to be hung up; what has detached itself goes, too."""
    daemon = start_daemon()
    mark = f"98{os.getpid()}7"
    execute(daemon, f"setsid sleep {mark} & sleep {mark}; true", timeout=0)
    wait_for(lambda: len(processes_with(f"sleep\0{mark}")) == 2)
    daemon.process.kill()
    wait_for(lambda: not processes_with(f"sleep\0{mark}"))


def test_use_is_that_of_the_command(daemon: RunningDaemon) -> None:
    """The process that looks after it does not count."""
    code = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    usage = execute(daemon, [sys.executable, "-c", code])["usage"]
    assert 0.25 < usage["cpu_seconds"] < 3
    assert usage["peak_memory_mb"] < 1000
    assert execute(daemon, "sleep 0.3")["usage"]["peak_memory_mb"] < 10
