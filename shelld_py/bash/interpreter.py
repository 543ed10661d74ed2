"""The bash process itself: it is started in its terminal, evaluates what it is told to, reports, and dies.

Here is the conversation with it. It knows neither what the text is for that bash evaluates nor where what a command
writes goes: that is process.py's. What bash reports and what follows is in protocol.py, what it is given in driver.py,
the reason for the fence in terminal.py.
"""

import asyncio
import contextlib
import os
import secrets
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, Self

from msgspec.structs import replace

from shelld_py.bash.channels import Channels
from shelld_py.bash.confinement import Confinement
from shelld_py.bash.driver import TEXT_DESCRIPTOR, Carried, Driver
from shelld_py.bash.gate import Gate
from shelld_py.bash.protocol import Action, BashState, Protocol, Report, ReportKind
from shelld_py.bash.repair import DAMAGE, Repair
from shelld_py.bash.root import Death, Root
from shelld_py.bash.spawning import in_time, spawn
from shelld_py.errors import ShellStartFailed
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.terminal import Sink, Terminal
from shelld_py.linux.terminal_wait import waits_for_terminal
from shelld_py.linux.users import User

HUNG_UP: Final = "The terminal of the shell was hung up (vhangup(2))."
BOOT_TIMEOUT: Final = 15.0
"""For the files that a user has bash read at its start, on a busy machine."""
_STARTUP_OUTPUT: Final = 4096
STARTUP_FILE: Final = "~/.bashrc"
"""What an interactive bash reads by itself, `/etc/bash.bashrc` before it where its distribution has that built in."""
_NOT_COMING: Final = (BashState.LISTENING, BashState.EVALUATING, BashState.DEAD)
"""Nobody has to wait for the loop: bash is in it, or will never be."""
FEWEST_DESCRIPTORS: Final = 256
"""bash's numbers go up to 251 in the loop (driver.bash)."""


class Interpreter(Root):
    """One bash in a pseudo-terminal of its own, which evaluates one text after the other. `start` it, `close` it."""

    terminal: Terminal
    signal_keys: Mapping[bytes, int] = {b"\x03": signal.SIGINT, b"\x1c": signal.SIGQUIT, b"\x1a": signal.SIGTSTP}
    """What is typed to send a signal."""

    def __init__(self, idle_sink: Sink, reaper: Reaper, *, restore: bool, user: User | None = None) -> None:
        """Make the pipes and memory files. `idle_sink` gets what is written while no command runs."""
        super().__init__(reaper)
        self.directory = ""
        """The shell's `$PWD`, checked against the kernel, after the last command."""
        self.stderr_terminal: Terminal | None = None
        self._idle_sink = idle_sink
        self._restore = restore
        self.size = (24, 80)
        """Rows and columns of its terminal."""
        self._user = user
        self._channels = Channels(user)
        self._tag = f"tag{secrets.token_hex(8)}"
        self._protocol = Protocol(self._tag, restores=restore)
        self._driver: Driver
        self._repair: Repair
        self._gate: Gate
        self._in_loop = asyncio.Event()
        """Set while bash is in its loop, and when it is dead."""
        self._started = False
        self._settled = False
        """Whether all is ready for the next command: nobody has touched the terminal since."""
        self._was_drained = False
        """Whether all that the last command wrote had been read when it was over, and nobody was left to write more."""
        self._carried = Carried()
        self._previous_directory: str | None = ""
        self._output_file: list[int] = []
        self._typed_ahead = bytearray()
        self._text = b""
        self._over: asyncio.Future[Report | Death] | None = None
        self._looked: tuple[processes.Used | None, str | None] | None = None
        """What it had used and its directory, where all that its command wrote had been read before it had reported."""

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
        startup_file: str = STARTUP_FILE,
        user: User | None = None,
    ) -> Self:
        """Start `argv` as a shell and return when it is ready for commands.

        `size` is (rows, columns); `startup_file` is what bash reads first, empty for nothing. With `user` it runs as
        them. Raises `ShellStartFailed`.
        """
        seen = bytearray()

        def startup_sink(data: memoryview) -> None:
            seen.extend(data[: max(0, _STARTUP_OUTPUT - len(seen))])

        confinement = confinement.with_descriptors(FEWEST_DESCRIPTORS)
        try:
            bash = cls(startup_sink, reaper, restore=restore, user=user)
        except OSError as error:
            raise ShellStartFailed(f"{argv[0]} cannot be started: {error}") from None
        try:
            # bash takes long options before short ones only, and those of `argv` may be short.
            words = [argv[0], "--noediting", *_reading(startup_file), *argv[1:], "-i"]
            bash._spawn(words, environment, directory, size, confinement)
            if not await in_time(bash._in_loop, BOOT_TIMEOUT) or bash.death:
                fault = "ended while it started" if bash.death else f"was not ready after {BOOT_TIMEOUT:g} s"
                first = f" It begins with {startup_file} (shell.startup_file)." if startup_file else ""
                raise ShellStartFailed(f"{argv[0]} {fault}, and {_readable(seen)}.{first}")
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

    def type(self, data: bytes) -> None:
        """Write `data` to the terminal as if it were typed; before the command begins it is kept for it."""
        if self._over is None:
            self._typed_ahead += data
        else:
            self._gate.type(data)

    @property
    def unread_input(self) -> int:
        """Bytes that were typed and that the terminal has not taken yet."""
        return len(self._typed_ahead) + self._gate.untyped + self.terminal.unwritten

    def end_input(self, *, after_line: bool) -> None:
        """Type end-of-file."""
        self.type(self.terminal.end_of_file_keys(after_line=after_line))

    def foreground_group(self) -> int:
        """Return the id of the process group that has the terminal, or 0."""
        return self.terminal.foreground_group()

    def waits_for_input(self, pids: Iterator[int]) -> bool:
        """Return whether one of `pids` in the foreground is seen waiting for terminal input."""
        terminal = self.terminal
        return waits_for_terminal(self.foreground_group(), pids, terminal.device_number, line_mode=terminal.line_mode)

    def echo(self) -> contextlib.AbstractContextManager[None]:
        """Have what is typed appear in the output for a while (see `Terminal.echo`)."""
        return self.terminal.echo()

    async def interrupt(self) -> bool:
        """Send SIGINT to the foreground process group, unless the command is over by then."""
        return await self._gate.interrupt()

    async def signal(self, number: int) -> bool:
        """Send a signal to the foreground process group, unless the command is over by then."""
        return await self._gate.signal(number)

    def resize(self, rows: int, cols: int) -> None:
        """Set the window size of the terminals."""
        for terminal in self._terminals():
            terminal.resize(rows, cols)
        self.size = rows, cols

    def check(self) -> None:
        """Look whether bash hangs rather than works. Call it while a command has been silent for a while."""
        if self.death or self._gate.holds or self._protocol.state is BashState.LISTENING:
            return
        for terminal in self._terminals():
            terminal.resume()
        self._repair.look()

    async def kill_started(self, spare: Iterable[int]) -> None:
        """Kill all that bash has started, apart from the trees of `spare`, and return when it is dead.

        bash is stopped meanwhile: it must not see those that are stopped before they are killed as stopped jobs.
        """
        command = self._protocol.command
        async with self._gate.held():
            if self._protocol.command != command or not self._protocol.under_way:
                return
            await super().kill_started(spare)

    def close(self) -> None:
        """Release all descriptors. bash must have ended."""
        self._loop.remove_reader(self._channels.reports_pipe)
        self._disown()
        for terminal in self._terminals():
            terminal.close()
        self._forget_output_file()
        self._channels.close()

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
        pid, master = spawn(
            argv,
            environment=environment,
            directory=directory,
            size=size,
            confinement=confinement,
            standard_input=channels.path_of(channels.boot_pipe),
            user=self._user,
        )
        process = self._own(pid)
        self.directory = directory
        self.size = size
        self.terminal = terminal = Terminal(master, self._idle_sink, on_hangup=self._hung_up)
        shell = argv[0]
        with contextlib.suppress(OSError):  # it may have ended already, as its startup file wanted
            shell = os.readlink(f"/proc/{self.pid}/exe")
        paths = channels.paths(terminal=self._path_of(terminal), shell=shell)
        self._driver = Driver(paths, self._tag, restore=self._restore)
        self._repair = Repair(process, terminal, channels, self._driver, self._protocol)
        self._gate = Gate(process, terminal, channels, self._protocol, self._listen)
        for path, content in self._driver.files.items():
            channels.write(path, content)
        self._loop.add_reader(channels.reports_pipe, self._listen)
        channels.send_lines(self._driver.start_lines)

    # --- one text -------------------------------------------------------------------------------------

    def _run(self, command: str, setup: Sequence[str]) -> None:
        """Have bash, which listens, evaluate `command`; `_ended` follows."""
        self._settled = self._was_drained = False
        self._looked = None
        self._text = self._driver.command_text(command, self._carried, setup).encode("utf-8", "surrogateescape")
        self._over = self._loop.create_future()
        self._do(self._protocol.run(), None)
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
            self._gate.forget_keys()
        if isinstance(ended, Report):
            self._take_report(ended, command, children=self.has_children())
        self._channels.forget_text()
        return ended

    def _take_report(self, ended: Report, command: str, *, children: bool) -> None:
        """Take what the report at the end of a command says of bash."""
        self._carried = self._driver.carry(ended, self._carried, command, children=children)
        self.directory = self._checked_directory(ended.directory)
        self._previous_directory = ended.previous_directory
        if "ulimit" in command:
            self._repair.after_limiting()

    def _carry_on(self, carried: Carried) -> None:
        """Have the next command find what was `carried` before something of the daemon's own."""
        now = self._carried
        self._carried = replace(
            carried, jobs=now.jobs, children=now.children, prompts=now.prompts, trap_function=False, exit_trap_set=True
        )

    async def _back_in_loop(self) -> bool:
        """Wait until bash listens to the bell again; a bash that does not come back is killed."""
        if not self._in_loop.is_set():
            try:
                async with asyncio.timeout(BOOT_TIMEOUT):
                    while not self._in_loop.is_set():  # an interrupt can have thrown it out again before this goes on
                        await self._in_loop.wait()
            except TimeoutError:
                self._protocol.damage = DAMAGE
                self.kill()
                await self._in_loop.wait()
        return self.death is None

    def _checked_directory(self, claimed: str) -> str:
        """Return `$PWD` where it is the truth, else what the kernel says."""
        physical = self._looked[1] if self._looked else processes.working_directory(self.pid)
        if physical is None or physical == claimed or physical == f"{claimed} (deleted)":
            return claimed
        with contextlib.suppress(OSError):
            if claimed.startswith("/") and os.path.samestat(os.stat(claimed), os.stat(f"/proc/{self.pid}/cwd")):
                return claimed
        return physical

    # --- its terminals --------------------------------------------------------------------------------

    def _path_of(self, terminal: Terminal) -> str:
        return terminal.name if self._user else terminal.slave_path

    def _terminals(self) -> list[Terminal]:
        main = [self.terminal] if self.pid else []
        return [*main, self.stderr_terminal] if self.stderr_terminal else main

    def _restore_terminal(self) -> None:
        """Undo what a program has done to the terminal, and to bash's descriptors of it.

        O_NONBLOCK belongs to the open file, which all that bash starts share with it. Copies of bash's descriptors
        change it; where there are none to be had, it stays. The last terminal that was seen as its standard output,
        which is standard error too, is kept: while bash reports, something else is in its place.
        """
        self.terminal.restore()
        if self._process:
            for descriptor in self._process.copies([1]):
                if os.isatty(descriptor):
                    self._forget_output_file()
                    self._output_file = [descriptor]
                else:
                    os.close(descriptor)
            for descriptor in self._output_file:
                os.set_blocking(descriptor, True)
            for descriptor in self._process.copies([0]):
                os.set_blocking(descriptor, True)
                os.close(descriptor)

    def _forget_output_file(self) -> None:
        for descriptor in self._output_file:
            os.close(descriptor)
        self._output_file = []

    def _drained(self) -> bool:
        """Hand on all that was written; return whether that can be known, as nobody is left who could write."""
        if self.has_children() or not self.terminal.drained():
            return False
        return self.stderr_terminal is None or self.stderr_terminal.drained()

    async def _fences(self) -> None:
        for terminal in self._terminals():
            await terminal.fence()

    # --- what bash says, and what is done then --------------------------------------------------------

    def _listen(self) -> None:
        """Take what bash has said so far."""
        more = True
        while more:
            data, more = self._channels.read_reports()
            reports = self._protocol.reports(data)
            if not self._protocol.report_repeats:
                self._looked = None
            elif not reports:
                self._look_ahead()
            for report in reports:
                bell_heard = True
                if report.kind is ReportKind.LOOP:
                    self._channels.rewind_text()  # bash opens the texts anew
                elif report.kind is ReportKind.PROMPT:
                    bell_heard = self._channels.bell_heard
                    self._take_start(report)
                self._do(self._protocol.hear(report, bell_heard=bell_heard), report)

    def _look_ahead(self) -> None:
        """Look at what the end of a command needs to be known of, while bash is still about its report.

        No trap of the user's can run until then where that report is the last one over again, which had none of those.
        """
        self._looked = None
        if self._over and not self._carried.traps and self._drained():
            self._looked = self.usage(), processes.working_directory(self.pid)

    def _do(self, actions: Sequence[Action], heard: Report | Death | None) -> None:
        for action in actions:
            if action is Action.SEND_LOOP:
                self._leave_loop()
                self._give_up_hopeless()
            elif action is Action.RING:
                self._channels.put_text(self._text)
                self._channels.ring()
            elif action is Action.PLACE_TEXT:
                self._place_text()
                self._give_up_hopeless()
            elif heard:
                self._over_with(heard)
        if self._protocol.state in _NOT_COMING:
            self._in_loop.set()

    def _over_with(self, ended: Report | Death) -> None:
        """Do what is due when the text is over, or bash dead: `_over` has the result then."""

    def _give_up_hopeless(self) -> None:
        """Kill a bash that has been given the same command again and again, and never begins with it."""
        if self._protocol.hopeless:
            self._protocol.damage = DAMAGE
            self.kill()

    def _leave_loop(self) -> None:
        """bash reads lines: give it the loop. It does not listen to the bell, so what is in there is stale."""
        self._in_loop.clear()
        self._settled = False
        self._channels.take_back()
        self._forget_output_file()
        self._channels.send_lines(self._driver.loop_lines)

    def _take_start(self, report: Report) -> None:
        """Take what the files of the user have set at bash's start: it holds for the first command."""
        if not self._started:
            self._started = True
            carried = self._driver.carry(report, self._carried, "", children=self.has_children())
            self._carried = replace(carried, status=0)

    def _place_text(self) -> None:
        """Give bash the text again, which it has not found where it looked; else have it begin the loop anew."""
        if self._channels.place_text(self._text, self.pid, TEXT_DESCRIPTOR):
            self._channels.ring()
        elif self._process:
            self._process.send(signal.SIGINT)

    def _hung_up(self) -> None:
        self._protocol.damage = HUNG_UP
        self.kill()

    def _last_report(self) -> int | None:
        self._listen()
        return self._protocol.reported_exit

    def _dead(self, death: Death) -> None:
        self._do(self._protocol.died(), death)


def _reading(startup_file: str) -> list[str]:
    """Return the options that have bash read `startup_file` at its start."""
    if startup_file == STARTUP_FILE:
        return []
    return ["--rcfile", startup_file] if startup_file else ["--norc"]


def _readable(data: bytes | bytearray) -> str:
    text = data.decode("utf-8", "replace").strip()[-500:]
    return f"wrote: {text}" if text else "wrote nothing"
