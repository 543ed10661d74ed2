"""Sessions: the extra shells. Open them, find them, end them when they have been idle or lived for too long.

One timer for each session, which wakes when the session may have expired and not before.
"""

import asyncio
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from shelld_py.errors import SessionNotFound, TooManySessions
from shelld_py.models import ShellState, StartupRequest
from shelld_py.shells.shell import Shell

_BUSY_PAUSE: Final = 1.0
"""Seconds after which a session that had expired, but for a run going on, is looked at again."""


@dataclass(slots=True)
class Session:
    """An extra shell, when it was opened, and when it was last asked for anything (monotonic seconds)."""

    shell: Shell
    opened: float
    last_used: float
    timer: asyncio.TimerHandle | None = field(default=None)


class Sessions:
    """The registry of extra shells."""

    def __init__(
        self,
        make_shell: Callable[[str], Shell],
        *,
        most: int,
        idle: float,
        lifetime: float,
    ) -> None:
        """`most` may be open at once (0: any number); `idle` and `lifetime` are in seconds (0: for ever)."""
        self._make_shell = make_shell
        self._most = most
        self._idle = idle
        self._lifetime = lifetime
        self._sessions: dict[str, Session] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def open(self, request: StartupRequest) -> Shell:
        """Open a session. Raises `TooManySessions`, `ShellStartFailed`, `InvalidRequest`."""
        if 0 < self._most <= len(self._sessions):
            raise TooManySessions(
                f"limits.max_sessions is {self._most}, and so many are open. Close one with DELETE /sessions/ID."
            )
        session_id = uuid.uuid4().hex[:12]
        now = time.monotonic()
        session = self._sessions[session_id] = Session(self._make_shell(session_id), now, now)
        try:
            await session.shell.start(request)
        except BaseException:
            self._sessions.pop(session_id, None)
            raise
        self._watch(session)
        return session.shell

    def find(self, session_id: str) -> Shell:
        """Return a session's shell, and note that it is in use. Raises `SessionNotFound`."""
        session = self._sessions.get(session_id)
        if session is None:
            raise SessionNotFound(f"There is no session {session_id}; it may have ended.")
        session.last_used = time.monotonic()
        return session.shell

    def peek(self, session_id: str) -> Shell | None:
        """Return a session's shell, if it is open, without touching its idle time."""
        session = self._sessions.get(session_id)
        return session.shell if session else None

    def shells(self) -> list[Shell]:
        """Return all shells, oldest first."""
        return [session.shell for session in self._sessions.values()]

    def expires_at(self, session_id: str) -> float | None:
        """Return the Unix time at which a session ends if nothing is asked of it; None for never, or not one."""
        session = self._sessions.get(session_id)
        remaining = self._remaining(session) if session else None
        return None if remaining is None else time.time() + remaining

    async def close(self, session_id: str, reason: str) -> None:
        """End a session and all it started. Raises `SessionNotFound`."""
        session = self._sessions.pop(session_id, None)
        if session is None:
            raise SessionNotFound(f"There is no session {session_id}; it may have ended.")
        if session.timer:
            session.timer.cancel()
        await session.shell.end(reason)

    def close_soon(self, session_id: str, reason: str) -> None:
        """End a session in the background, if it is open."""
        if session_id in self._sessions:
            task = asyncio.get_running_loop().create_task(self.close(session_id, reason))
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def close_all(self, reason: str) -> None:
        """End all sessions."""
        await asyncio.gather(*(self.close(session_id, reason) for session_id in list(self._sessions)))
        if self._ending:
            await asyncio.wait(set(self._ending))

    def _watch(self, session: Session) -> None:
        remaining = self._remaining(session)
        if remaining is not None:
            session.timer = asyncio.get_running_loop().call_later(max(remaining, 0.1), self._look, session)

    def _look(self, session: Session) -> None:
        remaining = self._remaining(session)
        if session.shell.state is ShellState.BUSY:
            session.last_used = time.monotonic()
            session.timer = asyncio.get_running_loop().call_later(_BUSY_PAUSE, self._look, session)
            return
        if remaining is not None and remaining <= 0:
            self.close_soon(session.shell.session_id, "The session has expired.")
            return
        self._watch(session)

    def _remaining(self, session: Session) -> float | None:
        """Return the seconds that a session has left; None for no end."""
        ends = []
        if self._idle:
            ends.append(session.last_used + self._idle)
        if self._lifetime:
            ends.append(session.opened + self._lifetime)
        return min(ends) - time.monotonic() if ends else None
