"""Looks after one run: whether its command waits for input, what it uses, whether it breaks a limit.

One timer and, each time, one walk over the processes of the shell; three judges share what it finds. There is a timer
only while a run goes on. What a judge finds is told to the run, a broken limit to the shell: nothing is ended here.

Waiting for input
    That takes three looks in a row between which nothing was written and the foreground used no CPU time, and the
    last two of which see it waiting for the terminal.

Use
    From the shell's cgroup where it has one, else sampled: between two looks nobody counts what a process used that
    has come and gone, unless bash has waited for it.

Limits
    Sampled, or held by the kernel, as limits.py tells. What stops a fork storm between two looks is RLIMIT_NPROC, which
    counts all processes of the user and does not bind root, or pids.max.
"""

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from shelld_py.bash.process import Bash
from shelld_py.bash.program import Program
from shelld_py.config import LimitSettings
from shelld_py.linux import processes
from shelld_py.linux.cgroups import CgroupEvents, ShellCgroup
from shelld_py.linux.oom import KillCounter
from shelld_py.linux.processes import ProcessStat, Used
from shelld_py.models import Cause, Resources
from shelld_py.shells.limits import MemoryWarnings, counted_breach, limited
from shelld_py.shells.live_run import LiveRun
from shelld_py.units import MEBIBYTE, format_duration

_FIRST_PAUSE: Final = 0.1
"""Seconds to the first look: most commands have ended by then, and cost none."""

_LONGEST_PAUSE: Final = 0.3
"""Seconds between two looks at most: three of them in a row are still within a second."""

_PAUSE_GROWTH: Final = 1.3
_NOTHING: Final = CgroupEvents()


class ResourceMeter:
    """Tells what a shell and all it started use; of the CPU, the share since it was read last."""

    def __init__(self, cpu_seconds: float | None = None) -> None:
        """`cpu_seconds` is what has been used by now; None where that is not known, and the first share is 0."""
        self._last = (time.monotonic(), cpu_seconds)

    def read(self, pid: int | None) -> Resources:
        """Return what is used at this moment by bash, `pid`, and all below it."""
        usage = processes.tree_usage(pid) if pid else processes.TreeUsage(0.0, 0, 0)
        now, (before, used) = time.monotonic(), self._last
        self._last = (now, usage.cpu_seconds)
        share = 0.0 if used is None else max(0.0, usage.cpu_seconds - used) / max(now - before, 0.001)
        return Resources(
            cpu_percent=round(100 * share, 1),
            memory_mb=round(usage.memory / MEBIBYTE, 3),
            processes=usage.processes,
        )


class Supervisor:
    """Looks after `run` in `bash`, from the moment that it is made until `stop`."""

    def __init__(
        self,
        run: LiveRun,
        bash: Bash | Program,
        *,
        before: Used | None,
        earlier: Iterable[ProcessStat] = (),
        limits: LimitSettings,
        on_breach: Callable[[Cause, str], None],
        cgroup: ShellCgroup | None = None,
        counter: KillCounter | None = None,
        kills_before: int = 0,
        warnings: MemoryWarnings | None = None,
        on_warning: Callable[[str], None] = lambda _: None,
        on_awaiting_input: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`before` is what bash had used; `earlier` lives below it and belongs to other runs.

        `on_breach` is called once, with the limit that is broken and the figures. `cgroup` is the shell's, `counter`
        counts what the kernel kills in the daemon's: `kills_before` when the run began. `on_warning` is called with
        each of the `warnings`, `on_awaiting_input` when the command is seen to begin to wait for input.
        """
        self._run = run
        self._bash = bash
        self._on_breach = on_breach
        self._clock = clock
        self._use = _Use(run, bash, before, earlier, cgroup, counter, kills_before)
        self._input = _InputWait()
        self._warnings = warnings
        self._on_warning = on_warning
        self._on_awaiting_input = on_awaiting_input
        self._limits = _LimitCheck(bash, limits, cgroup, clock()) if limited(limits) else None
        self._interval = limits.check_interval
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._due: dict[Callable[[], None], float] = {}
        self._members: list[ProcessStat] | None = None
        self._pause = _FIRST_PAUSE

    def start(self) -> None:
        """Begin to look."""
        self.after(self._pause, self._look_for_input)
        if self._limits:
            self.after(self._interval, self._look_at_limits)

    def after(self, seconds: float, action: Callable[[], None]) -> None:
        """Do `action` once, so many seconds from now, unless the run has ended by then."""
        self._due[action] = self._clock() + seconds
        self._arm()

    def stop(self) -> None:
        """Look no more."""
        self._due.clear()
        if self._timer:
            self._timer.cancel()

    def look(self) -> None:
        """Do what is due by now. The timer calls it."""
        now = self._clock()
        self._members = None
        for action in [action for action, due in self._due.items() if due <= now]:
            if self._due.pop(action, None) is not None:  # an action before it may have stopped it all
                action()
        self._arm()

    def input_given(self) -> None:
        """Look for waiting anew, and soon: the command was given input."""
        self._run.mark_awaiting_input(False)
        self._input = _InputWait()
        self._pause = _FIRST_PAUSE
        self.after(self._pause, self._look_for_input)

    def last_breach(self, *, processes_left: bool) -> tuple[Cause, str] | None:
        """Return which limit is broken at the end of a command, or has been as the kernel's counters say."""
        return self._limits.at_end(processes_left=processes_left) if self._limits else None

    def sample(self) -> None:
        """Take a sample of what is used."""
        self._use.take(self._tree())

    def close(self, left: Iterable[ProcessStat]) -> Used | None:
        """Take the last figures, and return what bash has used by now; `left` are the processes left behind."""
        return self._use.close(left)

    def kernel_kills(self) -> tuple[int, bool]:
        """Return how many processes the kernel has killed, and whether they were certainly the shell's."""
        return self._use.kernel_kills()

    def _arm(self) -> None:
        if self._timer:
            self._timer.cancel()
            self._timer = None
        if self._due:
            self._timer = self._loop.call_later(max(0.0, min(self._due.values()) - self._clock()), self.look)

    def _tree(self) -> list[ProcessStat]:
        """Return bash and all below it, as it was first seen in this look."""
        if self._members is None:
            self._members = self._bash.tree()
        return self._members

    def _look_for_input(self) -> None:
        self._pause = min(self._pause * _PAUSE_GROWTH, _LONGEST_PAUSE)
        self.after(self._pause, self._look_for_input)
        members = self._tree()
        self._use.take(members)
        for warning in self._warnings.look(members) if self._warnings else ():
            self._on_warning(warning)
        group = self._bash.foreground_group()
        in_front = sum(stat.cpu_seconds for stat in members if stat.group == group)
        written = sum(log.size for log in self._run.logs.values())

        def waits() -> bool:
            self._bash.check()
            return self._bash.waits_for_input(stat.pid for stat in members)

        before = self._run.awaiting_input
        self._run.mark_awaiting_input(self._input.look((written, in_front), waits))
        if self._run.awaiting_input and not before:
            self._on_awaiting_input()

    def _look_at_limits(self) -> None:
        assert self._limits is not None
        self.after(self._interval, self._look_at_limits)  # first, for this look may fail: no descriptor is left, say
        breach = self._limits.look(self._clock(), self._tree())
        if breach:
            self._use.take(self._tree())
            del self._due[self._look_at_limits]
            self._on_breach(*breach)


class _InputWait:
    """Judges by several looks whether a command waits for input."""

    def __init__(self) -> None:
        self._before: tuple[int, float] | None = None
        self._waited = False

    def look(self, done: tuple[int, float], waits: Callable[[], bool]) -> bool:
        """Take one look; return whether the command waits. `done` is what it has written and used so far.

        Whether it is seen waiting just now (`waits`) is looked at only while it is quiet: that costs more.
        """
        quiet, self._before = done == self._before, done
        waited, self._waited = self._waited, quiet and waits()
        return waited and self._waited


class _Use:
    """Judges what a run has used, and how often the kernel has killed for want of memory while it went on."""

    def __init__(
        self,
        run: LiveRun,
        bash: Bash | Program,
        before: Used | None,
        earlier: Iterable[ProcessStat],
        cgroup: ShellCgroup | None,
        counter: KillCounter | None,
        kills_before: int,
    ) -> None:
        self._run = run
        self._bash = bash
        self._earlier = {stat.pid for stat in earlier}
        self._cgroup = cgroup
        self._counter = counter
        self._kills_before = kills_before
        self._at_start = before.cpu_seconds if before else 0.0
        self._events_before = _NOTHING
        self._cgroup_at_start = 0.0
        if cgroup:
            self._events_before = cgroup.events()
            self._cgroup_at_start = cgroup.cpu_seconds()
            cgroup.begin_peak()

    def take(self, members: Sequence[ProcessStat]) -> None:
        """Take a sample; `members` is bash and all below it."""
        memory = self._cgroup.memory() if self._cgroup else None
        if memory is None:
            memory = sum(stat.memory for stat in members)
        self._run.peak_memory = max(self._run.peak_memory, memory)
        self._take_cpu(sum(cpu_of(stat) for stat in members if stat.pid not in self._earlier) - self._at_start)

    def close(self, left: Iterable[ProcessStat]) -> Used | None:
        after = self._bash.usage()
        death = self._bash.death
        if after:
            self._take_cpu(after.cpu_seconds + sum(map(cpu_of, left)) - self._at_start)
            self._run.peak_memory = max(self._run.peak_memory, after.memory)
        elif death:
            self._take_cpu(death.cpu_seconds - self._at_start)
        if self._cgroup:
            if not self._earlier:
                self._take_cpu(self._cgroup.cpu_seconds() - self._cgroup_at_start)
            peak = self._cgroup.peak()
            self._run.peak_memory = peak or max(self._run.peak_memory, self._cgroup.memory() or 0)
        return after

    def kernel_kills(self) -> tuple[int, bool]:
        own = self._cgroup.events().killed - self._events_before.killed if self._cgroup else 0
        if own:
            return own, True
        return kills_so_far(self._counter) - self._kills_before, False

    def _take_cpu(self, seconds: float) -> None:
        self._run.cpu_seconds = max(self._run.cpu_seconds, seconds)


class _LimitCheck:
    """Judges whether a shell and all it started break a limit."""

    def __init__(self, bash: Bash | Program, limits: LimitSettings, cgroup: ShellCgroup | None, now: float) -> None:
        self._bash = bash
        self._limits = limits
        self._cgroup = cgroup
        self._events_before = cgroup.events() if cgroup else _NOTHING
        self._directory = bash.directory
        self._disk_before = _disk_used(self._directory)
        self._cpu_before = now, cgroup.cpu_seconds() if cgroup else processes.usage_of(bash.tree()).cpu_seconds

    def look(self, now: float, members: Sequence[ProcessStat]) -> tuple[Cause, str] | None:
        """Return what is broken now; `members` is bash and all below it."""
        counted = self._counted_breach()
        if counted:
            return counted
        usage = self._usage(members)
        found = self._size_breach(usage) or self._cpu_breach(now, usage) or self._disk_breach()
        return (Cause.LIMIT, found) if found else None

    def at_end(self, *, processes_left: bool) -> tuple[Cause, str] | None:
        """Return what is broken at the end of a command.

        The share of the CPU is left out: over a short time it says nothing.
        """
        counted = self._counted_breach()
        if counted:
            return counted
        sizes = self._size_breach(self._usage(self._bash.tree())) if processes_left else None
        found = sizes or self._disk_breach()
        return (Cause.LIMIT, found) if found else None

    def _usage(self, members: Sequence[ProcessStat]) -> processes.TreeUsage:
        if not self._cgroup:
            return processes.usage_of(members)
        held = "memory" in self._cgroup.controllers
        memory = 0 if held else sum(stat.memory for stat in members)
        return processes.TreeUsage(self._cgroup.cpu_seconds(), memory, self._cgroup.processes())

    def _counted_breach(self) -> tuple[Cause, str] | None:
        if not self._cgroup:
            return None
        return counted_breach(self._limits, self._events_before, self._cgroup.events(), self._cgroup.peak())

    def _size_breach(self, usage: processes.TreeUsage) -> str | None:
        limits, memory = self._limits, usage.memory / MEBIBYTE
        if 0 < limits.processes < usage.processes:
            return f"limits.processes is {limits.processes}, but the shell and what it started are {usage.processes}"
        if 0 < limits.memory_mb < memory:
            return f"limits.memory_mb is {limits.memory_mb:g}, but {memory:.1f} MB are resident"
        return None

    def _cpu_breach(self, now: float, usage: processes.TreeUsage) -> str | None:
        then, before = self._cpu_before
        self._cpu_before = now, usage.cpu_seconds
        percent = 100 * (usage.cpu_seconds - before) / max(now - then, 0.001)
        if 0 < self._limits.cpu_percent < percent:
            period = format_duration(round(now - then, 1))
            return f"limits.cpu_percent is {self._limits.cpu_percent:g}, but {percent:.0f} % were used over {period}"
        return None

    def _disk_breach(self) -> str | None:
        if not self._limits.disk_mb:
            return None
        grown = (_disk_used(self._directory) - self._disk_before) / MEBIBYTE
        if grown > self._limits.disk_mb:
            return f"limits.disk_mb is {self._limits.disk_mb:g}, but the file system has grown by {grown:.1f} MB"
        return None


def kills_so_far(counter: KillCounter | None) -> int:
    """Return how many processes the kernel has killed for want of memory, as far as that is counted."""
    return (counter.count() if counter else None) or 0


def cpu_of(stat: ProcessStat) -> float:
    """Return the CPU time of a process and of what it has waited for."""
    return stat.cpu_seconds + stat.reaped_cpu_seconds


def _disk_used(directory: str) -> int:
    try:
        status = os.statvfs(directory)
    except OSError:
        return 0
    return (status.f_blocks - status.f_bfree) * status.f_frsize
