"""The bash process and the control protocol: start it, have it run a command, hear of the end.

It knows of no states, no waiting requests, no logs: bytes go to sinks, and `execute` returns when the
command is over. The bash side of the protocol is in `driver.py`, the reason for the fence in `terminal.py`.

What can happen while a command runs, and how it is noticed
    - The command ends: bash reports RAN.
    - SIGINT brings bash back to reading lines: it reports PROMPT, gets the loop again, reports LOOP. Where the
      interrupt fell before the command was loaded, the bell is rung again; bash was not listening to it in
      between, so what was in the bell pipe is taken out first, and the command cannot run twice. Nor can it
      where bash had to be repaired: that is only done when it has heard the bell.
    - The shell exits: it reports EXITED, and LOOP when it is back. Where it does not come back, it is dead.
    - bash dies or is replaced by another program: the pidfd becomes readable.
    - The command has damaged bash so that it cannot report: `check`, called now and then while the command
      is silent, finds bash waiting for the bell, and repairs it (repair.py).
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from shelld_py.bash.channels import Channels, descriptor_path, write_all
from shelld_py.bash.command import Place, Script, encoded, script_of
from shelld_py.bash.driver import BELL_DESCRIPTOR, Carried, Driver, Report, ReportKind, ReportParser
from shelld_py.bash.gate import Signaller, Target
from shelld_py.bash.repair import DAMAGE, Patient, Repair
from shelld_py.bash.spawning import Confinement, spawn
from shelld_py.errors import ShellStartFailed
from shelld_py.linux import processes
from shelld_py.linux.cgroups import ShellCgroup
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.syscalls import copied_descriptor
from shelld_py.linux.terminal import Sink, Terminal

_BOOT_TIMEOUT: Final = 15.0
_SIGNALLED: Final = 128
_STARTUP_OUTPUT: Final = 4096
_DRIVER_STEP: Final = 0.001
_END_PATIENCE: Final = 5.0
_KILL_PATIENCE: Final = 0.5
_MOST_RETURNS: Final = 100
"""Interrupts can bring bash out of its loop before it has loaded a command, but hardly so often in a row."""


@dataclass(frozen=True, slots=True)
class Death:
    """How the bash process ended: `exit_code`, or the `signal` that killed it; `name` is its last program."""

    exit_code: int | None
    signal: int | None
    name: str
    reported: int | None
    """The status with which the shell said that it would exit, if it did."""
    cpu_seconds: float = 0.0
    """Used by bash in its life, and by what it has waited for."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended. `status` is bash's `$?`; None where bash could not say."""

    status: int | None
    restored: bool = False
    interrupted: bool = False
    """Whether an interrupt threw bash back to its prompt."""
    prepared: bool = True
    """False where an interrupt came before anything was set up for the command."""
    death: Death | None = None
    damage: str | None = None


@dataclass(slots=True)
class _Execution:
    """A command on its way through bash, and where what it writes goes."""

    script: Script
    sink: Sink
    stderr_sink: Sink | None
    stdin_file: int
    begun: bool = False
    stderr_moved_before: bool = False


class Bash:
    """One bash in a pseudo-terminal of its own. `start` it, `execute` commands one after the other, `close` it."""

    def __init__(self, idle_sink: Sink, reaper: Reaper, *, restore: bool) -> None:
        """Make the pipes and memory files. `idle_sink` gets what is written while no command runs."""
        self.pid = 0
        self.directory = ""
        """The shell's `$PWD`, checked against the kernel, after the last command."""
        self.death: Death | None = None
        self.on_death: Callable[[], None] | None = None
        self.terminal: Terminal
        self.stderr_terminal: Terminal | None = None
        self._loop = asyncio.get_running_loop()
        self._idle_sink = idle_sink
        self._reaper = reaper
        self._restore = restore
        self._size = (24, 80)
        self._channels = Channels()
        self._pidfd = self._stat_file = self._children_file = -1
        self._tag = f"tag{secrets.token_hex(8)}"
        self._parser = ReportParser(self._tag)
        self._driver: Driver
        self._started = False
        self._looping: asyncio.Future[None] = self._loop.create_future()
        self._died: asyncio.Future[None] = self._loop.create_future()
        self._carried = Carried()
        self._previous_directory = ""
        self._stderr_moved = False
        self._cgroup: ShellCgroup | None = None
        self._shared_files: list[int] = []
        self._typed_ahead = bytearray()
        self._over: asyncio.Future[Report | Death] | None = None
        self._yet_to_begin = False
        """Whether a command waits for bash, or for what was written before it."""
        self._reported_exit: int | None = None
        self._returns = 0
        """How often bash has come out of its loop since it has last evaluated a command."""
        self._repair: Repair
        self._signaller: Signaller

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        size: tuple[int, int],
        restore: bool,
        confinement: Confinement,
        idle_sink: Sink,
        reaper: Reaper,
    ) -> "Bash":
        """Start `argv` as a shell and return when it is ready for commands.

        `size` is (rows, columns). Raises `ShellStartFailed`.
        """
        seen = bytearray()

        def startup_sink(data: memoryview) -> None:
            seen.extend(data[: max(0, _STARTUP_OUTPUT - len(seen))])

        bash = cls(startup_sink, reaper, restore=restore)
        try:
            bash._spawn([argv[0], "--noediting", *argv[1:], "-i"], environment, directory, size, confinement)
            await asyncio.wait({bash._looping}, timeout=_BOOT_TIMEOUT)
            if bash.death or not bash._looping.done():
                fault = "ended while it started" if bash.death else f"was not ready after {_BOOT_TIMEOUT:g} s"
                raise ShellStartFailed(f"{argv[0]} {fault}. It wrote: {_readable(seen)}")
            await bash.terminal.fence()
        except OSError as error:
            await bash.end()
            bash.close()
            raise ShellStartFailed(f"{argv[0]} cannot be started in {directory}: {error}") from None
        except BaseException:
            await bash.end()
            bash.close()
            raise
        bash._idle_sink = bash.terminal.sink = idle_sink
        return bash

    async def execute(
        self,
        command: str,
        sink: Sink,
        *,
        stderr_sink: Sink | None = None,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Outcome:
        """Run `command`; return when it is over and all that it wrote has gone to the sinks.

        `directory` must be absolute; `directory`, `environment` and `stdin` hold for this command alone.
        """
        return await self.begin(
            command, sink, stderr_sink=stderr_sink, directory=directory, environment=environment, stdin=stdin
        )

    def begin(
        self,
        command: str,
        sink: Sink,
        *,
        stderr_sink: Sink | None = None,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
    ) -> Coroutine[Any, Any, Outcome]:
        """Do as `execute` does, but where bash is ready the command runs already when this returns.

        What is awaited is its outcome; it must be awaited in any case.
        """
        stdin_file = -1
        if stdin is not None:
            stdin_file = os.memfd_create("stdin", os.MFD_CLOEXEC)
            write_all(stdin_file, encoded(stdin))
        script = script_of(
            command,
            directory=directory,
            environment=environment,
            stdin=descriptor_path(stdin_file) if stdin_file >= 0 else None,
            place=Place(self.directory, self._previous_directory),
            saved=self._channels.saved,
        )
        execution = _Execution(script, sink, stderr_sink, stdin_file)
        self._yet_to_begin = True
        if self._looping.done() and not self.death and self._drained():
            self._launch(execution)
        return self._outcome(execution)

    def type(self, data: bytes) -> None:
        """Write `data` to the terminal as if it were typed; before the command begins it is kept for it."""
        if self._over is None:
            self._typed_ahead += data
        else:
            self._signaller.type(data)

    async def interrupt(self) -> bool:
        """Send SIGINT to the foreground process group, unless the command is over by then."""
        return await self._signaller.interrupt()

    async def signal(self, number: int) -> bool:
        """Send a signal to the foreground process group, unless the command is over by then."""
        return await self._signaller.signal(number)

    def resize(self, rows: int, cols: int) -> None:
        """Set the window size of the terminals."""
        self.terminal.resize(rows, cols)
        if self.stderr_terminal:
            self.stderr_terminal.resize(rows, cols)
        self._size = rows, cols

    def check(self) -> None:
        """Look whether bash hangs rather than works. Call it while a command has been silent for a while."""
        if self.death or self._signaller.holds or (self._over is None and self._looping.done()):
            return
        self.terminal.resume()
        if self.stderr_terminal:
            self.stderr_terminal.resume()
        self._repair.look(in_loop=self._looping.done())

    def usage(self) -> processes.ProcessStat | None:
        """Return what the kernel says of bash; quicker than `process_stat`, for it is asked for each command."""
        with contextlib.suppress(OSError):
            return processes.parse_stat(self.pid, os.pread(self._stat_file, 1024, 0))
        return None

    def has_children(self) -> bool:
        """Whether bash has children at all; it adopts those whose parents end."""
        try:
            return bool(os.pread(self._children_file, 1, 0))
        except OSError:
            return True

    def kill(self) -> None:
        """Kill bash itself. What it has started is killed by `end`."""
        self._signal_bash(signal.SIGKILL)

    def kill_all(self) -> list[processes.ProcessStat]:
        """Kill bash and all that it has started, at once; what needs a moment to be gone is not waited for.

        bash is stopped first, so that it starts nothing new meanwhile. Returns what was signalled one by one.
        """
        self._signal_bash(signal.SIGSTOP)
        if self._cgroup:
            self._cgroup.kill()
        signalled = processes.kill_descendants(self.pid)
        self.kill()
        return signalled

    async def kill_started(self, spare: Iterable[int]) -> None:
        """Kill all that bash has started, apart from the trees of `spare`, and return when it is dead.

        bash is stopped meanwhile: it must not see those that are stopped before they are killed as stopped jobs.
        """
        command = self._over
        async with self._signaller.held():
            if self._over is not command:
                return
            killed = processes.kill_descendants(self.pid, spare=spare)
            deadline = self._loop.time() + _KILL_PATIENCE
            while any(processes.still_alive(stat) for stat in killed) and self._loop.time() < deadline:  # noqa: ASYNC110
                await asyncio.sleep(_DRIVER_STEP)

    async def end(self) -> None:
        """Kill all that bash has started, then bash, and return when all of it is gone.

        bash is stopped first, so that nothing new is started meanwhile. What needs a moment to be gone, or
        lost its parent at the last moment, becomes a child of this process and is reaped here.
        """
        if not self.pid:
            return
        signalled = self.kill_all()
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(contextlib.suppress(TimeoutError))
            await stack.enter_async_context(asyncio.timeout(_END_PATIENCE))
            if not self.death:
                await self._died
            while True:
                self._reaper.kill()
                if not any(processes.still_alive(stat) for stat in signalled) and not self._reaper.orphans():
                    break
                await asyncio.sleep(_DRIVER_STEP)

    def close(self) -> None:
        """Release all descriptors. bash must have ended."""
        self._loop.remove_reader(self._channels.reports_pipe)
        if self._pidfd >= 0:
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
            self.terminal.close()
        if self.stderr_terminal:
            self.stderr_terminal.close()
        self._forget_shared_files()
        for descriptor in (self._stat_file, self._children_file):
            if descriptor >= 0:
                os.close(descriptor)
        self._channels.close()

    def _executes_command(self) -> bool:
        """Whether bash, which stands still, executes the command rather than the driver around it.

        Its descriptors tell: it is in its loop when its descriptor 0 is not the boot pipe, and there that of the
        bell pipe is closed as long as the command is executed.
        """
        self._read_reports()
        bell_is_open = os.path.lexists(f"/proc/{self.pid}/fd/{BELL_DESCRIPTOR}")
        return self._parser.in_exit_trap or not (bell_is_open or self._repair.reads_boot_pipe())

    def _signal_bash(self, number: int) -> None:
        with contextlib.suppress(OSError):
            if not self.death:
                signal.pidfd_send_signal(self._pidfd, number)

    # --- starting -------------------------------------------------------------------------------------

    def _spawn(
        self,
        argv: list[str],
        environment: Mapping[str, str],
        directory: str,
        size: tuple[int, int],
        confinement: Confinement,
    ) -> None:
        """Start the process, and begin to listen to it."""
        channels = self._channels
        self._cgroup = confinement.cgroup
        self.pid, master = spawn(
            argv,
            environment=environment,
            directory=directory,
            size=size,
            confinement=confinement,
            standard_input=descriptor_path(channels.boot_pipe),
        )
        self._reaper.own(self.pid)
        self.directory = directory
        self._size = size
        self._pidfd = os.pidfd_open(self.pid)
        self._loop.add_reader(self._pidfd, self._reap)
        self._stat_file = self._proc_file("stat")
        self._children_file = self._proc_file(f"task/{self.pid}/children")
        self.terminal = Terminal(master, self._idle_sink)
        shell = os.readlink(f"/proc/{self.pid}/exe")
        paths = channels.paths(terminal=self.terminal.slave_path, shell=shell)
        self._driver = Driver(paths, self._tag, restore=self._restore)
        self._repair = Repair(
            Patient(
                pid=self.pid,
                terminal=self.terminal,
                driver=self._driver,
                boot_pipe=channels.boot_pipe,
                bell_pipe=channels.bell_pipe,
                send_lines=channels.send_lines,
                send_signal=self._signal_bash,
            )
        )
        self._signaller = Signaller(
            Target(
                pid=self.pid,
                terminal=self.terminal,
                send_signal=self._signal_bash,
                command=lambda: self._over,
                yet_to_begin=lambda: self._yet_to_begin,
                executes=self._executes_command,
            )
        )
        for path, content in self._driver.files.items():
            channels.write(path, content)
        self._loop.add_reader(channels.reports_pipe, self._read_reports)
        channels.send_lines(self._driver.start_lines)

    def _proc_file(self, name: str) -> int:
        return os.open(f"/proc/{self.pid}/{name}", os.O_RDONLY | os.O_CLOEXEC)

    # --- one command ----------------------------------------------------------------------------------

    def _launch(self, execution: _Execution) -> None:
        """Have bash begin with the command. All that was written before has gone to the idle sink."""
        execution.begun, self._yet_to_begin = True, False
        execution.stderr_moved_before = self._stderr_moved
        self.terminal.restore()
        self._unblock()
        setup = [*self._stderr_setup(apart=execution.stderr_sink is not None), *execution.script.setup]
        self.terminal.sink = execution.sink
        if self.stderr_terminal:
            self.stderr_terminal.sink = execution.stderr_sink or execution.sink
        self._ring(execution.script.text, setup)

    async def _outcome(self, execution: _Execution) -> Outcome:
        """See the command through to its end."""
        try:
            if not execution.begun:
                if not await self._back_in_loop():
                    return self._died_outcome()
                await self._fences()
                self._launch(execution)
            ended = await self._ended(execution.script.text)
            if isinstance(ended, Death) or ended.kind is not ReportKind.RAN or not self._drained():
                await self._fences()
        finally:
            self._yet_to_begin = False
            if execution.stdin_file >= 0:
                os.close(execution.stdin_file)
            self.terminal.sink = self._idle_sink
            if self.stderr_terminal:
                self.stderr_terminal.sink = self._idle_sink
        if isinstance(ended, Death) or not await self._back_in_loop():
            return self._died_outcome()
        if not ended.prepared:
            self._stderr_moved = execution.stderr_moved_before
        damage, self._repair.damage = self._repair.damage, None
        if execution.script.cleanup and ended.prepared:
            await self._clean_up(execution.script.cleanup)
        elif ended.kind is not ReportKind.RAN and self._directory_is_gone():
            # Each time that it enters the loop, bash complains about it. This command comes behind that.
            await self._clean_up([":"])
        self._typed_ahead.clear()  # what came between the end of the command and now is not for the next one
        return Outcome(
            status=None if damage else ended.status,
            restored=ended.kind is ReportKind.EXITED,
            interrupted=ended.kind is ReportKind.PROMPT and not ended.returned,
            prepared=ended.prepared,
            damage=damage,
        )

    def _died_outcome(self) -> Outcome:
        death = self.death
        assert death is not None
        status = death.exit_code if death.signal is None else _SIGNALLED + death.signal
        return Outcome(status, death=death, damage=self._repair.damage)

    async def _clean_up(self, steps: Sequence[str]) -> None:
        """Undo what held for one command alone; the status that the next command sees is kept."""
        carried = self._carried
        self.terminal.restore()
        text = f"{{ {'; '.join(steps)}; }} >|/dev/null 2>&1"
        self._ring(text, ())
        ended = await self._ended(text)
        if isinstance(ended, Report) and await self._back_in_loop():
            self._carried = replace(carried, jobs=self._carried.jobs, trap_function=False, exit_trap_set=True)

    def _ring(self, command: str, setup: Sequence[str]) -> None:
        """Have bash evaluate `command`; `_ended` follows."""
        text = encoded(self._driver.command_text(command, self._carried, setup))
        self._over = self._loop.create_future()
        if self.death:
            self._end(self.death)
            return
        self._repair.begin()
        self._channels.put_text(text)
        self._channels.ring()
        if self._typed_ahead:
            typed_ahead, self._typed_ahead = bytes(self._typed_ahead), bytearray()
            self.type(typed_ahead)

    async def _ended(self, command: str) -> Report | Death:
        """Return the report of the end of `command`, which is being evaluated, or how bash died of it."""
        assert self._over is not None
        try:
            ended = await self._over
        finally:
            self._over = None
            self._signaller.forget_keys()
        if isinstance(ended, Report):
            self._carried = self._driver.carry(ended, self._carried, command)
            self.directory = self._checked_directory(ended.directory)
            self._previous_directory = ended.previous_directory
        self._channels.forget_text(len(command))
        return ended

    def _stderr_setup(self, *, apart: bool) -> list[str]:
        """Return the step that moves descriptor 2 between the terminals, where it is one of them.

        A redirection of the user's own (`exec 2>file`) is left alone, and stays.
        """
        if apart and not self.stderr_terminal:
            self.stderr_terminal = Terminal.open(self._idle_sink, *self._size)
        if not self.stderr_terminal or apart == self._stderr_moved:
            return []
        self._stderr_moved = apart
        here, there = self.terminal.slave_path, self.stderr_terminal.slave_path
        source, target = (here, there) if apart else (there, here)
        return [f"if [[ /dev/fd/2 -ef {source} ]]; then \\exec 2>|{target}; fi"]

    def _unblock(self) -> None:
        """Take O_NONBLOCK off bash's own descriptors of the terminal, where a program has left it there.

        The flag belongs to the open file, which all that bash starts share with it. Copies of bash's
        descriptors (pidfd_getfd(2)) show it at no cost; without them it stays.
        """
        if not self._shared_files:
            copies = (copied_descriptor(self._pidfd, number) for number in range(3))
            self._shared_files = [copy for copy in copies if copy is not None]
        for descriptor in self._shared_files:
            os.set_blocking(descriptor, True)

    def _forget_shared_files(self) -> None:
        for descriptor in self._shared_files:
            os.close(descriptor)
        self._shared_files.clear()

    def _drained(self) -> bool:
        """Hand on all that was written; return whether that can be known, as nobody is left who could write."""
        if self.has_children():
            return False
        return self.terminal.drained() and (self.stderr_terminal is None or self.stderr_terminal.drained())

    async def _fences(self) -> None:
        await self.terminal.fence()
        if self.stderr_terminal:
            await self.stderr_terminal.fence()

    async def _back_in_loop(self) -> bool:
        """Wait until bash listens to the bell again; a bash that does not come back is killed."""
        if not self._looping.done():
            await asyncio.wait({self._looping}, timeout=_BOOT_TIMEOUT)
            if not self._looping.done():
                self._repair.damage = DAMAGE
                self.kill()
                await self._looping
        return self.death is None

    def _directory_is_gone(self) -> bool:
        return (processes.working_directory(self.pid) or "").endswith(" (deleted)")

    def _checked_directory(self, claimed: str) -> str:
        """Return `$PWD` where it is the truth, else what the kernel says."""
        physical = processes.working_directory(self.pid)
        if physical is None or physical == claimed or physical == f"{claimed} (deleted)":
            return claimed
        with contextlib.suppress(OSError):
            if claimed.startswith("/") and os.path.samestat(os.stat(claimed), os.stat(f"/proc/{self.pid}/cwd")):
                return claimed
        return physical

    # --- what bash says -------------------------------------------------------------------------------

    def _read_reports(self) -> None:
        """Take what bash has said so far."""
        more = True
        while more:
            data, more = self._channels.read_reports()
            for report in self._parser.feed(data):
                self._take(report)

    def _take(self, report: Report) -> None:
        if report.kind is ReportKind.RAN:
            self._returns = 0
            self._end(report)
        elif report.kind is ReportKind.PROMPT:
            self._returns = 0 if report.loaded else self._returns + 1
            if self._returns > _MOST_RETURNS:
                self._repair.damage = DAMAGE
                self.kill()
                return
            self._leave_loop()
            if report.loaded or self._repair.damage:
                self._end(report)
        elif report.kind is ReportKind.EXITED:
            self._reported_exit = report.status
            if self._restore:
                self._leave_loop()
                self._end(report)
        else:
            self._enter_loop(report)

    def _leave_loop(self) -> None:
        """bash reads lines: give it the loop. It does not listen to the bell, so what is in there is stale."""
        if self._looping.done():
            self._looping = self._loop.create_future()
        self._channels.take_back()
        self._forget_shared_files()
        self._channels.send_lines(self._driver.loop_lines)

    def _enter_loop(self, report: Report) -> None:
        self._reported_exit = None
        if not self._started:
            self._started = True
            self._carried = self._driver.carry(report, self._carried, "")
            self._carried = replace(self._carried, status=0)
        if not self._looping.done():
            self._looping.set_result(None)
        if self._over and not self._over.done():
            self._channels.ring()

    def _end(self, ended: Report | Death) -> None:
        if self._over and not self._over.done():
            self._over.set_result(ended)

    def _reap(self) -> None:
        """bash is dead: take what it still said, its name, and its status."""
        self._loop.remove_reader(self._pidfd)
        self._read_reports()
        os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)
        stat = processes.process_stat(self.pid)
        _, status, used = os.wait4(self.pid, 0)
        self._reaper.disown(self.pid)
        code = os.waitstatus_to_exitcode(status)
        self.death = Death(
            exit_code=code if code >= 0 else None,
            signal=-code if code < 0 else None,
            name=stat.name if stat else "",
            reported=self._reported_exit,
            cpu_seconds=used.ru_utime + used.ru_stime,
        )
        self._end(self.death)
        if not self._looping.done():
            self._looping.set_result(None)
        if not self._died.done():
            self._died.set_result(None)
        if self.on_death:
            self.on_death()


def _readable(data: bytes | bytearray) -> str:
    return data.decode("utf-8", "replace").strip()[-500:] or "it wrote nothing"
