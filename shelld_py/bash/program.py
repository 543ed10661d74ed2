"""A command without a terminal: `bash -c`, or a program, whose output streams are pipes.

It stands where a `Bash` stands, for one command: bytes go to sinks, and what `begin` returns is done when the command
is over. The command is a child of its keeper (keeper.py), which is the root process. Nothing is typed here and no
prompt is looked for: input is what the command was given, or a pipe.

The end of the output
    A command has ended when its process has. What it has written by then is in the pipes: their fill at that moment
    (FIONREAD) is what is read before the run is over, however much a background process goes on writing.
"""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from typing import Any, Final, Self

from msgspec.structs import replace

from shelld_py.bash.channels import write_all
from shelld_py.bash.command import Script, encoded
from shelld_py.bash.confinement import Confinement
from shelld_py.bash.keeper import REPORT, STARTED, TEXT_DESCRIPTOR, Keepers, Order, give
from shelld_py.bash.pipes import InputPipe, OutputPipe
from shelld_py.bash.process import Evaluation, Outcome
from shelld_py.bash.root import Death, Root
from shelld_py.errors import ShellStartFailed, StdinClosed
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.terminal import Sink
from shelld_py.linux.users import User

_LONGEST_ARGUMENT: Final = 96 * 1024
"""Bytes of one argument of a program that are safe everywhere: the kernel takes 128 KiB (execve(2))."""
_SIGNALLED: Final = 128
_MOST_REPORTS: Final = 16


class Program(Root):
    """The shell of commands without a terminal. `begin` one; `close` it when all has ended."""

    signal_keys: Mapping[bytes, int] = {}

    def __init__(
        self,
        shell: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        confinement: Confinement,
        reaper: Reaper,
        user: User | None = None,
    ) -> None:
        super().__init__(reaper)
        self._user = user
        self.directory = directory
        self._shell = shell[0]
        self._environment = environment
        self._start_directory = directory
        self._confinement = confinement
        self._cgroup = confinement.cgroup
        self._command = 0
        """The pid of the command, which is the id of its process group; 0 where none is known to run."""
        self._known = asyncio.Event()
        self._over: asyncio.Future[int | Death] | None = None
        self._keeper: socket.socket | None = None
        self._outputs: list[OutputPipe] = []
        self._input: InputPipe | None = None

    @classmethod
    async def start(
        cls,
        shell: Sequence[str],
        *,
        environment: Mapping[str, str],
        directory: str,
        confinement: Confinement,
        reaper: Reaper,
        keepers: Keepers,
        user: User | None = None,
    ) -> Self:
        """Return one that has its keeper and can begin; `shell` is the command line of a bash.

        With `user` the command runs as them, but not its keeper. Raises `ShellStartFailed`.
        """
        program = cls(
            shell, environment=environment, directory=directory, confinement=confinement, reaper=reaper, user=user
        )
        pid, program._keeper = await keepers.new()
        program._own(pid)
        program._loop.add_reader(program._keeper, program._listen)
        return program

    def begin(
        self,
        command: str | Sequence[str],
        sink: Sink,
        *,
        stderr_sink: Sink,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
        stdin_file: int = -1,
        stdin_open: bool = False,
    ) -> Evaluation:
        """Start `command`: text for `bash -c`, or a program with its arguments.

        Its standard input is empty, the text `stdin`, the file `stdin_file`, or with `stdin_open` a
        pipe that gets `stdin` first and is typed into. Raises `ShellStartFailed`.
        """
        self.directory = directory or self._start_directory
        given: list[int] = []
        try:
            # A large text does not fit into an argument: bash reads it from a file, and closes that before it begins.
            text = encoded(command) if isinstance(command, str) else b""
            script = _memory_file(text) if len(text) > _LONGEST_ARGUMENT else -1
            given += [script] if script >= 0 else []
            if isinstance(command, str):
                line = f'eval -- "$(</dev/fd/{TEXT_DESCRIPTOR})" {TEXT_DESCRIPTOR}<&-' if script >= 0 else command
                argv = [self._shell, "-c", "--", line]
            else:
                argv = list(command)
            standard_input = self._standard_input(stdin, stdin_file, stdin_open=stdin_open)
            given.append(standard_input)
            for target in (sink, stderr_sink):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                given.append(writing)
                self._outputs.append(OutputPipe(reading, target))
            user = self._user
            if user:
                pipes = given[-3:] if stdin_open else given[-2:]
                for descriptor in pipes:  # what is opened anew, as /dev/stderr is, is looked at for its owner
                    os.fchown(descriptor, user.uid, user.gid)
            variables = {**self._environment, "PWD": self.directory, **(environment or {})}
            assert self._keeper is not None
            order = Order(argv, variables, self.directory, self._confinement, user)
            give(self._keeper, order, (standard_input, *given[-2:], *((script,) if script >= 0 else ())))
        except OSError as error:
            raise ShellStartFailed(f"The command cannot be started: {error}") from None
        finally:
            for descriptor in given:
                os.close(descriptor)
        self._over = self._loop.create_future()
        return Evaluation(Script(""), sink, stderr_sink, begun=True)

    def outcome(self, _: Evaluation) -> Coroutine[Any, Any, Outcome]:
        """Return how the command has ended, when it has, and all that it wrote has gone to the sinks."""
        return self._outcome()

    async def _outcome(self) -> Outcome:
        assert self._over is not None
        ended = await self._over
        for output in self._outputs:
            output.drain()
        if self._input:
            self._input.close()
        if isinstance(ended, Death):
            return Outcome(None if ended.signal is None else _SIGNALLED + ended.signal, death=ended)
        code = os.waitstatus_to_exitcode(ended)
        return Outcome(code if code >= 0 else _SIGNALLED - code, died_of=-code if code < 0 else None)

    def settle(self) -> None:
        """The run is over: where nobody is left who could write, nothing more is read."""
        if not self.has_children():
            self._close_outputs()

    def type(self, data: bytes) -> None:
        """Give `data` to the command. Raises `StdinClosed`."""
        if self._input is None or self._input.closing:
            why = "has been closed" if self._input else "was not left open: the run has no stdin_open"
            raise StdinClosed(f"The standard input of the command {why}.")
        self._input.write(data)

    @property
    def unread_input(self) -> int:
        """Bytes that were given and that the pipe has not taken yet."""
        return self._input.waiting if self._input else 0

    def end_input(self, *, after_line: bool) -> None:  # noqa: ARG002 (what was typed last matters to terminals alone)
        """Close standard input when all that was given has been taken."""
        if self._input:
            self._input.close_soon()

    async def interrupt(self) -> bool:
        """Send SIGINT to the command, unless it is over."""
        return await self.signal(signal.SIGINT)

    async def signal(self, number: int) -> bool:
        """Send a signal to the process group of the command, unless it is over."""
        await self._known.wait()
        if not self._command:
            return False
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._command, number)
            return True
        return False

    @property
    def size(self) -> tuple[int, int]:
        """What a program takes a terminal to have where there is none."""
        return 24, 80

    def resize(self, rows: int, cols: int) -> None:
        """There is no terminal."""

    def echo(self) -> contextlib.AbstractContextManager[None]:
        """There is no terminal."""
        return contextlib.nullcontext()

    def check(self) -> None:
        """There is nothing that hangs without the command's own doing."""

    def foreground_group(self) -> int:
        """Return the process group of the command, or 0."""
        return self._command

    def waits_for_input(self, _: Iterator[int]) -> bool:
        """Return False: of a pipe that cannot be known."""
        return False

    def usage(self) -> processes.Used | None:
        """Return what the keeper has waited for: what it has used itself does not count."""
        stat = processes.process_stat(self.pid)
        return processes.Used(stat.reaped_cpu_seconds, 0) if stat else None

    def tree(self) -> list[processes.ProcessStat]:
        """Return the keeper, likewise, and all that lives below it."""
        found = super().tree()
        return [replace(found[0], cpu_seconds=0.0, memory=0), *found[1:]] if found else []

    def close(self) -> None:
        """Release all descriptors. The keeper must have ended."""
        if self._keeper:
            self._loop.remove_reader(self._keeper)
            self._keeper.close()
            self._keeper = None
        if self._input:
            self._input.close()
        self._close_outputs()
        self._disown()

    # --- starting and ending --------------------------------------------------------------------------

    def _standard_input(self, text: str | None, file: int, *, stdin_open: bool) -> int:
        """Return what the command reads; it is to be closed here when that has it."""
        if file >= 0:
            return os.dup(file)
        if stdin_open:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            self._input = InputPipe(writing)
            if text:
                self._input.write(encoded(text))
            return reading
        return _memory_file(encoded(text)) if text else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _listen(self) -> None:
        """Take what the keeper tells."""
        if self._keeper is None:
            return
        try:
            data = self._keeper.recv(_MOST_REPORTS * REPORT.size)
        except BlockingIOError:
            return
        except ConnectionResetError:  # it has died with an order that it had not read
            data = b""
        if not data:
            self._loop.remove_reader(self._keeper)
        for kind, value in REPORT.iter_unpack(data):  # so little is never cut
            if kind == STARTED:
                self._command = value
                self._known.set()
            else:
                self._end_command(value)

    def _end_command(self, ended: int | Death) -> None:
        self._command = 0
        self._known.set()
        if self._over and not self._over.done():
            self._over.set_result(ended)

    def _last_report(self) -> int | None:
        self._listen()
        return None

    def _dead(self, death: Death) -> None:
        self._end_command(replace(death, name=""))

    def _close_outputs(self) -> None:
        for output in self._outputs:
            output.close()
        self._outputs.clear()


def _memory_file(content: bytes) -> int:
    file = os.memfd_create("text", os.MFD_CLOEXEC)
    write_all(file, content)
    return file
