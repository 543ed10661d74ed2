"""All shells there are: the main one, the sessions, and those of one command alone. Open them, find them, end them.

A session that has been idle or open for too long is ended: one timer for each wakes when it may have expired and not
before. It knows nothing of hooks or of HTTP.
"""

import asyncio
import time
import uuid
from collections.abc import Callable, Coroutine
from enum import Enum, auto
from typing import Any, Final

from msgspec import Struct

from shelld_py.errors import SessionNotFound, ShuttingDown, TooManySessions
from shelld_py.models import Cause, ShellState, Streams
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Comparison
from shelld_py.shells.shell import Shell

MAIN: Final = "main"
"""The session id of the main shell."""

_BUSY_PAUSE: Final = 1.0
"""Seconds after which a session that had expired, but for a run going on, is looked at again."""

_SHORTEST_WAIT: Final = 0.1
"""Seconds between two looks at an idle session at least: a rounding of the clock must not make it a busy loop."""


class _Kind(Enum):
    MAIN = auto()
    SESSION = auto()
    ONE_SHOT = auto()


class _Entry(Struct):
    """A shell, when it was opened, and when it was last asked for anything (monotonic seconds)."""

    shell: Shell
    kind: _Kind
    opened: float
    last_used: float
    timer: asyncio.TimerHandle | None = None
    told: bool = False
    """Whether it is known outside that the session was opened."""


class Shells:
    """The registry of all shells. The main one is always there."""

    def __init__(
        self,
        make_shell: Callable[[str], Shell],
        *,
        most: int,
        idle: float,
        lifetime: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most` sessions may be open at once (0: any number); `idle` and `lifetime` are in seconds (0: for ever)."""
        self._make_shell = make_shell
        self._most = most
        self._idle = idle
        self._lifetime = lifetime
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self.session_count = 0
        """How many of them are sessions: each status tells it."""
        self._tasks: set[asyncio.Task[None]] = set()
        self.on_opened: list[Callable[[str, str], None]] = []
        """Called with the id of a session that was opened, and the reason."""
        self.on_closed: list[Callable[[str, str], None]] = []
        """Called with the id of a session that has ended, and the reason."""
        self.ending = False
        """Whether all are being ended: one that was starting meanwhile ends, too."""
        self._add(MAIN, _Kind.MAIN)

    @property
    def main(self) -> Shell:
        """The main shell."""
        return self._entries[MAIN].shell

    @property
    def sessions(self) -> list[Shell]:
        """The sessions, oldest first."""
        return [entry.shell for entry in self._entries.values() if entry.kind is _Kind.SESSION]

    @property
    def all(self) -> list[Shell]:
        """All shells."""
        return [entry.shell for entry in self._entries.values()]

    def get(self, session_id: str) -> Shell:
        """Return a shell, and note that it is in use. Raises `SessionNotFound`."""
        entry = self._entries.get(session_id)
        if entry is None:
            raise _not_found(session_id)
        entry.last_used = self._clock()
        return entry.shell

    def find(self, session_id: str) -> Shell | None:
        """Return a shell, if it is there, without touching its idle time."""
        entry = self._entries.get(session_id)
        return entry.shell if entry else None

    def is_one_shot(self, shell: Shell) -> bool:
        """Return whether `shell` was made for one command alone."""
        entry = self._entries.get(shell.session_id)
        return entry is not None and entry.kind is _Kind.ONE_SHOT

    def expires_at(self, session_id: str) -> float | None:
        """Return the Unix time at which a session ends if nothing is asked of it; None for never, or not one."""
        entry = self._entries.get(session_id)
        remaining = self._remaining(entry) if entry and entry.kind is _Kind.SESSION else None
        return None if remaining is None else time.time() + remaining

    async def open(self, request: StartupRequest) -> Shell:
        """Open a session. Raises `TooManySessions`, `ShellStartFailed`, `InvalidRequest`."""
        if 0 < self._most <= self.session_count:
            raise TooManySessions(
                f"limits.max_sessions is {self._most}, and so many are open. Close one with DELETE /sessions/ID."
            )
        entry = await self._started(_Kind.SESSION, request)
        self._start_timer(entry)
        entry.told = True
        for tell in self.on_opened:
            tell(entry.shell.session_id, "A client has opened it.")
        return entry.shell

    async def one_shot(
        self,
        command: Command,
        run_id: str | None,
        request: StartupRequest | None = None,
        stdin_file: int = -1,
        comparison: Comparison | None = None,
    ) -> LiveRun:
        """Run a command in a shell of its own, which ends when the command and what it left behind have ended."""
        piped = command.streams is Streams.PIPES
        entry = await self._started(_Kind.ONE_SHOT, request or StartupRequest(), piped=piped)
        try:
            run = entry.shell.submit(command, run_id, stdin_file, comparison)
        except BaseException:
            await self._end(entry, "The command was refused.")
            raise
        self._do_soon(self._end_after(entry, run))
        return run

    async def close(self, session_id: str, reason: str) -> None:
        """End a session and all it started. Raises `SessionNotFound`."""
        entry = self._entries.get(session_id)
        if entry is None or entry.kind is not _Kind.SESSION:
            raise _not_found(session_id)
        self._forget(entry)  # nobody is to find one that is ending
        await self._end(entry, reason)

    def close_soon(self, session_id: str, reason: str) -> None:
        """End a session in the background, if it is one."""
        entry = self._entries.get(session_id)
        if entry and entry.kind is _Kind.SESSION:
            self._forget(entry)
            self._do_soon(self._end(entry, reason))

    async def end_one_shot(self, shell: Shell) -> None:
        """End a shell that was made for one command alone, and all it started."""
        entry = self._entries.get(shell.session_id)
        if entry:
            await self._end(entry, "The shell of the command was closed.")

    async def end_all(self, reason: str) -> None:
        """End all shells and all they started; as long as `ending` is set, none can be opened."""
        self.ending = True
        await asyncio.gather(*(self._end(entry, reason) for entry in list(self._entries.values())))
        if self._tasks:
            await asyncio.wait(set(self._tasks))

    def renew(self) -> None:
        """Begin anew after all have ended: with a main shell that has never run anything."""
        self._add(MAIN, _Kind.MAIN)

    def _add(self, session_id: str, kind: _Kind) -> _Entry:
        now = self._clock()
        entry = self._entries[session_id] = _Entry(self._make_shell(session_id), kind, now, now)
        self.session_count += kind is _Kind.SESSION
        return entry

    def _forget(self, entry: _Entry) -> None:
        if self._entries.pop(entry.shell.session_id, None):
            self.session_count -= entry.kind is _Kind.SESSION

    async def _started(self, kind: _Kind, request: StartupRequest, *, piped: bool = False) -> _Entry:
        """Return a new shell that is ready. Raises `ShellStartFailed`, `InvalidRequest`, `ShuttingDown`."""
        entry = self._add(uuid.uuid4().hex[:12], kind)
        try:
            await entry.shell.start(request, piped=piped)
            if self.ending:
                raise ShuttingDown("All shells are being ended.")
        except BaseException:
            await self._end(entry, "It was not wanted any more.")
            raise
        return entry

    async def _end_after(self, entry: _Entry, run: LiveRun) -> None:
        await run.wait()
        if run.ending is None or run.ending.cause is not Cause.DEADLINE:  # at that all of it goes, as by a kill
            await entry.shell.wait_for_processes()
        await self._end(entry, "The shell of the command was closed.")

    async def _end(self, entry: _Entry, reason: str) -> None:
        """End a shell; all but the main one are forgotten then."""
        if entry.timer:
            entry.timer.cancel()
        await entry.shell.end(reason)
        if entry.kind is not _Kind.MAIN:
            self._forget(entry)
        if entry.told:
            entry.told = False
            for tell in self.on_closed:
                tell(entry.shell.session_id, reason)

    def _do_soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_timer(self, entry: _Entry) -> None:
        remaining = self._remaining(entry)
        if remaining is not None:
            wait = max(remaining, _SHORTEST_WAIT)
            entry.timer = asyncio.get_running_loop().call_later(wait, self.look, entry.shell.session_id)

    def look(self, session_id: str) -> None:
        """End a session if it has expired, else look again when it may have. Its timer calls it."""
        entry = self._entries.get(session_id)
        if entry is None:
            return
        if entry.timer:
            entry.timer.cancel()
        if entry.shell.state is ShellState.BUSY:
            entry.last_used = self._clock()
            entry.timer = asyncio.get_running_loop().call_later(_BUSY_PAUSE, self.look, session_id)
            return
        remaining = self._remaining(entry)
        if remaining is not None and remaining <= 0:
            self.close_soon(session_id, "The session has expired.")
            return
        self._start_timer(entry)

    def _remaining(self, entry: _Entry) -> float | None:
        """Return the seconds that a session has left; None for no end."""
        ends = []
        if self._idle:
            ends.append(entry.last_used + self._idle)
        if self._lifetime:
            ends.append(entry.opened + self._lifetime)
        return min(ends) - self._clock() if ends else None


def _not_found(session_id: str) -> SessionNotFound:
    return SessionNotFound(f"There is no session {session_id}; it may have ended.")
