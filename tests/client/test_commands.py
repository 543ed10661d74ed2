"""The verbs for people, run as real processes: run, attach, status, kill. attach also in a real terminal."""

import contextlib
import json
import os
import pty
import re
import select
import signal
import socket
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ptyprocess import PtyProcess

from shelld_py.client.attach import TerminalOutput
from shelld_py.client.commands import describe
from shelld_py.models import ShellState, Status
from tests.api.conftest import Gate
from tests.client.proxies import proxy
from tests.daemons import KEY, PATIENCE, RunningDaemon, wait_for

PROGRAM = [sys.executable, "-m", "shelld_py"]


def _environ(url: str) -> dict[str, str]:
    return {**os.environ, "SHELLD_URL": url, "SHELLD_KEY": KEY}


def command(url: str, *arguments: str, **options: Any) -> "subprocess.CompletedProcess[str]":
    """Run the command to its end, with nothing on its standard input unless `options` say so."""
    options = {"stdin": None if "input" in options else subprocess.DEVNULL, "env": _environ(url), **options}
    return subprocess.run([*PROGRAM, *arguments], capture_output=True, text=True, timeout=60, check=False, **options)


Started = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(daemon: RunningDaemon) -> Iterator[Started]:
    """A function that starts the command, with pipes for its output."""
    started: list[subprocess.Popen[str]] = []

    def start_one(*arguments: str, **options: Any) -> "subprocess.Popen[str]":
        options = {"stdin": subprocess.DEVNULL, **options}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen([*PROGRAM, *arguments], text=True, env=_environ(daemon.url), **pipes, **options)
        started.append(process)
        return process

    yield start_one
    for process in started:
        process.kill()
        process.communicate()


# --- run --------------------------------------------------------------------------------------------------


def test_run_starts_the_shell_and_exits_as_the_command_does(start_daemon: Any) -> None:
    daemon = start_daemon()
    done = command(daemon.url, "run", "echo out; echo err >&2; name=kept; (exit 7)")
    assert (done.returncode, done.stdout, done.stderr) == (7, "out\nerr\n", "")
    assert command(daemon.url, "run", "echo $name").stdout == "kept\n"


def test_words_of_the_command_line(daemon: RunningDaemon) -> None:
    """A program and its arguments are handed on as they are, options too; one argument is a command line."""
    words = ["printf", "<%s>", "-n", "a b", "$HOME", "--timeout", ""]
    assert command(daemon.url, "run", *words).stdout == "<-n><a b><$HOME><--timeout><>"
    assert command(daemon.url, "run", "--timeout", "1m", "--", *words).stdout == "<-n><a b><$HOME><--timeout><>"
    assert command(daemon.url, "run", "echo a | tr a b").stdout == "b\n"


@pytest.mark.parametrize(("text", "status"), [("sh -c 'kill -TERM $$'", 143), ("kill -9 $$", 137)])
def test_exit_statuses_of_run(daemon: RunningDaemon, text: str, status: int) -> None:
    assert command(daemon.url, "run", text).returncode == status


def test_separate_streams(daemon: RunningDaemon) -> None:
    done = command(daemon.url, "run", "--separate", "echo out; echo err >&2")
    assert (done.stdout, done.stderr) == ("out\n", "err\n")


def test_output_in_a_pipe_is_text_in_its_final_form(daemon: RunningDaemon) -> None:
    """Colours are removed, a line that redraws itself is written once, and the last line break is not made up."""
    text = r"printf '10%%'; sleep 0.1; printf '\r100%%\n\e[31mred\e[0m and no end'"
    assert command(daemon.url, "run", text).stdout == "100%\nred and no end"


def test_output_on_a_terminal_is_live_and_raw(daemon: RunningDaemon, gate: Gate) -> None:
    process = _terminal(daemon, "run", rf"printf '\e[31mred\e[0m'; {gate}")
    assert _read_until(process, "red").startswith("\x1b[31mred")
    gate.open()
    _end(process, 0)


def test_output_comes_as_it_is_written(start: Started, gate: Gate) -> None:
    process = start("run", f"echo first; {gate}; echo second")
    assert process.stdout
    assert process.stdout.readline() == "first\n"
    gate.open()
    assert process.communicate(timeout=60)[0] == "second\n"


def test_run_in_a_session(daemon: RunningDaemon) -> None:
    session = daemon.json("POST", "/sessions", json={"environment": {"NAME": "session"}})["session_id"]
    assert command(daemon.url, "run", "--session", session, "echo $NAME").stdout == "session\n"
    daemon.client.delete(f"/sessions/{session}")
    done = command(daemon.url, "run", "--session", session, "true")
    assert (done.returncode, done.stderr) == (3, f"shelld-py: There is no session {session}; it may have ended.\n")


def test_a_timeout_ends_the_wait_alone(daemon: RunningDaemon) -> None:
    done = command(daemon.url, "run", "--timeout", "200ms", "echo begun; sleep 100")
    run_id = daemon.json("GET", "/status")["run"]["run_id"]
    assert (done.returncode, done.stdout) == (124, "begun\n")
    assert f"still running as run {run_id}" in done.stderr
    assert daemon.state() == "busy"


def test_a_deadline_ends_the_command(daemon: RunningDaemon) -> None:
    done = command(daemon.url, "run", "--deadline", "100ms", "sleep 987")
    assert (done.returncode, done.stderr) == (130, "shelld-py: Killed at its deadline of 100ms.\n")
    assert daemon.state() == "ready"
    assert command(daemon.url, "run", "--deadline", "soon", "true").returncode == 2


def test_a_command_that_waits_for_input_says_how_to_answer(daemon: RunningDaemon, start: Started) -> None:
    process = start("run", "read -rp 'Name? ' name; echo \"<$name>\"; exit 4")
    assert process.stderr
    hint = process.stderr.readline()
    run_id = daemon.json("GET", "/status")["run"]["run_id"]
    assert hint.endswith(f"shelld-py attach {run_id}\n")
    assert command(daemon.url, "attach", input="Ada\n").stdout == "Name? <Ada>\n"
    assert process.communicate(timeout=60)[0] == "Name? <Ada>\n"
    assert process.returncode == 4


def test_what_is_typed_at_run_goes_to_the_command_that_waits(daemon: RunningDaemon) -> None:
    """In a terminal the answer is typed where the question is, and seen; the exit status is the command's."""
    process = _terminal(daemon, "run", "read -rp 'Name? ' name; echo \"<$name>\"; exit 4")
    _read_until(process, "detaches)")
    process.write(b"Ada\r")
    assert "Ada\r\n<Ada>\r\n" in _read_until(process, "<Ada>\r\n")
    _end(process, 4)


def test_run_in_a_terminal_can_be_left_while_it_waits(daemon: RunningDaemon) -> None:
    """The detach key leaves the command to itself, and says which run it is."""
    process = _terminal(daemon, "run", "read -r line")
    _read_until(process, "detaches)")
    process.write(b"\x1d")
    run_id = daemon.json("GET", "/status")["run"]["run_id"]
    assert f"still running as run {run_id}" in _read_until(process, None)
    _end(process, 124)


def test_line_editing_shows_what_is_typed_while_somebody_is_attached(daemon: RunningDaemon) -> None:
    """A program with readline finds an echo to take over; when nobody is attached any more, there is none again."""
    loop = "while read -e -r -p '> ' line && [[ $line ]]; do echo \"<$line>\"; done"
    process = _terminal(daemon, "run", f"{loop}; stty -a")
    _read_until(process, "detaches)")
    for word in ("one", "two"):
        process.write(word.encode() + b"\r")
        seen = _read_until(process, f"<{word}>\r\n")
        assert seen.count(word) == 2, seen
    process.write(b"\r")
    assert " echo " in _read_until(process, " echoke")
    _end(process, 0)
    assert " -echo " in daemon.run("stty -a")["stdout"]


def test_a_refusal_says_what_to_do_next(daemon: RunningDaemon) -> None:
    """The hint of an error stands on a line of its own."""
    daemon.client.post("/startup")
    daemon.run("kill -9 $$")
    done = command(daemon.url, "run", "true")
    assert done.returncode == 3
    assert done.stderr.splitlines() == [
        "shelld-py: The shell is in an unrecoverable state and must be recycled.",
        "shelld-py: POST /recycle starts a fresh bash.",
    ]


@pytest.mark.parametrize(
    ("editor", "prompt", "first", "last"),
    [
        ("while read -e -r -p '> ' line; do echo \"<$line>\"; done", "> ", ("two", "<two>"), b"\x04"),
        ("PYTHON_BASIC_REPL=1 python3 -q", ">>> ", ("6*7", "42"), b"\x04"),
    ],
    ids=["read -e", "python"],
)
def test_who_comes_to_a_line_editor_at_its_prompt_sees_what_is_typed(
    daemon: RunningDaemon, editor: str, prompt: str, first: tuple[str, str], last: bytes
) -> None:
    """It has found no echo and shows nothing by itself, at no later prompt either; no mode is changed."""
    run_id = daemon.start(editor)
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}")["awaiting_input"])
    with _modes(daemon) as modes:
        before = modes()
        process = _terminal(daemon, "attach")
        _read_until(process, prompt)
        typed, answer = first
        for _ in range(2):
            process.write(typed[:1].encode() + b"\x1b[Dx\x7f\x1b[C" + typed[1:].encode() + b"\r")
            seen = _read_until(process, prompt)
            assert typed in seen.replace("x\b \b", ""), seen
            assert f"{answer}\r\n" in seen
        assert modes() == before
        process.write(b"\x1d")
        _read_until(process, None)
        _end(process, 0)
        assert modes() == before
    daemon.client.post("/stdin", content=last)
    assert daemon.json("GET", f"/runs/{run_id}/wait")["exit_code"] in (0, 1)
    assert " -echo " in daemon.run("stty -a")["stdout"]


def test_passwords_are_not_shown(daemon: RunningDaemon) -> None:
    """A program that turns the echo off keeps it off."""
    process = _terminal(daemon, "run", "read -rsp 'Password? ' word; echo; [[ $word == sesame ]]")
    _read_until(process, "detaches)")
    process.write(b"sesame\r")
    assert "sesame" not in _read_until(process, None)
    _end(process, 0)


def test_an_interrupt_kills_the_command_and_not_the_shell(daemon: RunningDaemon, start: Started) -> None:
    process = start("run", "name=kept; echo begun; sleep 100; echo not here")
    assert process.stdout
    assert process.stdout.readline() == "begun\n"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert (process.returncode, output.strip()) == (130, "")
    assert daemon.output("echo $name") == b"kept\n"


def test_a_second_interrupt_leaves_the_command_to_itself(start_daemon: Any) -> None:
    daemon = start_daemon(timeout__kill="10s")
    daemon.fresh()
    stubborn = "sh -c 'trap \"echo caught\" INT; echo begun; while :; do sleep 0.1; done'"
    arguments = [*PROGRAM, "run", stubborn]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(arguments, env=_environ(daemon.url), text=True, **pipes) as process:
        assert process.stdout
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGINT)
        assert process.stdout.readline() == "caught\n"
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert f"left to itself; it is run {daemon.json('GET', '/status')['run']['run_id']}" in said


def test_a_pipe_that_nobody_reads(daemon: RunningDaemon) -> None:
    line = f"{sys.executable} -m shelld_py run 'seq 1000000' | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=_environ(daemon.url), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n141\n", "")


def test_a_run_that_breaks_off_goes_on(daemon: RunningDaemon) -> None:
    with proxy(daemon.url, 900, 400, 500, 600) as broken:
        done = command(broken.url, "run", "for i in 1 2 3 4 5; do echo $i; sleep 0.03; done; exit 5")
        assert broken.connections > 3
    assert (done.returncode, done.stdout) == (5, "1\n2\n3\n4\n5\n")


# --- attach -----------------------------------------------------------------------------------------------


def test_attach_sends_what_is_piped_in(daemon: RunningDaemon) -> None:
    daemon.start("cat; echo over; exit 6")
    done = command(daemon.url, "attach", input="one\ntwo")
    assert (done.returncode, done.stdout, done.stderr) == (6, "one\ntwoover\n", "")


def test_attach_to_a_run_that_has_ended_shows_it(daemon: RunningDaemon) -> None:
    run = daemon.run("echo earlier; false")
    done = command(daemon.url, "attach", run["run_id"])
    assert (done.returncode, done.stdout) == (1, "earlier\n")


def test_attach_to_nothing(daemon: RunningDaemon) -> None:
    done = command(daemon.url, "attach")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert "No command is running" in done.stderr


def test_attach_in_a_terminal(daemon: RunningDaemon) -> None:
    """Keys go to the program, output comes with line ends for a raw terminal, the size is passed on."""
    run_id = daemon.start('echo ready; read -r line; echo "<$line>"; stty size; cat')
    process = _terminal(daemon, "attach", size=(31, 97))
    assert "ready\r\n" in _read_until(process, "ready\r\n")
    wait_for(lambda: _size(daemon) == "31 97")
    process.write(b"hello\r")
    assert "hello\r\n<hello>\r\n31 97\r\n" in _read_until(process, "97\r\n")
    process.setwinsize(17, 71)
    wait_for(lambda: _size(daemon) == "17 71")
    process.write(b"\x03")
    _read_until(process, "")
    _end(process, 130)
    assert daemon.finished(run_id)["signal"] == 2


def test_attach_comes_back_where_the_connection_was_lost(daemon: RunningDaemon) -> None:
    """Nothing is shown twice, nothing is left out, and what is typed then arrives."""
    daemon.start('for i in {101..120}; do echo line $i; sleep 0.02; done; read -r line; echo "<$line>"')
    with proxy(daemon.url, None, 900, 1000, 1100) as broken:
        process = PtyProcess.spawn([*PROGRAM, "attach"], env=_environ(broken.url), dimensions=(24, 80))
        seen = _read_until(process, "line 120\r\n")
        process.write(b"typed\r")
        seen += _read_until(process, "<typed>\r\n")
        assert broken.connections > 2
        _end(process, 0)
    assert re.findall(r"line (\d+)\r\n", seen) == [str(number) for number in range(101, 121)]


def test_the_detach_key_leaves_the_run_and_mends_the_terminal(daemon: RunningDaemon) -> None:
    daemon.start("printf '\\e[?1049hfull'; cat")
    process = _terminal(daemon, "attach")
    _read_until(process, "full")
    before = termios.tcgetattr(process.fd)
    assert not before[3] & termios.ICANON
    process.write(b"typed\r\x1d")
    assert "\x1b[?1049l" in _read_until(process, None)
    _end(process, 0)
    assert daemon.state() == "busy"
    wait_for(lambda: "typed" in daemon.client.get("/output").text)


@pytest.mark.parametrize("ending", ["end", "detach", "term", "gone"])
def test_the_terminal_gets_its_modes_back(request: pytest.FixtureRequest, start_daemon: Any, ending: str) -> None:
    """However attach ends; looked at by somebody who stays in the terminal."""
    daemon = start_daemon() if ending == "gone" else request.getfixturevalue("shared_daemon")
    daemon.fresh()
    daemon.start("echo ready; read -r line")
    master, slave = pty.openpty()
    before = termios.tcgetattr(slave)
    process = subprocess.Popen(
        [*PROGRAM, "attach"], stdin=slave, stdout=slave, stderr=slave, env=_environ(daemon.url), start_new_session=True
    )
    wait_for(lambda: not termios.tcgetattr(slave)[3] & termios.ICANON)
    match ending:
        case "end":
            os.write(master, b"line\r")
        case "detach":
            os.write(master, b"\x1d")
        case "term":
            process.terminate()
        case _:
            daemon.process.kill()
            daemon.process.wait()
    assert process.wait(60) == {"end": 0, "detach": 0, "gone": 3}.get(ending, 130)
    assert termios.tcgetattr(slave) == before
    os.close(master)
    os.close(slave)


def test_a_key_after_the_end_is_dropped_without_a_word() -> None:
    """The thread that reads the keyboard outlives the event loop, until the next key."""
    program = """
import asyncio, threading
from shelld_py.client.attach import read_input
async def main():
    read_input()
asyncio.run(main())
print("over", flush=True)
for thread in threading.enumerate():
    if thread.daemon:
        thread.join()
"""
    pipe = subprocess.PIPE
    with subprocess.Popen([sys.executable, "-c", program], stdin=pipe, stdout=pipe, stderr=pipe) as process:
        assert process.stdout
        assert process.stdout.readline() == b"over\n"
        assert process.communicate(b"x", timeout=PATIENCE) == (b"", b"")


@pytest.mark.parametrize(
    ("pieces", "shown"),
    [
        (["a\nb\n"], "a\r\nb\r\n"),
        (["\x1b[?1049h", "a\nb", "\x1b[?1049l", "c\n"], "\x1b[?1049ha\nb\x1b[?1049lc\r\n"),
        (["\n\x1b[?10", "49ha\n", "\x1b[?1", "049", "l\n"], "\r\n\x1b[?1049ha\n\x1b[?1049l\r\n"),
        (["\x1b[?47ha\n\x1b[?47l\n"], "\x1b[?47ha\n\x1b[?47l\r\n"),
        (["\x1b[?1049h", "\n", "\n", "\n"], "\x1b[?1049h\n\n\n"),
    ],
)
def test_line_ends_for_a_raw_terminal(pieces: list[str], shown: str) -> None:
    screen = TerminalOutput()
    assert b"".join(screen.shown(piece.encode()) for piece in pieces) == shown.encode()


# --- status and kill --------------------------------------------------------------------------------------


def test_status_on_one_screen(daemon: RunningDaemon) -> None:
    run_id = daemon.start("sleep 100\ntrue")
    wait_for(lambda: daemon.json("GET", "/status")["run"]["foreground"]["command"] == "sleep 100")
    done = command(daemon.url, "status")
    rows = dict(line.split(maxsplit=1) for line in done.stdout.splitlines() if not line.startswith("last run"))
    assert rows["state"] == "busy"
    assert rows["running"] == "sleep 100 ..."
    assert rows["run"].startswith(f"{run_id}, for ")
    assert re.fullmatch(r"pid \d+: sleep 100", rows["foreground"])
    assert daemon.url in rows["daemon"]
    assert len(done.stdout.splitlines()) < 12
    data = json.loads(command(daemon.url, "status", "--json").stdout)
    assert (data["state"], data["run"]["run_id"]) == ("busy", run_id)


def test_status_of_a_shell_that_is_not_started() -> None:
    status = Status(
        state=ShellState.AVAILABLE, version="1", session_id="main", working_directory=None, shell_pid=None,
        uptime=61.2, sessions=0, run=None, last_run_id=None, idle=0.0, idle_timeout=0.0,
    )  # fmt: skip
    text = describe(status, "http://x")
    assert text == "state      available\nsessions   0\ndaemon     http://x, version 1, up 1m1s"


def test_kill(daemon: RunningDaemon) -> None:
    run_id = daemon.start("sleep 100")
    done = command(daemon.url, "kill", "--signal", "TERM", run_id)
    assert (done.returncode, done.stdout) == (0, f"signalled run {run_id}; the shell is busy\n")
    assert daemon.finished(run_id)["signal"] == 15
    run_id = daemon.start("sleep 100")
    assert command(daemon.url, "kill").stdout == f"killed run {run_id}; the shell is ready\n"
    assert command(daemon.url, "kill").stdout == "nothing to kill\n"


# --- what goes wrong --------------------------------------------------------------------------------------


def test_no_daemon() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
    done = command(url, "run", "true")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (3, "", 1)
    assert url in done.stderr
    assert "SHELLD_URL" in done.stderr
    assert "refused" in done.stderr


def test_no_key(daemon: RunningDaemon) -> None:
    environ = {name: value for name, value in _environ(daemon.url).items() if name != "SHELLD_KEY"}
    done = command(daemon.url, "status", env=environ)
    assert (done.returncode, done.stderr) == (3, "shelld-py: The X-Shell-Key header is required. Set SHELLD_KEY.\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run"],
        ["run", "--timeout", "soon", "true"],
        ["status", "--url", "nonsense"],
        ["attach", "--nonsense"],
    ],
)
def test_arguments_that_cannot_be_used(arguments: list[str]) -> None:
    done = command("http://127.0.0.1:9", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Traceback" not in done.stderr
    assert done.stderr


def _terminal(daemon: RunningDaemon, *arguments: str, size: tuple[int, int] = (24, 80)) -> PtyProcess:
    """Start the command in a terminal of its own."""
    return PtyProcess.spawn([*PROGRAM, *arguments], env=_environ(daemon.url), dimensions=size)


def _read_until(process: PtyProcess, text: str | None) -> str:
    """Return what comes until `text` has; None or empty: until the end."""
    seen = ""
    deadline = time.monotonic() + PATIENCE
    while not text or text not in seen:
        assert time.monotonic() < deadline, seen
        if not select.select([process.fd], [], [], 0.1)[0]:
            continue
        try:
            seen += process.read().decode()
        except EOFError:
            assert not text, seen
            break
    return seen


def _end(process: PtyProcess, status: int) -> None:
    wait_for(lambda: not process.isalive())
    assert process.exitstatus == status
    process.close()


def _size(daemon: RunningDaemon) -> str:
    with _shell_terminal(daemon) as terminal:
        return "{} {}".format(*termios.tcgetwinsize(terminal))


@contextlib.contextmanager
def _modes(daemon: RunningDaemon) -> Iterator[Callable[[], list[Any]]]:
    """Give what tells the modes of the main shell's terminal."""
    with _shell_terminal(daemon) as terminal:
        yield lambda: termios.tcgetattr(terminal)


@contextlib.contextmanager
def _shell_terminal(daemon: RunningDaemon) -> Iterator[int]:
    shell = daemon.json("GET", "/status")["shell_pid"]
    terminal = os.open(Path(f"/proc/{shell}/fd/0").resolve(), os.O_RDONLY | os.O_NOCTTY)
    try:
        yield terminal
    finally:
        os.close(terminal)
