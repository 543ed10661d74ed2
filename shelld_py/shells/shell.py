"""A shell: a bash in its terminal, its state, and the run that is going on in it.

The one owner of the state: every method asks the table in states.py first. It knows bash as a process, what that is
started with (startup.py) and the course of a run (execution.py), but nothing of HTTP, hooks or keys.

A run lives in a task of the shell's own, so it is nobody's request: a client that goes away changes nothing.
"""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, Self

from shelld_py.bash.process import Bash
from shelld_py.bash.program import Program
from shelld_py.errors import DirectoryGone, NoRunningCommand, ShellBusy, ShellUnrecoverable
from shelld_py.linux import processes
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.models import Cause, Foreground, KillResult, Resources, RunStatus, ShellState
from shelld_py.request_data import Command, ShellDocument, StartupRequest
from shelld_py.shells.background import Background
from shelld_py.shells.execution import PROMOTED_AFTER, Execution
from shelld_py.shells.limits import remove_cgroup
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.record import DEFAULT_SIZE
from shelld_py.shells.run import Comparison, Ending, Run
from shelld_py.shells.startup import ShellContext, Startup, is_directory
from shelld_py.shells.states import MESSAGES, Event, State, StateMachine
from shelld_py.shells.supervision import ResourceMeter

_LONGEST_LOGGED: Final = 1000
"""Characters of a command that a line of the log has."""
_OF_RUNS: Final = (State.READY, State.BUSY)
"""The states between which each run changes, there and back."""
_TIMER_ROUNDING: Final = 0.0005
"""uvloop's timers count milliseconds."""


class Shell:
    """One shell. `async with Shell(...)` starts it and ends it; or call `start` and `end`."""

    def __init__(self, session_id: str, context: ShellContext) -> None:
        self.session_id = session_id
        self.last_run: LiveRun | None = None
        self.not_restored: tuple[str, ...] | None = None
        """What could not be set of the state that it was started with, if there was one."""
        self.created_at = time.time()
        self._context = context
        self._states = StateMachine()
        self._shown_state: Callable[[], ShellState] = partial(getattr, self._states, "shown")
        self._startup = Startup(context, StartupRequest())
        self._bash: Bash | Program | None = None
        self._shell_name = ""
        self._lifecycle = asyncio.Lock()
        self._driven: dict[LiveRun, asyncio.Task[None]] = {}
        """The tasks that see full runs through; one that has ended may still be on its way to the disk."""
        self._cgroup: ShellCgroup | None = None
        self._execution: Execution | None = None
        self._promotion: asyncio.TimerHandle | None = None
        """One timer for all light runs: it goes on as long as there are any, so that each of them costs none."""
        self._background = Background(context.store, context.log_directory / f"{session_id}.log", context.log_max)
        self._attached = 0
        """How many are at its terminal."""
        self._shown = contextlib.ExitStack()
        """Shows them what is typed."""
        self._usage: processes.Used | None = None
        """What bash had used at the end of the last run: it uses nothing between runs, but for its children's sake."""
        self._meter = ResourceMeter(0.0)

    async def __aenter__(self) -> Self:
        await self.start(StartupRequest())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end("The shell was closed.")

    # --- what a caller can ask for --------------------------------------------------------------------

    async def start(self, request: StartupRequest, *, piped: bool = False) -> None:
        """Start bash, with the request's `state` if it has one (see `not_restored`); a recycled one begins without.

        With `piped` nothing is started before the command, for which there will be pipes and no terminal.
        Raises `Conflict` in the wrong state, `UserNotAllowed`, `ShellStartFailed` when bash does not come up.
        """
        async with self._lifecycle:
            self.check(Event.START)
            self._startup = Startup.checked(self._context, request, piped=piped)
            await self._start_bash(Event.START, request.state)

    def check(self, event: Event) -> None:
        """Raise the `Conflict` that refuses `event` in the present state, if it is refused."""
        self._states.after(event)

    async def dump(self) -> ShellDocument:
        """Return its state as a document. It is busy meanwhile. Raises `Conflict` unless it is ready."""
        self.check(Event.RUN)
        bash = self._bash
        if not isinstance(bash, Bash):
            raise ShellUnrecoverable(MESSAGES[ShellUnrecoverable], state=self.state.value)
        self._take(Event.RUN)
        try:
            return await bash.dump()
        finally:
            if self._bash is bash and not bash.death:
                self._take(Event.FINISH)
                bash.settle()

    def submit(
        self,
        command: Command,
        run_id: str | None = None,
        stdin_file: int = -1,
        comparison: Comparison | None = None,
        *,
        person: bool = False,
    ) -> LiveRun:
        """Start `command` and return its run; `stdin_file` is a descriptor that it reads, where it is not -1.

        `comparison` has looked at the files before, and tells what the run did to them. `person` says that somebody
        has typed the command at the terminal.

        Raises `Conflict` in the wrong state, `InvalidRequest`, `ShellStartFailed` where a command with pipes cannot be.
        """
        self._states.after(Event.RUN)
        bash = self._bash
        if bash is None:
            raise ShellUnrecoverable(MESSAGES[ShellUnrecoverable], state=self.state.value)
        if self._startup.piped and self.last_run:
            raise ShellBusy(MESSAGES[ShellBusy], state=self.state.value)
        directory = self._startup.check(command, None if command.directory is None else self.working_directory)
        run = self._context.store.create(self.session_id, command, run_id, self._shown_state)
        run.working_directory = bash.directory
        run.comparison = comparison
        run.typed_by_person = person
        if bash.size != DEFAULT_SIZE:
            run.resized(*bash.size)
        try:
            execution = Execution(
                run,
                bash,
                self._context,
                directory=directory,
                stdin_file=stdin_file,
                background=self._background,
                used=self._usage,
                cgroup=self._cgroup,
                shell_name=self._shell_name,
                on_promotion=self._promoted,
                on_plain_end=self._plainly_ended,
            )
        except BaseException:
            self._context.store.delete(run.run_id)
            raise
        # bash works from here on, and what follows is done meanwhile.
        self.last_run = run
        self._execution = execution
        self._take(Event.RUN)
        for tell in self._context.on_run_started:
            tell(run)
        if not execution.may_end_plainly:
            run.promote()
        elif self._promotion is None:
            self._promotion = asyncio.get_running_loop().call_later(PROMOTED_AFTER, self._promote_what_lasts)
        if self._context.logger.isEnabledFor(logging.DEBUG):
            shown = command.text[:_LONGEST_LOGGED]
            self._context.logger.debug("run %s in shell %s: %s", run.run_id, self.session_id, shown)
        return run

    async def kill(self, number: int | None = None, run: LiveRun | None = None, *, person: bool = False) -> KillResult:
        """End the run, keeping the shell where possible; or send one signal and return at once.

        With `run`, only where that one is going on. `person` says that somebody at the terminal does so.
        """
        self.check(Event.KILL)
        execution = self._execution
        if execution is None or run not in (None, execution.run):
            return KillResult(state=self.state, run=None, killed=False, survivors=())
        current, survivors = execution.run, tuple[int, ...]()
        current.typed_by_person = current.typed_by_person or person
        if number is None:
            await execution.end(Cause.KILLED, "Killed by a person." if person else "Killed by request.")
            killed, survivors = True, current.background_pids
        else:
            killed = await execution.signal(number)
        return KillResult(state=self.state, run=current.run_id, killed=killed, survivors=survivors)

    async def kill_background(self, run: LiveRun) -> tuple[bool, tuple[int, ...]]:
        """Kill what the ended `run` has left running; return whether there was anything, and who is still alive."""
        await self._let_go(run)
        return await self._background.kill(run, self.pid)

    async def write_stdin(
        self, text: bytes, *, eof: bool, offset: int | None, run: Run | None = None, person: bool = False
    ) -> int:
        """Type `text` into the terminal of the running command; return the bytes that it accepted in all.

        `person` says that somebody does so at the terminal, `offset` how many it had accepted before, so that a repeat
        is not typed twice. Raises `StdinGap` when some are missing in between, `NoRunningCommand` when (that) `run` is
        over.
        """
        self.check(Event.STDIN)
        execution = self._execution
        if execution is None or run not in (None, execution.run):
            raise NoRunningCommand(MESSAGES[NoRunningCommand], state=self.state.value)
        accepted = execution.type(text, eof=eof, offset=offset)
        execution.run.typed_by_person = execution.run.typed_by_person or person
        return accepted

    @property
    def unread_input(self) -> int:
        """Bytes that were typed and that the terminal has not taken yet."""
        return self._bash.unread_input if self._bash else 0

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal, in characters."""
        self.check(Event.RESIZE)
        if self._bash:
            self._bash.resize(rows, cols)
        if self.run:
            self.run.resized(rows, cols)

    def echo(self) -> contextlib.AbstractContextManager[None]:
        """Have what is typed appear in the output for a while (see `Terminal.echo`)."""
        return self._bash.echo() if self._bash else contextlib.nullcontext()

    @contextlib.contextmanager
    def attached(self) -> Iterator[None]:
        """Have somebody at the terminal for a while, whatever bash it is of: what is typed is shown."""
        if not self._attached:
            self._shown = contextlib.ExitStack()
            self._shown.enter_context(self.echo())
        self._attached += 1
        try:
            yield
        finally:
            self._attached -= 1
            if not self._attached:
                self._shown.close()

    async def recycle(self) -> None:
        """Kill all that the shell started, and start a fresh bash as it was started before.

        Clients see the state before it until the new bash is there. Raises `ShellStartFailed` where none comes: the
        shell is `unrecoverable` then; `DirectoryGone`, and nothing is killed, where none could come.
        """
        async with self._lifecycle:
            directory = self._startup.directory
            if self._bash and not is_directory(directory):
                raise DirectoryGone(
                    f"The shell begins in {directory!r}, which is gone: make it again, or end the shell.",
                    state=self.state.value,
                )
            self._take(Event.RECYCLE)
            try:
                await self._stop_bash(Cause.RECYCLED, "The shell was recycled.")
                await self._start_bash(Event.STARTED)
            except BaseException:
                self._take(Event.FAILED)
                raise

    async def end(self, reason: str) -> None:
        """Kill all that the shell started, and remove its own log. The shell is `available` again."""
        async with self._lifecycle:
            self._take(Event.END)
            await self._stop_bash(Cause.KILLED, reason)
            self._background.remove_log()

    async def wait_for_processes(self, run: Run | None = None) -> None:
        """Return when no process is left that an ended run, or just `run`, has left behind."""
        if driven := [task for of, task in self._driven.items() if run in (None, of)]:
            await asyncio.wait(driven)
        await self._background.wait(run)

    # --- what can be seen of it -----------------------------------------------------------------------

    @property
    def state(self) -> ShellState:
        """Its state, as clients see it."""
        return self._states.shown

    @property
    def run(self) -> LiveRun | None:
        """The run that is going on."""
        return self._execution.run if self._execution else None

    @property
    def pid(self) -> int | None:
        """The pid of bash, where one lives."""
        return (self._bash.pid or None) if self._bash and not self._bash.death else None

    @property
    def working_directory(self) -> str | None:
        """bash's working directory: at this moment while a command runs, else as the last one left it."""
        if self._bash is None or self._bash.death:
            return None
        return processes.working_directory(self._bash.pid) if self.state is ShellState.BUSY else self._bash.directory

    @property
    def foreground(self) -> Foreground | None:
        """The leader of the foreground process group, while a command runs."""
        if self._bash is None or self.state is not ShellState.BUSY:
            return None
        group = self._bash.foreground_group()
        return Foreground(pid=group, command=processes.command_line(group)) if group > 0 else None

    def run_of(self, pid: int) -> str | None:
        """Return the id of the run that has started a process of this shell, where that is known."""
        run = self._background.owner(pid, self.pid) or self.run
        return run.run_id if run else None

    def resources(self) -> Resources:
        """What the shell and all it started use at this moment; the CPU's share since the last time asked."""
        return self._meter.read(self.pid)

    # --- bash -----------------------------------------------------------------------------------------

    async def _start_bash(self, started: Event, state: ShellDocument | None = None) -> None:
        """Start bash, and tell the state of it by `started`; bash may have died again by then."""
        bash, self._cgroup, self.not_restored = await self._startup.begin(
            self.session_id, self._background.take_output, state
        )
        stat = None if isinstance(bash, Program) else processes.process_stat(bash.pid)
        self._shell_name = stat.name if stat else ""
        bash.on_death = self._bash_died
        self._bash = bash
        if self._attached:
            self._shown.enter_context(bash.echo())
        self._usage = None
        self._take(started)
        if bash.death:
            self._bash_died()

    async def _stop_bash(self, cause: Cause, reason: str) -> None:
        """Kill bash and all that it started; see the run, if one was going on, through to its end.

        The state has changed before: no run is to begin in a bash that is ending.
        """
        bash, execution = self._bash, self._execution
        if bash is None:
            return
        try:
            bash.on_death = None
            if execution:
                execution.stopping = True
                run = execution.run
                run.promote()
                run.stop_reason = run.stop_reason or (RunStatus.KILLED, cause, reason)
            await bash.end()
            await self._let_go(*self._driven)
        finally:
            bash.close()
            self._bash = None
            cgroup, self._cgroup = self._cgroup, None
            await remove_cgroup(cgroup, self.session_id, self._context.logger)
            self._background.release_all()

    async def _let_go(self, *runs: LiveRun) -> None:
        """Return when these runs have ended and are kept. Nothing that takes long is done for them any more."""
        tasks = []
        for run in runs:
            if task := self._driven.get(run):
                run.hurry()
                tasks.append(task)
        if tasks:
            await asyncio.wait(tasks)

    def _bash_died(self) -> None:
        """bash has ended, whatever the reason: what it started has become the daemon's, and goes with it."""
        if self._cgroup:
            self._cgroup.kill()
        self._context.reaper.kill()
        self._take(Event.BREAK)

    def _take(self, event: Event) -> None:
        """Have `event` change the state. Raises the `Conflict` that refuses it."""
        states, context = self._states, self._context
        before, shown = states.state, states.shown
        states.take(event)
        now = states.state
        if now is not before:
            if context.on_state and states.shown is not shown:
                for tell in context.on_state:
                    tell(self.session_id, states.shown, shown)
            level = logging.DEBUG if before in _OF_RUNS and now in _OF_RUNS else logging.INFO
            if context.logger.isEnabledFor(level):
                context.logger.log(level, "shell %s: %s -> %s", self.session_id, before, now)

    # --- runs -----------------------------------------------------------------------------------------

    def _promote_what_lasts(self) -> None:
        """Promote the light run that goes on, if it has lasted; else look again when it will have."""
        self._promotion = None
        execution = self._execution
        if execution is None or not execution.may_end_plainly:
            return
        left = PROMOTED_AFTER - execution.run.duration
        if left > _TIMER_ROUNDING:
            self._promotion = asyncio.get_running_loop().call_later(left, self._promote_what_lasts)
        else:
            execution.run.promote()

    def _promoted(self, execution: Execution) -> None:
        """A run is a full one from here on: a task sees it through."""
        bash = self._bash
        assert bash is not None
        run = execution.run
        self._driven[run] = task = asyncio.get_running_loop().create_task(self._drive(execution, bash))
        task.add_done_callback(lambda _: self._driven.pop(run))

    def _plainly_ended(self, execution: Execution, ending: Ending) -> None:
        """A light run has ended: it is kept before anybody hears of it, and what can wait is done after the answer."""
        run, bash = execution.run, self._bash
        assert bash is not None
        self._ended(execution, bash, ending)
        self._context.store.keep(run)
        asyncio.get_running_loop().call_soon(bash.settle)

    def _ended(self, execution: Execution, bash: Bash | Program, ending: Ending) -> None:
        """The command is over: change the state, and tell whoever waits."""
        run = execution.run
        self._usage = execution.used
        run.working_directory = bash.directory
        self._execution = None
        self._take(Event.BREAK if bash.death else Event.FINISH)
        run.finish(ending)
        for tell in self._context.on_run_ended:
            tell(run)

    async def _drive(self, execution: Execution, bash: Bash | Program) -> None:
        """See a full run through to its end, whatever happens."""
        run, store = execution.run, self._context.store
        ending, left = await execution.completed()
        run.background_pids = tuple(stat.pid for stat in left)
        self._ended(execution, bash, ending)
        if run.ends_shell and not execution.stopping:
            self._context.on_breach(self.session_id)
        try:
            await store.seal(run)
        finally:
            self._background.release_ended()
            if left:
                self._background.add(run, left)
            else:
                store.release(run)
            bash.settle()
