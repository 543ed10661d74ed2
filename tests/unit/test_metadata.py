"""What a client is told of the machine."""

import math
import os
from pathlib import Path

import pytest

from shelld_py.metadata import cpu_variables, operating_system, usable_cpus, usable_memory_mb

DEBIAN = """\
PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"
NAME="Debian GNU/Linux"
VERSION_ID="12"
VERSION="12 (bookworm)"
VERSION_CODENAME=bookworm
ID=debian
HOME_URL="https://www.debian.org/"
"""
UBUNTU = """\
PRETTY_NAME="Ubuntu 24.04.1 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
ID=ubuntu
ID_LIKE=debian
"""
ALPINE = """\
NAME="Alpine Linux"
ID=alpine
VERSION_ID=3.20.3
PRETTY_NAME="Alpine Linux v3.20"
"""
KERNEL = f"{os.uname().sysname} {os.uname().release}"


@pytest.mark.parametrize(
    ("os_release", "name"),
    [
        pytest.param(DEBIAN, "Debian GNU/Linux 12 (bookworm)", id="Debian"),
        pytest.param(UBUNTU, "Ubuntu 24.04.1 LTS", id="Ubuntu"),
        pytest.param(ALPINE, "Alpine Linux v3.20", id="Alpine"),
        pytest.param("NAME='Some Linux'\nVERSION_ID=7\n", "Some Linux 7", id="without a pretty name"),
        pytest.param("NAME=Rolling\n", "Rolling", id="without a version"),
        pytest.param("VERSION_ID=7\n", "7", id="a version alone"),
        pytest.param('PRETTY_NAME="Half\nNAME=Whole\n', "Whole", id="a quote that is not closed"),
        pytest.param('# PRETTY_NAME="No"\n\nnonsense\nPRETTY_NAME="A \\"b\\" \\$c"\r\n', 'A "b" $c', id="escapes"),
        pytest.param('PRETTY_NAME=""\nNAME=\n', KERNEL, id="empty values"),
        pytest.param("", KERNEL, id="unknown"),
    ],
)
def test_the_operating_system(os_release: str, name: str) -> None:
    """It has the name that os-release(5) gives it, else that of the kernel."""
    assert operating_system(os_release) == name


def proc(directory: Path, cgroup: str, kind: str, options: str, **files: str) -> Path:
    """Return a directory for /proc/self, whose cgroup is one of a tree of plain files."""
    root = directory / "root"
    for name, content in files.items():
        file = root / name.replace("__", "/").replace("_max", ".max").replace("cpu_cfs", "cpu.cfs")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (directory / "cgroup").write_text(f"{cgroup}\n")
    (directory / "mountinfo").write_text(f"9 1 0:3 / {root} rw - {kind} none {options}\n")
    return directory


@pytest.mark.parametrize(
    ("files", "cpus"),
    [
        ({}, None),
        ({"cpu_max": "max 100000\n"}, None),
        ({"a__b__cpu_max": "50000 100000\n"}, 0.5),
        ({"a__b__cpu_max": "max 100000\n", "a__cpu_max": "75000 100000\n"}, 0.75),
        ({"a__b__cpu_max": "90000000 100000\n"}, None),
    ],
    ids=["no quota", "max", "own", "of one above", "more than the machine has"],
)
def test_cpus_in_version_2(tmp_path: Path, files: dict[str, str], cpus: float | None) -> None:
    """The smallest quota on the way up holds."""
    found = usable_cpus(proc(tmp_path, "0::/a/b", "cgroup2", "rw", **files))
    assert found == (len(os.sched_getaffinity(0)) if cpus is None else cpus)


@pytest.mark.parametrize(("quota", "cpus"), [("-1\n", None), ("25000\n", 0.25)])
def test_cpus_in_version_1(tmp_path: Path, quota: str, cpus: float | None) -> None:
    files = {"a__cpu_cfs_quota_us": quota, "a__cpu_cfs_period_us": "100000\n"}
    found = usable_cpus(proc(tmp_path, "3:cpu,cpuacct:/a", "cgroup", "rw,cpu,cpuacct", **files))
    assert found == (len(os.sched_getaffinity(0)) if cpus is None else cpus)


def test_memory(tmp_path: Path) -> None:
    """The smallest limit on the way up holds; without one it is the machine's."""
    files = {"a__b__memory_max": "max\n", "a__memory_max": f"{64 << 20}\n"}
    assert usable_memory_mb(proc(tmp_path, "0::/a/b", "cgroup2", "rw", **files)) == 64
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 20)
    assert math.isclose(usable_memory_mb(tmp_path / "none"), total, rel_tol=0.01)


def test_variables_for_tools() -> None:
    """They are there for a quota alone, and name whole CPUs, one at least."""
    allowed = len(os.sched_getaffinity(0))
    assert cpu_variables(float(allowed)) == {}
    assert set(cpu_variables(0.25).values()) == {"1"}
    assert set(cpu_variables(allowed - 0.5).values()) == {str(allowed)}
    assert {"CARGO_BUILD_JOBS", "GOMAXPROCS", "OMP_NUM_THREADS"} <= cpu_variables(0.25).keys()
