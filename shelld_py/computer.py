"""The computer that an agent is given: its shells and runs, and the hooks around them.

What a client operates, free of HTTP and of the process around it. Whoever builds it opens it, and ends it.
"""

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from shelld_py.audit import Audit
from shelld_py.config import Settings
from shelld_py.errors import InvalidRequest, ShellAlreadyStarted
from shelld_py.events import Events
from shelld_py.files import Comparison, FileService, Looks
from shelld_py.hooks import HookName, Hooks
from shelld_py.linux import oom
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.users import User
from shelld_py.metadata import (
    Metadata,
    check_shell,
    cpu_variables,
    operating_system,
    read_os_release,
    shell_version,
    usable_cpus,
    usable_memory_mb,
    user_name,
)
from shelld_py.models import ActiveRun, KillResult, ShellState, ShellStatus
from shelld_py.request_data import Command, ShellDocument, StartupRequest
from shelld_py.shells.data_directory import own_directory
from shelld_py.shells.keys import pasted, typed
from shelld_py.shells.limits import KernelLimits
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.registry import MAIN, Shells
from shelld_py.shells.run import Run
from shelld_py.shells.screens import Screens
from shelld_py.shells.shell import Shell
from shelld_py.shells.startup import ShellContext
from shelld_py.shells.states import MESSAGES, Event
from shelld_py.shells.store import RunStore
from shelld_py.version import __version__

T = TypeVar("T")


class Surroundings(Struct, frozen=True, kw_only=True):
    """What a computer finds: the environment for shells and hooks, where it works, where its data lies."""

    environment: Mapping[str, str]
    working_directory: str
    data_directory: Path
    open_files: tuple[int, int]
    oom_score_adj: int | None = None
    """What the daemon was started with; None where the kernel has no such thing."""
    audit: Audit | None = None
    """Where what clients do is noted, if anywhere."""
    user: User | None = None
    """Whom shells, hooks and file operations run as; None for the daemon's own user."""


class Computer:
    """The main shell, the sessions, the runs, the hooks."""

    def __init__(self, settings: Settings, surroundings: Surroundings, logger: logging.Logger) -> None:
        self.settings = settings
        self.audit = surroundings.audit
        self.reaper = Reaper()
        self.files: FileService
        self.events: Events
        self._looks: Looks
        self.store = RunStore(surroundings.data_directory, settings.output, logger)
        self.screens = Screens()
        self._hooks = Hooks(
            settings.hooks,
            environment=surroundings.environment,
            directory=surroundings.working_directory,
            reaper=self.reaper,
            logger=logger,
            oom_score_adj=surroundings.oom_score_adj,
            user=surroundings.user,
        )
        self._logger = logger
        self._kill_counter = oom.KillCounter()
        self.kernel_limits = KernelLimits(settings.limits, logger)
        base = settings.files.base_directory or surroundings.working_directory
        self._data = surroundings.data_directory
        self._backups = self._data / "backups"
        self._open_files = partial(
            FileService,
            settings.files,
            base_directory=base,
            allowed_directories=settings.files.allowed_directories or (base,),
            backup_directory=settings.files.backup_directory or str(self._backups),
            user=surroundings.user,
        )
        self._cleaning: asyncio.Task[None] | None = None
        self._context = ShellContext(
            settings=settings.shell,
            user=surroundings.user,
            environment={
                **(cpu_variables(usable_cpus()) if settings.shell.cpu_variables else {}),
                **surroundings.environment,
            },
            directory=surroundings.working_directory,
            log_directory=surroundings.data_directory,
            log_max=settings.output.log_max,
            kill_grace=settings.timeout.kill,
            command_lifetime=settings.timeout.command_lifetime,
            limits=settings.limits,
            on_breach=self._limit_broken,
            open_files=surroundings.open_files,
            oom_score_adj=None if surroundings.oom_score_adj is None else oom.raised(surroundings.oom_score_adj),
            make_cgroup=self.kernel_limits.make_cgroup,
            kill_counter=self._kill_counter,
            memory_limit=oom.MemoryLimit(),
            store=self.store,
            reaper=self.reaper,
            logger=logger,
        )
        self.on_run_started = self._context.on_run_started
        self.on_run_ended = self._context.on_run_ended
        self.on_state = self._context.on_state
        self._started = time.monotonic()
        self.shells = Shells(
            partial(Shell, context=self._context),
            most=settings.limits.max_sessions,
            idle=settings.timeout.session_idle,
            lifetime=settings.timeout.session_lifetime,
        )
        self._shell_version: str | None = None
        self._starting = asyncio.Lock()
        self._closing: set[asyncio.Task[Any]] = set()

    @property
    def main(self) -> Shell:
        """The main shell."""
        return self.shells.main

    @property
    def uptime(self) -> float:
        """Seconds since it was made."""
        return time.monotonic() - self._started

    @property
    def directory(self) -> str:
        """Where shells start unless they are told otherwise."""
        return self._context.directory

    def open(self) -> None:
        """Take the data directory. Raises `ConfigError` when that, or the shell, cannot be had."""
        environment = {**self._context.environment, **self.settings.shell.environment}
        check_shell(self.settings.shell.command, environment)
        self.store.open()
        if not self.settings.files.backup_directory:
            own_directory(self._backups, self._logger)
        self.files = self._open_files()
        self.events = Events(self._context, self.shells, self.files)
        private = (str(self._data), self.settings.files.backup_directory)
        self._looks = Looks(
            self.files.allowed_directories,
            [os.path.realpath(path) for path in private if path],
            user=self._context.user,
        )
        for absence in self._absences():
            self._logger.warning("%s", absence)
        self._cleaning = asyncio.get_running_loop().create_task(self.files.keep_clean())

    def _absences(self) -> Iterator[str]:
        """Say what the settings name and is not there. It may come yet, so it hinders nothing but its own use."""
        for root in self.files.allowed_directories:
            if not Path(root).is_dir():
                yield f"files.allowed_directories: there is no directory {root!r}"
        startup_file = self.settings.shell.startup_file
        if startup_file.startswith("/") and not Path(startup_file).is_file():
            yield f"shell.startup_file: there is no file {startup_file!r}"

    def shell(self, session_id: str | None) -> Shell:
        """Return a shell, and note that it is in use; the main one for None. Raises `SessionNotFound`."""
        return self.shells.get(session_id or MAIN)

    @contextlib.asynccontextmanager
    async def comparing(self, command: Command, shell: Shell | None = None) -> AsyncIterator[Comparison | None]:
        """Look at the files before `command` begins, where it asks for that; what begins it takes what is given.

        A `shell` that cannot take a command refuses it before the look. Raises `Conflict`.
        """
        if not command.changes:
            yield None
            return
        if shell:
            shell.check(Event.RUN)
        comparison = await self._looks.compare(everything=command.changes == "all")
        try:
            yield comparison
        except BaseException:
            comparison.close()
            raise

    def spooled(self, chunks: AsyncIterable[bytes]) -> contextlib.AbstractAsyncContextManager[tuple[int, str]]:
        """Take input of any size to the disk, see `FileService.spooled`."""
        return self.files.spooled(chunks, str(self._data))

    async def kill_run(self, run: Run, number: int | None = None, *, background: bool = False) -> KillResult:
        """Kill a run, or send it one signal. One that has ended is left as it is.

        With `background`, and where the run has a shell of its own, what it has left running is killed, too.
        """
        shell = self.shells.find(run.session_id)
        if not isinstance(run, LiveRun) or shell is None:
            state = shell.state if shell else ShellState.AVAILABLE
            return KillResult(state=state, run=run.run_id, killed=False, survivors=())
        killed, survivors = False, tuple[int, ...]()
        if run.running:
            result = await shell.kill(number, run)
            killed, survivors = result.killed, result.survivors
        one_shot = self.shells.is_one_shot(shell)
        if number is None and (background or one_shot):
            found, survivors = await shell.kill_background(run)
            killed = killed or found
        if number is None and one_shot:
            await self.shells.end_one_shot(shell)
            survivors = ()
        return KillResult(state=shell.state, run=run.run_id, killed=killed, survivors=survivors)

    async def input_for(self, run: Run, keys: Sequence[str], paste: str | None = None) -> bytes:
        """Return the bytes of `keys`, or of what is pasted, as the program in the terminal of `run` wants them."""
        modes = await self.screens.modes(run)
        return typed(keys, modes) if keys else pasted(paste or "", modes)

    async def close_run(self, run: Run) -> KillResult:
        """Kill a run if it is going on, and remove its files."""
        result = await self.kill_run(run)
        self.store.delete(run.run_id)
        return result

    def carry_through(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Do `work` even if whoever waits for it goes away; the end of the computer waits for it, too."""
        task = asyncio.get_running_loop().create_task(work)
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    def _limit_broken(self, session_id: str) -> None:
        self.shells.close_soon(session_id, "The session broke a limit.")

    async def dump(self, shell: Shell) -> ShellDocument:
        """Return the state of `shell`, see `Shell.dump`; it is read to its end even if nobody waits for it."""
        return await asyncio.shield(self.carry_through(shell.dump()))

    async def open_session(self, request: StartupRequest) -> Shell:
        """Open a session, see `Shells.open`."""
        return await self.shells.open(await self._with_state(request))

    async def _with_state(self, request: StartupRequest) -> StartupRequest:
        """Return the request with the state of the shell that is to be copied. Raises `SessionNotFound`, `Conflict`."""
        if request.copy_of is None:
            return request
        if request.state is not None:
            raise InvalidRequest("state and copy_of exclude each other: a shell begins with one state.")
        state = await self.dump(self.shell(request.copy_of))
        return msgspec.structs.replace(request, state=state, copy_of=None)

    async def startup(self, request: StartupRequest) -> None:
        """Start the main shell, after its hook."""
        if self._starting.locked():
            raise ShellAlreadyStarted(MESSAGES[ShellAlreadyStarted], state=self.main.state.value)
        async with self._starting:
            self.main.check(Event.START)
            request = await self._with_state(request)
            await self._hooks.run(HookName.STARTUP)
            await self.main.start(request)

    async def ensure_started(self) -> None:
        """Start the main shell where it is not; who comes while somebody starts it waits for that."""
        while self.main.state is ShellState.AVAILABLE:
            if self._starting.locked():
                async with self._starting:
                    continue
            await self.startup(StartupRequest())

    async def recycle(self, shell: Shell) -> None:
        """Give `shell` a fresh bash; for the main shell, run the hook then."""
        await shell.recycle()
        if shell is self.main:
            await self._hooks.run(HookName.RECYCLE)

    async def reset(self, end_requests: Callable[[], Awaitable[None]]) -> None:
        """Make all new for the next client: no shells, no runs. Nothing else may be asked of it meanwhile.

        `end_requests` is called when the shells have ended, and those are ended that requests have started meanwhile.
        """
        reason = "The daemon was recycled for the next client."
        try:
            await self._end_shells(reason)
            await end_requests()
            await self._end_shells(reason)
            self.shells.renew()
            self.store.clear()
            self.screens.clear()
            self.events.forget()
            await self.files.reset()
            await self._hooks.run(HookName.RECYCLE)
        finally:
            self.shells.ending = False

    async def end(self) -> None:
        """End every shell and run the last hook. Who waits for a run is still to be answered; then `close` it."""
        await self._end_shells("The daemon was shut down.")
        await self._hooks.run(HookName.SHUTDOWN)
        self._context.keepers.close()
        self.reaper.kill()
        if self._cleaning:
            self._cleaning.cancel()
        await self._looks.aclose()
        await self.files.aclose()
        self.screens.clear()

    def close(self) -> None:
        """Give free what it has taken, when nobody asks it for anything any more."""
        self.store.close()
        self.kernel_limits.release()
        self._kill_counter.close()

    def status(self, shell: Shell) -> ShellStatus:
        """Return what can be said of `shell` now; times in seconds."""
        run = shell.run
        shown = None
        if run:
            result = msgspec.structs.asdict(run.result())
            shown = ActiveRun(**result, foreground=shell.foreground, resources=shell.resources())
        return ShellStatus(
            state=shell.state,
            version=__version__,
            session_id=shell.session_id,
            working_directory=shell.working_directory,
            shell_pid=shell.pid,
            uptime=round(self.uptime, 3),
            sessions=self.shells.session_count,
            run=shown,
            last_run_id=shell.last_run.run_id if shell.last_run else None,
        )

    async def metadata(self) -> Metadata:
        """Return what a client may know of the machine and of the rules."""
        settings = self.settings
        if self._shell_version is None:
            self._shell_version = await shell_version(settings.shell.command)
        return Metadata(
            operating_system=operating_system(read_os_release()),
            shell=self._shell_version,
            workspace_directory=self._context.directory,
            version=__version__,
            user=user_name(self._context.user),
            cpus=usable_cpus(),
            memory_mb=usable_memory_mb(),
            limits=settings.limits,
            timeouts=settings.timeout,
            allowed_directories=self.files.allowed_directories,
        )

    async def _end_shells(self, reason: str) -> None:
        await self.shells.end_all(reason)
        if self._closing:
            await asyncio.wait(set(self._closing))
