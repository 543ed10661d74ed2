"""The process tree: who belongs to a shell, how all of it is ended, and that nobody else is hit."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec.structs import replace

from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.syscalls import be_subreaper
from tests.daemons import wait_for

PROGRAM = "sleep"


@contextmanager
def shell(script: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run `script` in a bash that adopts the orphans of what it starts; kill all of it in the end."""
    process = subprocess.Popen(["bash", "-c", script], preexec_fn=be_subreaper, stdin=subprocess.DEVNULL)
    try:
        yield process
    finally:
        wait_for(lambda: not processes.kill_descendants(process.pid))
        process.kill()
        process.wait()


def names_below(pid: int) -> list[str]:
    """Return the names of the living processes below `pid`."""
    return sorted(stat.name for stat in processes.descendants(pid))


def test_this_process_as_the_kernel_shows_it() -> None:
    """Pid, parent, group, session and state are those that the system calls tell."""
    stat = processes.process_stat(os.getpid())
    assert stat is not None
    assert (stat.pid, stat.parent, stat.group, stat.session) == (os.getpid(), os.getppid(), os.getpgrp(), os.getsid(0))
    assert stat.state == "R"
    assert stat.alive
    assert stat.memory > 1_000_000
    assert stat.cpu_seconds > 0


def test_a_process_that_is_not_there() -> None:
    """There is nothing to say about it, and nothing to signal."""
    process = subprocess.Popen(["true"])
    process.wait()
    assert processes.process_stat(process.pid) is None
    assert processes.children(process.pid) == []
    assert list(processes.descendants(process.pid)) == []
    assert processes.command_line(process.pid) == ""
    assert processes.working_directory(process.pid) is None
    assert processes.tree_usage(process.pid) == processes.TreeUsage(0, 0, 0)


@pytest.mark.parametrize("name", ["a b", "(x) R 1", ")", "((", "ä"])
def test_names_with_anything_in_them(name: str) -> None:
    """The name of a process may hold spaces and parentheses; the fields behind it are read all the same."""
    script = f"import sys, time\nopen('/proc/self/comm', 'w').write({name!r})\nprint(flush=True)\ntime.sleep(60)"
    process = subprocess.Popen([sys.executable, "-SEc", script], stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        stat = processes.process_stat(process.pid)
        assert stat is not None
        assert (stat.name, stat.parent) == (name, os.getpid())
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_child_whose_parent_ends_during_the_walk() -> None:
    """It has another parent then, whose children were read before; it is found all the same."""
    with shell("sh -c 'sleep 71 & wait' & wait; wait; sleep 72") as root:
        wait_for(lambda: names_below(root.pid) == ["sh", "sleep"])
        walk = processes.descendants(root.pid)
        parent = next(walk)
        (child,) = processes.children(parent.pid)
        os.kill(parent.pid, signal.SIGKILL)
        wait_for(lambda: child in processes.children(root.pid))
        assert child in [stat.pid for stat in walk]


def test_a_zombie_is_not_alive() -> None:
    """It is a child still, but no descendant that lives."""
    process = subprocess.Popen(["true"])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    stat = processes.process_stat(process.pid)
    assert stat is not None
    assert not stat.alive
    assert process.pid in processes.children(os.getpid())
    assert process.pid not in [stat.pid for stat in processes.descendants(os.getpid())]
    assert not processes.still_alive(stat)
    process.wait()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        pytest.param("sleep 60 & wait", ["sleep"], id="child"),
        pytest.param("(sleep 60; true) & wait", ["bash", "sleep"], id="grandchild"),
        pytest.param("setsid sleep 60 & wait", ["sleep"], id="session of its own"),
        pytest.param(
            "(setsid sleep 60 &); read -t 60 < <(sleep 61)", ["sleep", "sleep"], id="orphan in a session of its own"
        ),
        pytest.param("(sh -c '(setsid sleep 60 &) &' &) ; sleep 60; true", ["sleep", "sleep"], id="double fork"),
        pytest.param(
            "nohup env -i sleep 60 >/dev/null & disown; sleep 60; true", ["sleep", "sleep"], id="no environment"
        ),
    ],
)
def test_whatever_a_shell_starts_descends_from_it(script: str, expected: list[str]) -> None:
    """Sessions, double forks and lost parents lead no process out of the tree."""
    with shell(script) as process:
        wait_for(
            lambda: [name for name in names_below(process.pid) if name != "bash" or "bash" in expected] == expected
        )
        assert {stat.session for stat in processes.descendants(process.pid)} != set()
        signalled = processes.kill_descendants(process.pid)
        assert len(signalled) >= len(expected)
        wait_for(lambda: not any(processes.still_alive(stat) for stat in signalled))


def test_parents_come_before_their_children() -> None:
    """The order in which descendants are told is that of the tree."""
    with shell("bash -c 'bash -c \"sleep 60; true\"; true'; true") as process:
        wait_for(lambda: names_below(process.pid) == ["bash", "bash", "sleep"])
        chain = list(processes.descendants(process.pid))
        assert [stat.parent for stat in chain] == [process.pid, *(stat.pid for stat in chain[:-1])]


def test_what_is_spared_lives_on_with_all_below_it() -> None:
    """`spare` names processes whose trees are left alone."""
    with shell("bash -c 'sleep 60; true' & sleep 61 & wait") as process:
        wait_for(lambda: names_below(process.pid) == ["bash", "sleep", "sleep"])
        spared = next(stat for stat in processes.descendants(process.pid) if stat.name == "bash")
        signalled = processes.kill_descendants(process.pid, spare=[spared.pid])
        assert [processes.command_line(spared.pid).split()[0], len(signalled)] == ["bash", 1]
        wait_for(lambda: names_below(process.pid) == ["bash", "sleep"])
        assert all(not processes.still_alive(stat) for stat in signalled)


def test_stopped_processes_and_those_that_ignore_signals_are_killed() -> None:
    """SIGKILL is not to be ignored."""
    with shell("trap '' TERM INT HUP; sleep 60 & kill -STOP $!; sleep 61 & wait") as process:
        wait_for(lambda: "T" in {stat.state for stat in processes.descendants(process.pid)})
        wait_for(lambda: len(names_below(process.pid)) == 2)
        processes.kill_descendants(process.pid)
        wait_for(lambda: names_below(process.pid) == [])


STORM = """
import os, time
end = time.monotonic() + 15
for _ in range({width}):
    if os.fork() == 0:
        while time.monotonic() < end:
            if {branch} and os.fork() == 0:
                time.sleep(0.002)
                os._exit(0)
            if os.fork():
                os._exit(0)
            time.sleep({pause})
        os._exit(0)
print(flush=True)
while time.monotonic() < end:
    try:
        os.wait()
    except ChildProcessError:
        time.sleep(0.01)
"""


@pytest.mark.parametrize(("width", "branch", "pause"), [(4, False, 0), (10, True, 0.001)], ids=["runners", "breeders"])
def test_a_fork_storm_is_ended(width: int, branch: bool, pause: float) -> None:
    """Processes that fork and exit as fast as they can, so that no pid stays, are all caught."""
    script = STORM.format(width=width, branch=branch, pause=pause)
    process = subprocess.Popen([sys.executable, "-SEc", script], preexec_fn=be_subreaper, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        process.stdout.readline()
        for _ in range(3):
            processes.kill_descendants(process.pid)
        wait_for(lambda: not list(processes.descendants(process.pid)))
    finally:
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: not processes.kill_descendants(process.pid))
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_signal_hits_the_process_that_is_meant() -> None:
    """It is sent while the process is there, and not once it is gone."""
    process = subprocess.Popen(["sleep", "60"])
    stat = processes.process_stat(process.pid)
    assert stat is not None
    assert processes.still_alive(stat)
    assert processes.send_signal(stat, signal.SIGTERM)
    assert process.wait() == -signal.SIGTERM
    assert not processes.send_signal(stat, signal.SIGTERM)
    assert not processes.still_alive(stat)


def test_a_signal_never_hits_a_process_that_got_the_pid_later() -> None:
    """The time of the start tells a pid that was given out again."""
    process = subprocess.Popen(["sleep", "60"])
    try:
        stat = processes.process_stat(process.pid)
        assert stat is not None
        earlier = replace(stat, start_ticks=stat.start_ticks - 1)
        assert not processes.send_signal(earlier, signal.SIGKILL)
        assert not processes.still_alive(earlier)
        assert process.poll() is None
        assert processes.still_alive(stat)
    finally:
        process.kill()
        process.wait()


def test_the_use_of_a_tree() -> None:
    """CPU time, memory and number cover the root, all that lives below it, and what has been waited for."""
    script = "python3 -SEc 'import time; t = time.process_time\nwhile t() < 0.2: pass'; sleep 60 & wait"
    with shell(script) as process:
        wait_for(lambda: names_below(process.pid) == ["sleep"])
        usage = processes.tree_usage(process.pid)
        assert usage.processes == 2
        assert usage.memory > 1_000_000
        assert usage.cpu_seconds >= 0.15


def test_command_lines_and_working_directories() -> None:
    """The words of a command as ps shows them, the physical directory, and brackets where there are no words."""
    process = subprocess.Popen(["sleep", "60.5"], cwd="/usr")
    try:
        wait_for(lambda: processes.command_line(process.pid) == "sleep 60.5")
        assert processes.working_directory(process.pid) == "/usr"
    finally:
        process.kill()
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.command_line(process.pid) == "[sleep]"
    process.wait()


def test_signals_are_reset_for_children() -> None:
    """A child ignores and blocks nothing, though Python ignores SIGPIPE and this one blocks SIGUSR1."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
    try:
        status = subprocess.check_output(
            ["grep", "-E", "Sig(Blk|Ign)", "/proc/self/status"], preexec_fn=processes.default_signals, text=True,
            restore_signals=False,
        )  # fmt: skip
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert {int(line.split()[1], 16) for line in status.splitlines()} == {0}


def test_a_child_dies_with_its_parent() -> None:
    """`die_with_parent` leaves nothing behind when the daemon is killed."""
    script = (
        "import subprocess, sys, time; from shelld_py.linux.syscalls import die_with_parent\n"
        "child = subprocess.Popen(['sleep', '60'], preexec_fn=die_with_parent, stdout=subprocess.DEVNULL)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE)
    assert parent.stdout is not None
    stat = processes.process_stat(int(parent.stdout.readline()))
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert stat is not None
    wait_for(lambda: not processes.still_alive(stat))


def test_the_reaper_takes_orphans_alone() -> None:
    """Orphans are killed with all below them and collected; children with an owner are their owner's, and so are
    those of the session of this process, which no shell has started.
    """
    reaper = Reaper()
    for pid in processes.children(os.getpid()):
        reaper.own(pid)
    owned = subprocess.Popen(["sleep", "60"], start_new_session=True)
    reaper.own(owned.pid)
    others = subprocess.Popen(["sleep", "60"])
    orphan = os.posix_spawn("/bin/sh", ["sh", "-c", "sleep 60 & wait"], os.environ, setsid=True)
    wait_for(lambda: names_below(orphan) == ["sleep"])
    (below,) = processes.descendants(orphan)
    try:
        assert reaper.orphans() == [orphan]
        wait_for(lambda: reaper.kill() or not reaper.orphans())
        assert processes.process_stat(orphan) is None
        wait_for(lambda: not processes.still_alive(below))
        assert (owned.poll(), others.poll()) == (None, None)
    finally:
        for process in (owned, others):
            process.terminate()
            assert process.wait() == -signal.SIGTERM
    reaper.disown(owned.pid)
    assert reaper.orphans() == []


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming another user needs root")
@pytest.mark.parametrize("number", [0, signal.SIGKILL, signal.SIGTERM])
def test_who_becomes_another_user_dies_with_its_parent_as_before(number: int) -> None:
    program = (
        "from shelld_py.linux.syscalls import die_with_parent, signal_at_parents_death\n"
        "from shelld_py.linux.users import User\n"
        f"die_with_parent({int(number)})\n"
        "User.find('12345').become()\n"
        "print(signal_at_parents_death())\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) == number


def test_more_children_than_one_read_gives() -> None:
    """The kernel gives a page of the list at a time: all are found."""
    started = {os.posix_spawn("/bin/true", ["true"], {}) for _ in range(900)}
    try:
        assert started <= set(processes.children(os.getpid()))
    finally:
        for pid in started:
            os.waitpid(pid, 0)
