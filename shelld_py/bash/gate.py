"""Signals to the command that bash executes, and keys that send one.

They are sent while bash stands still, and only if it executes the command then: an interrupt that hit the
driver would unwind it in the middle of a report, or fall into the next command. It knows nothing of the
driver's text, of reports or of runs.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeAlias

from shelld_py.bash.interrupts import Audience
from shelld_py.linux import processes
from shelld_py.linux.terminal import Terminal

_SIGNAL_KEYS: Final = frozenset(b"\x03\x1c\x1a")
_SHORTEST_PAUSE: Final = 0.001
_LONGEST_PAUSE: Final = 0.05
_STOP_PATIENCE: Final = 1.0
_STOP_PAUSE: Final = 0.0002
_START_PATIENCE: Final = 0.05
_HEARING_PATIENCE: Final = 4.0
_REPEAT_PATIENCE: Final = 2.0
_COMMAND_PATIENCE: Final = 5.0
_SETTLING: Final = 0.005
"""Children of bash that are still bash after so many seconds are subshells rather than programs to be."""

Command: TypeAlias = asyncio.Future[Any]
"""What stands for a command under way; it is done when the command is over."""


@dataclass(frozen=True, slots=True)
class Target:
    """The bash that is signalled."""

    pid: int
    terminal: Terminal
    send_signal: Callable[[int], None]
    """Signals bash itself, if it lives."""
    command: Callable[[], Command | None]
    """Returns the command under way."""
    yet_to_begin: Callable[[], bool]
    """Whether a command is about to be under way."""
    executes: Callable[[], bool]
    """Whether bash, which stands still, executes the command rather than the driver around it."""


class Signaller:
    """Signals what one bash executes."""

    def __init__(self, target: Target) -> None:
        self._target = target
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
                self._target.send_signal(signal.SIGCONT)

    async def interrupt(self) -> bool:
        """Send SIGINT to the foreground process group; return whether that was done before the command was over."""
        return await self._interrupt_by(partial(self._target.terminal.signal_foreground, signal.SIGINT))

    async def signal(self, number: int) -> bool:
        """Send a signal to the foreground process group; return whether it was there, and the command not over."""
        if number == signal.SIGINT:
            return await self.interrupt()
        command = await self._command_under_way()
        late = _now() + _START_PATIENCE
        tries = _Tries()
        while self._goes_on(command):
            async with self._held_in(command) as in_command:
                if in_command or number == signal.SIGKILL or _now() > late:
                    return self._target.terminal.signal_foreground(number)
            await tries.pause()
        return False

    def type(self, data: bytes) -> None:
        """Write `data` to the terminal as if it were typed, with keys that send a signal at the right moment."""
        if self._keys or not _SIGNAL_KEYS.isdisjoint(data):
            self._keys += data
            if self._typing is None:
                self._typing = asyncio.get_running_loop().create_task(self._type_keys())
        else:
            self._target.terminal.write(data)

    def forget_keys(self) -> None:
        """Drop the keys that have not been typed: the command that they were for is over."""
        self._keys.clear()

    async def _stop(self) -> None:
        """Stop bash, and return when it has stopped.

        Sending the signal is not enough. A bash that waits for its children still sees one that stops meanwhile,
        as long as it has not got to run itself; on a busy machine that can take many milliseconds.
        """
        self._target.send_signal(signal.SIGSTOP)
        deadline = _now() + _STOP_PATIENCE
        while _now() < deadline:
            stat = processes.process_stat(self._target.pid)
            if stat is None or stat.state in "TtZX":
                return
            await asyncio.sleep(_STOP_PAUSE)

    async def _command_under_way(self) -> Command | None:
        """Return the command under way, once it has begun; None where there is none."""
        deadline = _now() + _HEARING_PATIENCE
        while self._target.yet_to_begin() and _now() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_SHORTEST_PAUSE)
        return self._target.command()

    def _goes_on(self, command: Command | None) -> bool:
        """Whether this very command is under way still: who has waited must not meet the next one."""
        return command is not None and command is self._target.command() and not command.done()

    @contextlib.asynccontextmanager
    async def _held_in(self, command: Command | None) -> AsyncIterator[bool]:
        """Hold bash; give whether it executes `command`."""
        async with self.held():
            executes = self._target.executes()
            yield executes and self._goes_on(command)

    async def _interrupt_by(self, act: Callable[[], bool]) -> bool:
        """Interrupt the command by `act`, when there is somebody to hear it; return what `act` does.

        That is whether it has interrupted. Who may be about to become a program is waited for, and whoever has
        lost the interrupt all the same gets it again.
        """
        terminal = self._target.terminal
        command = await self._command_under_way()
        settled = _now()
        late = settled + _HEARING_PATIENCE
        undecided: frozenset[int] = frozenset()
        tries = _Tries()
        while self._goes_on(command) and tries.left:
            async with self._held_in(command) as in_command:
                if in_command:
                    audience = Audience(self._target.pid, terminal.foreground_group())
                    if audience.undecided != undecided:
                        undecided, settled = audience.undecided, _now() + _SETTLING
                    quiet = audience.hears and (not undecided or (_now() >= settled and not audience.settling))
                    if quiet or _now() > late:
                        if not act():
                            return False
                        if _now() > late or not await audience.has_lost():
                            break
                        act = partial(terminal.signal_foreground, signal.SIGINT)
            await tries.pause()
        else:
            return False
        await self._repeat(audience, command)
        return True

    async def _repeat(self, audience: Audience, command: Command | None) -> None:
        """Interrupt those once more who were bash when they were interrupted, and then become programs."""
        settled, deadline = _now() + _START_PATIENCE, _now() + _REPEAT_PATIENCE
        while audience.undecided and self._goes_on(command) and _now() < deadline:
            if _now() > settled and not audience.settling:
                return
            await asyncio.sleep(_SHORTEST_PAUSE)
            audience.repeat(signal.SIGINT)

    async def _type_keys(self) -> None:
        """Type what was held back as it may interrupt, and what came after it."""
        try:
            while self._keys and self._goes_on(self._target.command()):
                await self._interrupt_by(self._type_now)
        finally:
            self._typing = None

    def _type_now(self) -> bool:
        """Type the keys that were held back; return whether they interrupt."""
        terminal = self._target.terminal
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
        self._deadline = _now() + _COMMAND_PATIENCE
        self._pause = _SHORTEST_PAUSE

    @property
    def left(self) -> bool:
        return _now() < self._deadline

    async def pause(self) -> None:
        await asyncio.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


def _now() -> float:
    return asyncio.get_running_loop().time()
