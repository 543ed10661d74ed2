"""A bash that cannot report: how it is noticed from outside, and how it is brought back.

A command can take bash's builtins away, close or use up its descriptors, stop its terminal, or interrupt it
in the middle of a report. Then no report comes, and none ever would. But the kernel says what bash is
blocked in, and a bash that works is never blocked reading the bell, the boot pipe, or lines from the terminal
while a command is under way. What is seen twice in a row is acted upon; what does not help after some
attempts ends in killing bash. What the command had given as its status is lost in each case, and is said to be.
"""

import contextlib
import fcntl
import os
import resource
import signal
import struct
import termios
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from shelld_py.bash.driver import BELL_DESCRIPTOR, Driver
from shelld_py.linux import processes
from shelld_py.linux.terminal import Terminal
from shelld_py.linux.terminal_wait import blocked_read

DAMAGE: Final = "The command left bash unable to report; its exit status is not known."

_SEEN_BEFORE_ACTING: Final = 2
_ATTEMPTS: Final = 3
_ENOUGH_DESCRIPTORS: Final = 1024


@dataclass(frozen=True, slots=True)
class Patient:
    """The bash that is looked at, and what can be done to it."""

    pid: int
    terminal: Terminal
    driver: Driver
    boot_pipe: int
    bell_pipe: int
    send_lines: Callable[[bytes], None]
    send_signal: Callable[[int], None]


class Repair:
    """Looks at one bash, and mends it."""

    def __init__(self, patient: Patient) -> None:
        self.damage: str | None = None
        """What is wrong with the result of the command that is under way."""
        self._patient = patient
        self._boot_name = os.readlink(f"/proc/self/fd/{patient.boot_pipe}")
        self._seen = 0
        self._attempts = 0

    def begin(self) -> None:
        """A command begins: what was before says nothing about it."""
        self._seen = self._attempts = 0

    def look(self, *, in_loop: bool) -> None:
        """Look once; `in_loop` says whether bash was last heard of in its loop, rather than on its way there."""
        patient = self._patient
        stat = processes.process_stat(patient.pid)
        if stat and stat.state == "T":
            patient.send_signal(signal.SIGCONT)
        in_front = patient.terminal.foreground_group() == patient.pid
        reading = blocked_read(patient.pid) if in_front else None
        if reading == BELL_DESCRIPTOR and not _readable_bytes(patient.bell_pipe):
            self._suspect(self._bring_back_builtins)
        elif reading == 0 and self.reads_boot_pipe():
            self._suspect(self._ask)
        elif reading == 0 and (not in_loop or self._has_lost_pipes()):
            self._suspect(self._give_boot_pipe)
        else:
            self._seen = 0

    def _suspect(self, mend: Callable[[], None]) -> None:
        self._seen += 1
        if self._seen < _SEEN_BEFORE_ACTING:
            return
        self._seen = 0
        self._attempts += 1
        self.damage = DAMAGE
        if self._attempts > _ATTEMPTS:
            self._patient.send_signal(signal.SIGKILL)
        else:
            self._make_room()
            mend()

    def _bring_back_builtins(self) -> None:
        """Mend a bash that listens to the bell and has not reported: its builtins are gone."""
        self._patient.send_lines(self._patient.driver.repair_lines)
        self._patient.send_signal(signal.SIGINT)

    def _ask(self) -> None:
        """Mend a bash that reads lines and has not said so: an interrupt fell into the report."""
        self._patient.send_lines(self._patient.driver.prompt_line)

    def _give_boot_pipe(self) -> None:
        """Mend a bash that reads lines from the terminal: a command has closed all descriptors."""
        self._patient.terminal.restore()
        self._patient.terminal.write(self._patient.driver.rescue_line)
        self._ask()

    def _make_room(self) -> None:
        """Raise bash's own limit of descriptors, where they have run out, so that it can speak again."""
        with contextlib.suppress(OSError, ValueError):
            soft, hard = resource.prlimit(self._patient.pid, resource.RLIMIT_NOFILE)
            if soft < _ENOUGH_DESCRIPTORS:
                limits = (_ENOUGH_DESCRIPTORS, max(hard, _ENOUGH_DESCRIPTORS))
                resource.prlimit(self._patient.pid, resource.RLIMIT_NOFILE, limits)

    def _has_lost_pipes(self) -> bool:
        """Whether bash no longer holds the bell pipe: then a read of the terminal is not the user's `read`."""
        bell = os.fstat(self._patient.bell_pipe)
        with contextlib.suppress(OSError), os.scandir(f"/proc/{self._patient.pid}/fd") as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    if os.path.samestat(bell, entry.stat()):
                        return False
        return True

    def reads_boot_pipe(self) -> bool:
        """Whether descriptor 0 of bash is the boot pipe. Its name is read: what it leads to might hang."""
        with contextlib.suppress(OSError):
            return os.readlink(f"/proc/{self._patient.pid}/fd/0") == self._boot_name
        return False


def _readable_bytes(pipe: int) -> int:
    """Return how much there is to read (FIONREAD, ioctl_tty(2))."""
    count: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))[0]
    return count
