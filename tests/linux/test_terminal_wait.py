"""Whether a program waits for terminal input, read from the kernel."""

import asyncio
import fcntl
import os
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from shelld_py.linux import processes
from shelld_py.linux.terminal import Terminal
from shelld_py.linux.terminal_wait import blocked_read, waits_for_terminal
from tests.daemons import wait_for

PYTHON = [sys.executable, "-SEc"]
PRELUDE = "import os, select, socket, time\nr, w = os.pipe()\n"

YES = {
    "read": "os.read(0, 1)",
    "read of /dev/tty": "open('/dev/tty').readline()",
    "read of another descriptor": "os.read(os.dup(0), 1)",
    "readv": "os.readv(0, [bytearray(1)])",
    "select": "select.select([0], [], [])",
    "select with a timeout": "select.select([0], [], [], 60)",
    "select of a high descriptor": "os.dup2(0, 200); select.select([200], [], [])",
    "poll": "p = select.poll(); p.register(0, select.POLLIN); p.poll()",
    "epoll": "p = select.epoll(); p.register(0, select.EPOLLIN); p.poll()",
    "read in a thread": "import _thread; _thread.start_new_thread(lambda: os.read(0, 1), ()); time.sleep(60)",
}
NO = {
    "sleep": "time.sleep(60)",
    "read of a pipe": "os.read(r, 1)",
    "accept": "s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); s.accept()",
    "recv": "a, b = socket.socketpair(); a.recv(1)",
    "select of a pipe": "select.select([r], [], [])",
    "select for writing": "select.select([r], [0], [r]) and time.sleep(60)",
    "poll of a pipe": "p = select.poll(); p.register(r, select.POLLIN); p.poll()",
    "poll of the terminal for errors": "p = select.poll(); p.register(0, 0); p.poll()",
    "epoll of a socket": "a, b = socket.socketpair(); p = select.epoll(); p.register(a, select.EPOLLIN); p.poll()",
    "wait for a child": "os.fork() or time.sleep(60); os.wait()",
    "sigwait": "import signal; signal.pause()",
    "work": "exec('while True: pass')",
}
SERVER = "p = select.poll(); p.register(0, select.POLLIN); p.register(r, select.POLLIN); p.poll()"


def own_terminal() -> None:
    """Make descriptor 0 the controlling terminal of a new session."""
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@contextmanager
def waiting_program(argv: list[str]) -> Iterator[tuple[Terminal, int]]:
    """Run `argv` with a controlling terminal of its own; give both once the program is under way."""

    async def opened() -> Terminal:
        return Terminal.open(lambda _: None, 24, 80)

    with asyncio.Runner() as runner:
        terminal = runner.run(opened())
        with open(terminal.slave_path, "r+b", buffering=0) as slave:
            process = subprocess.Popen(
                argv, stdin=slave, stdout=slave, stderr=subprocess.DEVNULL, preexec_fn=own_terminal
            )
        try:
            yield terminal, process.pid
        finally:
            wait_for(lambda: not processes.kill_descendants(process.pid))
            process.kill()
            process.wait()
            terminal.close()


def waits(terminal: Terminal, pid: int) -> bool:
    """Return what `waits_for_terminal` says of `pid` and all below it."""
    members = iter([pid, *(stat.pid for stat in processes.descendants(pid))])
    return waits_for_terminal(
        terminal.foreground_group(), members, terminal.device_number, line_mode=terminal.line_mode
    )


def settled(pid: int) -> bool:
    """Whether a Python program has passed its beginning: it has marked itself by its name."""
    stat = processes.process_stat(pid)
    return stat is not None and stat.name == "under way"


def python(code: str) -> list[str]:
    """Return a command that marks that its beginning is over, and then does `code`."""
    return [*PYTHON, f"{PRELUDE}open('/proc/self/comm', 'w').write('under way')\n{code}"]


def names_of(pid: int) -> set[str]:
    """Return the names of `pid` and of all below it."""
    stats = [processes.process_stat(pid), *processes.descendants(pid)]
    return {stat.name for stat in stats if stat}


@pytest.mark.parametrize("code", YES.values(), ids=YES.keys())
def test_programs_that_wait_for_the_terminal(code: str) -> None:
    """Whatever the system call is by which they wait, it is seen; typing ends it."""
    with waiting_program(python(code)) as (terminal, pid):
        wait_for(lambda: settled(pid) and waits(terminal, pid))
        assert waits(terminal, pid)


@pytest.mark.parametrize("code", NO.values(), ids=NO.keys())
def test_programs_that_do_something_else(code: str) -> None:
    """Sleeping, working and waiting for other things is not waiting for the terminal, however often one looks."""
    with waiting_program(python(code)) as (terminal, pid):
        wait_for(lambda: settled(pid))
        sleeps = code != NO["work"]
        for _ in range(20):
            if sleeps:
                wait_for(lambda: (stat := processes.process_stat(pid)) and stat.state == "S")
            assert not waits(terminal, pid)


def test_a_server_that_could_also_read_the_terminal() -> None:
    """In line mode one that waits for other things too serves them; in key mode it is an interactive program."""
    with waiting_program(python(SERVER)) as (terminal, pid):
        wait_for(lambda: settled(pid) and (stat := processes.process_stat(pid)) and stat.state == "S")
        group, device = terminal.foreground_group(), terminal.device_number
        wait_for(lambda: waits_for_terminal(group, iter([pid]), device, line_mode=False))
        assert not waits_for_terminal(group, iter([pid]), device, line_mode=True)


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("read line", True),
        ("cat", True),
        ("cat | sort", True),
        ("sleep 60 | cat", False),
        ("sleep 60; true", False),
        ("cat </dev/zero >/dev/null", False),
    ],
)
def test_shell_scripts(script: str, expected: bool) -> None:
    """A pipeline waits when one of its processes does; what works keeps the whole from waiting."""
    with waiting_program(["bash", "-c", script]) as (terminal, pid):
        if expected:
            wait_for(lambda: waits(terminal, pid))
        else:
            wait_for(lambda: {"sleep", "cat"} & names_of(pid))
            assert not any(waits(terminal, pid) for _ in range(20))
        assert waits(terminal, pid) is expected


def test_a_background_process_does_not_count() -> None:
    """Only the foreground process group can read the terminal."""
    with waiting_program(python("os.read(0, 1)")) as (terminal, pid):
        wait_for(lambda: waits(terminal, pid))
        device = terminal.device_number
        assert not waits_for_terminal(terminal.foreground_group() + 1, iter([pid]), device, line_mode=True)
        assert not waits_for_terminal(terminal.foreground_group(), iter([pid]), device + 1, line_mode=True)


def test_processes_that_are_gone() -> None:
    """They wait for nothing."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert not waits_for_terminal(process.pid, iter([process.pid]), 0, line_mode=True)
    assert blocked_read(process.pid) is None


def test_the_descriptor_of_a_blocked_read() -> None:
    """It is told which one a program reads from, and that a program which does not read reads none."""
    with waiting_program(python("os.dup2(r, 77); os.read(77, 1)")) as (_, pid):
        wait_for(lambda: blocked_read(pid) == 77)
    with waiting_program(python("time.sleep(60)")) as (_, pid):
        wait_for(lambda: settled(pid) and (stat := processes.process_stat(pid)) and stat.state == "S")
        assert blocked_read(pid) is None
