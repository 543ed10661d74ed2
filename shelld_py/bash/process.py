"""A shell in bash: commands, one after the other, from what is to be done around each to its outcome.

It knows of no states of a shell, no waiting requests, no logs: bytes go to sinks, and what `begin` returns is done
when the command is over. The process that evaluates the commands is in interpreter.py, what goes around them in
command.py.
"""

import asyncio
import contextlib
import os
import re
import secrets
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from shelld_py.bash.channels import read_all, write_all
from shelld_py.bash.command import Directories, Script, encoded, script_of
from shelld_py.bash.driver import defines_exit_trap
from shelld_py.bash.interpreter import BOOT_TIMEOUT, Interpreter
from shelld_py.bash.protocol import BashState, Report, ReportKind
from shelld_py.bash.repair import DAMAGE
from shelld_py.bash.root import Death
from shelld_py.bash.state import Dump, document_of, messages, script_of_document
from shelld_py.errors import ShellStartFailed, StateUnavailable
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.terminal import Sink, Terminal
from shelld_py.linux.users import User
from shelld_py.request_data import ShellDocument

NOT_RUN: Final = "bash has not run the command: an earlier one has taken away what commands are run with."
_SIGNALLED: Final = 128
_CHECK_INTERVAL: Final = 0.2
"""As often as a supervisor looks whether bash hangs (repair.py acts on what it sees twice)."""
_DUMP_SECTIONS: Final = 6
_LARGEST_DUMP: Final = 64 << 20
_LARGEST_COMPLAINT: Final = 256 << 10
_DRIVER_DESCRIPTORS: Final = 240
"""From here on they are the driver's (driver.bash)."""


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
    handled: frozenset[str] | None = None
    """Of a shell that came back though nothing executed `exit`: the signals on which the user had traps."""
    died_of: int | None = None
    """The signal that the command died of, where the kernel has told it; bash tells a status alone."""
    used: processes.Used | None = None
    """What bash had used by then, where nothing was to be waited for."""


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


class Bash(Interpreter):
    """One bash in a pseudo-terminal of its own. `start` it, `begin` commands one after the other, `close` it."""

    def __init__(self, idle_sink: Sink, reaper: Reaper, *, restore: bool, user: User | None = None) -> None:
        """Make the pipes and memory files. `idle_sink` gets what is written while no command runs."""
        super().__init__(idle_sink, reaper, restore=restore, user=user)
        self._stderr_moved = False
        self._evaluation: Evaluation | None = None
        """The last command that bash was given."""

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

    def settle(self) -> None:
        """Make ready for the next command, where nobody waits: then `begin` does no more than write its text.

        Only where nobody is left who could touch the terminal until then. Call it when a command is over.
        """
        if self._settled or self._protocol.state is not BashState.LISTENING or self._over is not None:
            return
        if self._was_drained or self._drained():
            self._restore_terminal()
            self._settled = bool(self._output_file)  # else bash still reports, and its terminal has yet to be seen

    # --- its state ------------------------------------------------------------------------------------

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
                    f"bash did not come back from the script of the state within {BOOT_TIMEOUT:g} s."
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
        deadline = self._loop.time() + BOOT_TIMEOUT
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

    @contextlib.contextmanager
    def _file(self) -> Iterator[int]:
        descriptor = self._channels.new_file("state")
        try:
            yield descriptor
        finally:
            self._channels.remove(descriptor)

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
        if ended.kind is ReportKind.RAN and not ended.prepared:
            damage = damage or NOT_RUN
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
            handled=ended.handled,
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

    def _directory_is_gone(self) -> bool:
        return (processes.working_directory(self.pid) or "").endswith(" (deleted)")

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
        if not ended.prepared or ended.status > _SIGNALLED or self._protocol.damage:
            return False
        if not (self._looked or self._drained()):
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
        on_end(Outcome(status=ended.status, used=self._looked[0] if self._looked else self.usage()))
        return True
