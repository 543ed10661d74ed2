"""The root of all that a shell starts: a child of this process whose tree is looked at and killed as one.

It is a subreaper, so nothing of what it starts ever leaves the tree. It knows nothing of what the root does.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct

from shelld_py.linux import processes
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.linux.orphans import Reaper

_STEP: Final = 0.001
_KILL_TIMEOUT: Final = 0.5
"""What is killed is gone in milliseconds, or hangs; a bash stands still for so long at most."""
_END_TIMEOUT: Final = 5.0
"""What is killed and not gone by then sleeps in the kernel (state D), and may for ever."""


class Death(Struct, frozen=True):
    """How the root process ended: `exit_code`, or the `signal` that killed it; `name` is its last program."""

    exit_code: int | None
    signal: int | None
    name: str
    reported: int | None
    """The status with which the shell said that it would exit, if it did."""
    cpu_seconds: float = 0.0
    """Used by the root in its life, and by what it has waited for."""


class Root:
    """A process and all that it has started. Whoever spawns it calls `_own`, and at last `_disown`."""

    pid = 0
    """0 as long as there is none."""

    def __init__(self, reaper: Reaper) -> None:
        self.death: Death | None = None
        self.on_death: Callable[[], None] | None = None
        self._loop = asyncio.get_running_loop()
        self._reaper = reaper
        self._process: processes.Pidfd | None = None
        self._stat_file = self._children_file = -1
        self._cgroup: ShellCgroup | None = None
        self._died = asyncio.Event()

    def usage(self) -> processes.Used | None:
        """Return what it has used. It is asked for each command."""
        try:
            return processes.parse_used(os.pread(self._stat_file, 1024, 0))
        except OSError:
            return None

    def tree(self) -> list[processes.ProcessStat]:
        """Return it and all that lives below it."""
        return processes.tree(self.pid)

    def has_children(self) -> bool:
        """Whether it has children at all; it adopts those whose parents end."""
        try:
            return bool(os.pread(self._children_file, 1, 0))
        except OSError:
            return bool(self.pid)

    def kill(self) -> None:
        """Kill the process itself. What it has started is killed by `end`."""
        if self._process:
            self._process.send(signal.SIGKILL)

    def kill_all(self) -> list[processes.ProcessStat]:
        """Kill it and all that it has started, at once; what needs a moment to be gone is not waited for.

        It is stopped first, so that it starts nothing new meanwhile. Returns what was signalled one by one.
        """
        if self._process:
            self._process.send(signal.SIGSTOP)
        if self._cgroup:
            self._cgroup.kill()
        signalled = processes.kill_descendants(self.pid)
        self.kill()
        return signalled

    async def end(self) -> None:
        """Kill all that it has started, then it, and return when all of it is gone.

        It is stopped first, so that nothing new is started meanwhile. What needs a moment to be gone, or
        lost its parent at the last moment, becomes a child of this process and is reaped here.
        """
        if not self.pid:
            return
        signalled = self.kill_all()
        self._reaper.know(signalled)
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(TimeoutError))
            await stack.enter_async_context(asyncio.timeout(_END_TIMEOUT))
            await self._died.wait()
            while True:
                self._reaper.kill()
                if not any(processes.still_alive(stat) for stat in signalled) and not self._reaper.orphans():
                    break
                await asyncio.sleep(_STEP)

    async def kill_started(self, spare: Iterable[int]) -> None:
        """Kill all that it has started, apart from the trees of `spare`, and return when it is dead."""
        killed = processes.kill_descendants(self.pid, spare=spare)
        deadline = self._loop.time() + _KILL_TIMEOUT
        while any(processes.still_alive(stat) for stat in killed) and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_STEP)

    def _own(self, pid: int) -> processes.Pidfd:
        """Take the process that was just spawned. Call it before the event loop runs again."""
        self.pid = pid
        self._reaper.own(pid)
        self._process = process = processes.Pidfd(pid)
        self._loop.add_reader(process.descriptor, self._reap)
        self._stat_file = self._proc_file("stat")
        self._children_file = self._proc_file(f"task/{pid}/children")
        return process

    def _disown(self) -> None:
        """Release the descriptors of the process, which must have ended."""
        if self._process:
            self._loop.remove_reader(self._process.descriptor)
            self._process.close()
            self._process = None
        for descriptor in (self._stat_file, self._children_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._stat_file = self._children_file = -1

    def _proc_file(self, name: str) -> int:
        return os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)

    def _reap(self) -> None:
        """The process is dead: take what it still said, its name, and its status."""
        assert self._process is not None
        self._loop.remove_reader(self._process.descriptor)
        reported = self._last_report()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        stat = processes.process_stat(self.pid)
        _, status, used = os.wait4(self.pid, 0)
        self._reaper.disown(self.pid)
        code = os.waitstatus_to_exitcode(status)
        self.death = Death(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            name=stat.name if stat else "",
            reported=reported,
            cpu_seconds=used.ru_utime + used.ru_stime,
        )
        self._dead(self.death)
        self._died.set()
        if self.on_death:
            self.on_death()

    def _last_report(self) -> int | None:
        """Take what the process said before it died; return the status with which it said that it would exit."""
        return None

    def _dead(self, death: Death) -> None:
        """Do what is due when the process is dead."""
