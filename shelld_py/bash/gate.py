"""Signals to the command that bash executes, and keys that send one.

They are sent while bash stands still, and only if it executes the command then: an interrupt that hit the
driver would unwind it in the middle of a report, or fall into the next command. It knows nothing of the
driver's text or of runs; whether a command is under way it asks the protocol.

Three kinds of process lose a signal that a person at a terminal would have to send again:

- bash itself, before it has forked the program that is meant. SIGINT ends the command there, too; but bash ignores
  SIGTERM, SIGQUIT and SIGTSTP, and others would end it rather than the program.
- A child that bash has just forked still has bash's handlers. They note the signal, and then the child becomes
  a program that knows nothing of it.
- A process that is ending takes no signals any more. bash sees it end as usual, and goes on with the command.
"""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from shelld_py.bash.channels import Channels
from shelld_py.bash.driver import BELL_DESCRIPTOR
from shelld_py.bash.protocol import Protocol
from shelld_py.linux import processes
from shelld_py.linux.terminal import Terminal

_SIGNAL_KEYS: Final = frozenset(b"\x03\x1c\x1a")
_SHORTEST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
"""Between two attempts: as quick as an event loop is, and so rare that a bash that is stopped each time gets on."""
_STOP_TIMEOUT: Final = 1.0
"""A bash that is not stopped by then sleeps in the kernel where signals do not reach it, and executes nothing."""
_STOP_PAUSE: Final = 0.0002
_START_TIMEOUT: Final = 0.05
"""A child of bash that is still bash then is a subshell: even on a busy machine execve(2) takes a tenth of it."""
_HEARING_TIMEOUT: Final = 4.0
"""Who forks without a pause may never be found at rest; then the signal is sent all the same."""
_REPEAT_TIMEOUT: Final = 2.0
"""For a program that takes long to start, from a slow disk."""
_COMMAND_TIMEOUT: Final = 5.0
_SETTLING: Final = 0.005
"""Children of bash that are still bash after so many seconds are subshells rather than programs to be."""
_OWN_WORK: Final = 0.02
"""CPU seconds for which bash executes a command without a program before it is what a signal is meant for: parsing a
command and forking takes a tenth of it."""
_ANY_WORK: Final = 0.001
"""CPU seconds after a fork(2) in which bash has let its child go on: it takes a tenth of it, beside being stopped."""
_END_LOOKS: Final = 500
_END_PAUSE: Final = 0.0005
"""Together a quarter of a second: what a process with much memory needs to end."""


class Gate:
    """Signals what one bash executes."""

    def __init__(
        self,
        bash: processes.Pidfd,
        terminal: Terminal,
        channels: Channels,
        protocol: Protocol,
        listen: Callable[[], None],
    ) -> None:
        """`listen` takes what bash has reported so far, so that the protocol knows of it."""
        self._bash = bash
        self._terminal = terminal
        self._channels = channels
        self._protocol = protocol
        self._listen = listen
        self._holding = asyncio.Lock()
        self._keys = bytearray()
        self._typing: asyncio.Task[None] | None = None

    @property
    def holds(self) -> bool:
        """Whether bash is stopped at this moment, or about to be."""
        return self._holding.locked()

    @contextlib.asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Stop bash for a moment. One at a time: it must not go on under the hands of another."""
        async with self._holding:
            try:
                await self._stop()
                yield
            finally:
                self._bash.send(signal.SIGCONT)

    async def interrupt(self) -> bool:
        """Send SIGINT to the foreground process group; return whether that was done before the command was over."""
        return await self.signal(signal.SIGINT)

    async def signal(self, number: int) -> bool:
        """Send a signal to the foreground process group; return whether it was there, and the command not over."""
        return await self._send(number, partial(self._terminal.signal_foreground, number))

    def type(self, data: bytes) -> None:
        """Write `data` to the terminal as if it were typed, with keys that send a signal at the right moment."""
        if self._keys or not _SIGNAL_KEYS.isdisjoint(data):
            self._keys += data
            if self._typing is None:
                self._typing = asyncio.get_running_loop().create_task(self._type_keys())
        else:
            self._terminal.write(data)

    @property
    def untyped(self) -> int:
        """Bytes that wait for their moment."""
        return len(self._keys)

    def forget_keys(self) -> None:
        """Drop the keys that have not been typed: the command that they were for is over."""
        self._keys.clear()

    async def _stop(self) -> None:
        """Stop bash, and return when it has stopped.

        Sending the signal is not enough. A bash that waits for its children still sees one that stops meanwhile,
        as long as it has not got to run itself; on a busy machine that can take many milliseconds.
        """
        self._bash.send(signal.SIGSTOP)
        deadline = _now() + _STOP_TIMEOUT
        while _now() < deadline:
            stat = processes.process_stat(self._bash.pid)
            if stat is None or stat.state in "TtZX":
                return
            await asyncio.sleep(_STOP_PAUSE)

    async def _command_under_way(self) -> int:
        """Return the number of the command under way, once bash was given it; 0 where there is none."""
        deadline = _now() + _HEARING_TIMEOUT
        while self._protocol.expected and _now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_SHORTEST_PAUSE)
        return self._protocol.command if self._protocol.under_way else 0

    def _goes_on(self, command: int) -> bool:
        """Whether this very command is under way still: who has waited must not meet the next one."""
        return self._protocol.under_way and command == self._protocol.command

    def _executes(self) -> bool:
        """Whether bash, which stands still, executes the command rather than the driver around it.

        It is in its loop when its descriptor 0 is not the boot pipe, and there that of the bell is closed as long
        as the command is executed.
        """
        self._listen()
        bell_is_open = os.path.lexists(f"/proc/{self._bash.pid}/fd/{BELL_DESCRIPTOR}")
        return self._protocol.in_exit_trap or not (bell_is_open or self._channels.reads_boot_pipe(self._bash.pid))

    @contextlib.asynccontextmanager
    async def _held_in(self, command: int) -> AsyncIterator[bool]:
        """Hold bash; give whether it executes `command`."""
        async with self.held():
            executes = self._executes()
            yield executes and self._goes_on(command)

    async def _send(self, number: int, act: Callable[[], bool]) -> bool:
        """Signal the command by `act`, when there is somebody to take it; return what `act` does.

        That is whether it has sent the signal. Who may be about to become a program is waited for, and whoever has
        lost the signal all the same gets it again.
        """
        terminal, shell = self._terminal, self._bash.pid
        command = await self._command_under_way()
        settled = _now()
        late = settled + _HEARING_TIMEOUT
        undecided: frozenset[int] = frozenset()
        tries, sent = _Tries(), False
        work = since_fork = _OwnWork(shell)
        while self._goes_on(command) and tries.left:
            work.look()
            since_fork.look()
            async with self._held_in(command) as in_command:
                group = terminal.foreground_group()
                # A command can use the bell's number for itself. Where a program has the terminal, it is no driver.
                if in_command or (_now() > late and group not in (0, shell)):
                    receivers = Receivers(shell, group, number)
                    if receivers.undecided != undecided:
                        undecided, settled, since_fork = receivers.undecided, _now() + _SETTLING, _OwnWork(shell)
                    at_rest = _now() >= settled and not receivers.settling and since_fork.is_seen
                    quiet = receivers.hears and (not undecided or at_rest)
                    if receivers.only_shell and number != signal.SIGINT:
                        quiet = quiet and work.is_long
                    if quiet or _now() > late:
                        if not act():
                            return sent
                        sent = True
                        if _now() > late or not await receivers.has_lost():
                            break
                        act = partial(terminal.signal_foreground, number)
                else:
                    work = _OwnWork(shell)
            await tries.pause()
        else:
            return sent
        await self._repeat(receivers, command)
        return True

    async def _repeat(self, receivers: "Receivers", command: int) -> None:
        """Signal those once more who were bash when they were signalled, and then become programs."""
        settled, deadline = _now() + _START_TIMEOUT, _now() + _REPEAT_TIMEOUT
        while receivers.undecided and self._goes_on(command) and _now() < deadline:
            if _now() > settled and not receivers.settling:
                return
            await asyncio.sleep(_SHORTEST_PAUSE)
            receivers.repeat()

    async def _type_keys(self) -> None:
        """Type what was held back as it may interrupt, and what came after it."""
        try:
            while self._keys and self._protocol.under_way:
                await self._send(signal.SIGINT, self._type_now)
        finally:
            self._typing = None

    def _type_now(self) -> bool:
        """Type the keys that were held back; return whether they interrupt."""
        terminal = self._terminal
        interrupts = bool(key := terminal.interrupt_key) and key in self._keys
        terminal.write(bytes(self._keys))
        self._keys.clear()
        terminal.type_through()
        return interrupts


class _Tries:
    """Attempts to find bash where it can be interrupted: ever rarer, as each stops bash, which must get on meanwhile.

    On a busy machine a bash that is stopped every millisecond would never get to run at all.
    """

    def __init__(self) -> None:
        self._deadline = _now() + _COMMAND_TIMEOUT
        self._pause = _SHORTEST_PAUSE

    @property
    def left(self) -> bool:
        return _now() < self._deadline

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


class _OwnWork:
    """Whether bash executes a command by itself, rather than being about to start a program for it.

    Either it has computed for a while, or it has slept for a while: in `read` or `wait`, say. What a bash does that
    does not get to run says nothing.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._had_run = processes.run_time(pid)
        self._asleep_since: float | None = None

    def look(self) -> None:
        """Look at it once. It must not be stopped."""
        stat = processes.process_stat(self._pid)
        if stat is None or stat.state != "S":
            self._asleep_since = None
        elif self._asleep_since is None:
            self._asleep_since = _now()

    @property
    def is_seen(self) -> bool:
        """Whether it has gone on at all: a child that it has forked waits for that, and looks like one at rest."""
        return self._asleep_since is not None or processes.run_time(self._pid) - self._had_run > _ANY_WORK

    @property
    def is_long(self) -> bool:
        """Whether that has been seen for long enough."""
        asleep = self._asleep_since is not None and _now() - self._asleep_since > _START_TIMEOUT
        return asleep or processes.run_time(self._pid) - self._had_run > _OWN_WORK


def _now() -> float:
    return asyncio.get_running_loop().time()


class Receivers:
    """Who in the foreground process group would take a signal at this moment, and who would lose it."""

    def __init__(self, shell: int, group: int, number: int) -> None:
        """Look at it. The shell must be stopped, so that it starts nothing meanwhile."""
        self._shell, self._group, self._number = shell, group, number
        self._program = processes.executable(shell)
        # The program comes first: the handlers that a child had when it was bash would say the wrong thing of it.
        programs = {stat.pid: processes.executable(stat.pid) for stat in processes.descendants(shell)}
        below = [stat for pid in programs if (stat := processes.process_stat(pid)) and not stat.ending]
        self._members = [stat for stat in below if stat.group == group]
        self._undecided = [
            stat
            for stat in below
            if shell in (stat.parent, stat.group) or stat.group == group
            if programs[stat.pid] == self._program
        ]
        itself = processes.process_stat(shell)
        # bash blocks SIGINT while it forks, whatever the signal is that is to be sent.
        blocked = itself is not None and itself.blocks(signal.SIGINT)
        forks = any(stat.blocks(signal.SIGINT) or (blocked and stat.group != shell) for stat in self._undecided)
        self.hears = not forks and (bool(self._members) or (group == shell and not blocked))
        """Whether anybody is there who takes a signal: neither a shell that forks nor its child does.

        A shell that reads what a command substitution writes blocks it as well, but the child is of its group then.
        """

    @property
    def only_shell(self) -> bool:
        """Whether nobody but the shell itself is there."""
        return not self._members and self._group == self._shell

    async def has_lost(self) -> bool:
        """Return whether all had begun to end when they were signalled a moment ago. The shell is still stopped.

        Who dies of the signal has not lost it.
        """
        if self._group == self._shell:
            return False
        for stat in self._members:
            if not await _ended_without(self._number, stat):
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

    def repeat(self) -> None:
        """Signal once more those that were bash when they were looked at, and are programs now."""
        for stat in list(self._undecided):
            program = processes.executable(stat.pid)
            if program != self._program:
                self._undecided.remove(stat)
                if program and stat.group == self._group:
                    processes.send_signal(stat, self._number)


def _hardly_ran(stat: processes.ProcessStat) -> bool:
    now = processes.process_stat(stat.pid)
    return now is not None and now.state in "RD" and processes.run_time(stat.pid) < _SETTLING


async def _ended_without(number: int, stat: processes.ProcessStat) -> bool:
    """Return whether a process has ended without having taken the signal: the kernel drops it then.

    That is so from the moment that its exit is decided, some time before /proc says that it is ending; on a busy
    machine that can be long. So who must die of the signal is waited for. Of one that has a handler nobody can
    tell; it may well have exited because of the signal.
    """
    now: processes.ProcessStat | None = stat
    for _ in range(_END_LOOKS):
        now = processes.process_stat(stat.pid)
        status = now.wait_status if now else 0
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == number:
            return False
        if now is None or not now.alive:
            return not stat.catches(number)
        if not now.ending and not now.dies_of(number):
            return False
        await asyncio.sleep(_END_PAUSE)
    return now is None or now.ending
