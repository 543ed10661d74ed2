"""The end that nobody asked for politely: a terminal that is closed, signals, threads that hang."""

import contextlib
import fcntl
import http.client
import os
import pty
import resource
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.daemons import KEY, RunningDaemon, ask, processes_with, running_daemon, serving_url, wait_for
from tests.fuse import unanswered_file


@contextmanager
def daemon_of(tmp_path: Path, command: list[str], **options: object) -> Iterator[tuple[RunningDaemon, Path]]:
    """Start a daemon without a data directory by `command`; give it, and where its temporary directory lies."""
    temporary, work, log = tmp_path / "tmp", tmp_path / "work", tmp_path / "log"
    temporary.mkdir()
    work.mkdir()
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SHELLD_")}
    environ |= {"TMPDIR": str(temporary), "HOME": str(work), "SHELLD_KEY": KEY, "SHELLD_SERVER__PORT": "0"}
    environ |= {"SHELLD_LOGGING__FILE": str(log), "SHELLD_HOOKS__ON_SHUTDOWN": "touch hook", "PYTHONPATH": os.getcwd()}
    process = subprocess.Popen(command, cwd=work, env=environ, **options)  # type: ignore[call-overload]
    try:
        url = wait_for(lambda: serving_url(process, log, 0, log), 60)
        daemon = RunningDaemon(process, url, log, temporary)
        yield daemon, temporary
        daemon.client.close()
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def listens(port: int) -> bool:
    """Return whether somebody listens on the port."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


SERVE = [sys.executable, "-m", "shelld_py"]


def test_closed_terminal(tmp_path: Path) -> None:
    """A daemon whose terminal is closed ends in order: hook, detached processes, temporary directory, exit status 0."""
    master, slave = pty.openpty()
    # setsid(1) --ctty makes the terminal the controlling one, so that closing it sends SIGHUP. Whoever runs
    # the tests may ignore that signal (nohup(1)), and it would be inherited.
    command = ["env", "--default-signal=HUP", "setsid", "--ctty", *SERVE]
    with daemon_of(tmp_path, command, stdin=slave, stdout=slave, stderr=slave) as (daemon, temporary):
        os.close(slave)
        daemon.fresh()
        daemon.run("setsid -f sleep 4399")
        assert list(temporary.iterdir())
        os.close(master)
        assert daemon.process.wait(60) == 0
        assert processes_with("sleep\x004399") == []
        assert list(temporary.iterdir()) == []
        assert (tmp_path / "work" / "hook").exists()
        assert "shutting down: SIGHUP" in daemon.log.read_text()


def test_nohup(tmp_path: Path) -> None:
    """A daemon that was started with SIGHUP ignored stays when it comes."""
    with daemon_of(tmp_path, ["nohup", *SERVE], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as (daemon, _):
        daemon.process.send_signal(signal.SIGHUP)
        assert daemon.state() == "available"
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(60) == 0
        assert "SIGHUP" not in daemon.log.read_text()


def test_quit(start_daemon) -> None:
    """SIGQUIT, which Ctrl-\\ sends, is an orderly end as well."""
    daemon = start_daemon(hooks__on_shutdown="touch hook")
    daemon.process.send_signal(signal.SIGQUIT)
    assert daemon.process.wait(60) == 0
    assert (daemon.log.parent / "work" / "hook").exists()


def test_end_without_a_data_directory(start_daemon) -> None:
    """A command that has put a file in the place of the data directory does not keep the daemon from an orderly end."""
    daemon = start_daemon(hooks__on_shutdown="touch hook")
    shutil.rmtree(daemon.data)
    daemon.data.touch()
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 0
    assert (daemon.log.parent / "work" / "hook").exists()


@pytest.mark.parametrize("name", ["SIGALRM", "SIGRTMIN+3"])
def test_other_signals(tmp_path: Path, name: str) -> None:
    """What else would end the process is an orderly end as well, also where it was blocked at the start."""
    blocked = ["env", "--block-signal", *SERVE]
    with daemon_of(tmp_path, blocked, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as (daemon, _):
        daemon.process.send_signal(signal.SIGALRM if name == "SIGALRM" else signal.SIGRTMIN + 3)
        assert daemon.process.wait(60) == 0
        assert f"shutting down: {name}" in daemon.log.read_text()


def test_user_signals_mean_nothing(start_daemon) -> None:
    """SIGUSR1 and SIGUSR2 end nothing, and are logged."""
    daemon = start_daemon()
    daemon.fresh()
    for number in (signal.SIGUSR1, signal.SIGUSR2):
        daemon.process.send_signal(number)
        wait_for(lambda name=number.name: f"{name} means nothing here" in daemon.log.read_text())
    assert daemon.run("echo here")["stdout"] == "here\n"


def test_commands_have_the_default_signals(start_daemon) -> None:
    """What the daemon does at signals is not handed on to shells."""
    daemon = start_daemon()
    daemon.fresh()
    ignored = daemon.run("grep -e SigIgn -e SigBlk /proc/self/status | cut -f 2 | sort -u")["stdout"]
    assert ignored == "0" * 16 + "\n"


def test_signal_as_soon_as_it_is_there(tmp_path: Path) -> None:
    """A signal that comes while the daemon starts ends it, too, and leaves no temporary directory."""
    (tmp_path / "tmp").mkdir()
    environ = {**os.environ, "TMPDIR": str(tmp_path / "tmp"), "SHELLD_SERVER__PORT": "0"}
    process = subprocess.Popen(SERVE, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: list((tmp_path / "tmp").iterdir()), 60)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def ask_in_vain(daemon: RunningDaemon, path: str) -> threading.Thread:
    """Send a request whose connection may break; return the thread that waits for the answer."""

    def wait() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException):
            daemon.ask("GET", path, key=KEY)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    return thread


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="mounts a FUSE file system")
@pytest.mark.parametrize("shutdown", ["1s", "60s"])
def test_thread_that_hangs(tmp_path: Path, shutdown: str) -> None:
    """A thread that hangs in a read keeps nobody: not beyond timeout.shutdown, and no longer than the rest takes."""
    with (
        running_daemon(tmp_path, timeout__shutdown=shutdown) as daemon,
        unanswered_file(tmp_path / "work" / "share") as asked,
    ):
        daemon.fresh()
        daemon.run("setsid -f sleep 4388")
        asker = ask_in_vain(daemon, "/files/raw?path=share/file")
        assert asked.wait(60)
        daemon.process.send_signal(signal.SIGTERM)
        assert daemon.process.wait(60) == 0
        assert processes_with("sleep\x004388") == []
        asker.join(60)


def leave_no_thread(pid: int) -> None:
    """Let a process start no more threads."""
    used = int(Path(f"/proc/{pid}/statm").read_text().split()[0]) * resource.getpagesize()
    resource.prlimit(pid, resource.RLIMIT_AS, (used + (4 << 20), resource.RLIM_INFINITY))  # a stack takes 8 MiB


def test_no_thread_can_be_started(start_daemon) -> None:
    """As where commands have taken all that a container may have: the daemon ends in order when it is told to."""
    daemon = start_daemon()
    leave_no_thread(daemon.process.pid)
    assert daemon.stop() == 0
    assert "stopped" in daemon.log.read_text()


def test_file_without_an_end(start_daemon) -> None:
    """Nor does one that reads a file which has no end."""
    daemon = start_daemon(files__allowed_directories='["/"]', timeout__shutdown="5s")
    asker = ask_in_vain(daemon, "/files/raw?path=/proc/self/pagemap")
    wait_for(lambda: "/files/raw" in daemon.log.read_text() or not asker.is_alive() or reads_pagemap(daemon), 60)
    daemon.process.send_signal(signal.SIGTERM)
    assert daemon.process.wait(60) == 0
    asker.join(60)


def reads_pagemap(daemon: RunningDaemon) -> bool:
    """Return whether the daemon has the file open."""
    with contextlib.suppress(OSError):
        return any(link.readlink().name == "pagemap" for link in Path(f"/proc/{daemon.process.pid}/fd").iterdir())
    return False


@pytest.mark.parametrize("threads", [True, False], ids=["threads", "no more threads"])
def test_log_that_nobody_reads(tmp_path: Path, threads: bool) -> None:
    """The main thread itself may hang, writing to a log that is a FIFO which nobody reads: the end is the same."""
    log = tmp_path.with_name(f"{tmp_path.name}-log")
    os.mkfifo(log)
    reader = os.open(log, os.O_RDWR)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, 4096)
    port = free_port()
    settings = {
        "SHELLD_SERVER__PORT": str(port),
        "SHELLD_TIMEOUT__SHUTDOWN": "1s",
        "SHELLD_LOGGING__FILE": str(log),
    }
    environ = {**os.environ, **settings, "SHELLD_KEY": KEY, "TMPDIR": str(tmp_path)}
    process = subprocess.Popen(SERVE, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        daemon = RunningDaemon(process, f"http://127.0.0.1:{port}", tmp_path, tmp_path)
        wait_for(lambda: listens(port), 60)
        daemon.fresh()
        daemon.run("setsid -f sleep 4377")
        waiting = Path(f"/proc/{process.pid}/wchan")
        with contextlib.suppress(OSError):
            while "pipe_write" not in waiting.read_text():
                ask(daemon.url, "GET", "/" + "x" * 500, timeout=0.5)
        wait_for(lambda: "pipe_write" in waiting.read_text(), 60)
        tasks = Path(f"/proc/{process.pid}/task")
        before = len(list(tasks.iterdir()))
        process.send_signal(signal.SIGTERM)
        if not threads:
            wait_for(lambda: len(list(tasks.iterdir())) > before)
            leave_no_thread(process.pid)
        assert process.wait(60) == 0
        assert processes_with("sleep\x004377") == []
        assert list(tmp_path.iterdir()) == []
        daemon.client.close()
    finally:
        process.kill()
        process.wait()
        os.close(reader)
