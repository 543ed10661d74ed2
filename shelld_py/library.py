"""`Shell` and `Files` for a program of one's own: what the daemon gives over HTTP, without it.

They make what a daemon makes (a directory for runs, one for undo), and take all of it back. A program that uses them
has children and signal handlers of its own: none of them are touched. Knows nothing of HTTP or of keys.
"""

import contextlib
import logging
import os
import resource
import secrets
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from shelld_py.config import FileSettings, Settings
from shelld_py.errors import InvalidRequest, RunNotFound
from shelld_py.files import FileService
from shelld_py.linux.orphans import Reaper, adopting
from shelld_py.linux.removal import remove_tree
from shelld_py.loading import inheritable_environment, process_environment
from shelld_py.models import KillResult, OnInput, OutputFormat, RunResult, ShellState, Stream, Streams
from shelld_py.output.excerpt import OutputChoice, with_output
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells import shell as shells
from shelld_py.shells.startup import ShellContext
from shelld_py.shells.store import RunStore

_LOGGER: Final = logging.getLogger("shelld_py")
_MARK: Final = "SHELLD_SHELL"
"""The variable that tells, of a process whose parents are gone, by which `Shell` it was started."""


class Shell:
    """A persistent bash: `async with Shell() as shell: result = await shell.run("ls")`.

    It begins in `working_directory` (default: that of this process), with the variables of this process and those of
    `environment`. `settings` are a daemon's; of them `shell`, `output`, `limits` (sampled) and `timeout.kill` count.
    At its end all that it started is gone.

    Use it in the thread in which it was made, and as long as that lives: bash ends with the thread. Meanwhile this
    process is a child subreaper (prctl(2)): whatever loses its parent below it becomes its child.
    """

    def __init__(
        self,
        working_directory: str | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        rows: int | None = None,
        cols: int | None = None,
        settings: Settings | None = None,
    ) -> None:
        self._settings = settings or Settings()
        self._request = StartupRequest(
            working_directory=working_directory, environment=dict(environment or {}), rows=rows, cols=cols
        )
        self._at_end = contextlib.AsyncExitStack()
        self._store: RunStore
        self._shell: shells.Shell

    async def __aenter__(self) -> Self:
        """Start bash. Raises `ShellStartFailed`, `InvalidRequest`."""
        async with contextlib.AsyncExitStack() as stack:
            directory = Path(tempfile.mkdtemp(prefix="shelld-py-"))
            stack.callback(remove_tree, str(directory))
            stack.enter_context(adopting())
            self._store = RunStore(directory, self._settings.output, _LOGGER)
            self._store.open()
            stack.callback(self._store.close)
            self._shell = shells.Shell("main", self._context(directory, secrets.token_hex(8)))
            stack.push_async_callback(self._shell.end, "The shell was closed.")
            await self._shell.start(self._request)
            self._at_end = stack.pop_all()
        return self

    async def __aexit__(self, *_: object) -> None:
        """Kill all that it started, and remove what it has kept."""
        await self._at_end.aclose()

    @property
    def state(self) -> ShellState:
        """Its state: `ready` for a command, `busy`, `unrecoverable`, or `available` before and after its life."""
        return self._shell.state

    @property
    def working_directory(self) -> str | None:
        """bash's working directory; None where no bash lives."""
        return self._shell.working_directory

    async def run(
        self,
        command: str,
        *,
        timeout: float | None = None,
        deadline: float | None = None,
        directory: str | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: str | None = None,
        streams: Streams | str = Streams.MERGED,
        format: OutputFormat | str = OutputFormat.TEXT,  # noqa: A002
        max_output: int | None = None,
        on_input: OnInput | str = OnInput.RETURN,
    ) -> RunResult:
        """Run a command and return its result when it has ended, or waits for input, or after `timeout` seconds.

        It goes on then (`status` is `running`): see `wait`, `stdin` and `kill`. After `deadline`
        seconds it is killed. All means what it means in
        `POST /run`. Raises `ShellBusy` while another command runs, other `Conflict` in other states, `InvalidRequest`.
        """
        if deadline is not None and deadline <= 0:
            raise InvalidRequest("deadline must be longer than 0: at that moment the command is killed.")
        wanted = Command(
            text=command,
            directory=directory,
            stdin=stdin,
            environment=dict(environment or {}),
            streams=Streams(streams),
            deadline=deadline,
        )
        run = self._shell.submit(wanted)
        return await self.wait(run.run_id, timeout=timeout, format=format, max_output=max_output, on_input=on_input)

    async def wait(
        self,
        run_id: str | None = None,
        *,
        timeout: float | None = None,
        format: OutputFormat | str = OutputFormat.TEXT,  # noqa: A002
        max_output: int | None = None,
        on_input: OnInput | str = OnInput.RETURN,
    ) -> RunResult:
        """Wait for a run, the last one unless `run_id` names another; return its result as it stands then.

        `timeout` is in seconds; 0 looks at once. `max_output` is in characters, 0 for all. Raises `RunNotFound`.
        """
        last = self._shell.last_run
        if run_id is None and last is None:
            raise RunNotFound("No command has been run in this shell.")
        run = await self._store.get(run_id or (last.run_id if last else ""))
        for_input = OnInput(on_input) is OnInput.RETURN
        await run.wait(timeout, for_input=for_input)
        if run.running:
            run.timed_out = run.timed_out or not (for_input and run.awaiting_input)
        await run.measure()
        choice = OutputChoice.of(OutputFormat(format), max_output, self._settings.output)
        return await with_output(run.result(), run.logs, choice, _where)

    async def stdin(self, text: str | bytes, *, eof: bool = False) -> int:
        """Type into the terminal of the running command; return the bytes that it has accepted in all.

        Raises `NoRunningCommand`.
        """
        data = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
        return await self._shell.write_stdin(data, eof=eof, offset=None)

    async def kill(self, number: int | None = None) -> KillResult:
        """End the running command, and keep the shell where possible; or send it the one signal `number`."""
        return await self._shell.kill(number)

    async def recycle(self) -> None:
        """Kill all that it started, and start a fresh bash. Raises `ShellStartFailed`, `DirectoryGone`."""
        await self._shell.recycle()

    def _context(self, directory: Path, mark: str) -> ShellContext:
        settings = self._settings
        return ShellContext(
            settings=settings.shell,
            environment={**inheritable_environment(process_environment()), _MARK: mark},
            directory=settings.shell.working_directory or str(Path.cwd()),
            log_directory=directory,
            log_max=settings.output.log_max,
            kill_grace=settings.timeout.kill,
            command_lifetime=settings.timeout.command_lifetime,
            limits=settings.limits,
            on_breach=lambda _: None,
            open_files=resource.getrlimit(resource.RLIMIT_NOFILE),
            store=self._store,
            reaper=Reaper(f"{_MARK}={mark}"),
            logger=_LOGGER,
        )


class Files(FileService):
    """File operations below `directories` (default: the working directory), with undo, checks and searches.

    `async with Files("/work") as files: await files.perform(ReadRequest(path="README.md"))`. The requests are in
    `shelld_py.files`; each names its result. Relative paths begin in the first directory. What undo needs is kept
    until the end in a directory of its own. `settings` are a daemon's `[files]`.
    """

    def __init__(self, *directories: str | os.PathLike[str], settings: FileSettings | None = None) -> None:
        settings = settings or FileSettings()
        roots = tuple(map(os.path.abspath, directories)) or settings.allowed_directories or (os.getcwd(),)
        self._backups = tempfile.mkdtemp(prefix="shelld-py-")
        super().__init__(
            settings,
            base_directory=settings.base_directory or roots[0],
            allowed_directories=roots,
            backup_directory=self._backups,
        )

    async def aclose(self) -> None:
        """Leave nothing behind."""
        await super().aclose()
        remove_tree(self._backups)


def _where(run_id: str, stream: Stream) -> str:
    return f"{stream} of Shell.wait({run_id!r}, max_output=0)"
