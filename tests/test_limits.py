"""Limits, really broken by real commands, both ways: sampled, and held by the kernel in cgroups.

The second way takes a hierarchy of version 2 that can be written, and for memory and processes its controllers; where
a machine has none, `scripts/test-cgroups` runs this file on a kernel that does.
"""

import json
import os
import re
import resource
import shlex
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import cgroups
from tests.daemons import RunningDaemon, processes_with, running_daemon, wait_for

QUICK = {"limits__check_interval": "100ms", "timeout__kill": "300ms"}
ALLOCATE = "python3 -c 'import time; x = b\"x\" * ({} << 20); time.sleep({})'"
CAP_SYS_RESOURCE = 24
WAYS = ["sampled", "cgroups"]
LIMITS = {"limits__memory_mb": "100", "limits__processes": "30", "limits__message": "Take less."}


def prepared(way: str, *controllers: str) -> dict[str, str]:
    """Return the setting that makes a daemon go that way; skip where this machine cannot."""
    if way == "sampled":
        return {"limits__cgroups": "off"}
    cgroups.need(*controllers)
    return {}


@pytest.fixture(scope="module", params=WAYS)
def shared_limited(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with limits on memory and processes, for each way."""
    options = QUICK | LIMITS | prepared(request.param, "memory", "pids")
    with running_daemon(tmp_path_factory.mktemp("limited"), **options) as daemon:
        assert ("limits: in cgroups below" in daemon.log.read_text()) == (request.param == "cgroups")
        yield daemon
    assert cgroups_below(daemon) == []


@pytest.fixture
def limited(shared_limited: RunningDaemon) -> RunningDaemon:
    """That daemon with a fresh main shell."""
    shared_limited.fresh()
    return shared_limited


def cgroups_below(daemon: RunningDaemon) -> list[str]:
    """Return the cgroups that a daemon has at this moment."""
    found = re.search(r"limits: in cgroups below ([^\s,]+)", daemon.log.read_text())
    return [entry.path for entry in os.scandir(found[1]) if entry.is_dir()] if found and Path(found[1]).exists() else []


def held(daemon: RunningDaemon) -> bool:
    """Whether the kernel holds the limits of a daemon."""
    return "limits: in cgroups below" in daemon.log.read_text()


def check_broken(daemon: RunningDaemon, result: dict[str, Any], cause: str, name: str, marker: str = "") -> None:
    """Check the result of a run that broke a limit in the main shell, the shell's state, and that all of it is gone."""
    assert (result["status"], result["cause"], result["signal"]) == ("killed", cause, 9), result
    assert re.search(rf"^Killed: limits\.{name} is [\d.]+, but .*\d", result["error"]), result
    assert (result["state"], daemon.state()) == ("unrecoverable", "unrecoverable")
    assert (result["usage"]["processes_left"], result["background_pids"]) == (0, [])
    assert result["usage"]["cpu_seconds"] <= 3 * result["duration"] + 0.1, result
    if marker:
        wait_for(lambda: not processes_with(marker))
    daemon.fresh()
    again = daemon.run("echo works")
    assert (again["status"], again["cause"], again["stdout"], again["error"]) == ("completed", "exit", "works\n", None)


def test_memory(limited: RunningDaemon) -> None:
    """What takes more memory than allowed is killed; the figures are in the error and in `usage`."""
    result = limited.run(ALLOCATE.format(200, 4721), timeout=300)
    check_broken(limited, result, "oom" if held(limited) else "limit", "memory_mb", "4721")
    assert result["error"].endswith(" Take less."), "what the operator says of it comes last"
    peak = result["usage"]["peak_memory_mb"]
    assert 99 <= peak <= 101 if held(limited) else 100 < peak < 300
    assert result["usage"]["cpu_seconds"] > 0


def test_memory_of_a_process_that_has_detached_itself(limited: RunningDaemon) -> None:
    """A session of its own and a lost parent save nothing from its shell's limits."""
    command = f"(setsid sh -c {shlex.quote(ALLOCATE.format(200, 4722) + ' &')} &); sleep 4722"
    result = limited.run(command, timeout=300)
    check_broken(limited, result, "oom" if held(limited) else "limit", "memory_mb", "4722")


def test_memory_after_a_look_that_failed(limited: RunningDaemon) -> None:
    """Where no descriptor is left for a look, there is another one."""
    if held(limited):
        pytest.skip("the kernel looks")
    before, pid = len(limited.log.read_text()), limited.process.pid
    run_id = limited.start(f"read x; {ALLOCATE.format(200, 4723)}")
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        wait_for(lambda: "in _look_at_limits" in limited.log.read_text()[before:])
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    limited.client.post(f"/runs/{run_id}/stdin", content="\n")
    check_broken(limited, limited.finished(run_id), "limit", "memory_mb", "4723")


def test_memory_below_the_limit(limited: RunningDaemon) -> None:
    """What takes less is left alone, and its peak is told."""
    result = limited.run(ALLOCATE.format(50, 0.25), timeout=300)
    assert (result["status"], result["cause"], result["error"]) == ("completed", "exit", None)
    assert 50 < result["usage"]["peak_memory_mb"] < 100
    small = limited.run("sleep 0.2")
    assert small["usage"]["peak_memory_mb"] < 50 or held(limited)


def warned(daemon: RunningDaemon, command: str) -> list[str]:
    """Return what a run of `command` is warned of while it goes on; kill it then."""
    run_id = daemon.start(command)
    wait_for(lambda: daemon.json("GET", f"/runs/{run_id}").get("warnings"))
    daemon.client.post(f"/runs/{run_id}/kill")
    result = daemon.finished(run_id)
    assert (result["status"], result["cause"], result["state"]) == ("killed", "killed", "ready")
    return result["warnings"]


def test_a_warning_before_the_limit(limited: RunningDaemon) -> None:
    """What comes near to the limit goes on; its result, an event and the log say so, with the largest processes."""
    with limited.client.stream("GET", "/events", params={"types": "run_warning"}) as told:
        (warning,) = warned(limited, ALLOCATE.format(78, 4741))
        data = next(line for line in told.iter_lines() if line.startswith("data: "))
    assert json.loads(data.removeprefix("data: "))["warnings"] == [warning]
    figures = re.match(r"(\d\d) % of a memory limit are in use: (\d+) of 100 MB \(limits\.memory_mb\)", warning)
    assert figures
    assert 85 <= int(figures[1]) < 100
    assert re.search(r"The largest processes: python3[^ ]* \(pid \d+\) \d\d MB, .*bash \(pid \d+\) \d+ MB", warning)
    assert warning in wait_for(lambda: [line for line in limited.log.read_text().splitlines() if warning in line])[-1]
    assert "warnings" not in limited.run("sleep 0.15")


def test_a_warning_before_the_memory_of_the_container_is_used_up(tmp_path: Path) -> None:
    """It needs no limit of the daemon's: that of the cgroup which it was started in is known to it."""
    with cgroups.limited_memory(256 << 20), running_daemon(tmp_path, timeout__kill="300ms") as daemon:
        daemon.fresh()
        (warning,) = warned(daemon, ALLOCATE.format(196, 4742))
        assert re.match(r"\d\d % of a memory limit are in use: \d+ of 256 MB \(memory of the container\)", warning)
        assert "python3" in warning


def test_processes(limited: RunningDaemon) -> None:
    """A fork loop is ended, and nothing is left of it."""
    result = limited.run("for i in {1..3000}; do sleep 4723.5 & done; wait", timeout=300)
    check_broken(limited, result, "limit", "processes", "4723.5")


def test_a_fork_bomb_in_sessions_of_its_own(limited: RunningDaemon) -> None:
    """Processes that detach themselves and multiply are all found."""
    bomb = "for i in {1..40}; do setsid sh -c 'sleep 4724.5 & sleep 4724.5 & sleep 4724.5' & done; sleep 4724.5"
    check_broken(limited, limited.run(bomb, timeout=300), "limit", "processes", "4724.5")


def test_processes_that_a_quick_command_leaves(limited: RunningDaemon) -> None:
    """A command that is over before it has been looked at is looked at in the end."""
    result = limited.run("for i in {1..50}; do sleep 4736.5 & done")
    check_broken(limited, result | {"signal": 9}, "limit", "processes", "4736.5")


def test_disk(tmp_path: Path) -> None:
    """What fills more of the working directory's file system than allowed is killed."""
    with running_daemon(tmp_path, **QUICK, limits__disk_mb="20") as daemon:
        daemon.fresh()
        result = daemon.run("head -c 60M /dev/zero >filler; sync filler; sleep 4725", timeout=300)
        (tmp_path / "work/filler").unlink(missing_ok=True)
        assert "limits.disk_mb is 20, but the file system has grown by " in result["error"]
        check_broken(daemon, result, "limit", "disk_mb", "4725")


def test_a_session_that_breaks_a_limit_is_closed(limited: RunningDaemon) -> None:
    """The main shell goes on."""
    session_id = limited.client.post("/sessions").json()["session_id"]
    command = "for i in {1..3000}; do sleep 4726.5 & done; wait"
    result = limited.json("POST", f"/sessions/{session_id}/run", json={"command": command, "timeout": 20})
    assert (result["status"], result["cause"]) == ("killed", "limit"), result
    wait_for(lambda: limited.client.get(f"/sessions/{session_id}").status_code == 404)
    wait_for(lambda: not processes_with("4726.5"))
    assert limited.run("echo works")["stdout"] == "works\n"
    wait_for(lambda: len(cgroups_below(limited)) <= 1)


def test_a_one_shot_command_that_breaks_a_limit(limited: RunningDaemon) -> None:
    """It is killed as others are, and its shell is gone."""
    body = {"command": "for i in {1..3000}; do sleep 4727.5 & done; wait", "timeout": 20}
    result = limited.json("POST", "/exec", json=body)
    assert (result["status"], result["cause"]) == ("killed", "limit"), result
    wait_for(lambda: not processes_with("4727.5"))
    wait_for(lambda: len(cgroups_below(limited)) <= 1)
    assert limited.run("echo works")["stdout"] == "works\n"


def test_a_command_that_makes_cgroups_of_its_own(limited: RunningDaemon) -> None:
    """They go with its shell."""
    if not held(limited):
        pytest.skip("about cgroups alone")
    made = limited.run("own=$(sed 's/^0:://' /proc/self/cgroup); mkdir /sys/fs/cgroup$own/a; echo made")
    if made["stdout"] != "made\n":
        pytest.skip("the hierarchy is mounted elsewhere")
    (directory,) = cgroups_below(limited)
    assert limited.client.post("/recycle").text == "ready"
    assert not Path(directory).exists()


@pytest.mark.parametrize("way", WAYS)
def test_cpu(tmp_path: Path, way: str) -> None:
    """A spinner is killed, in whatever session it is; the CPU time that it used is told."""
    options = QUICK | prepared(way) | {"limits__cpu_percent": "30", "limits__check_interval": "200ms"}
    with running_daemon(tmp_path, **options) as daemon:
        daemon.fresh()
        result = daemon.run("(setsid sh -c 'while :; do :; done' &); sleep 4728", timeout=300)
        used = result["usage"]["cpu_seconds"]
        assert 0.05 <= used <= 1.5 * result["duration"], result
        check_broken(daemon, result, "limit", "cpu_percent", "4728")
        assert len(cgroups_below(daemon)) == (way == "cgroups")
        daemon.process.send_signal(signal.SIGTERM)
        daemon.process.wait(60)
        assert cgroups_below(daemon) == []


def test_a_lifetime(tmp_path: Path) -> None:
    """A command that outlives it is interrupted, then killed, and takes its shell with it, as with any limit."""
    with running_daemon(tmp_path, timeout__command_lifetime="300ms", timeout__kill="200ms") as daemon:
        daemon.fresh()
        result = daemon.run("sh -c 'trap \"echo cleaned; exit 7\" INT; sleep 4729 & wait'", timeout=60)
        assert (result["status"], result["cause"], result["stdout"]) == ("killed", "lifetime", "cleaned\n"), result
        assert result["error"] == "Killed: it ran longer than timeout.command_lifetime, which is 300ms."
        assert (result["state"], daemon.state()) == ("unrecoverable", "unrecoverable")
        assert (result["usage"]["processes_left"], result["background_pids"]) == (0, [])
        wait_for(lambda: not processes_with("4729"))
        daemon.fresh()
        assert daemon.run("echo works")["stdout"] == "works\n"
        session_id = daemon.client.post("/sessions").json()["session_id"]
        stubborn = "sh -c \"trap '' INT; while :; do sleep 4730; done\""
        result = daemon.json("POST", f"/sessions/{session_id}/run", json={"command": stubborn, "timeout": 10})
        assert (result["status"], result["cause"]) == ("killed", "lifetime"), result
        wait_for(lambda: daemon.client.get(f"/sessions/{session_id}").status_code == 404)
        wait_for(lambda: not processes_with("4730"))


def test_usage_of_runs_that_break_no_limit(daemon: RunningDaemon) -> None:
    """CPU time counts what was waited for and what is left; memory is the processes' together; what is left counts."""
    spin = "timeout 0.3 sh -c 'while :; do :; done'"
    waited = daemon.run(spin)["usage"]
    assert 0.05 <= waited["cpu_seconds"] <= 0.6
    left = daemon.run("sh -c 'while :; do :; done' & sleep 0.3; echo on")
    assert left["usage"]["processes_left"] == len(left["background_pids"]) == 1
    assert 0.05 <= left["usage"]["cpu_seconds"] <= 0.8
    later = daemon.run("sleep 0.2")["usage"]
    assert later["cpu_seconds"] < 0.1, "what an earlier run has left is not this one's"
    daemon.fresh()
    both = " & ".join([ALLOCATE.format(40, 0.4)] * 2)
    assert 80 < daemon.run(f"{both} & wait")["usage"]["peak_memory_mb"] < 200
    crashed = daemon.run("for i in {1..100000}; do :; done; kill -9 $$")
    assert (crashed["cause"], crashed["usage"]["cpu_seconds"] > 0.05) == ("shell_crashed", True)


@pytest.mark.root
def test_a_daemon_in_a_delegated_cgroup(tmp_path: Path) -> None:
    """It moves into a leaf to have controllers, sets the limits, and leaves its cgroup as it was."""
    with cgroups.cgroup("memory", "pids") as own:
        with cgroups.inside(own), running_daemon(tmp_path, **QUICK, **LIMITS) as daemon:
            assert held(daemon), daemon.log.read_text()
            daemon.fresh()
            path = Path(f"/proc/{daemon.process.pid}/cgroup").read_text().strip()
            assert re.search(rf"/{own.name}/shelld-\w+/daemon$", path)
            (shell,) = [Path(name) for name in cgroups_below(daemon) if not name.endswith("daemon")]
            assert (shell / "memory.max").read_text() == f"{100 << 20}\n"
            assert int((shell / "pids.max").read_text()) > 30
            assert daemon.run("echo works")["stdout"] == "works\n"
            assert daemon.run(ALLOCATE.format(200, 4731), timeout=300)["cause"] == "oom"
        assert [entry.name for entry in os.scandir(own) if entry.is_dir()] == []
        assert (own / "cgroup.subtree_control").read_text().strip() == ""


@pytest.mark.root
def test_what_a_killed_daemon_has_left(tmp_path: Path) -> None:
    """The next one in the same cgroup ends what still runs there and removes the cgroups; those in use it leaves."""
    options = QUICK | {"limits__cpu_percent": "500"}
    with cgroups.cgroup() as own:
        with cgroups.inside(own), running_daemon(tmp_path / "first", **options) as first:
            first.fresh()
            first.run("setsid sleep 4732 & disown")
            wait_for(lambda: processes_with("4732"))
            first.client.close()
            first.process.kill()
            first.process.wait()
        (left,) = [Path(entry.path) for entry in os.scandir(own) if entry.is_dir()]
        leaf = left / "daemon"
        with cgroups.inside(leaf if leaf.exists() else own), running_daemon(tmp_path / "second", **options) as second:
            assert f"removed {left}, which an earlier daemon has left" in second.log.read_text()
            assert held(second)
            assert not left.exists()
            assert not processes_with("4732")
            with running_daemon(tmp_path / "third", **options) as third:
                assert "which an earlier daemon has left" not in third.log.read_text()
                second.fresh()
                assert second.run("echo works")["stdout"] == "works\n"
        assert [entry.name for entry in os.scandir(own) if entry.is_dir()] == []


@pytest.mark.root
def test_a_cgroup_that_was_not_delegated(tmp_path: Path) -> None:
    """Limits are sampled, and one line of the log says why."""
    with (
        cgroups.cgroup(delegated=False) as own,
        cgroups.inside(own),
        running_daemon(tmp_path, **QUICK, limits__processes="30") as daemon,
    ):
        (line,) = [line for line in daemon.log.read_text().splitlines() if "limits:" in line]
        assert line.endswith(
            f"limits: sampled, for there are no cgroups: {own}: it was not delegated to the daemon "
            "(for a service of systemd: Delegate=yes)"
        )
        daemon.fresh()
        assert daemon.run("for i in {1..3000}; do sleep 4733.5 & done; wait", timeout=300)["cause"] == "limit"


@pytest.mark.root
def test_cgroups_that_somebody_has_removed(tmp_path: Path) -> None:
    """Shells start all the same, and their limits are sampled."""
    with (
        cgroups.cgroup() as own,
        cgroups.inside(own),
        running_daemon(tmp_path, **QUICK, limits__cpu_percent="900", limits__processes="30") as daemon,
    ):
        assert held(daemon), daemon.log.read_text()
        (made,) = [Path(entry.path) for entry in os.scandir(own) if entry.is_dir()]
        if (made / "daemon").exists():
            pytest.skip("the daemon itself lives there")
        made.rmdir()
        daemon.fresh()
        assert "limits: sampled for this shell, for it has no cgroup" in daemon.log.read_text()
        assert daemon.run("for i in {1..3000}; do sleep 4737.5 & done; wait", timeout=300)["cause"] == "limit"


@pytest.mark.root
@pytest.mark.parametrize("limit", [{}, {"limits__cpu_percent": "900"}], ids=["no cgroups", "cgroups"])
def test_memory_that_the_machine_lacks(tmp_path: Path, limit: dict[str, str]) -> None:
    """Where no limit of the daemon's is at work, the shell lives on, and the kernel's counter tells the cause."""
    with cgroups.cgroup("memory", "pids") as own:
        (own / "memory.max").write_text(str(150 << 20))
        if (own / "memory.swap.max").exists():
            (own / "memory.swap.max").write_text("0")
        with cgroups.inside(own), running_daemon(tmp_path, **limit) as daemon:
            daemon.fresh()
            result = daemon.run(ALLOCATE.format(300, 4734), timeout=300)
            assert (result["status"], result["cause"], result["signal"]) == ("completed", "oom", 9), result
            assert "The kernel killed a process: the memory of the machine or container" in result["error"]
            assert result["state"] == "ready"
            caught = daemon.run(f"sh -c {shlex.quote(ALLOCATE.format(300, 4735))}; exit 3", timeout=300)
            assert (caught["status"], caught["cause"], caught["exit_code"]) == ("completed", "exit", 3)
            assert bool(caught["error"]) == bool(limit), "only with cgroups it is certain whose process it was"
            assert daemon.run("sh -c 'kill -9 $$'")["cause"] == "signal"


def test_who_is_killed_first(tmp_path: Path) -> None:
    """Shells come before the daemon, which protects itself where it may; hooks get what the daemon was given."""
    hook = f"cat /proc/self/oom_score_adj >{tmp_path}/hook"
    with running_daemon(tmp_path, hooks__on_startup=hook) as daemon:
        daemon.fresh()
        before = int(Path("/proc/self/oom_score_adj").read_text())
        status = Path("/proc/self/status").read_text()
        permitted = int(re.search(r"CapEff:\s*(\w+)", status)[1], 16) >> CAP_SYS_RESOURCE & 1
        score = int(Path(f"/proc/{daemon.process.pid}/oom_score_adj").read_text())
        assert score == (max(before - 500, -900) if permitted else before)
        assert daemon.run("cat /proc/self/oom_score_adj")["stdout"] == f"{min(before + 500, 1000)}\n"
        assert int((tmp_path / "hook").read_text()) == before


@pytest.mark.root
@pytest.mark.parametrize("wanted", [True, False])
def test_tools_know_a_quota(tmp_path: Path, wanted: bool) -> None:
    """With half a CPU, tools take one, unless they were told otherwise; /metadata says what the quota is."""
    options = {"shell__cpu_variables": str(wanted).lower(), "shell__environment__GOMAXPROCS": "7"}
    with cgroups.half_a_cpu(), running_daemon(tmp_path, **options) as daemon:
        assert daemon.json("GET", "/metadata")["cpus"] == 0.5
        daemon.fresh()
        seen = daemon.run("echo ${CARGO_BUILD_JOBS-none} ${GOMAXPROCS-none}; nproc")["stdout"]
        assert seen == ("1 7\n1\n" if wanted else f"none 7\n{len(os.sched_getaffinity(0))}\n")


def test_nothing_is_looked_at_while_no_command_runs(tmp_path: Path) -> None:
    """A daemon with limits does not wake up at rest."""
    options = {"limits__check_interval": "10ms", "limits__processes": "100", "limits__cgroups": "off"}
    with running_daemon(tmp_path, **options) as daemon:
        daemon.fresh()
        daemon.run("sleep 0.1")

        def switches() -> int:
            status = Path(f"/proc/{daemon.process.pid}/status").read_text()
            return int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", status, re.MULTILINE)[1])

        def rests() -> bool:
            before = switches()
            time.sleep(0.3)
            return switches() - before < 10

        wait_for(rests)
