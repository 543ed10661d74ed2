"""A command without a terminal: `bash -c`, or a program, whose output streams are pipes.

It stands where a `Bash` stands, for one command: bytes go to sinks, and what `begin` returns is done when the command
is over. Nothing is typed here and no prompt is looked for: input is what the command was given, or a pipe.

The keeper
    Between this process and the command there is one more, forked and never executed: it is the root of the tree. It
    adopts what loses its parent, so that what a command leaves in the background is known after its end; it reaps,
    tells of the end of the command, and where this process dies, it kills all that there is, which no kernel would.
    It has no descriptors but the pipe that it reports on, does not run a line of what commands say, and ends with
    the shell. What it has of this process is shared memory, so its own use is left out of all figures.

The end of the output
    A command has ended when its process has. What it has written by then is in the pipes: their fill at that moment
    (FIONREAD) is what is read before the run is over, however much a background process goes on writing.
"""

import asyncio
import contextlib
import errno
import fcntl
import mmap
import os
import shlex
import signal
import struct
import termios
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from shelld_py.bash.channels import write_all
from shelld_py.bash.command import Script, encoded
from shelld_py.bash.process import Evaluation, Outcome
from shelld_py.bash.root import STEP, Death, Root
from shelld_py.bash.spawning import Confinement
from shelld_py.errors import ShellStartFailed, StdinClosed
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from shelld_py.linux.syscalls import be_subreaper, die_with_parent
from shelld_py.linux.terminal import Sink
from shelld_py.linux.users import User

_BUFFER_SIZE: Final = 256 * 1024
_PIPE_SIZE: Final = 1024 * 1024
"""What the kernel lets anybody have (pipe-max-size): a program that writes much is stopped less often."""
_BURST: Final = 4
"""Buffers that are read before other events get their turn: a millisecond, with the log on disk."""
_LONGEST_ARGUMENT: Final = 96 * 1024
"""Bytes of one argument of a program that are safe everywhere: the kernel takes 128 KiB (execve(2))."""
_TEXT_DESCRIPTOR: Final = 9
_KILL_TIMEOUT: Final = 0.5
_SIGNALLED: Final = 128
_NOT_FOUND: Final = 127
_NOT_EXECUTABLE: Final = 126
_FAULT: Final = 70
_REPORT: Final = struct.Struct("ii")
_STARTED, _ENDED = 0, 1


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
    ) -> None:
        """`shell` is the command line of a bash. Nothing is started yet."""
        super().__init__(reaper)
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
        self._reports = -1
        self._outputs: list[_Output] = []
        self._input: _Input | None = None

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
        user: User | None = None,
    ) -> Evaluation:
        """Start `command`: text for `bash -c`, or a program with its arguments.

        Its standard input is empty, the text `stdin`, the file `stdin_file`, or with `stdin_open` a
        pipe that gets `stdin` first and is typed into. With `user` it runs as them. Raises `ShellStartFailed`.
        """
        self.directory = directory or self._start_directory
        given: list[int] = []
        try:
            # A large text does not fit into an argument: bash reads it from a file, and closes that before it begins.
            text = encoded(command) if isinstance(command, str) else b""
            script = _memory_file(text) if len(text) > _LONGEST_ARGUMENT else -1
            given += [script] if script >= 0 else []
            if isinstance(command, str):
                order = f'eval -- "$(</dev/fd/{_TEXT_DESCRIPTOR})" {_TEXT_DESCRIPTOR}<&-' if script >= 0 else command
                argv = [self._shell, "-c", "--", order]
            else:
                argv = list(command)
            standard_input = self._standard_input(stdin, stdin_file, stdin_open=stdin_open)
            given.append(standard_input)
            for target in (sink, stderr_sink):
                reading, writing = os.pipe2(os.O_CLOEXEC)
                given.append(writing)
                self._outputs.append(_Output(reading, target))
            if user:
                pipes = given[-3:] if stdin_open else given[-2:]
                for descriptor in pipes:  # what is opened anew, as /dev/stderr is, is looked at for its owner
                    os.fchown(descriptor, user.uid, user.gid)
            theirs = user.variables if user else {}
            variables = {**self._environment, **theirs, "PWD": self.directory, **(environment or {})}
            self._start(argv, variables, (standard_input, *given[-2:], script), user)
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

    def usage(self) -> processes.ProcessStat | None:
        """Return what the kernel says of the keeper, but for its own use: what it has waited for counts."""
        stat = super().usage()
        return stat and replace(stat, cpu_seconds=0.0, memory=0)

    def tree(self) -> list[processes.ProcessStat]:
        """Return the keeper, likewise, and all that lives below it."""
        found = super().tree()
        return [replace(found[0], cpu_seconds=0.0, memory=0), *found[1:]] if found else []

    async def kill_started(self, spare: Iterable[int]) -> None:
        """Kill all that was started, apart from the trees of `spare`, and return when it is dead."""
        killed = processes.kill_descendants(self.pid, spare=spare)
        deadline = self._loop.time() + _KILL_TIMEOUT
        while any(processes.still_alive(stat) for stat in killed) and self._loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(STEP)

    def close(self) -> None:
        """Release all descriptors. The keeper must have ended."""
        if self._reports >= 0:
            self._loop.remove_reader(self._reports)
            os.close(self._reports)
            self._reports = -1
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
            self._input = _Input(writing)
            if text:
                self._input.write(encoded(text))
            return reading
        return _memory_file(encoded(text)) if text else os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)

    def _start(
        self, argv: Sequence[str], environment: Mapping[str, str], descriptors: tuple[int, ...], user: User | None
    ) -> None:
        self._known.clear()
        self._reports, reporting = os.pipe2(os.O_CLOEXEC)
        daemon = os.getpid()
        try:
            pid = os.fork()
            if not pid:
                try:
                    _keep(daemon, argv, environment, self.directory, self._confinement, descriptors, reporting, user)
                finally:
                    os._exit(_FAULT)
        finally:
            os.close(reporting)
        self._own(pid)
        os.set_blocking(self._reports, False)
        self._loop.add_reader(self._reports, self._listen)

    def _listen(self) -> None:
        """Take what the keeper tells."""
        try:
            data = os.read(self._reports, 16 * _REPORT.size)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._reports)
        for kind, value in _REPORT.iter_unpack(data):  # a write of so little is never cut (pipe(7))
            if kind == _STARTED:
                self._command = value
                self._known.set()
            else:
                self._end_command(value)

    def _end_command(self, ended: int | Death) -> None:
        self._command = 0
        self._known.set()
        if self._over and not self._over.done():
            self._over.set_result(ended)

    def _last_words(self) -> int | None:
        if self._reports >= 0:
            self._listen()
        return None

    def _dead(self, death: Death) -> None:
        self._end_command(replace(death, name=""))

    def _close_outputs(self) -> None:
        for output in self._outputs:
            output.close()
        self._outputs.clear()


class _Output:
    """The end of a pipe that is read."""

    def __init__(self, descriptor: int, sink: Sink) -> None:
        self._descriptor = descriptor
        self._sink = sink
        os.set_blocking(descriptor, False)
        with contextlib.suppress(OSError):  # where this user has too many pages in pipes already
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, _PIPE_SIZE)
        # Anonymous memory of its own takes no more than what has been read into it, and all is given back at the end.
        self._memory = mmap.mmap(-1, _BUFFER_SIZE)
        self._buffer = memoryview(self._memory)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(descriptor, self._read)

    def drain(self) -> None:
        """Read what is in the pipe at this moment."""
        if self._descriptor < 0:
            return
        left: int = struct.unpack("i", fcntl.ioctl(self._descriptor, termios.FIONREAD, bytes(4)))[0]
        while left > 0 and (count := self._take()):
            left -= count

    def close(self) -> None:
        """Read what is left, and close it."""
        if self._descriptor < 0:
            return
        self.drain()
        self._loop.remove_reader(self._descriptor)
        os.close(self._descriptor)
        self._descriptor = -1
        self._buffer.release()
        self._memory.close()

    def _read(self) -> None:
        for _ in range(_BURST):
            if self._take() < _BUFFER_SIZE:
                return

    def _take(self) -> int:
        """Hand on a buffer of what is there; return its size, 0 for nothing."""
        try:
            count = os.readv(self._descriptor, [self._buffer])
        except BlockingIOError:
            return 0
        if count:
            self._sink(self._buffer[:count])
        else:
            self._loop.remove_reader(self._descriptor)  # it stays readable, with nothing to be read
        return count


class _Input:
    """The end of a pipe that is written: what it does not take at once follows when there is room."""

    def __init__(self, descriptor: int) -> None:
        self.closing = False
        self._descriptor = descriptor
        self._data = bytearray()
        self._loop = asyncio.get_running_loop()
        os.set_blocking(descriptor, False)

    def write(self, data: bytes) -> None:
        """Give `data`."""
        self._data += data
        self._write()

    def close_soon(self) -> None:
        """Close it when all has been taken."""
        self.closing = True
        self._write()

    def close(self) -> None:
        """Close it now."""
        self.closing = True
        if self._descriptor >= 0:
            self._loop.remove_writer(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1
            self._data.clear()

    def _write(self) -> None:
        if self._descriptor < 0:
            return
        try:
            while self._data:
                del self._data[: os.write(self._descriptor, memoryview(self._data)[:_BUFFER_SIZE].tobytes())]
        except BlockingIOError:
            self._loop.add_writer(self._descriptor, self._write)
            return
        except BrokenPipeError:  # nobody reads it any more
            self.close()
            return
        self._loop.remove_writer(self._descriptor)
        if self.closing:
            self.close()


# --- in the keeper: from here on there is no event loop --------------------------------------------------------------


def _keep(
    daemon: int,
    argv: Sequence[str],
    environment: Mapping[str, str],
    directory: str,
    confinement: Confinement,
    descriptors: tuple[int, ...],
    reporting: int,
    user: User | None,
) -> None:
    """Start the command, tell of its end, and reap until the daemon has ended or kills this process."""
    signal.set_wakeup_fd(-1)
    waited_for = {signal.SIGCHLD, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    die_with_parent(signal.SIGTERM)
    if os.getppid() != daemon:
        return
    os.setsid()
    be_subreaper()
    os.chdir(directory)
    confinement.enter()
    command = os.fork()
    if not command:
        try:
            _execute(argv, environment, descriptors, user)
        finally:
            os._exit(_FAULT)
    with contextlib.suppress(OSError):  # both do it, so that it is done whoever is first
        os.setpgid(command, command)
    os.write(reporting, _REPORT.pack(_STARTED, command))
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if int(name) != reporting:
                os.close(int(name))
    while True:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                if pid == command:
                    os.write(reporting, _REPORT.pack(_ENDED, status))
        if signal.sigwait(waited_for) == signal.SIGTERM and os.getppid() != daemon:
            processes.kill_descendants(os.getpid())
            return


def _execute(
    argv: Sequence[str], environment: Mapping[str, str], descriptors: tuple[int, ...], user: User | None
) -> None:
    """Become the command; what hinders that is told as a shell does."""
    os.setpgid(0, 0)
    if user:
        user.become()
    die_with_parent()  # after that: becoming somebody else takes it back (prctl(2))
    *standard, script = descriptors
    if script >= 0:
        standard.append(script)
    for target, descriptor in zip((0, 1, 2, _TEXT_DESCRIPTOR), standard, strict=False):
        os.dup2(descriptor, target)
        os.set_inheritable(target, True)  # what has the number already is left as it is (dup2(2))
    processes.default_signals()
    try:
        os.execvpe(argv[0], [os.fsencode(word) for word in argv], dict(environment))  # noqa: S606
    except OSError as error:
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR)
        told = "command not found" if missing and "/" not in argv[0] else error.strerror
        os.write(2, f"{shlex.quote(argv[0])}: {told}\n".encode("utf-8", "surrogateescape"))
        os._exit(_NOT_FOUND if missing else _NOT_EXECUTABLE)


def _memory_file(content: bytes) -> int:
    file = os.memfd_create("text", os.MFD_CLOEXEC)
    write_all(file, content)
    return file
