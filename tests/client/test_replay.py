"""`shelld-py replay`, as a real process: in a pipe, and in a real terminal, which it leaves as it was."""

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.daemons import KEY, PATIENCE, RunningDaemon, wait_for

PROGRAM = [sys.executable, "-m", "shelld_py", "replay"]
PLAYED_FAST = ["--speed", "1000"]


def _environ(daemon: RunningDaemon) -> dict[str, str]:
    return {**os.environ, "SHELLD_URL": daemon.url, "SHELLD_KEY": KEY}


def _replay(daemon: RunningDaemon, *arguments: str) -> "subprocess.CompletedProcess[bytes]":
    """Play into a pipe, to the end."""
    return subprocess.run([*PROGRAM, *arguments], env=_environ(daemon), capture_output=True, timeout=60, check=False)


def _seen(master: int, holds: Callable[[bytes], bool]) -> bytes:
    """Return what a terminal was sent once `holds` is true of it."""
    seen, deadline = b"", time.monotonic() + PATIENCE
    while not holds(seen):
        assert time.monotonic() < deadline, seen
        if select.select([master], [], [], 0.1)[0]:
            seen += os.read(master, 65536)
    return seen


def test_what_was_written_is_played(daemon: RunningDaemon) -> None:
    """Of a run that has ended all, of one that goes on what there is; its pauses take as long as they are to."""
    run_id = daemon.run("echo begun; sleep 0.3; printf '\\303\\244'; sleep 0.1; echo end")["run_id"]
    began = time.monotonic()
    done = _replay(daemon, run_id)
    assert (done.returncode, done.stdout, done.stderr) == (0, "begun\r\näend\r\n".encode(), b"")
    assert time.monotonic() - began > 0.4
    long = daemon.start("echo begun; sleep 600")
    wait_for(lambda: daemon.client.get(f"/runs/{long}/output", headers={"Accept": "text/plain"}).text)
    assert _replay(daemon, long).stdout == b"begun\r\n"
    daemon.client.post(f"/runs/{long}/kill")


def test_pauses_can_be_cut(daemon: RunningDaemon) -> None:
    """With `--idle 0` there are none, however slowly it is played."""
    run_id = daemon.run("sleep 0.1; echo begun; sleep 0.1; echo end")["run_id"]
    assert _replay(daemon, run_id, "--speed", "0.0001", "--idle", "0").stdout == b"begun\r\nend\r\n"


def test_what_is_missing_is_said(daemon: RunningDaemon) -> None:
    """A log that was cut: its end lies in a file of its own, whose name says where it begins."""
    run_id = daemon.run("echo begun; sleep 0.1")["run_id"]
    (daemon.data / "runs" / run_id / "output.log.6.1000").write_bytes(b"end\n")
    done = _replay(daemon, run_id, *PLAYED_FAST)
    assert (done.returncode, done.stdout) == (0, b"begun\r\nend\r\n")
    assert done.stderr == b"shelld-py: 994 bytes of the output are not kept\n"


@pytest.mark.parametrize(
    ("arguments", "status", "told"),
    [
        (["none"], 3, "There is no run none."),
        (["none", "--speed", "fast"], 2, "--speed must be how many times as fast, such as 2 or 0.5, not 'fast'"),
        (["none", "--speed", "0"], 2, "--speed must be"),
        (["none", "--idle", "soon"], 2, "--idle must be"),
        ([], 2, "required: RUN_ID"),
    ],
)
def test_what_cannot_be_played(daemon: RunningDaemon, arguments: list[str], status: int, told: str) -> None:
    done = _replay(daemon, *arguments)
    assert (done.returncode, done.stdout) == (status, b"")
    assert told in done.stderr.decode()


@pytest.mark.parametrize("ending", ["end", "Ctrl-C", "SIGTERM"])
def test_the_terminal_is_left_as_it_was(daemon: RunningDaemon, ending: str) -> None:
    """Its modes and its screen; what it answers to the questions of a program that is long over is not typed."""
    modes = r"\e[?1049h\e[?1000h\e[?25l\e[31m\e[6n"
    run_id = daemon.run(rf"printf '{modes}full'; sleep 0.2; printf 'over'")["run_id"]
    speed = "0.5" if ending == "end" else "0.01"
    master, slave = pty.openpty()
    try:
        before = termios.tcgetattr(slave)
        process = subprocess.Popen(
            [*PROGRAM, run_id, "--speed", speed],
            stdin=slave, stdout=slave, stderr=slave, env=_environ(daemon),
            preexec_fn=_own(slave), start_new_session=True,
        )  # fmt: skip
        _seen(master, lambda seen: b"full" in seen)
        assert not termios.tcgetattr(slave)[3] & (termios.ECHO | termios.ICANON)
        os.write(master, b"\x1b[1;5R")
        wait_for(lambda: select.select([slave], [], [], 0)[0])
        if ending == "Ctrl-C":
            os.write(master, b"\x03")
        elif ending == "SIGTERM":
            process.terminate()
        seen = _seen(master, lambda seen: b"2004l" in seen)
        assert process.wait(60) == (0 if ending == "end" else 130)
        assert (b"over" in seen) is (ending == "end")
        assert b"\x1b[?1049l\x1b[!p" in seen
        assert b"1;5R" not in seen
        assert termios.tcgetattr(slave) == before
        os.set_blocking(slave, False)
        with pytest.raises(BlockingIOError):
            os.read(slave, 100)
    finally:
        os.close(master)
        os.close(slave)


def _own(terminal: int) -> Callable[[], Any]:
    """Return what makes a terminal the controlling one of a new session, so that Ctrl-C is a signal there."""
    return lambda: fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)


def test_a_pipe_that_nobody_reads(daemon: RunningDaemon) -> None:
    run_id = daemon.run("seq 100000; sleep 0.1", max_output=1)["run_id"]
    line = f"{sys.executable} -m shelld_py replay {run_id} --speed 1000 | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], env=_environ(daemon), capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.stderr) == ("1\n141\n", "")


def test_an_interrupt_before_it_is_played(daemon: RunningDaemon) -> None:
    """While nothing has come yet as well: a pause ends at once."""
    run_id = daemon.run("sleep 0.2; echo late")["run_id"]
    process = subprocess.Popen([*PROGRAM, run_id, "--speed", "0.01"], env=_environ(daemon), stdout=subprocess.PIPE)
    wait_for(lambda: _handles(process.pid, signal.SIGTERM))
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=60)[0] == b""
    assert process.returncode == 130


def _handles(pid: int, number: int) -> bool:
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return bool(int(status["SigCgt"], 16) >> (number - 1) & 1)
