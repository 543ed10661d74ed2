"""A look at a running command now and then, at what it waits for and what it uses.

The only timer of a shell, and only while a run goes on. The first look comes a tenth of a second after the
start, so that quick commands are never looked at; then the pauses grow, but stay short enough that a
command which waits for input is recognised within a second. That takes three looks in a row between which
nothing was written and the foreground used no CPU time, and the last two of which see it waiting.
"""

import asyncio
from typing import Final

from shelld_py.bash.process import Bash
from shelld_py.linux import processes
from shelld_py.linux.terminal_wait import waits_for_terminal
from shelld_py.shells.accounting import Account
from shelld_py.shells.run import Run

_FIRST_PAUSE: Final = 0.1
_LONGEST_PAUSE: Final = 0.3
_GROWTH: Final = 1.3


class RunWatch:
    """Watches `run` in `bash` from the moment it is made until `stop`."""

    def __init__(self, run: Run, bash: Bash, account: Account) -> None:
        self._run = run
        self._account = account
        self._bash = bash
        self._loop = asyncio.get_running_loop()
        self._before: tuple[int, float] | None = None
        self._waited = False
        self._pause = _FIRST_PAUSE
        self._timer = self._loop.call_later(self._pause, self._look)

    def restart(self) -> None:
        """Look again soon: the command was given input."""
        self._timer.cancel()
        self._waited = False
        self._before = None
        self._pause = _FIRST_PAUSE
        self._timer = self._loop.call_later(self._pause, self._look)

    def stop(self) -> None:
        """Look no more."""
        self._timer.cancel()

    def _look(self) -> None:
        self._pause = min(self._pause * _GROWTH, _LONGEST_PAUSE)
        self._timer = self._loop.call_later(self._pause, self._look)
        members = processes.tree(self._bash.pid)
        self._account.take(members)
        group = self._bash.terminal.foreground_group()
        in_front = sum(stat.cpu_seconds for stat in members if stat.group == group)
        now = (sum(log.size for log in self._run.logs), in_front)
        still, self._before = now == self._before, now
        if not still:
            self._waited = False
            self._run.mark_awaiting_input(False)
            return
        self._bash.check()
        waits = waits_for_terminal(
            group,
            (stat.pid for stat in members),
            self._bash.terminal.device_number,
            line_mode=self._bash.terminal.line_mode,
        )
        self._run.mark_awaiting_input(waits and self._waited)
        self._waited = waits
