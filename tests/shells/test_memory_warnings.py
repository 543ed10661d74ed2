"""When there is a warning of a limit of memory, and what it says."""

import os
from pathlib import Path

import pytest

from shelld_py.config import LimitSettings
from shelld_py.linux.oom import MemoryLimit
from shelld_py.linux.processes import ProcessStat, parse_stat
from shelld_py.shells.limits import MemoryWarnings

MEBIBYTE = 1 << 20
STAT = parse_stat(os.getpid(), Path("/proc/self/stat").read_bytes())


def process(name: str, megabytes: float) -> ProcessStat:
    """Return this process as it would be with another name and so much memory."""
    line = Path("/proc/self/stat").read_bytes()
    fields = line[line.rfind(b")") + 2 :].split()
    fields[21] = str(int(megabytes * MEBIBYTE) // os.sysconf("SC_PAGE_SIZE")).encode()
    return parse_stat(STAT.pid, f"{STAT.pid} ({name}) ".encode() + b" ".join(fields))


def test_each_level_is_told_once() -> None:
    """At 85 and at 95 %, on the way up only; who is past both at once is told of the higher."""
    warnings = MemoryWarnings(LimitSettings(memory_mb=100), None, None)
    told = [len(warnings.look([process("hog", size)])) for size in (84, 86, 94, 50, 90, 96, 99, 97)]
    assert told == [0, 1, 0, 0, 0, 1, 0, 0]
    (warning,) = MemoryWarnings(LimitSettings(memory_mb=100), None, None).look([process("hog", 99)])
    assert warning.startswith("99 % of a memory limit are in use: 99 of 100 MB (limits.memory_mb)")


def test_the_largest_processes_are_named() -> None:
    """Three of them, the largest first; a name that a process gave itself cannot draw on a terminal."""
    members = [process("small", 1), process("a", 20), process("evil\n\x1b[2J", 40), process("b", 30)]
    (warning,) = MemoryWarnings(LimitSettings(memory_mb=100), None, None).look(members)
    pid = STAT.pid
    assert warning.endswith(f"evil??[2J (pid {pid}) 40 MB, b (pid {pid}) 30 MB, a (pid {pid}) 20 MB.")


def test_without_a_limit_there_is_no_warning() -> None:
    assert MemoryWarnings(LimitSettings(), None, None).look([process("hog", 10_000)]) == []


def placed(directory: Path, cgroup: str, kind: str, options: str, files: dict[str, str]) -> MemoryLimit:
    """Return the limit of a process whose cgroup is one of a tree of plain files."""
    root = directory / "root"
    for name, content in files.items():
        file = root / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    (directory / "cgroup").write_text(f"{cgroup}\n")
    (directory / "mountinfo").write_text(f"9 1 0:3 / {root} rw - {kind} none {options}\n")
    return MemoryLimit(directory)


def use(limit: str, current: str, stat: str = "anon 5\ninactive_file 300\n") -> dict[str, str]:
    """Return the files of a cgroup."""
    return {"memory.max": limit, "memory.current": current, "memory.stat": stat}


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, None),
        ({f"a/b/{name}": text for name, text in use("max\n", "900\n").items()}, None),
        ({f"a/b/{name}": text for name, text in use("1000\n", "400\n").items()}, (400, 1000)),
        ({f"a/b/{name}": text for name, text in use("1000\n", "950\n").items()}, (650, 1000)),
        (
            {f"a/{name}": text for name, text in use("1000\n", "950\n", "").items()} | {"a/b/memory.max": "max"},
            (950, 1000),
        ),
        ({f"a/b/{name}": text for name, text in use("nonsense", "").items()}, None),
    ],
    ids=["nothing", "max", "little", "file pages that can go", "of one above", "damaged"],
)
def test_the_limit_of_the_container(tmp_path: Path, files: dict[str, str], found: tuple[int, int] | None) -> None:
    assert placed(tmp_path, "0::/a/b", "cgroup2", "rw", files).use() == found


@pytest.mark.parametrize(("limit", "found"), [("1000", (650, 1000)), ("9223372036854771712", None)])
def test_the_limit_of_the_container_in_version_1(tmp_path: Path, limit: str, found: tuple[int, int] | None) -> None:
    """The largest number that there is means no limit."""
    files = {
        "a/memory.limit_in_bytes": limit, "a/memory.usage_in_bytes": "950",
        "a/memory.stat": "inactive_file 7\ntotal_inactive_file 300\n",
    }  # fmt: skip
    assert placed(tmp_path, "4:memory:/a", "cgroup", "rw,memory", files).use() == found
