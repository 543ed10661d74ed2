"""Whom an interrupt reaches: who in the foreground process group would hear a SIGINT, and who would lose it.

It looks at processes and sends nothing by itself but the second SIGINT to one that has lost the first. It
knows nothing of the driver or of runs.

Two kinds of process lose a signal that a person at a terminal would have to send again:

- A child that bash has just forked still has bash's handlers. They note the signal, and then the child becomes
  a program that knows nothing of it.
- A process that is ending takes no signals any more. bash sees it end as usual, and goes on with the command.
"""

import asyncio
import os
import signal
from typing import Final

from shelld_py.linux import processes

_INTERRUPTED: Final = 128 + signal.SIGINT
_LOOKS: Final = 500
_HARDLY: Final = 0.005
_PAUSE: Final = 0.0005


class Audience:
    """The foreground process group of the shell `shell`, as it is at this moment."""

    def __init__(self, shell: int, group: int) -> None:
        """Look at it. The shell must be stopped, so that it starts nothing meanwhile."""
        self._shell, self._group = shell, group
        self._program = processes.executable(shell)
        below = [stat for stat in processes.descendants(shell) if not stat.ending]
        self._members = [stat for stat in below if stat.group == group]
        self._undecided = [
            stat
            for stat in below
            if shell in (stat.parent, stat.group) or stat.group == group
            if processes.executable(stat.pid) == self._program
        ]
        itself = processes.process_stat(shell)
        blocked = itself is not None and itself.blocks(signal.SIGINT)
        forks = any(stat.blocks(signal.SIGINT) or (blocked and stat.group != shell) for stat in self._undecided)
        self.hears = not forks and (bool(self._members) or (group == shell and not blocked))
        """Whether anybody is there who takes an interrupt: neither a shell that forks nor its child does.

        A shell that reads what a command substitution writes blocks it as well, but the child is of its group then.
        """

    async def has_lost(self) -> bool:
        """Return whether all had begun to end when they were interrupted a moment ago. The shell is still stopped.

        Who dies of the interrupt has not lost it.
        """
        if self._group == self._shell:
            return False
        for stat in self._members:
            if not await _ended_without_interrupt(stat):
                return False
        return True

    @property
    def undecided(self) -> frozenset[int]:
        """The pids of the shell's children that may be about to become programs."""
        return frozenset(stat.pid for stat in self._undecided)

    @property
    def settling(self) -> bool:
        """Whether one of these has hardly got to run yet, so that nothing can be said of it."""
        return any(_hardly_ran(stat) for stat in self._undecided)

    def repeat(self, number: int) -> None:
        """Signal once more those that were bash when the audience was looked at, and are programs now."""
        for stat in list(self._undecided):
            program = processes.executable(stat.pid)
            if program != self._program:
                self._undecided.remove(stat)
                if program and stat.group == self._group:
                    processes.send_signal(stat, number)


def _hardly_ran(stat: processes.ProcessStat) -> bool:
    now = processes.process_stat(stat.pid)
    return now is not None and now.state in "RD" and processes.run_time(stat.pid) < _HARDLY


async def _ended_without_interrupt(stat: processes.ProcessStat) -> bool:
    for _ in range(_LOOKS):
        now = processes.process_stat(stat.pid)
        if now is None:
            return True
        if not now.ending:
            return False
        if not now.alive:
            status = now.wait_status
            return (
                not (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGINT)
                and os.waitstatus_to_exitcode(status) != _INTERRUPTED
            )
        await asyncio.sleep(_PAUSE)
    return True
