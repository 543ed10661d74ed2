"""What one run has used, and whether the kernel has killed for want of memory while it went on.

Figures come from the shell's cgroup where it has one, else from samples of its process tree: whoever looks at the
tree anyway hands over what was seen.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from shelld_py.bash.process import Bash
from shelld_py.linux import processes
from shelld_py.linux.cgroups import Events, ShellCgroup
from shelld_py.linux.oom import KillCounter
from shelld_py.shells.run import Run

_NOTHING: Final = Events()


class Account:
    """The figures of `run` in `bash`, from the moment it is made."""

    def __init__(
        self,
        run: Run,
        bash: Bash,
        before: processes.ProcessStat | None,
        earlier: Iterable[processes.ProcessStat],
        cgroup: ShellCgroup | None,
        counter: KillCounter | None,
    ) -> None:
        """`before` is what bash had used; `earlier` lives below it and belongs to other runs.

        `counter` counts for the daemon's cgroup.
        """
        self._run = run
        self._bash = bash
        self._earlier = {stat.pid for stat in earlier}
        self._cgroup = cgroup
        self._counter = counter
        self._kills_before = (counter.count() if counter else None) or 0
        self._before = before
        self._cpu_before = 0.0
        self.events_before = _NOTHING
        if cgroup:
            self.events_before = cgroup.events()
            self._cpu_before = cgroup.cpu_seconds()
            cgroup.begin_peak()

    def take(self, members: Sequence[processes.ProcessStat] | None = None) -> None:
        """Take a sample; `members` is the tree of bash, where that has just been looked at."""
        if members is None:
            members = processes.tree(self._bash.pid)
        memory = self._cgroup.memory() if self._cgroup else None
        if memory is None:
            memory = sum(stat.memory for stat in members)
        self._run.peak_memory = max(self._run.peak_memory, memory)
        self._take_cpu(sum(map(_cpu_of, (stat for stat in members if stat.pid not in self._earlier))) - self._at_start)

    def close(self, left: Iterable[processes.ProcessStat]) -> processes.ProcessStat | None:
        """Take the last figures, and return what bash has used by now; `left` are the processes left behind."""
        after = self._bash.usage()
        death = self._bash.death
        if after:
            self._take_cpu(_cpu_of(after) + sum(map(_cpu_of, left)) - self._at_start)
            self._run.peak_memory = max(self._run.peak_memory, after.memory)
        elif death:
            self._take_cpu(death.cpu_seconds - self._at_start)
        if self._cgroup:
            if not self._earlier:
                self._take_cpu(self._cgroup.cpu_seconds() - self._cpu_before)
            peak = self._cgroup.peak()
            self._run.peak_memory = peak or max(self._run.peak_memory, self._cgroup.memory() or 0)
        return after

    @property
    def events(self) -> Events:
        """What has happened in the shell's cgroup since the run began."""
        if not self._cgroup:
            return _NOTHING
        before, now = self.events_before, self._cgroup.events()
        return Events(now.killed - before.killed, now.exhausted - before.exhausted, now.refused - before.refused)

    def kernel_kills(self) -> tuple[int, bool]:
        """Return how many processes the kernel has killed, and whether they were certainly the shell's."""
        own = self.events.killed
        if own:
            return own, True
        return ((self._counter.count() if self._counter else None) or 0) - self._kills_before, False

    @property
    def _at_start(self) -> float:
        return _cpu_of(self._before) if self._before else 0.0

    def _take_cpu(self, seconds: float) -> None:
        self._run.cpu_seconds = max(self._run.cpu_seconds, seconds)


def _cpu_of(stat: processes.ProcessStat) -> float:
    """Return the CPU time of a process and of what it has waited for."""
    return stat.cpu_seconds + stat.reaped_cpu_seconds
