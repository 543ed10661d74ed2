"""A shell: a bash in its terminal, its state, and the run that is going on in it.

The one owner of the state: every method asks the table in states.py first. It knows the process and the
protocol (bash.py), runs and where they are kept, but nothing of HTTP, hooks or keys.

A run lives in a task of the shell's own, so it is nobody's request: a client that goes away changes nothing.
"""

import asyncio
import contextlib
import logging
import shlex
import signal
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, Self

from shelld_py.bash.command import check_command, check_encodable, check_environment
from shelld_py.bash.process import Bash, Outcome
from shelld_py.bash.spawning import Confinement
from shelld_py.config import LimitSettings, OnExit, ShellSettings
from shelld_py.errors import InvalidRequest, NoRunningCommand, ShellUnrecoverable, StdinGap
from shelld_py.linux import processes
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.linux.oom import KillCounter
from shelld_py.linux.orphans import Reaper
from shelld_py.models import (
    Cause,
    Command,
    Foreground,
    KillResult,
    Resources,
    RunStatus,
    ShellState,
    StartupRequest,
    Stream,
)
from shelld_py.output.log import OutputLog
from shelld_py.shells.accounting import Account
from shelld_py.shells.background import Lingering, left_behind
from shelld_py.shells.endings import after_kernel_kills, judge
from shelld_py.shells.limits import LimitWatch, limited, process_ceiling
from shelld_py.shells.run import Ending, Run
from shelld_py.shells.states import MESSAGES, Event, State, StateMachine
from shelld_py.shells.store import RunStore
from shelld_py.shells.watch import RunWatch
from shelld_py.units import format_duration

_BASH_PATIENCE: Final = 2.0
"""Seconds that what is left of a killed command has to end, before bash goes; people wait for the answer."""

_FIRST_KILL_PAUSE: Final = 0.2
_SHORTEST_KILL_PAUSE: Final = 0.002
_LATE_SIGNAL_PAUSE: Final = 0.01
_SIGNAL_PATIENCE: Final = 30.0
"""Seconds that a signal waits for its command: twice of what bash has to come back before it is killed."""

_REMOVAL_PATIENCE: Final = 1.0
_REMOVAL_PAUSE: Final = 0.002
_FIRST_SAVE: Final = 0.01
"""Seconds after which a run that is going on gets its snapshot; quicker ones get theirs at their end alone."""

_NOTICE_SIZE: Final = 256
_SIGNALLED: Final = 128
_MEBIBYTE: Final = 1024 * 1024
_KEY_SIGNALS: Final = {b"\x03": signal.SIGINT, b"\x1c": signal.SIGQUIT, b"\x1a": signal.SIGTSTP}


@dataclass(frozen=True, kw_only=True)
class ShellContext:
    """What a shell needs from outside; durations in seconds."""

    settings: ShellSettings
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
    store: RunStore
    reaper: Reaper
    logger: logging.Logger


@dataclass(frozen=True, slots=True)
class _Started:
    """A run that bash has begun with."""

    run: Run
    bash: Bash
    outcome: Coroutine[Any, Any, Outcome]
    """To be awaited: how bash ended with it."""
    earlier: list[processes.ProcessStat]
    """What earlier runs had left behind."""
    account: Account
    limit_watch: LimitWatch | None


class Shell:
    """One shell. `async with Shell(...)` starts it and ends it; or call `start` and `end`."""

    def __init__(self, session_id: str, context: ShellContext) -> None:
        self.session_id = session_id
        self.run: Run | None = None
        self.last_run: Run | None = None
        self.created_at = time.time()
        self._context = context
        self._states = StateMachine()
        self._request = StartupRequest()
        self._bash: Bash | None = None
        self._shell_name = ""
        self._lifecycle = asyncio.Lock()
        self._driving: asyncio.Task[None] | None = None
        self._cgroup: ShellCgroup | None = None
        self._watch: RunWatch | None = None
        self._line_typed = True
        self._lingering = Lingering(context.store)
        self._own_log: OutputLog | None = None
        self._stops: set[asyncio.Task[None]] = set()
        self._usage: processes.ProcessStat | None = None
        """What bash had used at the end of the last run: it uses nothing between runs, but for its children's sake."""
        self._last_usage = (time.monotonic(), processes.TreeUsage(0.0, 0, 0))

    async def __aenter__(self) -> Self:
        await self.start(StartupRequest())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.end("The shell was closed.")

    # --- what a caller can ask for --------------------------------------------------------------------

    async def start(self, request: StartupRequest) -> None:
        """Start bash. Raises `Conflict` in the wrong state, `ShellStartFailed` when bash does not come up."""
        async with self._lifecycle:
            self.check(Event.START)
            directory = request.working_directory
            if directory is not None and not _is_directory(directory):
                raise InvalidRequest(f"working_directory: {directory!r} is not a directory that exists.")
            check_environment(request.environment)
            self._request = request
            await self._start_bash(Event.START)

    def check(self, event: Event) -> None:
        """Raise the `Conflict` that refuses `event` in the present state, if it is refused."""
        self._states.after(event)

    def submit(self, command: Command, run_id: str | None = None) -> Run:
        """Start `command` and return its run. Raises `Conflict` in the wrong state, `InvalidRequest`."""
        self.check(Event.RUN)
        bash = self._bash
        if bash is None:
            raise ShellUnrecoverable(MESSAGES[ShellUnrecoverable], state=self.state.value)
        directory = self._resolved(command.directory)
        check_environment(command.environment)
        check_command(command.text)
        if command.stdin is not None:
            check_encodable("stdin", command.stdin)
        run = self._context.store.create(self.session_id, command, run_id)
        run.working_directory = self.working_directory
        earlier = self._lingering.alive()
        before = self._usage if self._usage and not self._lingering else bash.usage()
        account = Account(run, bash, before, earlier, self._cgroup, self._context.kill_counter)
        limit_watch = self._watched_limits(run, bash, account)
        try:
            outcome = bash.begin(
                command.text,
                run.append,
                stderr_sink=run.append_stderr if run.log(Stream.STDERR) else None,
                directory=directory,
                environment=command.environment,
                stdin=command.stdin,
            )
        except BaseException:
            if limit_watch:
                limit_watch.stop()
            self._context.store.delete(run.run_id)
            raise
        # bash works from here on, and what follows is done meanwhile.
        self.run = self.last_run = run
        self._take(Event.RUN)
        self._driving = asyncio.get_running_loop().create_task(
            self._drive(_Started(run, bash, outcome, earlier, account, limit_watch))
        )
        self._context.logger.debug("run %s in shell %s: %s", run.run_id, self.session_id, command.text)
        return run

    async def kill(self, number: int | None = None, run: Run | None = None) -> KillResult:
        """End the run, keeping the shell where possible; or send one signal and return at once.

        With `run`, only where that one is going on.
        """
        self.check(Event.KILL)
        current, bash = self.run, self._bash
        if current is None or bash is None or (run is not None and run is not current):
            return KillResult(state=self.state, run=None, killed=False, survivors=())
        if number is None:
            await self._bring_to_end(current, bash, Cause.KILLED, "Killed by request.")
            return KillResult(state=self.state, run=current.run_id, killed=True, survivors=current.background_pids)
        current.signals_sent.add(number)
        sent = await self._signalled(current, bash, number)
        return KillResult(state=self.state, run=current.run_id, killed=sent, survivors=())

    async def kill_background(self, run: Run) -> tuple[bool, tuple[int, ...]]:
        """Kill what the ended `run` has left running; return whether there was anything, and who is still alive."""
        if self._driving and run is self.last_run:
            await asyncio.wait({self._driving})
        return await self._lingering.kill(run, self.pid)

    async def write_stdin(self, text: bytes, *, eof: bool, offset: int | None, run: Run | None = None) -> int:
        """Type `text` into the terminal of the running command; return the bytes that it accepted in all.

        `offset` says how many it had accepted before, so that a repeat is not typed twice. Raises
        `StdinGap` when some are missing in between, `NoRunningCommand` when (that) `run` is over.
        """
        self.check(Event.STDIN)
        current, bash = self.run, self._bash
        if current is None or bash is None or (run is not None and run is not current):
            raise NoRunningCommand(MESSAGES[NoRunningCommand], state=self.state.value)
        accepted = current.stdin_accepted
        if offset is not None:
            if offset > accepted:
                raise StdinGap(f"offset is {offset}, but the run has accepted {accepted} bytes.", accepted=accepted)
            text = text[accepted - offset :]
        current.stdin_accepted += len(text)
        current.active_at = time.monotonic()
        current.signals_sent.update(number for key, number in _KEY_SIGNALS.items() if key in text)
        if text:
            bash.type(text)
            self._line_typed = text.endswith(b"\n")
        if eof:
            bash.type(bash.terminal.end_of_file_keys(after_line=self._line_typed))
            self._line_typed = True
        if self._watch and (text or eof):
            current.mark_awaiting_input(False)
            self._watch.restart()
        return current.stdin_accepted

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal, in characters."""
        self.check(Event.RESIZE)
        if self._bash:
            self._bash.resize(rows, cols)

    async def recycle(self) -> None:
        """Kill all that the shell started, and start a fresh bash as it was started before.

        Clients see the state before it until the new bash is there. Raises `ShellStartFailed` where none comes: the
        shell is `unrecoverable` then.
        """
        async with self._lifecycle:
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
            for path in self._context.log_directory.glob(f"{self.session_id}.log*"):
                path.unlink(missing_ok=True)

    async def settled(self, run: Run | None = None) -> None:
        """Return when no process is left that an ended run, or just `run`, has left behind."""
        if self._driving and run in (None, self.last_run):
            await asyncio.wait({self._driving})
        await self._lingering.settled(run)

    # --- what can be seen of it -----------------------------------------------------------------------

    @property
    def state(self) -> ShellState:
        """Its state, as clients see it."""
        return self._states.shown

    @property
    def pid(self) -> int | None:
        """The pid of bash, where one lives."""
        return self._bash.pid if self._bash and not self._bash.death else None

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
        group = self._bash.terminal.foreground_group()
        return Foreground(pid=group, command=processes.command_line(group)) if group > 0 else None

    def resources(self) -> Resources:
        """What the shell and all it started use at this moment; the CPU's share since the last time asked."""
        usage = processes.tree_usage(self.pid) if self.pid else processes.TreeUsage(0.0, 0, 0)
        now = time.monotonic()
        before, earlier = self._last_usage
        self._last_usage = (now, usage)
        share = (usage.cpu_seconds - earlier.cpu_seconds) / max(now - before, 0.001)
        return Resources(
            cpu_percent=round(100 * max(0.0, share), 1),
            memory_mb=round(usage.memory / _MEBIBYTE, 3),
            processes=usage.processes,
        )

    # --- bash -----------------------------------------------------------------------------------------

    async def _start_bash(self, started: Event) -> None:
        """Start bash, and tell the state of it by `started`; bash may have died again by then."""
        context, request = self._context, self._request
        settings = context.settings
        environment = {
            **context.environment, "TERM": settings.term, **settings.environment, **request.environment,
        }  # fmt: skip
        self._cgroup = cgroup = context.make_cgroup()
        counted = cgroup is not None and "pids" in cgroup.controllers
        try:
            bash = await Bash.start(
                shlex.split(settings.command),
                environment=environment,
                directory=request.working_directory or context.directory,
                size=(request.rows or settings.rows, request.cols or settings.cols),
                restore=settings.on_exit is OnExit.RESTORE,
                confinement=Confinement(
                    open_files=context.open_files,
                    process_ceiling=None if counted else process_ceiling(context.limits),
                    oom_score_adj=context.oom_score_adj,
                    cgroup=cgroup,
                ),
                idle_sink=self._take_idle_output,
                reaper=context.reaper,
            )
        except BaseException:
            await self._remove_cgroup()
            raise
        if cgroup and not cgroup.holds(bash.pid):
            context.logger.warning("shell %s: limits are sampled, it is not in %s", self.session_id, cgroup.directory)
            await self._remove_cgroup()
        stat = processes.process_stat(bash.pid)
        self._shell_name = stat.name if stat else ""
        bash.on_death = self._bash_died
        self._bash = bash
        self._usage = None
        self._take(started)
        if bash.death:
            self._bash_died()

    async def _stop_bash(self, cause: Cause, reason: str) -> None:
        """Kill bash and all that it started; see the run, if one was going on, through to its end.

        The state has changed before: no run is to begin in a bash that is ending.
        """
        bash, run = self._bash, self.run
        if bash is None:
            return
        try:
            bash.on_death = None
            if run:
                run.stop_reason = run.stop_reason or (RunStatus.KILLED, cause, reason)
            await bash.end()
            if self._driving:
                await asyncio.wait({self._driving})
        finally:
            bash.close()
            self._bash = None
            await self._remove_cgroup()
            self._lingering.release_all(self.state)
            if self._own_log:
                self._own_log.close()
                self._own_log = None

    async def _remove_cgroup(self) -> None:
        """Remove the shell's cgroup; what was killed there may need a moment to be gone."""
        cgroup, self._cgroup = self._cgroup, None
        deadline = asyncio.get_running_loop().time() + _REMOVAL_PATIENCE
        while cgroup and not cgroup.remove():
            if asyncio.get_running_loop().time() > deadline:
                self._context.logger.warning("shell %s: %s cannot be removed yet", self.session_id, cgroup.directory)
                return
            cgroup.kill()
            await asyncio.sleep(_REMOVAL_PAUSE)

    def _bash_died(self) -> None:
        """bash has ended, whatever the reason: what it started has become the daemon's, and goes with it."""
        if self._cgroup:
            self._cgroup.kill()
        self._context.reaper.kill()
        self._take(Event.BREAK)

    @property
    def _stopping(self) -> bool:
        """Whether its bash is ended on purpose: what the run did to deserve an end does not matter any more."""
        return self._states.state in (State.AVAILABLE, State.RECYCLING)

    def _take(self, event: Event) -> None:
        """Have `event` change the state. Raises the `Conflict` that refuses it."""
        before = self._states.state
        self._states.take(event)
        after = self._states.state
        if after is not before:
            level = logging.DEBUG if {before, after} == {State.READY, State.BUSY} else logging.INFO
            self._context.logger.log(level, "shell %s: %s -> %s", self.session_id, before, after)

    # --- runs -----------------------------------------------------------------------------------------

    async def _drive(self, started: _Started) -> None:
        """See a run through to its end, whatever happens."""
        run, bash = started.run, started.bash
        with self._watched(started):
            ending, left = await self._ended(started)
        self._usage = started.account.close(left)
        run.background_pids = tuple(stat.pid for stat in left)
        run.working_directory = bash.directory
        self.run = None
        self._take(Event.BREAK if bash.death else Event.FINISH)
        run.finish(ending)
        if run.ends_shell and not self._stopping:
            self._context.on_breach(self.session_id)
        try:
            await self._context.store.seal(run, self.state)
        finally:
            self._lingering.release_ended(self.state)
            if left:
                self._lingering.add(run, left)
            else:
                self._context.store.release(run)

    @contextlib.contextmanager
    def _watched(self, started: _Started) -> Iterator[None]:
        """Watch a run for as long as this lasts: what it waits for, its limits, its lifetime; and save it soon."""
        loop, run, limit = asyncio.get_running_loop(), started.run, self._context.command_lifetime
        timers = [loop.call_later(_FIRST_SAVE, self._context.store.publish, run, self.state)]
        if limit:
            timers.append(loop.call_later(limit, self._lifetime_over, run, started.bash))
        self._watch = watch = RunWatch(run, started.bash, started.account)
        try:
            yield
        finally:
            self._watch = None
            watch.stop()
            if started.limit_watch:
                started.limit_watch.stop()
            for timer in timers:
                timer.cancel()

    async def _ended(self, started: _Started) -> tuple[Ending, list[processes.ProcessStat]]:
        """Return how a run ended, when it has, and the processes that it leaves behind. A fault of ours costs bash."""
        run, bash, account, limit_watch = started.run, started.bash, started.account, started.limit_watch
        try:
            outcome = await started.outcome
            processes_left = not outcome.death and bash.has_children()
            breach = limit_watch.last_look(processes_left=processes_left) if limit_watch else None
            if breach and not self._stopping:
                account.take()
                self._doom(run, *breach)
            if run.ends_shell:
                await bash.end()
            left = []
            if not bash.death and bash.has_children():
                left = left_behind(bash.pid, started.earlier, run.started_at)
            ending = judge(
                outcome,
                stop=run.stop_reason,
                signals_sent=run.signals_sent,
                last_output=_last_output(run) if (outcome.status or 0) > _SIGNALLED else b"",
                shell_name=self._shell_name,
            )
            if ending.signal == signal.SIGKILL or self._cgroup:
                kills, certain = account.kernel_kills()
                ending = after_kernel_kills(ending, kills, certain=certain)
        except Exception:
            self._context.logger.exception("run %s: a fault of the daemon", run.run_id)
            bash.kill()
            error = "A fault of the daemon ended the shell; see its log."
            return Ending(RunStatus.LOST, Cause.UNKNOWN, error=error), []
        return ending, left

    def _watched_limits(self, run: Run, bash: Bash, account: Account) -> LimitWatch | None:
        """Begin to watch the limits, where there are any."""
        limits = self._context.limits
        if not limited(limits):
            return None
        broken = partial(self._limit_broken, run, bash, account)
        return LimitWatch(bash.pid, bash.directory, limits, broken, self._cgroup)

    def _limit_broken(self, run: Run, bash: Bash, account: Account, cause: Cause, breach: str) -> None:
        """End the shell at once: what breaks a limit is not asked first."""
        account.take()
        self._doom(run, cause, breach)
        bash.kill_all()

    def _doom(self, run: Run, cause: Cause, breach: str) -> None:
        """Note that the run has broken a limit, and takes its shell with it."""
        run.stop_reason = run.stop_reason or (RunStatus.KILLED, cause, f"Killed: {breach}.")
        run.ends_shell = True
        self._context.logger.warning("shell %s: %s", self.session_id, breach)

    async def _bring_to_end(self, run: Run, bash: Bash, cause: Cause, error: str) -> None:
        """End the run by force, and say why."""
        if not run.running:
            return
        run.stop_reason = run.stop_reason or (RunStatus.KILLED, cause, error)
        run.signals_sent.add(signal.SIGINT)
        await self._within(self._context.kill_grace, self._interrupted(run, bash))
        if run.running:
            self._context.logger.info("run %s: not ended by SIGINT, killing what it started", run.run_id)
            await self._within(_BASH_PATIENCE, self._kill_started(run, bash))
        if run.running:
            self._context.logger.warning("run %s: bash does not come back, killing it", run.run_id)
            bash.kill()
            await run.wait(_BASH_PATIENCE)

    async def _within(self, seconds: float, step: Coroutine[Any, Any, None]) -> None:
        """Do one step of an escalation, for so long and no longer.

        An interrupt can take seconds by itself: it waits for a moment at which it cannot hit the driver, and a
        command with a DEBUG trap, say, has few of them.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await step

    async def _interrupted(self, run: Run, bash: Bash) -> None:
        """Interrupt the command, and wait for its end."""
        await bash.interrupt()
        while run.running:
            await run.changed()

    async def _kill_started(self, run: Run, bash: Bash) -> None:
        """Kill all that the run has started, and what bash starts next: a list or a loop goes on after a SIGKILL.

        Each pause is half of the one before, so that in the end an interrupt meets what has only just begun, and
        cannot ignore it yet: that ends a loop.
        """
        pause = _FIRST_KILL_PAUSE
        while run.running:
            run.signals_sent.add(signal.SIGKILL)
            await bash.kill_started([stat.pid for stat in self._lingering.alive()])
            await run.wait(pause)
            if run.running:
                await bash.interrupt()
                await run.wait(pause)
            pause = max(pause / 2, _SHORTEST_KILL_PAUSE)

    async def _signalled(self, run: Run, bash: Bash, number: int) -> bool:
        """Send one signal to the command; return whether it was sent before the command was over.

        A command that bash has yet to begin gets it when it has begun. Where the command is over, but not yet its
        run, the end of that is waited for: so who hears that nothing was signalled finds no run that goes on.
        """
        deadline = time.monotonic() + _SIGNAL_PATIENCE
        while run.running and time.monotonic() < deadline:
            if await bash.signal(number):
                return True
            await run.wait(_LATE_SIGNAL_PAUSE)
        return False

    def _lifetime_over(self, run: Run, bash: Bash) -> None:
        """End the run as a kill does, with time to clean up after SIGINT, and then its shell."""
        limit = format_duration(self._context.command_lifetime)
        error = f"Killed: it ran longer than timeout.command_lifetime, which is {limit}."
        run.ends_shell = True
        task = asyncio.get_running_loop().create_task(self._bring_to_end(run, bash, Cause.LIFETIME, error))
        self._stops.add(task)
        task.add_done_callback(self._stops.discard)

    def _take_idle_output(self, data: memoryview) -> None:
        """Keep what is written while no run goes on: with the run that it comes from, where only one can be."""
        writer = self._lingering.writer()
        if writer:
            writer.append(data)
            return
        if self._own_log is None:
            path = self._context.log_directory / f"{self.session_id}.log"
            path.unlink(missing_ok=True)
            self._own_log = OutputLog(str(path), self._context.log_max).create()
        self._own_log.append(data)

    def _resolved(self, directory: str | None) -> str | None:
        """Return the absolute path of a run's own directory."""
        if directory is None:
            return None
        base = self.working_directory or self._context.directory
        path = Path(base, directory)
        if not _is_directory(str(path)):
            raise InvalidRequest(f"directory: {str(path)!r} is not a directory that exists.")
        return str(path)


def _is_directory(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except (ValueError, OSError):  # a NUL, a surrogate that has no byte, a name that is too long
        return False


def _last_output(run: Run) -> bytes:
    log = run.log(Stream.STDERR) or run.log(Stream.STDOUT)
    return log.read(max(0, log.size - _NOTICE_SIZE), _NOTICE_SIZE).data if log else b""
