"""Want of memory: whom the kernel kills first, and whether it has killed.

The daemon asks to be killed late and lets shells be killed early (oom_score_adj of proc(5)): what takes the memory is
what an agent runs, and the daemon is what can tell it so. Lowering takes CAP_SYS_RESOURCE, raising is always allowed.
It knows nothing of shells or runs.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

from shelld_py.linux import cgroup_paths
from shelld_py.linux.descriptors import Descriptor

LOWERED_BY: Final = 500
RAISED_BY: Final = 500

_UNLIMITED: Final = 1 << 60
"""Bytes: what version 1 has for no limit is the largest number of pages, not a word."""
_ADJUSTMENT: Final = "/proc/self/oom_score_adj"
_LEAST, _MOST = -900, 1000
"""Below -900 there is only -1000, which means never: then the kernel might find nobody."""


def adjustment() -> int | None:
    """Return this process's oom_score_adj; None where it has none."""
    try:
        return int(Path(_ADJUSTMENT).read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None


def lower(original: int | None) -> bool:
    """Have this process killed later than others. Returns whether that was permitted."""
    return original is not None and original > _LEAST and set_adjustment(max(_LEAST, original - LOWERED_BY))


def raised(original: int) -> int:
    """Return the adjustment of a shell, where the daemon was started with `original`."""
    return min(_MOST, original + RAISED_BY)


def set_adjustment(value: int) -> bool:
    """Set this process's oom_score_adj; its children inherit it. Returns whether that was permitted.

    Does without anything that could take a lock: it is called between fork and execve.
    """
    try:
        with Descriptor(os.open(_ADJUSTMENT, os.O_WRONLY | os.O_CLOEXEC)) as descriptor:
            os.write(descriptor, b"%d" % value)
    except OSError:
        return False
    return True


class MemoryLimit:
    """The memory that this process's own cgroup and those above it may use: the least limit that holds for it.

    Version 2, else version 1. Which cgroup that is, is found out once; how high its limit is, at each look.
    """

    def __init__(self, proc: Path = cgroup_paths.PROC_SELF) -> None:
        self._files: tuple[str, ...] = ()
        for place, names in (
            (cgroup_paths.unified(proc), ("memory.max", "memory.current", "memory.stat", "inactive_file")),
            (
                cgroup_paths.version_1("memory", proc),
                ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.stat", "total_inactive_file"),
            ),
        ):
            limits = [
                (limit, directory)
                for directory in (place.upwards() if place else ())
                if (limit := _number(f"{directory}/{names[0]}")) is not None and limit < _UNLIMITED
            ]
            if limits and not self._files:
                directory = min(limits)[1]
                self._files = (*(f"{directory}/{name}" for name in names[:3]), names[3])

    def use(self) -> tuple[int, int] | None:
        """Return the bytes in use and the limit; None where there is none.

        File pages that have not been used lately do not count, as for the kubelet: the kernel drops them first.
        """
        if not self._files:
            return None
        limit, used = _number(self._files[0]), _number(self._files[1])
        if limit is None or used is None or limit >= _UNLIMITED:
            return None
        return (used if used < limit / 2 else max(0, used - self._inactive()), limit)

    def _inactive(self) -> int:
        words = _words(self._files[2])
        name = self._files[3].encode()
        return int(words[words.index(name) + 1]) if name in words else 0


def _number(path: str) -> int | None:
    words = _words(path)
    return int(words[0]) if words and words[0].isdigit() else None


def _words(path: str) -> list[bytes]:
    with contextlib.suppress(OSError), open(path, "rb", buffering=0) as file:
        return file.read(8192).split()
    return []


class KillCounter:
    """How many processes the kernel has killed for want of memory in this process's own cgroup and below it.

    `memory.events` in version 2, `memory.oom_control` (Linux 4.13) in version 1. The root of a hierarchy has no
    such counter: on a machine without cgroups there is none.
    """

    def __init__(self, proc: Path = cgroup_paths.PROC_SELF) -> None:
        self._file = -1
        for place, name in (
            (cgroup_paths.unified(proc), "memory.events"),
            (cgroup_paths.version_1("memory", proc), "memory.oom_control"),
        ):
            if place and self._file < 0:
                with contextlib.suppress(OSError):
                    self._file = os.open(place.directory / name, os.O_RDONLY | os.O_CLOEXEC)

    def count(self) -> int | None:
        """Return the number so far; None where the kernel does not count."""
        if self._file < 0:
            return None
        try:  # it is asked for each command
            _, _, said = os.pread(self._file, 4096, 0).partition(b"oom_kill ")
            return int(said.partition(b"\n")[0])
        except (OSError, ValueError):
            return None

    def close(self) -> None:
        """Release the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
