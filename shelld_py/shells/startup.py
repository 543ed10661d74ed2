"""What a shell's bash is started with: what a request may ask for, and what the settings and its user add to that.

It knows bash as a process, and says what shells and runs are given to work with, but not the state of a shell.
"""

import logging
import os
import shlex
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Final, Self

import msgspec
from msgspec import Struct, field

from shelld_py.bash.command import VARIABLE, check_command, check_encodable, check_environment
from shelld_py.bash.confinement import Confinement
from shelld_py.bash.keeper import Keepers
from shelld_py.bash.process import Bash
from shelld_py.bash.program import Program
from shelld_py.bash.state import check_document
from shelld_py.config import LimitSettings, OnExit, ShellSettings
from shelld_py.errors import InvalidRequest, UserNotAllowed
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.linux.descriptors import require
from shelld_py.linux.oom import KillCounter, MemoryLimit
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.terminal import Sink
from shelld_py.linux.users import User
from shelld_py.models import ShellState, Streams
from shelld_py.request_data import Command, ShellDocument, StartupRequest
from shelld_py.shells.limits import limited, process_ceiling, remove_cgroup
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.store import RunStore

_DESCRIPTORS: Final = 32
"""Descriptors that must be free to start a bash: it takes 13 in the daemon, and as many again for a moment."""


class ShellContext(Struct, frozen=True, kw_only=True, dict=True):
    """What a shell and its runs need from outside; durations in seconds."""

    settings: ShellSettings
    user: User | None = None
    """Whom shells run as; None for the daemon's own user, or whom a request names."""
    environment: Mapping[str, str]
    directory: str
    log_directory: Path
    log_max: int
    kill_grace: float
    command_lifetime: float
    limits: LimitSettings
    on_breach: Callable[[str], None]
    """Called with the session id of a shell that has broken a limit."""
    open_files: tuple[int, int]
    oom_score_adj: int | None = None
    """What shells get; None leaves them what the daemon has."""
    make_cgroup: Callable[[], ShellCgroup | None] = lambda: None
    """Returns a cgroup for a shell, its limits set; None where there is none to be had."""
    kill_counter: KillCounter | None = None
    memory_limit: MemoryLimit | None = None
    """That of the container which the daemon is in."""
    on_run_started: list[Callable[[LiveRun], None]] = field(default_factory=list)
    """Called with each run that has begun."""
    on_run_awaiting_input: list[Callable[[LiveRun], None]] = field(default_factory=list)
    """Called with a run that is seen waiting for input, each time that it begins to."""
    on_run_warning: list[Callable[[LiveRun], None]] = field(default_factory=list)
    """Called with a run that comes near to a limit of memory, each time that it is warned of one."""
    on_state: list[Callable[[str, ShellState, ShellState], None]] = field(default_factory=list)
    """Called with the session id of a shell whose state, as clients see it, has changed; with it and the one before."""
    on_run_ended: list[Callable[[LiveRun], None]] = field(default_factory=list)
    """Called with each run that has ended."""
    store: RunStore
    reaper: Reaper
    keepers: Keepers = field(default_factory=Keepers)
    logger: logging.Logger

    @cached_property
    def limited(self) -> bool:
        """Whether there are limits that somebody has to look after."""
        return limited(self.limits)


class Startup(Struct, frozen=True):
    """What the bash of one shell is started with, each time anew."""

    context: ShellContext
    request: StartupRequest
    piped: bool = False
    """Whether what it runs has no terminal: then it runs one command, and reads no file at its start."""
    user: User | None = None
    """Whom bash runs as; None for the daemon's own user."""

    @classmethod
    def checked(cls, context: ShellContext, request: StartupRequest, *, piped: bool) -> Self:
        """Return what `request` asks for; its `state` is for the first bash alone, and is not kept.

        Raises `InvalidRequest`, `UserNotAllowed`.
        """
        directory = request.working_directory
        if directory is not None and not is_directory(directory):
            raise InvalidRequest(f"working_directory: {directory!r} is not a directory that exists.")
        check_environment(request.environment)
        user = _user_for(context, request.user)
        _check_startup_file(request.startup_file)
        if piped and request.startup_file is not None:
            raise InvalidRequest("startup_file is for a bash with a terminal: with pipes none is read.")
        if request.state:
            check_document(request.state)
        return cls(context, msgspec.structs.replace(request, state=None, copy_of=None), piped, user)

    @property
    def directory(self) -> str:
        """Where bash begins."""
        return self.request.working_directory or self.context.directory

    @property
    def environment(self) -> Mapping[str, str]:
        """The variables that bash begins with."""
        context, settings = self.context, self.context.settings
        theirs = self.user.variables if self.user else {}
        return {
            **context.environment, "TERM": settings.term, **theirs, **settings.environment, **self.request.environment,
        }  # fmt: skip

    def check(self, command: Command, here: str | None) -> str | None:
        """Raise `InvalidRequest` where `command` is none for this shell, or for any.

        Returns the absolute path of the directory that it is to have, if any; `here` is where the shell is, if known.
        """
        if (command.streams is Streams.PIPES) is not self.piped:
            raise InvalidRequest("streams: pipes are for /exec, and this shell has a terminal: merged or separate.")
        if command.stdin_open and not self.piped:
            raise InvalidRequest("stdin_open is for streams: pipes. A terminal is always open.")
        directory = None
        if command.directory is not None:
            directory = str(Path(here or self.context.directory, command.directory))
            if not is_directory(directory):
                raise InvalidRequest(f"directory: {directory!r} is not a directory that exists.")
        if command.environment:
            check_environment(command.environment)
        check_command(command.text)
        if command.stdin is not None:
            check_encodable("stdin", command.stdin)
        if command.description:
            check_encodable("description", command.description)
        return directory

    async def begin(
        self, session_id: str, idle_sink: Sink, state: ShellDocument | None
    ) -> tuple[Bash | Program, ShellCgroup | None, tuple[str, ...] | None]:
        """Return what runs the commands, the cgroup that it is in, if any, and what could not be set of `state`.

        `idle_sink` gets what is written while no command runs. Raises `ShellStartFailed`.
        """
        require(_DESCRIPTORS)
        logger, not_restored = self.context.logger, None
        cgroup = self.context.make_cgroup()
        try:
            bash = await self._started(cgroup, idle_sink)
            if cgroup and not (self.piped or cgroup.holds(bash.pid)):
                logger.warning("shell %s: limits are sampled, it is not in %s", session_id, cgroup.directory)
                await remove_cgroup(cgroup, session_id, logger)
                cgroup = None
            if state and isinstance(bash, Bash):
                not_restored = await self._restore(bash, state)
        except BaseException:
            await remove_cgroup(cgroup, session_id, logger)
            raise
        return bash, cgroup, not_restored

    async def _started(self, cgroup: ShellCgroup | None, idle_sink: Sink) -> Bash | Program:
        context, request = self.context, self.request
        settings = context.settings
        argv = shlex.split(settings.command)
        counted = cgroup is not None and "pids" in cgroup.controllers
        confinement = Confinement(
            open_files=context.open_files,
            process_ceiling=None if counted else process_ceiling(context.limits, self.user),
            oom_score_adj=context.oom_score_adj,
            cgroup=cgroup,
        )
        if self.piped:
            return await Program.start(
                argv,
                environment=self.environment,
                directory=self.directory,
                confinement=confinement,
                reaper=context.reaper,
                keepers=context.keepers,
                user=self.user,
            )
        return await Bash.start(
            argv,
            environment=self.environment,
            directory=self.directory,
            size=(request.rows or settings.rows, request.cols or settings.cols),
            restore=settings.on_exit is OnExit.RESTORE,
            confinement=confinement,
            idle_sink=idle_sink,
            reaper=context.reaper,
            startup_file=settings.startup_file if request.startup_file is None else request.startup_file,
            user=self.user,
        )

    async def _restore(self, bash: Bash, state: ShellDocument) -> tuple[str, ...]:
        """Give a fresh bash its state; what the request says itself goes before that.

        Returns what could not be set. Where it raises `ShellStartFailed`, bash has been ended.
        """
        request, environment = self.request, self.environment
        document = msgspec.structs.replace(state, environment={**state.environment, **request.environment})
        unset = [name for name in environment if name not in document.environment and VARIABLE.fullmatch(name)]
        try:
            return await bash.restore(document, unset=unset, directory=request.working_directory)
        except BaseException:
            await bash.end()
            bash.close()
            raise


def _user_for(context: ShellContext, wanted: str | None) -> User | None:
    """Return whom bash is to run as, where a request names `wanted`. Raises `UserNotAllowed`, `InvalidRequest`."""
    configured = context.user
    if wanted is None:
        return configured
    if configured is None and os.geteuid() != 0:
        raise UserNotAllowed("The daemon does not run as root, so its commands run as its own user alone.")
    try:
        user = User.find(wanted)
    except LookupError as error:
        raise InvalidRequest(f"user: {error}. It must be a name, such as nobody, or uid, or uid:gid.") from None
    if configured not in (None, user):
        raise UserNotAllowed(f"user: shells run as {context.settings.user} (shell.user) and as nobody else.")
    return user


def _check_startup_file(path: str | None) -> None:
    """Raise `InvalidRequest` where bash would pass over the file that it is to read, without a word.

    One in a home directory is left to bash, which knows whose that is.
    """
    if not path or path.startswith("~"):
        return
    if not path.startswith("/"):
        raise InvalidRequest(f"startup_file: {path!r} must be an absolute path, or begin with ~/, or be empty.")
    if not _is_file(path):
        raise InvalidRequest(f"startup_file: {path!r} is not a file that exists.")


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (ValueError, OSError):
        return False


def is_directory(path: str) -> bool:
    """Whether there is a directory at `path`."""
    try:
        return Path(path).is_dir()
    except (ValueError, OSError):  # a NUL, a surrogate that has no byte, a name that is too long
        return False
