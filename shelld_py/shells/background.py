"""What ended runs of a shell have left running, and where the output goes that comes when no run is going on.

The processes are found below bash (processes.py) at the end of each run, and looked at again when
it matters.
"""

import asyncio
import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Final

from msgspec import Struct

from shelld_py.linux import processes
from shelld_py.linux.processes import ProcessStat
from shelld_py.output.log import OutputLog
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.shells.store import RunStore

_KILL_TIMEOUT: Final = 2.0
"""Seconds that killed processes have to be gone: one that waits for a disk takes no signal until that has answered."""

_KILL_PAUSE: Final = 0.002


class _Item(Struct):
    """An ended run with processes that it left behind."""

    run: LiveRun
    left: list[ProcessStat]
    ended: bool = False
    """Whether all of them had ended when output was last taken: it cannot come from them any more."""

    def alive(self) -> list[ProcessStat]:
        return [stat for stat in self.left if processes.still_alive(stat)]


class Background:
    """The ended runs of one shell whose processes live on. Their logs stay open until these have ended."""

    def __init__(self, store: RunStore, log_path: Path, log_max: int) -> None:
        """The shell's own log is made at `log_path` when there is something that is no run's."""
        self._store = store
        self._log_path, self._log_max = log_path, log_max
        self._items: list[_Item] = []
        self._own_log: OutputLog | None = None

    def __bool__(self) -> bool:
        return bool(self._items)

    def alive(self) -> list[ProcessStat]:
        """Return the processes that still run."""
        return [stat for item in self._items for stat in item.alive()]

    def owner(self, pid: int, top: int | None) -> LiveRun | None:
        """Return the ended run that has left this process behind, or one above it; bash, `top`, is above all."""
        owners = {stat.pid: item.run for item in self._items for stat in item.left}
        stat = processes.process_stat(pid)
        while stat and stat.pid != top:
            if stat.pid in owners:
                return owners[stat.pid]
            stat = processes.process_stat(stat.parent)
        return None

    def add(self, run: LiveRun, left: list[ProcessStat]) -> None:
        """Keep `run` open for its processes `left`."""
        self._items.append(_Item(run, left))

    def release_ended(self) -> None:
        """Let go of the runs whose processes have ended: their output is complete now."""
        self._release([item for item in self._items if not item.alive()])

    def release_all(self) -> None:
        """Let go of all: nothing more is read."""
        self._release(list(self._items))
        if self._own_log:
            self._own_log.close()
            self._own_log = None

    def take_output(self, data: memoryview) -> None:
        """Keep what is written while no run goes on: with the run that it comes from, where only one can be."""
        writer = self._writer()
        if writer:
            writer.append(data)
            return
        if self._own_log is None:
            with contextlib.suppress(OSError):  # a directory of that name, say: then what comes is lost, and no more
                self._log_path.unlink()
            self._own_log = OutputLog(str(self._log_path), self._log_max).create()
        self._own_log.append(data)

    def remove_log(self) -> None:
        """Remove the shell's own log."""
        for path in self._log_path.parent.glob(f"{self._log_path.name}*"):
            path.unlink(missing_ok=True)

    async def kill(self, run: LiveRun, pid: int | None) -> tuple[bool, tuple[int, ...]]:
        """Kill what `run` has left running below bash, `pid`; return whether there was anything, and who survives.

        They are looked for again until nothing new is found, for they may fork meanwhile. They are not stopped
        first, as bash would take them for stopped jobs.
        """
        known: dict[int, ProcessStat] = {}
        left = [stat for item in self._items if item.run is run for stat in item.alive()]
        if not left or pid is None:
            return False, ()
        deadline = time.monotonic() + _KILL_TIMEOUT
        while left and time.monotonic() < deadline:
            known.update((stat.pid, stat) for stat in left)
            for stat in left:
                processes.send_signal(stat, signal.SIGKILL)
            await asyncio.sleep(_KILL_PAUSE)
            left = _belonging(pid, known)
        return True, tuple(stat.pid for stat in left)

    async def wait(self, run: Run | None = None) -> None:
        """Return when no process is left that an ended run, or just `run`, has left behind."""
        for item in [item for item in self._items if run in (None, item.run)]:
            for stat in item.alive():
                await _end_of(stat.pid)

    def _writer(self) -> LiveRun | None:
        """Return the run that what is written now comes from, where only one can be."""
        owners = [item for item in self._items if not item.ended]
        for item in owners:
            item.ended = not item.alive()
        return owners[0].run if len(owners) == 1 else None

    def _release(self, items: list[_Item]) -> None:
        for item in items:
            self._items.remove(item)
            self._store.save(item.run)
            self._store.release(item.run)


def left_behind(pid: int, earlier: list[ProcessStat], started_at: float) -> list[ProcessStat]:
    """Return what a run that began at `started_at` has left running below bash, `pid`.

    What was there before does not count, nor what descends from it, be it by its process group or session
    alone: an orphan has lost its parent, but keeps those.
    """
    known = {stat.pid for stat in earlier}
    groups = {stat.group for stat in earlier}
    boot = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
    first_tick = int((started_at - boot) * processes.CLOCK_TICKS) - 1
    left = []
    for stat in processes.descendants(pid):
        if stat.pid in known or stat.parent in known or stat.group in groups:
            known.add(stat.pid)
        elif stat.start_ticks >= first_tick:
            left.append(stat)
    return left


def _belonging(pid: int, known: dict[int, ProcessStat]) -> list[ProcessStat]:
    """Return what lives below bash, `pid`, and is one of `known`, a child of one, or of the process group of one."""
    members = dict(known)
    groups = {stat.group for stat in known.values()}
    found = []
    for stat in processes.descendants(pid):
        if stat.pid in members or stat.parent in members or stat.group in groups:
            members[stat.pid] = stat
            found.append(stat)
    return found


async def _end_of(pid: int) -> None:
    """Return when a process has ended."""
    loop = asyncio.get_running_loop()
    with contextlib.suppress(OSError):
        handle = os.pidfd_open(pid)
        ended = loop.create_future()
        loop.add_reader(handle, _end_once, ended)
        try:
            await ended
        finally:
            loop.remove_reader(handle)
            os.close(handle)


def _end_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
