"""Limits on a shell and all it started, sampled while it is busy.

A look costs a walk over the tree of the shell's processes, so it is taken every `check_interval`, and only
while a command runs. Between two looks a fork storm can do as it likes; what stops it then is RLIMIT_NPROC
(setrlimit(2)), which counts all processes of the user and does not bind root.
"""

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from shelld_py.config import LimitSettings
from shelld_py.engine import processes
from shelld_py.units import format_duration

_MEBIBYTE: Final = 1024 * 1024
_SPARE_PROCESSES: Final = 64


class LimitWatch:
    """Looks at the tree of one bash until a limit is broken or `stop` is called."""

    def __init__(self, pid: int, directory: str, limits: LimitSettings, on_breach: Callable[[str], None]) -> None:
        """`on_breach` is called once, with what was exceeded and the figures; `directory` tells the file system."""
        self._pid = pid
        self._limits = limits
        self._on_breach = on_breach
        self._directory = directory
        self._disk_before = _disk_used(directory)
        self._usage_before = (time.monotonic(), processes.tree_usage(pid).cpu_seconds)
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(limits.check_interval, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        breach = self._breach()
        if breach:
            self._on_breach(breach)
        else:
            self._timer = self._loop.call_later(self._limits.check_interval, self._look)

    def _breach(self) -> str | None:
        """Return what is exceeded, if anything is."""
        limits = self._limits
        usage = processes.tree_usage(self._pid)
        now = time.monotonic()
        then, cpu_before = self._usage_before
        self._usage_before = (now, usage.cpu_seconds)
        percent = 100 * (usage.cpu_seconds - cpu_before) / max(now - then, 0.001)
        memory = usage.memory / _MEBIBYTE
        disk = (_disk_used(self._directory) - self._disk_before) / _MEBIBYTE
        if 0 < limits.processes < usage.processes:
            return f"limits.processes is {limits.processes}, but the shell and what it started are {usage.processes}"
        if 0 < limits.memory_mb < memory:
            return f"limits.memory_mb is {limits.memory_mb:g}, but {memory:.1f} MB are resident"
        if 0 < limits.cpu_percent < percent:
            period = format_duration(round(now - then, 1))
            return f"limits.cpu_percent is {limits.cpu_percent:g}, but {percent:.0f} % were used over {period}"
        if 0 < limits.disk_mb < disk:
            return f"limits.disk_mb is {limits.disk_mb:g}, but the file system has grown by {disk:.1f} MB"
        return None


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
