"""One run in one bash: how it begins, how it is signalled, typed to and ended, and how its end is judged.

It begins light. Where it ends plainly and soon, all that there is to do is done by one call from bash's report to the
end of the run. Else it is promoted: after 10 ms, 16 KiB of output, or as soon as anything is asked of it or anything
unusual happens. Then it gets a supervisor, and its end is awaited.

It knows the run, the bash and what the shell was given to work with, but not the states of the shell: its owner is told
nothing but the ending. What is looked at in between is in supervision.py, the judgement alone in endings.py.
"""

import asyncio
import contextlib
import math
import signal
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, Final

from shelld_py.bash.process import Bash, Outcome
from shelld_py.bash.program import Program
from shelld_py.errors import StdinFull, StdinGap
from shelld_py.linux import processes
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.linux.processes import ProcessStat, Used
from shelld_py.models import Cause, RunStatus, Stream, Streams
from shelld_py.shells.background import Background, left_behind
from shelld_py.shells.endings import after_kernel_kills, judge, with_message
from shelld_py.shells.limits import MemoryWarnings
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Ending
from shelld_py.shells.startup import ShellContext
from shelld_py.shells.supervision import Supervisor, kills_so_far
from shelld_py.units import format_duration

PROMOTED_AFTER: Final = 0.01
"""Seconds after which a light run is promoted, and gets its snapshot: thrice what a command takes that only looks."""

_BASH_TIMEOUT: Final = 2.0
"""Seconds that what is left of a killed command has to end, before bash goes; people wait for the answer."""

_MOST_ROUNDS: Final = 10
"""So often at most a bash that is starved of processor time gets these seconds anew."""

_FIRST_KILL_PAUSE: Final = 0.2
"""Seconds that bash has after the first SIGKILL to go on to what comes next in a list: it starts that at once."""

_SHORTEST_KILL_PAUSE: Final = 0.002
"""A loop starts its next round within a millisecond; shorter pauses would keep bash stopped all the time."""

_LATE_SIGNAL_PAUSE: Final = 0.01
_SIGNAL_TIMEOUT: Final = 30.0
"""Seconds that a signal waits for its command: twice of what bash has to come back before it is killed."""

_NOTICE_SIZE: Final = 256
"""Bytes of the end of an output in which bash's notice of a signal is looked for."""

_SIGNALLED: Final = 128

_MOST_UNREAD: Final = 16 * 1024 * 1024
"""Bytes of input that may wait in memory, but for what comes when none waits: as large as a request is by default."""


class Execution:
    """The course of `run` in `bash`. Make it, which begins the command; where it is promoted, await `completed`."""

    def __init__(
        self,
        run: LiveRun,
        bash: Bash | Program,
        context: ShellContext,
        *,
        directory: str | None,
        stdin_file: int,
        background: Background,
        used: Used | None,
        cgroup: ShellCgroup | None,
        shell_name: str,
        on_promotion: Callable[["Execution"], None],
        on_plain_end: Callable[["Execution", Ending], None],
    ) -> None:
        """Have bash begin with the command, in `directory` where that is not None; it reads `stdin_file`, if any.

        `background` is what earlier runs have left, `used` what bash had used before, `shell_name` the name of its
        program. `on_promotion` is called once where the run is promoted, `on_plain_end` where it ends without that.
        Raises what `Bash.begin` raises.
        """
        self.run = run
        self.stopping = False
        """Whether bash is ended on purpose: what the run did to deserve an end does not matter any more."""
        self.used: Used | None = None
        """What bash had used at the end of the run."""
        self._bash = bash
        self._context = context
        self._background = background
        self._cgroup = cgroup
        self._shell_name = shell_name
        self._on_promotion = on_promotion
        self._on_plain_end = on_plain_end
        beside_others = bool(background)
        self._earlier = background.alive() if beside_others else []
        self._before = bash.usage() if used is None or beside_others else used
        self._line_typed = True
        self._ends: set[asyncio.Task[None]] = set()
        command = run.command
        apart = command.streams is not Streams.MERGED
        light = not (apart or beside_others or cgroup or context.limited or run.comparison)
        self._kills_before = 0
        self._outcome: Coroutine[Any, Any, Outcome]
        # What breaks a limit is told by what there was before the command.
        self._supervisor = None if light else self._new_supervisor(kills_so_far(context.kill_counter))
        if isinstance(bash, Program):
            self._evaluation = bash.begin(
                command.argv or command.text,
                run.append,
                stderr_sink=run.append_stderr,
                directory=directory,
                environment=command.environment,
                stdin=command.stdin,
                stdin_file=stdin_file,
                stdin_open=command.stdin_open,
            )
        else:
            self._evaluation = bash.begin(
                command.text,
                run.append,
                stderr_sink=run.append_stderr if apart else None,
                directory=directory,
                environment=command.environment,
                stdin=command.stdin,
                stdin_file=stdin_file,
                on_end=self._plainly_ended if light else None,
            )
        # bash works from here on, and what follows is done meanwhile.
        run.on_promotion = self._promoted
        if light:
            self._kills_before = kills_so_far(context.kill_counter)

    @property
    def may_end_plainly(self) -> bool:
        """Whether it is light. Else it is to be promoted at once."""
        return self._evaluation.on_end is not None

    def _plainly_ended(self, outcome: Outcome | None) -> None:
        """bash calls this at the end of a light run: with the outcome, where there is nothing left to do."""
        if outcome is None:
            self.run.promote()
            return
        run, before, used = self.run, self._before, outcome.used
        self.used = used
        if used and before:
            run.cpu_seconds = used.cpu_seconds - before.cpu_seconds
            run.peak_memory = used.memory
        self._on_plain_end(self, Ending(RunStatus.COMPLETED, Cause.EXIT, outcome.status))

    def _promoted(self) -> None:
        """Make the run a full one: from here on it is looked after, and its end awaited."""
        self._outcome = self._bash.outcome(self._evaluation)
        if self._supervisor is None:
            self._supervisor = self._new_supervisor(self._kills_before)
        self._context.store.promote(self.run)
        self._on_promotion(self)

    def _new_supervisor(self, kills_before: int) -> Supervisor:
        context = self._context
        return Supervisor(
            self.run,
            self._bash,
            before=self._before,
            earlier=self._earlier,
            limits=context.limits,
            on_breach=self._limit_broken,
            cgroup=self._cgroup,
            counter=context.kill_counter,
            kills_before=kills_before,
            warnings=MemoryWarnings(context.limits, self._cgroup, context.memory_limit),
            on_warning=self._warned,
            on_awaiting_input=self._awaits_input,
        )

    async def completed(self) -> tuple[Ending, list[ProcessStat]]:
        """Return how the promoted run ended, when it has, and what it leaves behind.

        A fault of ours costs bash, and nothing else.
        """
        context, supervisor = self._context, self._supervisor
        assert supervisor is not None
        supervisor.after(max(0.0, PROMOTED_AFTER - self.run.duration), partial(context.store.publish, self.run))
        if context.command_lifetime:
            supervisor.after(max(0.0, context.command_lifetime - self.run.duration), self._lifetime_over)
        deadline = self.run.command.deadline
        if deadline is not None:
            supervisor.after(max(0.0, deadline - self.run.duration), partial(self._deadline_over, deadline))
        supervisor.start()
        try:
            ending, left = await self._judged(supervisor)
        except Exception:
            context.logger.exception("run %s: a fault of the daemon", self.run.run_id)
            self._bash.kill()
            error = "A fault of the daemon ended the shell; see its log."
            ending, left = Ending(RunStatus.LOST, Cause.UNKNOWN, error=error), []
        finally:
            supervisor.stop()
        self.used = supervisor.close(left)
        return ending, left

    async def _judged(self, supervisor: Supervisor) -> tuple[Ending, list[ProcessStat]]:
        run, bash = self.run, self._bash
        outcome = await self._outcome
        processes_left = not outcome.death and bash.has_children()
        breach = supervisor.last_breach(processes_left=processes_left)
        if breach and not self.stopping:
            supervisor.sample()
            self._note_breach(*breach)
        if run.ends_shell:
            await bash.end()
        left = []
        if not bash.death and bash.has_children():
            left = left_behind(bash.pid, self._earlier, run.started_at)
        ending = judge(
            outcome,
            stop=run.stop_reason,
            signals_sent=run.signals_sent,
            last_output=_last_output(run) if (outcome.status or 0) > _SIGNALLED else b"",
            shell_name=self._shell_name,
        )
        if ending.signal == signal.SIGKILL or self._cgroup:
            kills, certain = supervisor.kernel_kills()
            ending = after_kernel_kills(ending, kills, certain=certain)
        return with_message(ending, self._context.limits.message), left

    # --- what is done to it ---------------------------------------------------------------------------

    def type(self, text: bytes, *, eof: bool, offset: int | None) -> int:
        """Type `text` into the terminal; return the bytes that the run has accepted in all.

        Raises `StdinGap`, `StdinFull`, `StdinClosed`: then nothing is typed.
        """
        run, bash = self.run, self._bash
        run.promote()
        accepted = run.stdin_accepted
        if offset is not None:
            if offset > accepted:
                raise StdinGap(f"offset is {offset}, but the run has accepted {accepted} bytes.", accepted=accepted)
            text = text[accepted - offset :]
        if text:
            waiting = bash.unread_input
            if waiting and waiting + len(text) > _MOST_UNREAD:
                raise StdinFull(
                    f"{waiting} bytes of input wait for the command to read them, so these {len(text)} were not taken.",
                    accepted=accepted,
                    hint="Send them again, with this offset, when it has read some; /kill ends it.",
                )
            bash.type(text)
            self._line_typed = text.endswith((b"\n", b"\r"))
        run.stdin_accepted += len(text)
        run.active_at = time.monotonic()
        run.signals_sent.update(number for key, number in bash.signal_keys.items() if key in text)
        if eof:
            bash.end_input(after_line=self._line_typed)
            self._line_typed = True
        if self._supervisor and (text or eof):
            self._supervisor.input_given()
        return run.stdin_accepted

    async def signal(self, number: int) -> bool:
        """Send one signal to the command; return whether it was sent before the command was over.

        A command that bash has yet to begin gets it when it has begun. Where the command is over, but not yet its
        run, the end of that is waited for: so who hears that nothing was signalled finds no run that goes on.
        """
        run = self.run
        run.promote()
        run.signals_sent.add(number)
        deadline = time.monotonic() + _SIGNAL_TIMEOUT
        while run.running and time.monotonic() < deadline:
            if await self._bash.signal(number):
                return True
            await run.wait(_LATE_SIGNAL_PAUSE)
        return False

    async def end(self, cause: Cause, error: str) -> None:
        """End the run by force, bash alive where that is possible, and return when it has ended: SIGINT first.

        After the grace, SIGKILL for all that the command has started, and at last for bash.
        """
        run, logger = self.run, self._context.logger
        if not run.running:
            return
        run.promote()
        run.stop_reason = run.stop_reason or (RunStatus.KILLED, cause, error)
        run.signals_sent.add(signal.SIGINT)
        await _within(self._context.kill_grace, self._interrupted())
        if run.running:
            logger.info("run %s: not ended by SIGINT, killing what it started", run.run_id)
            await self._kill_started_in_time()
        if run.running:
            logger.warning("run %s: bash does not come back, killing it", run.run_id)
            self._bash.kill()
            await run.wait(_BASH_TIMEOUT)

    def end_soon(self, cause: Cause, error: str) -> None:
        """Do as `end` does, in the background."""
        task = asyncio.get_running_loop().create_task(self.end(cause, error))
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)

    async def _interrupted(self) -> None:
        await self._bash.interrupt()
        await self.run.wait()

    async def _kill_started_in_time(self) -> None:
        """Kill what the run has started; give it up when bash does not come back in time.

        The time in which bash waited for a processor, on a machine that has too few, is not counted against it.
        """
        pid = self._bash.pid
        for _ in range(_MOST_ROUNDS):
            starved, had_run = processes.starved_time(pid), processes.run_time(pid)
            await _within(_BASH_TIMEOUT, self._kill_started())
            bash = processes.process_stat(pid)
            waits_still = bash is not None and bash.state == "R" and processes.run_time(pid) == had_run < math.inf
            starved = processes.starved_time(pid) - starved
            if not self.run.running or not (waits_still or starved > _BASH_TIMEOUT / 2):
                return

    async def _kill_started(self) -> None:
        """Kill all that the run has started, and what bash starts next: a list or a loop goes on after a SIGKILL.

        Each pause is half of the one before, so that in the end an interrupt meets what has only just begun, and
        cannot ignore it yet: that ends a loop.
        """
        run, pause = self.run, _FIRST_KILL_PAUSE
        while run.running:
            run.signals_sent.add(signal.SIGKILL)
            await self._bash.kill_started([stat.pid for stat in self._background.alive()])
            await run.wait(pause)
            if run.running:
                await self._bash.interrupt()
                await run.wait(pause)
            pause = max(pause / 2, _SHORTEST_KILL_PAUSE)

    # --- limits ---------------------------------------------------------------------------------------

    def _limit_broken(self, cause: Cause, breach: str) -> None:
        """End the shell at once: what breaks a limit is not asked first."""
        self._note_breach(cause, breach)
        self._bash.kill_all()

    def _note_breach(self, cause: Cause, breach: str) -> None:
        """Note that the run has broken a limit, and takes its shell with it."""
        run = self.run
        run.stop_reason = run.stop_reason or (RunStatus.KILLED, cause, f"Killed: {breach}.")
        run.ends_shell = True
        self._context.logger.warning("shell %s: %s", run.session_id, breach)

    def _warned(self, warning: str) -> None:
        """Have the result and an event tell of the approach to a limit."""
        run = self.run
        run.warn(warning)
        for tell in self._context.on_run_warning:
            tell(run)
        self._context.logger.warning("run %s in shell %s: %s", run.run_id, run.session_id, warning)

    def _awaits_input(self) -> None:
        for tell in self._context.on_run_awaiting_input:
            tell(self.run)

    def _lifetime_over(self) -> None:
        """End the run as a kill does, with time to clean up after SIGINT, and then its shell."""
        limit = format_duration(self._context.command_lifetime)
        self.run.ends_shell = True
        self.end_soon(Cause.LIFETIME, f"Killed: it ran longer than timeout.command_lifetime, which is {limit}.")

    def _deadline_over(self, deadline: float) -> None:
        """End the run as a kill does; its shell stays."""
        self.end_soon(Cause.DEADLINE, f"Killed at its deadline of {format_duration(deadline)}.")


async def _within(seconds: float, step: Coroutine[Any, Any, None]) -> None:
    """Do one step of an escalation, for so long and no longer.

    An interrupt can take seconds by itself: it waits for a moment at which it cannot hit the driver, and a command
    with a DEBUG trap, say, has few of them.
    """
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await step


def _last_output(run: LiveRun) -> bytes:
    """Return the end of what was written, where bash may have told of a signal; nothing where that cannot be read."""
    log = run.log(Stream.STDERR) or run.log(Stream.STDOUT)
    with contextlib.suppress(OSError):
        return log.read(max(0, log.size - _NOTICE_SIZE), _NOTICE_SIZE).data if log else b""
    return b""
