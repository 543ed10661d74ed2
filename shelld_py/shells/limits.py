"""Limits on a shell and all it started, looked at while it is busy.

A look is taken every `check_interval`, and only while a command runs. There are two ways.

Sampling
    A look costs a walk over the tree of the shell's processes. Between two looks a fork storm can do as it
    likes; what stops it then is RLIMIT_NPROC (setrlimit(2)), which counts all processes of the user and does
    not bind root.

With a cgroup
    Memory is held by the kernel (memory.max): it kills the whole shell at the limit, and its counter says so.
    Processes are counted as in the other way, but pids.max, which counts threads, is a ceiling above the limit
    that no storm gets through; a fork that it refuses is a breach. CPU time is the kernel's own sum.
    The growth of a file system is sampled either way.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shelld_py.config import LimitSettings
from shelld_py.linux import processes
from shelld_py.linux.cgroups import Events, ShellCgroup
from shelld_py.models import Cause
from shelld_py.units import format_duration

_MEBIBYTE: Final = 1024 * 1024
_SPARE_PROCESSES: Final = 64
_TASKS_EACH: Final = 4


class LimitWatch:
    """Looks at the tree of one bash until a limit is broken or `stop` is called."""

    def __init__(
        self,
        pid: int,
        directory: str,
        limits: LimitSettings,
        on_breach: Callable[[Cause, str], None],
        cgroup: ShellCgroup | None = None,
    ) -> None:
        """`on_breach` is called once, with what was exceeded and the figures; `directory` tells the file system."""
        self._pid = pid
        self._limits = limits
        self._cgroup = cgroup
        self._events_before = cgroup.events() if cgroup else None
        self._on_breach = on_breach
        self._directory = directory
        self._disk_before = _disk_used(directory)
        self._usage_before = (time.monotonic(), self._cpu_seconds())
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limits.check_interval, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def last_look(self, *, processes_left: bool) -> tuple[Cause, str] | None:
        """Return which limit is broken at the end of a command, or has been as the kernel's counters say.

        The share of the CPU is left out: over a short time it says nothing.
        """
        counted = self._counted_breach()
        if counted:
            return counted
        found = (self._size_breach(self._usage()) if processes_left else None) or self._disk_breach()
        return (Cause.LIMIT, found) if found else None

    def _look(self) -> None:
        breach = self._counted_breach() or self._sampled_breach()
        if breach:
            self._on_breach(*breach)
        else:
            self._timer = self._loop.call_later(self._limits.check_interval, self._look)

    def _cpu_seconds(self) -> float:
        return self._cgroup.cpu_seconds() if self._cgroup else processes.tree_usage(self._pid).cpu_seconds

    def _usage(self) -> processes.TreeUsage:
        if not self._cgroup:
            return processes.tree_usage(self._pid)
        held = "memory" in self._cgroup.controllers
        memory = 0 if held or not self._limits.memory_mb else processes.tree_usage(self._pid).memory
        return processes.TreeUsage(self._cgroup.cpu_seconds(), memory, self._cgroup.processes())

    def _counted_breach(self) -> tuple[Cause, str] | None:
        if not self._cgroup or not self._events_before:
            return None
        return counted_breach(self._limits, self._events_before, self._cgroup.events(), self._cgroup.peak())

    def _sampled_breach(self) -> tuple[Cause, str] | None:
        usage = self._usage()
        found = self._size_breach(usage) or self._cpu_breach(usage) or self._disk_breach()
        return (Cause.LIMIT, found) if found else None

    def _size_breach(self, usage: processes.TreeUsage) -> str | None:
        limits, memory = self._limits, usage.memory / _MEBIBYTE
        if 0 < limits.processes < usage.processes:
            return f"limits.processes is {limits.processes}, but the shell and what it started are {usage.processes}"
        if 0 < limits.memory_mb < memory:
            return f"limits.memory_mb is {limits.memory_mb:g}, but {memory:.1f} MB are resident"
        return None

    def _cpu_breach(self, usage: processes.TreeUsage) -> str | None:
        now = time.monotonic()
        then, cpu_before = self._usage_before
        self._usage_before = (now, usage.cpu_seconds)
        percent = 100 * (usage.cpu_seconds - cpu_before) / max(now - then, 0.001)
        if 0 < self._limits.cpu_percent < percent:
            period = format_duration(round(now - then, 1))
            return f"limits.cpu_percent is {self._limits.cpu_percent:g}, but {percent:.0f} % were used over {period}"
        return None

    def _disk_breach(self) -> str | None:
        if not self._limits.disk_mb:
            return None
        grown = (_disk_used(self._directory) - self._disk_before) / _MEBIBYTE
        if grown > self._limits.disk_mb:
            return f"limits.disk_mb is {self._limits.disk_mb:g}, but the file system has grown by {grown:.1f} MB"
        return None


def counted_breach(limits: LimitSettings, before: Events, now: Events, peak: int | None) -> tuple[Cause, str] | None:
    """Return which limit the kernel's counters say was broken between `before` and `now`; `peak` is in bytes."""
    killed, refused = now.killed - before.killed, now.refused - before.refused
    if limits.memory_mb and killed and now.exhausted > before.exhausted:
        reached = "" if peak is None else f" at a peak of {peak / _MEBIBYTE:.1f} MB"
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


def process_ceiling(limits: LimitSettings) -> int | None:
    """Return RLIMIT_NPROC for a new shell: what the user runs now, the limit, and some more; None without a limit."""
    if not limits.processes:
        return None
    user = os.getuid()
    running = sum(1 for entry in Path("/proc").iterdir() if entry.name.isdigit() and _owner(entry) == user)
    return running + limits.processes + _SPARE_PROCESSES


def _owner(entry: Path) -> int:
    try:
        return entry.stat().st_uid
    except OSError:
        return -1


def _disk_used(directory: str) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize
