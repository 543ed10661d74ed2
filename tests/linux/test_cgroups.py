"""Where cgroups lie, what their files say, and one made, entered, killed and removed for real.

Files of a tree of plain files stand for the kernel's where only reading and writing is at stake.
"""

import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from shelld_py.bash.confinement import Confinement
from shelld_py.config import CgroupUse, LimitSettings
from shelld_py.linux import cgroup_paths, oom
from shelld_py.linux.cgroup_paths import OwnCgroup
from shelld_py.linux.cgroups import CgroupEvents, Cgroups, CgroupsUnavailable, ShellCgroup, pids_in, remove_stale
from shelld_py.models import Cause
from shelld_py.shells.limits import confine, counted_breach, limits_for_cgroups, task_ceiling
from tests import cgroups
from tests.daemons import wait_for

LOGGER = logging.getLogger("tests.linux.cgroups")
SYSTEMD = "31 23 0:27 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot"
HYBRID = """\
30 24 0:25 / /sys/fs/cgroup ro - tmpfs tmpfs ro,mode=755
31 30 0:26 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw
32 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 30 0:28 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory"""
BOUND = "900 890 0:27 /docker/abc /sys/fs/cgroup ro - cgroup2 cgroup rw"


def proc(directory: Path, cgroup: str, mountinfo: str) -> Path:
    """Return a directory with the two files of /proc/self that are read."""
    (directory / "cgroup").write_text(cgroup + "\n")
    (directory / "mountinfo").write_text(f"1 0 8:1 / / rw - ext4 /dev/sda1 rw\n{mountinfo}")
    return directory


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "directory"),
    [
        pytest.param("0::/", SYSTEMD, "/sys/fs/cgroup", id="namespace"),
        pytest.param("0::/a.slice/b.service", SYSTEMD, "/sys/fs/cgroup/a.slice/b.service", id="systemd"),
        pytest.param("9:memory:/m\n0::/u", HYBRID, "/sys/fs/cgroup/unified/u", id="hybrid"),
        pytest.param("0::/docker/abc", BOUND, "/sys/fs/cgroup", id="bind mount"),
        pytest.param("0::/docker/abc/x", BOUND, "/sys/fs/cgroup/x", id="below a bind mount"),
        pytest.param("0::/docker/other", BOUND, None, id="not in what is mounted"),
        pytest.param("0::/../x", SYSTEMD, None, id="outside of the namespace"),
        pytest.param("0::/", SYSTEMD.replace(" / /sys", " /.. /sys"), None, id="mounted outside of the namespace"),
        pytest.param("0::/", f"{BOUND}\n{SYSTEMD}", "/sys/fs/cgroup", id="mounted twice"),
        pytest.param("0::/", "9 1 0:3 / /mnt/a\\040b rw - cgroup2 none rw", "/mnt/a b", id="a space in a name"),
        pytest.param("0::/a:b", SYSTEMD, "/sys/fs/cgroup/a:b", id="a colon in a name"),
        pytest.param("9:memory:/m", SYSTEMD, None, id="version 1 alone"),
        pytest.param("0::/", "", None, id="not mounted"),
    ],
)
def test_where_the_cgroup_of_version_2_is(tmp_path: Path, cgroup: str, mountinfo: str, directory: str | None) -> None:
    place = cgroup_paths.unified(proc(tmp_path, cgroup, mountinfo))
    assert (str(place.directory) if place else None) == directory


def test_where_the_cgroups_of_version_1_are(tmp_path: Path) -> None:
    """Each controller has a hierarchy, possibly with others."""
    files = proc(tmp_path, "4:memory:/m/n\n3:cpu,cpuacct:/c\n0::/", HYBRID)
    memory, cpu = cgroup_paths.version_1("memory", files), cgroup_paths.version_1("cpu", files)
    assert memory is not None
    assert cpu is not None
    assert [str(path) for path in memory.upwards()] == [f"/sys/fs/cgroup/memory{part}" for part in ("/m/n", "/m", "")]
    assert str(cpu.directory) == "/sys/fs/cgroup/cpu,cpuacct/c"
    assert cgroup_paths.version_1("pids", files) is None


def test_a_system_without_cgroups(tmp_path: Path) -> None:
    assert cgroup_paths.unified(tmp_path) is None
    assert oom.KillCounter(tmp_path).count() is None
    with pytest.raises(CgroupsUnavailable, match="no hierarchy of version 2"):
        Cgroups.take(None, LOGGER)


@pytest.mark.parametrize(
    ("cgroup", "mountinfo", "file", "content"),
    [
        ("0::/x", "9 1 0:3 / {root} rw - cgroup2 none rw", "x/memory.events", "low 0\noom 5\noom_kill 3\n"),
        (
            "5:memory:/x",
            "9 1 0:3 / {root} rw - cgroup none rw,memory",
            "x/memory.oom_control",
            "under_oom 0\noom_kill 3",
        ),
        ("5:memory:/\n0::/", "9 1 0:3 / {root} rw - cgroup none rw,memory", "memory.oom_control", "oom_kill 3"),
    ],
    ids=["version 2", "version 1", "hybrid"],
)
def test_the_counter_of_kills(tmp_path: Path, cgroup: str, mountinfo: str, file: str, content: str) -> None:
    """It is read anew each time."""
    root = tmp_path / "root"
    (root / "x").mkdir(parents=True)
    (root / file).write_text(content)
    counter = oom.KillCounter(proc(tmp_path, cgroup, mountinfo.format(root=root)))
    try:
        assert counter.count() == 3
        (root / file).write_text(content.replace("oom_kill 3", "oom_kill 4"))
        assert counter.count() == 4
    finally:
        counter.close()
    assert counter.count() is None


def test_limits_as_the_kernel_takes_them(tmp_path: Path) -> None:
    """Only what has a controller is written."""
    names = ("memory.max", "memory.swap.max", "memory.oom.group", "pids.max")
    for name in names:
        (tmp_path / name).write_text("")
    limits = LimitSettings(memory_mb=1.5, processes=10)
    confine(ShellCgroup(tmp_path, ["memory", "pids"]), limits)
    assert [(tmp_path / name).read_text() for name in names] == ["1572864", "0", "1", "74"]
    empty = tmp_path / "empty"
    empty.mkdir()
    confine(ShellCgroup(empty, []), limits)
    with pytest.raises(FileNotFoundError):
        confine(ShellCgroup(empty, ["memory"]), limits)
    assert (task_ceiling(LimitSettings()), task_ceiling(LimitSettings(processes=1000))) == (None, 4000)


def test_figures_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "cpu.stat").write_text("usage_usec 1500000\nuser_usec 1\n")
    (tmp_path / "memory.current").write_text("4096\n")
    (tmp_path / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 2\noom_kill 3\noom_group_kill 1\n")
    (tmp_path / "pids.events").write_text("max 5\n")
    (tmp_path / "cgroup.procs").write_text("10\n11\n")
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/cgroup.procs").write_text("12\n")
    cgroup = ShellCgroup(tmp_path, [])
    assert (cgroup.cpu_seconds(), cgroup.memory(), cgroup.processes()) == (1.5, 4096, 3)
    assert cgroup.events() == CgroupEvents(killed=3, exhausted=2, refused=5)
    bare = ShellCgroup(tmp_path / "sub", [])
    assert (bare.cpu_seconds(), bare.memory(), bare.peak(), bare.events()) == (0, None, None, CgroupEvents())
    bare.begin_peak()
    assert bare.peak() is None


def test_the_peak_of_an_older_kernel(tmp_path: Path) -> None:
    """Where the kernel's peak cannot be set back, it tells something of a run only if the run has raised it."""
    peak = tmp_path / "memory.peak"
    peak.write_text("5000\n")
    cgroup = ShellCgroup(tmp_path, ["memory"])
    cgroup._files["memory.peak"] = os.open(peak, os.O_RDONLY)
    cgroup.begin_peak()
    assert cgroup.peak() is None
    peak.write_text("6000\n")
    assert cgroup.peak() == 6000


@pytest.mark.parametrize(
    ("limits", "now", "cause", "error"),
    [
        ({"memory_mb": 100}, CgroupEvents(1, 1, 0), None, ""),
        (
            {"memory_mb": 100},
            CgroupEvents(3, 2, 0),
            Cause.OOM,
            "limits.memory_mb is 100, .* peak of 2.0 MB .*rose by 2",
        ),
        ({"memory_mb": 100}, CgroupEvents(3, 1, 0), None, ""),
        ({}, CgroupEvents(3, 2, 0), None, ""),
        ({"processes": 10}, CgroupEvents(1, 1, 4), Cause.LIMIT, "limits.processes is 10, .* beyond 74 .* 4 times"),
        ({"memory_mb": 100}, CgroupEvents(1, 1, 4), None, ""),
    ],
    ids=["nothing", "memory", "memory of the machine", "no limit on memory", "forks", "no limit on processes"],
)
def test_what_the_counters_say(limits: dict[str, int], now: CgroupEvents, cause: Cause | None, error: str) -> None:
    """A limit was broken where the counter of its own has risen."""
    found = counted_breach(LimitSettings(**limits), CgroupEvents(1, 1, 0), now, 2 << 20)
    assert (found[0] if found else None) is cause
    if found:
        assert re.search(error, found[1])


def test_when_cgroups_are_wanted() -> None:
    """Where a limit gains by them, unless they are switched off."""
    for name in ("cpu_percent", "memory_mb", "processes"):
        assert limits_for_cgroups(LimitSettings(**{name: 1}))
        assert not limits_for_cgroups(LimitSettings(**{name: 1}, cgroups=CgroupUse.OFF))
    assert not limits_for_cgroups(LimitSettings(disk_mb=1))


def spawned(cgroup: ShellCgroup, script: str) -> "subprocess.Popen[bytes]":
    """Start a process in a cgroup as bash is started."""
    return subprocess.Popen(["sh", "-c", script], preexec_fn=Confinement(open_files=(64, 64), cgroup=cgroup).enter)


@pytest.mark.root
def test_a_cgroup_from_its_making_to_its_removal() -> None:
    """A process is in it from its first moment, with all it starts; all are killed at once; nothing is left."""
    with cgroups.cgroup() as own:
        made = Cgroups.take(OwnCgroup(own, Path("/sys")), LOGGER)
        cgroup = made.create()
        process = spawned(cgroup, "i=0; while [ $i -lt 20000 ]; do i=$((i + 1)); done; setsid sleep 60 & wait")
        try:
            assert cgroup.holds(process.pid)
            assert f"/{cgroup.directory.name}\n" in Path(f"/proc/{process.pid}/cgroup").read_text()
            wait_for(lambda: cgroup.processes() == 2)
            assert 0 < cgroup.cpu_seconds() < 5
            assert not cgroup.remove(), "it is in use"
            if cgroup.kill():
                assert process.wait(60) == -signal.SIGKILL
                wait_for(lambda: cgroup.processes() == 0)
                (cgroup.directory / "a/b").mkdir(parents=True)
                wait_for(cgroup.remove)
        finally:
            process.kill()
            process.wait()
        other = spawned(made.create(), "sleep 60")
        made.close()
        assert other.wait(10) == -signal.SIGKILL
        assert [entry.name for entry in os.scandir(own) if entry.is_dir()] == []


@pytest.mark.root
def test_what_is_left_is_told_by_its_lock() -> None:
    """A directory that nobody has locked is removed with what lives in it; others are left alone."""
    with cgroups.cgroup() as own:
        made = Cgroups.take(OwnCgroup(own, Path("/sys")), LOGGER)
        stale = own / "shelld-stale"
        (stale / "1").mkdir(parents=True)
        (own / "another").mkdir()
        process = spawned(ShellCgroup(stale / "1", []), "sleep 60")
        assert process.pid in pids_in(stale / "1")
        assert remove_stale(own) == [stale]
        assert process.wait(60) == -signal.SIGKILL
        assert made.directory.exists()
        assert (own / "another").exists()
        made.close()
        (own / "another").rmdir()


@pytest.mark.root
def test_what_is_not_ours_to_divide() -> None:
    """A cgroup that was not delegated is refused, and so is one with other processes; nothing is left there."""
    with cgroups.cgroup(delegated=False) as own:
        with pytest.raises(CgroupsUnavailable, match="was not delegated"):
            Cgroups.take(OwnCgroup(own, Path("/sys")), LOGGER)
        with pytest.raises(CgroupsUnavailable, match="is not visible"):
            Cgroups.take(OwnCgroup(own / "none", Path("/sys")), LOGGER)
        assert [entry.name for entry in os.scandir(own) if entry.is_dir()] == []


@pytest.mark.root
def test_company_in_our_own_cgroup() -> None:
    """Where another process lives there, controllers cannot be had."""
    with cgroups.cgroup("memory", "pids") as own:
        process = spawned(ShellCgroup(own, []), "sleep 60")
        try:
            with pytest.raises(CgroupsUnavailable, match=f"other processes live there: {process.pid}"):
                Cgroups.take(OwnCgroup(own, Path("/sys")), LOGGER)
            assert [entry.name for entry in os.scandir(own) if entry.is_dir()] == []
        finally:
            process.kill()
            process.wait()


@pytest.mark.root
def test_lowering_takes_a_privilege() -> None:
    """Who may not be killed later stays as he is; who may be killed earlier is."""
    program = (
        "import ctypes, os; from shelld_py.linux import oom; before = oom.adjustment(); os.setgid(65534);"
        "os.setuid(65534); ctypes.CDLL(None).prctl(4, 1, 0, 0, 0);"  # PR_SET_DUMPABLE: else /proc/self is root's
        "print(oom.lower(before), oom.adjustment() == before, "
        "oom.set_adjustment(oom.raised(before)), oom.adjustment() == min(1000, before + 500))"
    )
    if os.getuid():
        pytest.skip("needs root, to become nobody")
    command = [sys.executable, "-c", program]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.stdout == "False True True True\n", done.stderr
