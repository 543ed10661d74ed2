"""Limits on a shell and all it started: what of them the kernel can hold, and what its counters say.

There are two ways. Sampling looks at the tree of the shell's processes (supervision.py). Where there is a cgroup for
the shell, memory is held by the kernel (memory.max): it kills the whole shell at the limit, and its counter says so.
Processes are counted as in the other way, but pids.max, which counts threads, is a ceiling above the limit that no
storm gets through; a fork that it refuses is a breach. CPU time is the kernel's own sum. The growth of a file system is
sampled either way. How cgroups are made and removed is in linux/cgroups.py. It knows nothing of runs.
"""

import asyncio
import heapq
import logging
import os
import time
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path
from typing import Final

from shelld_py.config import CgroupUse, LimitSettings
from shelld_py.linux import cgroup_paths, processes
from shelld_py.linux.cgroups import CgroupEvents, Cgroups, CgroupsUnavailable, ShellCgroup
from shelld_py.linux.oom import MemoryLimit
from shelld_py.linux.processes import ProcessStat
from shelld_py.linux.users import User
from shelld_py.models import Cause
from shelld_py.units import MEBIBYTE

_SPARE_PROCESSES: Final = 64
"""Processes of the user that may come from elsewhere meanwhile, and what a shell needs to say that it is full."""

_WARN_AT: Final = (85, 95)
"""Percent of a limit of memory: the first leaves time to act, the second is the last word."""

_TASKS_EACH: Final = 4
"""Threads that a process may have on average: pids.max counts threads, the limit processes."""


_REMOVAL_TIMEOUT: Final = 1.0
"""Seconds that the kernel has to take the killed out of a cgroup; the daemon's end tries once more."""

_REMOVAL_PAUSE: Final = 0.002


class KernelLimits:
    """Gives out cgroups for shells between `take` and `release`; none at any other time."""

    def __init__(self, limits: LimitSettings, logger: logging.Logger) -> None:
        self._limits = limits
        self._logger = logger
        self._cgroups: Cgroups | None = None

    def take(self) -> None:
        """Make part of the hierarchy ours, where a limit gains by it and the system lets us."""
        if not limits_for_cgroups(self._limits):
            return
        try:
            self._cgroups = Cgroups.take(cgroup_paths.unified(), self._logger)
        except CgroupsUnavailable as reason:
            self._logger.info("limits: sampled, for there are no cgroups: %s", reason)
            return
        needed = {"memory": self._limits.memory_mb, "pids": self._limits.processes}
        missing = [name for name, limit in needed.items() if limit and name not in self._cgroups.controllers]
        lacking = f", without the controllers {', '.join(missing)}: those limits are sampled" if missing else ""
        self._logger.info("limits: in cgroups below %s%s", self._cgroups.directory, lacking)

    def release(self) -> None:
        """Remove the cgroups, and kill what is left there."""
        if self._cgroups:
            self._cgroups.close()
            self._cgroups = None

    def make_cgroup(self) -> ShellCgroup | None:
        """Return a cgroup for a shell, its limits set; None where its limits are to be sampled."""
        if self._cgroups is None:
            return None
        try:
            cgroup = self._cgroups.create()
        except OSError as error:
            self._logger.warning("limits: sampled for this shell, for it has no cgroup: %s", error)
            return None
        try:
            confine(cgroup, self._limits)
        except OSError as error:
            self._logger.warning("limits: sampled for this shell, for its cgroup has no limits: %s", error)
            cgroup.remove()
            return None
        return cgroup


class MemoryWarnings:
    """Warns while a run comes near to a limit of memory, its shell's or the container's, before something is killed.

    Once for each of the `_WARN_AT`.
    """

    def __init__(self, limits: LimitSettings, cgroup: ShellCgroup | None, container: MemoryLimit | None) -> None:
        self._limit = int(limits.memory_mb * MEBIBYTE)
        self._cgroup = cgroup
        self._container = container
        self._reached = {"shell": 0, "container": 0}

    def look(self, members: Sequence[ProcessStat]) -> list[str]:
        """Return what there is to warn of that has not been before; `members` is bash and all below it."""
        found = []
        if self._limit:
            used = self._used_by_shell(members)
            found.append(self._warning("shell", used, self._limit, "limits.memory_mb", members))
        if self._container and (use := self._container.use()):
            found.append(self._warning("container", *use, "memory of the container", None))
        return [warning for warning in found if warning]

    def _used_by_shell(self, members: Sequence[ProcessStat]) -> int:
        held = self._cgroup.memory() if self._cgroup else None
        if held is None or self._cgroup is None:
            return sum(stat.memory for stat in members)
        return held if held < self._limit / 2 else held - self._cgroup.inactive_files()

    def _warning(
        self, whose: str, used: int, limit: int, name: str, members: Sequence[ProcessStat] | None
    ) -> str | None:
        percent = 100 * used / limit if limit else 0.0
        level = max((level for level in _WARN_AT if percent >= level), default=0)
        if level <= self._reached[whose]:
            return None
        self._reached[whose] = level
        largest = heapq.nlargest(
            3, processes.tree(os.getpid()) if members is None else members, key=attrgetter("memory")
        )
        named = ", ".join(f"{_safe_name(stat)} (pid {stat.pid}) {stat.memory / MEBIBYTE:.0f} MB" for stat in largest)
        return (
            f"{percent:.0f} % of a memory limit are in use: {used / MEBIBYTE:.0f} of {limit / MEBIBYTE:.0f} MB "
            f"({name}); what exceeds it is killed. The largest processes: {named}."
        )


def _safe_name(stat: ProcessStat) -> str:
    """Return the name of a process, which it may have chosen itself (PR_SET_NAME), without control characters."""
    return "".join(character if character.isprintable() else "?" for character in stat.name)


async def remove_cgroup(cgroup: ShellCgroup | None, session_id: str, logger: logging.Logger) -> None:
    """Remove a shell's cgroup, if it has one; what was killed there may need a moment to be gone."""
    deadline = time.monotonic() + _REMOVAL_TIMEOUT
    while cgroup and not cgroup.remove():
        if time.monotonic() > deadline:
            logger.warning("shell %s: %s cannot be removed yet", session_id, cgroup.directory)
            return
        cgroup.kill()
        await asyncio.sleep(_REMOVAL_PAUSE)


def confine(cgroup: ShellCgroup, limits: LimitSettings) -> None:
    """Have the kernel hold what it can of `limits`. Raises `OSError`."""
    memory = int(limits.memory_mb * MEBIBYTE) if limits.memory_mb and "memory" in cgroup.controllers else None
    cgroup.limit(memory=memory, tasks=task_ceiling(limits) if "pids" in cgroup.controllers else None)


def limits_for_cgroups(limits: LimitSettings) -> bool:
    """Return whether a cgroup would help to hold `limits`, and may be used."""
    return limits.cgroups is CgroupUse.AUTO and any((limits.cpu_percent, limits.memory_mb, limits.processes))


def counted_breach(
    limits: LimitSettings, before: CgroupEvents, now: CgroupEvents, peak: int | None
) -> tuple[Cause, str] | None:
    """Return which limit the kernel's counters say was broken between `before` and `now`; `peak` is in bytes."""
    killed, refused = now.killed - before.killed, now.refused - before.refused
    if limits.memory_mb and killed and now.exhausted > before.exhausted:
        reached = "" if peak is None else f" at a peak of {peak / MEBIBYTE:.1f} MB"
        return Cause.OOM, (
            f"limits.memory_mb is {limits.memory_mb:g}, but more was needed, and the kernel ended the shell{reached} "
            f"(memory.max; oom_kill rose by {killed})"
        )
    if limits.processes and refused:
        return Cause.LIMIT, (
            f"limits.processes is {limits.processes}, but the kernel refused to go beyond {task_ceiling(limits)} "
            f"processes and threads (pids.max; refused {refused} times)"
        )
    return None


def task_ceiling(limits: LimitSettings) -> int | None:
    """Return pids.max for a shell: room for processes with several threads each; None without a limit."""
    return max(_TASKS_EACH * limits.processes, limits.processes + _SPARE_PROCESSES) if limits.processes else None


def limited(limits: LimitSettings) -> bool:
    """Return whether there is anything to look for."""
    return any((limits.cpu_percent, limits.memory_mb, limits.disk_mb, limits.processes))


def process_ceiling(limits: LimitSettings, user: User | None = None) -> int | None:
    """Return RLIMIT_NPROC for a new shell: what its user runs now, the limit, and some more; None without a limit."""
    if not limits.processes:
        return None
    uid = user.uid if user else os.getuid()
    running = sum(1 for entry in Path("/proc").iterdir() if entry.name.isdigit() and _owner(entry) == uid)
    return running + limits.processes + _SPARE_PROCESSES


def _owner(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1
