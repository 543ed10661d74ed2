"""The bash process: it is started, does what the protocol says, and dies.

It knows of no states of a shell, no waiting requests, no logs: bytes go to sinks, and what `begin` returns is done
when the command is over. What bash reports and what follows is in protocol.py, what it is given in driver.py, the
reason for the fence in terminal.py.
"""

import asyncio
import contextlib
import os
import re
import secrets
import signal
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from shelld_py.bash.channels import Channels, read_all, write_all
from shelld_py.bash.command import Directories, Script, encoded, script_of
from shelld_py.bash.confinement import Confinement
from shelld_py.bash.driver import TEXT_DESCRIPTOR, Carried, Driver, defines_exit_trap
from shelld_py.bash.gate import Gate
from shelld_py.bash.protocol import Action, BashState, Protocol, Report, ReportKind
from shelld_py.bash.repair import DAMAGE, Repair
from shelld_py.bash.root import Death, Root
from shelld_py.bash.spawning import spawn
from shelld_py.bash.state import Dump, document_of, messages, script_of_document
from shelld_py.errors import ShellStartFailed, StateUnavailable
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.terminal import Sink, Terminal
from shelld_py.linux.terminal_wait import waits_for_terminal
from shelld_py.linux.users import User
from shelld_py.request_data import ShellDocument

HUNG_UP: Final = "The terminal of the shell was hung up (vhangup(2))."

_BOOT_TIMEOUT: Final = 15.0
"""For the files that a user has bash read at its start, on a busy machine."""
_SIGNALLED: Final = 128
_STARTUP_OUTPUT: Final = 4096
STARTUP_FILE: Final = "~/.bashrc"
"""What an interactive bash reads by itself, `/etc/bash.bashrc` before it where its distribution has that built in."""
_NOT_COMING: Final = (BashState.LISTENING, BashState.EVALUATING, BashState.DEAD)
"""Nobody has to wait for the loop: bash is in it, or will never be."""
_CHECK_INTERVAL: Final = 0.2
"""As often as a supervisor looks whether bash hangs (repair.py acts on what it sees twice)."""
_DUMP_SECTIONS: Final = 6
_LARGEST_DUMP: Final = 64 << 20
_LARGEST_COMPLAINT: Final = 256 << 10
_DRIVER_DESCRIPTORS: Final = 240
"""From here on they are the driver's (driver.bash)."""
FEWEST_DESCRIPTORS: Final = 256
"""bash's numbers go up to 251 in the loop (driver.bash)."""


class Outcome(Struct, frozen=True):
    """How a command ended. `status` is bash's `$?`; None where bash could not say."""

    status: int | None
    restored: bool = False
    interrupted: bool = False
    """Whether an interrupt threw bash back to its prompt."""
    prepared: bool = True
    """False where an interrupt came before anything was set up for the command."""
    death: Death | None = None
    damage: str | None = None
    died_of: int | None = None
    """The signal that the command died of, where the kernel has told it; bash tells a status alone."""


class Evaluation(Struct):
    """A command on its way through bash, and where what it writes goes."""

    script: Script
    sink: Sink
    stderr_sink: Sink | None
    files: Sequence[int] = ()
    """Files that are removed when it is over: its standard input, and the variables that it hides."""
    copies: Sequence[int] = ()
    """Descriptors that are closed then."""
    on_end: "Callable[[Outcome | None], None] | None" = None
    """Called at its end, where nobody has asked for the outcome by then."""
    begun: bool = False
    stderr_moved_before: bool = False


class Bash(Root):
    """One bash in a pseudo-terminal of its own. `start` it, `begin` commands one after the other, `close` it."""

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
        self._stderr_moved = False
        self._output_file: list[int] = []
        self._typed_ahead = bytearray()
        self._text = b""
        self._over: asyncio.Future[Report | Death] | None = None
        self._evaluation: Evaluation | None = None
        """The last command that bash was given."""

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
    ) -> "Bash":
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
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(bash._in_loop.wait(), _BOOT_TIMEOUT)
            if bash.death or not bash._in_loop.is_set():
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

    def begin(
        self,
        command: str,
        sink: Sink,
        *,
        stderr_sink: Sink | None = None,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
        stdin_file: int = -1,
        on_end: Callable[[Outcome | None], None] | None = None,
    ) -> Evaluation:
        """Have bash run `command`; where it is ready, the command runs already when this returns (`begun`).

        `directory` must be absolute; `directory`, `environment` and `stdin` hold for this command alone. What it writes
        goes to the sinks. In place of the text `stdin` there may be a file, the descriptor `stdin_file`.

        Most commands end without anything to be waited for: then `on_end` is called with the outcome
        when all has gone to the sinks, and that is all. It is called with None where there is more to do: then the
        outcome is to be awaited (`outcome`). So it is where the evaluation has no `on_end`.
        """
        channels = self._channels
        files, copies = [], []
        stdin_path = saved_path = None
        if stdin is not None:
            files.append(text_file := channels.new_file("stdin"))
            write_all(text_file, encoded(stdin))
            stdin_path = channels.path_of(text_file)
        elif stdin_file >= 0:
            copies.append(copy := os.dup(stdin_file))
            stdin_path = channels.path_of(copy)
        if environment:
            files.append(saved_file := channels.new_file("saved"))
            saved_path = channels.path_of(saved_file)
        script = Script(command)
        if directory or environment or files or copies:
            script = script_of(
                command,
                directory=directory,
                environment=environment,
                stdin=stdin_path,
                place=Directories(self.directory, self._previous_directory),
                saved=saved_path,
            )
        evaluation = Evaluation(script, sink, stderr_sink, files, copies)
        self._protocol.expected = True
        if self._protocol.state is BashState.LISTENING and (self._settled or self._drained()):
            if not (files or copies or script.cleanup):
                evaluation.on_end = on_end
            self._launch(evaluation)
        return evaluation

    def outcome(self, evaluation: Evaluation) -> Coroutine[Any, Any, Outcome]:
        """Return how a command has ended, when it has: it must be awaited. Nobody is called at the end then."""
        evaluation.on_end = None
        return self._outcome(evaluation)

    async def dump(self) -> ShellDocument:
        """Return the state of the shell as a document.

        Raises `StateUnavailable` where bash does not write it, or so much that nobody could take it.
        """
        children = self.has_children()
        traps = self._carried.traps
        sections: list[bytes] = []
        with self._file() as script, self._file() as file, processes.files_of_any_size(self.pid):
            write_all(script, self._driver.dump_script(self._channels.path_of(file)).encode())
            text = self._driver.read_text(self._channels.path_of(script), "/dev/null")
            if await self._back_in_loop() and await self._aside(text):
                data = await asyncio.to_thread(read_all, file, _LARGEST_DUMP)
                sections = self._driver.dump_sections(data)
        if len(sections) != _DUMP_SECTIONS:
            raise StateUnavailable("bash could not tell its state: it may be damaged, or have more than 64 MiB of it.")
        left_out = [f"a background process: {processes.command_line(pid)}" for pid in processes.children(self.pid)]
        dump = Dump(
            sections,
            directory=self.directory,
            traps=traps,
            exit_action=self._driver.exit_action,
            left_out=(*(left_out if children else ()), *self._open_descriptors()),
        )
        return await asyncio.to_thread(document_of, dump)

    async def restore(self, document: ShellDocument, *, unset: Sequence[str], directory: str | None) -> tuple[str, ...]:
        """Give a fresh shell the state of `document`; return what could not be set, a sentence for each.

        `unset` are variables to be taken away before, `directory` goes before that of the document. Raises
        `ShellStartFailed` where bash does not come back from it.
        """
        end = f"end{secrets.token_hex(8)}"
        with self._file() as script, self._file() as errors:
            write_all(script, script_of_document(document, unset=unset, directory=directory, end=end))
            text = self._driver.read_text(self._channels.path_of(script), self._channels.path_of(errors))
            if not await self._aside(text, keep=False):
                raise ShellStartFailed(
                    f"bash did not come back from the script of the state within {_BOOT_TIMEOUT:g} s."
                )
            complaints = read_all(errors, _LARGEST_COMPLAINT)
        keeps = defines_exit_trap(document.script)
        self._carried = replace(self._carried, status=0, keeps_trap_function=keeps)
        return messages(complaints, end)

    def _open_descriptors(self) -> list[str]:
        """Say what the user has opened in bash. bash's own copies are not for programs (FD_CLOEXEC)."""
        found = []
        directory = Path(f"/proc/{self.pid}/fd")
        with contextlib.suppress(OSError):
            for number in sorted(int(name) for name in os.listdir(directory) if 2 < int(name) < _DRIVER_DESCRIPTORS):
                with contextlib.suppress(OSError):
                    flags = re.search(r"flags:\s*(\d+)", Path(f"/proc/{self.pid}/fdinfo/{number}").read_text("ascii"))
                    if flags and not int(flags[1], 8) & os.O_CLOEXEC:
                        found.append(f"descriptor {number}: {os.readlink(directory / str(number))}")
        return found

    async def _aside(self, text: str, *, keep: bool = True) -> bool:
        """Have bash, which listens, evaluate something of the daemon's own; return whether it has come back from it.

        With `keep`, what the next command finds is what it would have found without. A bash that hangs is killed.
        """
        carried = self._carried
        self._carried = replace(carried, status=0, traps={}, keeps_trap_function=False)
        self._restore_terminal()
        self._run(text, ())
        ending = self._loop.create_task(self._ended(text))
        deadline = self._loop.time() + _BOOT_TIMEOUT
        while not ending.done():
            await asyncio.wait({ending}, timeout=_CHECK_INTERVAL)
            self.check()
            if self._loop.time() > deadline:
                self._protocol.damage = DAMAGE
                self.kill()
        back = isinstance(ending.result(), Report) and await self._back_in_loop()
        damage, self._protocol.damage = self._protocol.damage, None
        if back and keep:
            self._carry_on(carried)
        return back and not damage

    def settle(self) -> None:
        """Make ready for the next command, where nobody waits: then `begin` does no more than write its text.

        Only where nobody is left who could touch the terminal until then. Call it when a command is over.
        """
        if self._settled or self._protocol.state is not BashState.LISTENING or self._over is not None:
            return
        if self._was_drained or self._drained():
            self._restore_terminal()
            self._settled = True

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
        shell = os.readlink(f"/proc/{self.pid}/exe")
        paths = channels.paths(terminal=self._path_of(terminal), shell=shell)
        self._driver = Driver(paths, self._tag, restore=self._restore)
        self._repair = Repair(process, terminal, channels, self._driver, self._protocol)
        self._gate = Gate(process, terminal, channels, self._protocol, self._listen)
        for path, content in self._driver.files.items():
            channels.write(path, content)
        self._loop.add_reader(channels.reports_pipe, self._listen)
        channels.send_lines(self._driver.start_lines)

    def _path_of(self, terminal: Terminal) -> str:
        return terminal.name if self._user else terminal.slave_path

    @contextlib.contextmanager
    def _file(self) -> Iterator[int]:
        descriptor = self._channels.new_file("state")
        try:
            yield descriptor
        finally:
            self._channels.remove(descriptor)

    def _terminals(self) -> list[Terminal]:
        main = [self.terminal] if self.pid else []
        return [*main, self.stderr_terminal] if self.stderr_terminal else main

    # --- one command ----------------------------------------------------------------------------------

    def _launch(self, evaluation: Evaluation) -> None:
        """Have bash begin with the command. All that was written before has gone to the idle sink."""
        evaluation.begun, self._evaluation = True, evaluation
        evaluation.stderr_moved_before = self._stderr_moved
        # A trap of the user's on a signal can have changed the modes since: it needs no command for that.
        if not (self._settled and self.terminal.has_baseline_modes):
            self._restore_terminal()
        setup = evaluation.script.setup
        self.terminal.sink = evaluation.sink
        if evaluation.stderr_sink or self.stderr_terminal:
            setup = [*self._stderr_setup(apart=evaluation.stderr_sink is not None), *setup]
            assert self.stderr_terminal is not None
            self.stderr_terminal.sink = evaluation.stderr_sink or evaluation.sink
        self._run(evaluation.script.text, setup)

    async def _outcome(self, evaluation: Evaluation) -> Outcome:
        """See the command through to its end."""
        try:
            return await self._seen_through(evaluation)
        finally:
            for file in evaluation.files:
                self._channels.remove(file)
            for copy in evaluation.copies:
                os.close(copy)

    async def _seen_through(self, evaluation: Evaluation) -> Outcome:
        try:
            if not evaluation.begun and not await self._begins(evaluation):
                return self._died_outcome()
            ended = await self._ended(evaluation.script.text)
            if isinstance(ended, Death) or ended.kind is not ReportKind.RAN or not self._drained():
                await self._fences()
        finally:
            self._protocol.expected = False
            self.terminal.sink = self._idle_sink
            if self.stderr_terminal:
                self.stderr_terminal.sink = self._idle_sink
        if isinstance(ended, Death) or not await self._back_in_loop():
            return self._died_outcome()
        if not ended.prepared:
            self._stderr_moved = evaluation.stderr_moved_before
        damage, self._protocol.damage = self._protocol.damage, None
        if evaluation.script.cleanup and ended.prepared:
            await self._clean_up(evaluation.script.cleanup)
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

    async def _begins(self, evaluation: Evaluation) -> bool:
        """Begin with the command as soon as bash listens; return False where it has died instead."""
        while await self._back_in_loop():
            await self._fences()
            if self._protocol.state is BashState.LISTENING:
                self._launch(evaluation)
                return True
        return False

    def _died_outcome(self) -> Outcome:
        death = self.death
        assert death is not None
        status = death.exit_code if death.signal is None else _SIGNALLED + death.signal
        return Outcome(status, death=death, damage=self._protocol.damage)

    async def _clean_up(self, steps: Sequence[str]) -> None:
        """Undo what held for one command alone; the status that the next command sees is kept."""
        carried = self._carried
        self.terminal.restore()
        text = f"{{ {'; '.join(steps)}; }} >|/dev/null 2>&1"
        self._run(text, ())
        ended = await self._ended(text)
        if isinstance(ended, Report) and await self._back_in_loop():
            self._carry_on(carried)

    def _carry_on(self, carried: Carried) -> None:
        """Have the next command find what was `carried` before something of the daemon's own."""
        now = self._carried
        self._carried = replace(
            carried, jobs=now.jobs, children=now.children, prompts=now.prompts, trap_function=False, exit_trap_set=True
        )

    def _run(self, command: str, setup: Sequence[str]) -> None:
        """Have bash, which listens, evaluate `command`; `_ended` follows."""
        self._settled = self._was_drained = False
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

    def _over_with(self, ended: Report | Death) -> None:
        """The command is over: tell whoever waits for that."""
        evaluation = self._evaluation
        if not self._over or self._over.done() or self._ended_plainly(evaluation, ended):
            return
        self._over.set_result(ended)
        if evaluation and evaluation.on_end:
            evaluation.on_end(None)

    def _ended_plainly(self, evaluation: Evaluation | None, ended: Report | Death) -> bool:
        """Close a command that has left nothing to wait for, as most do; return whether that was so.

        It has reported its end itself, and without a signal that it may have died of; it has left no child, so that
        all it wrote can be read at once; and nobody has asked for its outcome, also not when he was given its output.
        """
        if not (evaluation and evaluation.on_end) or isinstance(ended, Death) or ended.kind is not ReportKind.RAN:
            return False
        if not ended.prepared or ended.status > _SIGNALLED or self._protocol.damage or not self._drained():
            return False
        on_end, evaluation.on_end = evaluation.on_end, None
        if on_end is None or self._over is None:
            return False
        self._was_drained = True
        self._over.set_result(ended)
        self._over = None
        self._protocol.expected = False
        self._gate.forget_keys()
        self._take_report(ended, evaluation.script.text, children=False)
        self._channels.forget_text()
        self._typed_ahead.clear()
        self.terminal.sink = self._idle_sink
        if self.stderr_terminal:
            self.stderr_terminal.sink = self._idle_sink
        on_end(Outcome(status=ended.status))
        return True

    def _stderr_setup(self, *, apart: bool) -> list[str]:
        """Return the step that moves descriptor 2 between the terminals, where it is one of them.

        A redirection of the user's own (`exec 2>file`) is left alone, and stays.
        """
        if apart and not self.stderr_terminal:
            owner = self._user.uid if self._user else None
            self.stderr_terminal = Terminal.open(self._idle_sink, *self.size, owner)
        if not self.stderr_terminal or apart == self._stderr_moved:
            return []
        self._stderr_moved = apart
        here, there = self._path_of(self.terminal), self._path_of(self.stderr_terminal)
        source, target = (here, there) if apart else (there, here)
        return [f"if [[ /dev/fd/2 -ef {source} ]]; then \\exec 2>|{target}; fi"]

    def _restore_terminal(self) -> None:
        """Undo what a program has done to the terminal, and to bash's descriptors of it.

        O_NONBLOCK belongs to the open file, which all that bash starts share with it. Copies of bash's descriptors
        change it; where there are none to be had, it stays. That of its standard output, which is standard error too,
        is kept: while bash reports, that is /dev/null.
        """
        self.terminal.restore()
        if self._process:
            self._output_file = self._output_file or self._process.copies([1])
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

    async def _back_in_loop(self) -> bool:
        """Wait until bash listens to the bell again; a bash that does not come back is killed."""
        if not self._in_loop.is_set():
            try:
                await asyncio.wait_for(self._in_loop.wait(), _BOOT_TIMEOUT)
            except TimeoutError:
                self._protocol.damage = DAMAGE
                self.kill()
                await self._in_loop.wait()
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

    # --- what bash says, and what is done then --------------------------------------------------------

    def _listen(self) -> None:
        """Take what bash has said so far."""
        more = True
        while more:
            data, more = self._channels.read_reports()
            for report in self._protocol.reports(data):
                bell_heard = True
                if report.kind is ReportKind.LOOP:
                    self._channels.rewind_text()  # bash opens the texts anew
                elif report.kind is ReportKind.PROMPT:
                    bell_heard = self._channels.bell_heard
                    self._take_start(report)
                self._do(self._protocol.hear(report, bell_heard=bell_heard), report)

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
    return data.decode("utf-8", "replace").strip()[-500:] or "it wrote nothing"
