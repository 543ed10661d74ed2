"""A bash that cannot report: how it is noticed from outside, and how it is brought back.

A command can take bash's builtins away, close or use up its descriptors, stop its terminal, or interrupt it
in the middle of a report. Then no report comes, and none ever would. But the kernel says what bash is
blocked in, and a bash that works is never blocked reading the bell, the boot pipe, or lines from the terminal
while a command is under way. What is seen twice in a row is acted upon; what does not help after some
attempts ends in killing bash. What the command had given as its status is lost in each case, and is said to be.

It knows what bash was last heard of (protocol.py), and nothing of runs.
"""

import contextlib
import resource
import signal
from collections.abc import Callable
from typing import Final

from shelld_py.bash.channels import Channels
from shelld_py.bash.driver import BELL_DESCRIPTOR, Driver
from shelld_py.bash.protocol import Protocol
from shelld_py.linux import processes
from shelld_py.linux.terminal import Terminal
from shelld_py.linux.terminal_wait import blocked_read

DAMAGE: Final = "The command left bash unable to report; its exit status is not known."

_SEEN_BEFORE_ACTING: Final = 2
"""A bash that is about to be interrupted or to report can look like one that hangs, once."""
_ATTEMPTS: Final = 3
"""Closed descriptors need one, a lost boot pipe two: what is given back shows what else is missing."""
_ENOUGH_DESCRIPTORS: Final = 1024
_FEW_DESCRIPTORS: Final = 256
"""Those of the driver end at 251: with a lower limit bash cannot put them back behind a command."""


_LINES_READ: Final = 512
"""bash reads its lines from a terminal by 1024 bytes, a command's `read` by one."""


class Repair:
    """Looks at one bash, and mends it."""

    def __init__(
        self, bash: processes.Pidfd, terminal: Terminal, channels: Channels, driver: Driver, protocol: Protocol
    ) -> None:
        self._bash = bash
        self._terminal = terminal
        self._channels = channels
        self._driver = driver
        self._protocol = protocol
        self._command = 0
        self._seen = 0
        self._attempts = 0

    def look(self) -> None:
        """Look once. What was seen before another command says nothing about this one."""
        if self._command != self._protocol.command:
            self._command = self._protocol.command
            self._seen = self._attempts = 0
        stat = processes.process_stat(self._bash.pid)
        if stat and stat.state == "T":
            self._bash.send(signal.SIGCONT)
        in_front = self._terminal.foreground_group() == self._bash.pid
        reading = blocked_read(self._bash.pid) if in_front else None
        if reading is not None and self._channels.report_waits:
            # It is back already, and nobody has read what it said: on a busy machine two looks can come before that.
            self._seen = 0
        elif reading == BELL_DESCRIPTOR and self._channels.bell_heard:
            self._suspect(self._bring_back_builtins)
        elif reading == 0 and self._channels.reads_boot_pipe(self._bash.pid):
            self._suspect(self._ask)
        elif reading == 0 and (
            not self._protocol.in_loop or not self._channels.holds_bell(self._bash.pid) or self._has_lost_loop()
        ):
            # In its loop, with the bell, it is the `read` of a command that reads the terminal.
            self._suspect(self._give_boot_pipe)
        else:
            self._seen = 0

    def after_limiting(self) -> None:
        """Look after a command that may have lowered the limit of descriptors: if so, bash has left its loop unheard.

        The limit cannot stay: bash could do nothing any more.
        """
        if self._make_room(_FEW_DESCRIPTORS):
            self._ask()

    def _has_lost_loop(self) -> bool:
        """Whether bash reads lines from the terminal, and still has a copy of the bell that it could not put back."""
        return self._descriptors()[0] < _FEW_DESCRIPTORS and blocked_read(self._bash.pid, least=_LINES_READ) == 0

    def _suspect(self, mend: Callable[[], None]) -> None:
        self._seen += 1
        if self._seen < _SEEN_BEFORE_ACTING:
            return
        self._seen = 0
        self._attempts += 1
        self._protocol.damage = DAMAGE
        if self._attempts > _ATTEMPTS:
            self._bash.send(signal.SIGKILL)
        else:
            self._make_room(_ENOUGH_DESCRIPTORS)
            mend()

    def _bring_back_builtins(self) -> None:
        """Mend a bash that listens to the bell and has not reported: its builtins are gone."""
        self._channels.send_lines(self._driver.repair_lines)
        self._bash.send(signal.SIGINT)

    def _ask(self) -> None:
        """Mend a bash that reads lines and has not said so: an interrupt fell into the report."""
        self._channels.send_lines(self._driver.prompt_line)

    def _give_boot_pipe(self) -> None:
        """Mend a bash that reads lines from the terminal: a command has closed all descriptors."""
        self._terminal.restore()
        self._terminal.write(self._driver.rescue_line)
        self._ask()

    def _make_room(self, least: int) -> bool:
        """Raise bash's own limit of descriptors where it is below `least`; return whether that was done."""
        with contextlib.suppress(OSError, ValueError):
            soft, hard = self._descriptors()
            if soft < least:
                limits = (_ENOUGH_DESCRIPTORS, max(hard, _ENOUGH_DESCRIPTORS))
                resource.prlimit(self._bash.pid, resource.RLIMIT_NOFILE, limits)
                return True
        return False

    def _descriptors(self) -> tuple[int, int]:
        """Return bash's own limits of descriptors, soft and hard.

        Those of the daemon for one that is gone or another user's: for these prlimit(2) asks for CAP_SYS_RESOURCE.
        """
        try:
            return resource.prlimit(self._bash.pid, resource.RLIMIT_NOFILE)
        except (ProcessLookupError, PermissionError):
            return resource.getrlimit(resource.RLIMIT_NOFILE)
