"""The computer that an agent is given: its shells and runs, and the hooks around them.

What a client operates, free of HTTP and of the process around it. Whoever builds it opens it, and ends it.
"""

import logging
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from shelld_py.config import Settings
from shelld_py.engine.reaper import Reaper
from shelld_py.engine.shell import Shell, ShellContext
from shelld_py.engine.states import Event, transition
from shelld_py.engine.store import RunStore
from shelld_py.errors import SessionNotFound
from shelld_py.hooks import HookName, Hooks
from shelld_py.models import ShellState, StartupRequest
from shelld_py.version import __version__

MAIN: Final = "main"
"""The session id of the main shell."""


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What a computer finds: the environment for shells and hooks, where it works, where its data lies."""

    environment: Mapping[str, str]
    working_directory: str
    data_directory: Path
    open_files: tuple[int, int]


class Computer:
    """The main shell, the runs, the hooks."""

    def __init__(self, settings: Settings, surroundings: Surroundings, logger: logging.Logger) -> None:
        self.settings = settings
        self.reaper = Reaper()
        self.store = RunStore(surroundings.data_directory, settings.output, logger)
        self._hooks = Hooks(
            settings.hooks,
            environment=surroundings.environment,
            directory=surroundings.working_directory,
            reaper=self.reaper,
            logger=logger,
        )
        self._context = ShellContext(
            settings=settings.shell,
            environment=surroundings.environment,
            directory=surroundings.working_directory,
            log_directory=surroundings.data_directory,
            log_max=settings.output.log_max,
            kill_grace=settings.timeout.kill,
            command_lifetime=settings.timeout.command_lifetime,
            open_files=surroundings.open_files,
            store=self.store,
            reaper=self.reaper,
            logger=logger,
        )
        self._started = time.monotonic()
        self.main = Shell(MAIN, self._context)

    @property
    def uptime(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    def open(self) -> None:
        """Take the data directory. Raises `ConfigError` when that is in use."""
        self.store.open()

    def shell(self, session_id: str | None) -> Shell:
        """Return a shell; the main one for None. Raises `SessionNotFound`."""
        if session_id is None or session_id == MAIN:
            return self.main
        raise SessionNotFound(f"There is no session {session_id}.")

    def state_of(self, session_id: str) -> ShellState:
        """Return the state of a shell; one that is gone is `available`."""
        try:
            return self.shell(session_id).state
        except SessionNotFound:
            return ShellState.AVAILABLE

    def shells(self) -> list[Shell]:
        """Return all shells."""
        return [self.main]

    async def startup(self, request: StartupRequest) -> None:
        """Start the main shell, after its hook."""
        transition(self.main.state, Event.START)
        await self._hooks.run(HookName.STARTUP)
        await self.main.start(request)

    async def recycle(self, shell: Shell) -> None:
        """Give `shell` a fresh bash; for the main shell, run the hook then."""
        await shell.recycle()
        if shell is self.main:
            await self._hooks.run(HookName.RECYCLE)

    async def reset(self) -> None:
        """Make all new for the next client: no shells, no runs."""
        await self._end_shells("The daemon was recycled for the next client.")
        self.store.clear()
        await self._hooks.run(HookName.RECYCLE)

    async def end(self) -> None:
        """End every shell and run the last hook."""
        await self._end_shells("The daemon was shut down.")
        await self._hooks.run(HookName.SHUTDOWN)
        self.reaper.kill()
        self.store.close()

    def status(self, shell: Shell) -> dict[str, object]:
        """Return what can be said of `shell` now; times in seconds."""
        run = shell.run
        shown = None
        if run:
            shown = {
                **msgspec.structs.asdict(run.result(shell.state)),
                "foreground": shell.foreground,
                "resources": shell.resources(),
            }
        return {
            "state": shell.state,
            "version": __version__,
            "session_id": shell.session_id,
            "working_directory": shell.working_directory,
            "shell_pid": shell.pid,
            "uptime": round(self.uptime, 3),
            "sessions": len(self.shells()) - 1,
            "run": shown,
            "last_run_id": shell.last_run.run_id if shell.last_run else None,
        }

    async def _end_shells(self, reason: str) -> None:
        for shell in self.shells():
            await shell.end(reason)


def raise_descriptor_limit() -> tuple[int, int]:
    """Let this process open as many files as it may; return the limits that it had, for its children."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (before[1], before[1]))
    return before
