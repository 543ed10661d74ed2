"""The verbs of `shelld-py` for people: run, attach, replay, status, kill, link. Arguments in, exit status out.

They speak to a daemon as any client does, and print for a terminal or a pipe. cli.py has their arguments and
imports this file only when one of them is used.

Exit statuses: that of the command for `run` and `attach` (128 + n when it died of signal n), 124 where the wait
was over first, 130 where it was left to itself by a second Ctrl-C; 2 for arguments that cannot be used, 3 when
the daemon refuses or cannot be reached, or the command has no exit status.
"""

import argparse
import asyncio
import contextlib
import re
import shlex
import signal
import sys
import time
from collections.abc import AsyncGenerator
from functools import partial
from typing import Final

import msgspec

from shelld_py.client.call import new_key, seconds
from shelld_py.client.client import AsyncClient, AsyncSession
from shelld_py.client.connection import Retries
from shelld_py.client.events import Event, Result
from shelld_py.client.failures import TransportError
from shelld_py.client.printing import Printer, complain
from shelld_py.errors import KeyRequired, NotFound, ShellAlreadyStarted, ShelldError
from shelld_py.models import ActiveRun, OutputFormat, RunResult, RunStatus, ShellState, Status, Stream
from shelld_py.units import DURATION_FORMS, format_duration

USAGE_ERROR: Final = 2
DAEMON_ERROR: Final = 3
TIMED_OUT: Final = 124
INTERRUPTED: Final = 130
BROKEN_PIPE: Final = 141
_SIGNALLED: Final = 128

_SPEED: Final = re.compile(r"[0-9]{1,4}(?:\.[0-9]{1,4})?|\.[0-9]{1,4}")
_RETRIES: Final = Retries(most=4, first=0.05)


def perform(options: argparse.Namespace) -> int:
    """Do what the arguments say; return the exit status. Errors are one line on standard error."""
    for name in ("timeout", "deadline", "idle", "expires"):
        given = getattr(options, name, None)
        if given is not None and seconds(given) is None:
            complain(f"--{name} must be {DURATION_FORMS}, not {given!r}")
            return USAGE_ERROR
    speed = getattr(options, "speed", None)
    if speed is not None and not _speed(speed):
        complain(f"--speed must be how many times as fast, such as 2 or 0.5, not {speed!r}")
        return USAGE_ERROR
    try:
        return asyncio.run(_perform(options))
    except TransportError as error:
        if error.maybe_done:
            complain(error.detail)
        else:
            reason = error.detail.rpartition("not sent: ")[2]
            complain(f"no daemon answers at {options.address}: {reason} Is SHELLD_URL (or --url) right?")
        return DAEMON_ERROR
    except KeyRequired as error:
        complain(f"{error.detail} Set SHELLD_KEY.")
        return DAEMON_ERROR
    except ShelldError as error:
        complain(" ".join(error.detail.split()))
        if hint := error.extra.get("hint"):
            complain(" ".join(str(hint).split()))
        return DAEMON_ERROR
    except ValueError as error:
        complain(str(error))
        return USAGE_ERROR
    except BrokenPipeError:
        sys.stderr.close()
        return BROKEN_PIPE
    except (KeyboardInterrupt, asyncio.CancelledError):
        return INTERRUPTED


async def _perform(options: argparse.Namespace) -> int:
    async with AsyncClient(options.url, retries=_RETRIES) as client:
        options.address = client.url
        match options.command:
            case "run":
                return await _Run(client, options).perform()
            case "attach":
                from shelld_py.client.attach import attach

                return exit_status(await attach(client, options.run_id, options.session))
            case "replay":
                from shelld_py.client.replay import replay

                speed, longest_pause = _speed(options.speed) or 1.0, seconds(options.idle)
                await replay(client, options.run_id, speed=speed, longest_pause=longest_pause)
                return 0
            case "status":
                return await _status(client, options)
            case "link":
                strip = False if options.whole_paths else None
                print((await client.link_port(options.served_port, expires=options.expires, strip_prefix=strip)).url)
                return 0
            case _:
                return await _kill(client, options)


def _speed(text: str) -> float | None:
    """Return how many times as fast; None for what is no such number."""
    speed = float(text) if _SPEED.fullmatch(text) else 0.0
    return speed if speed > 0 else None


class _Run:
    """`shelld-py run`: a command in the main shell or a session, as if it were run here."""

    def __init__(self, client: AsyncClient, options: argparse.Namespace) -> None:
        limit = seconds(options.timeout)
        self._client = client
        self._options = options
        self._deadline = None if limit is None else time.monotonic() + limit
        self._run_id = new_key()
        self._started = False
        self._interrupts = 0
        self._killing: asyncio.Task[object] | None = None
        self._task = asyncio.current_task()
        outputs = (sys.stdout, sys.stderr) if options.separate else (sys.stdout,)
        self._form = OutputFormat.RAW if all(output.isatty() for output in outputs) else OutputFormat.TEXT
        self._printer = Printer(by_lines=self._form is OutputFormat.TEXT)

    async def perform(self) -> int:
        """Run it; return the exit status."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self._interrupt)
        try:
            run = await self._follow()
        except asyncio.CancelledError:
            if self._started:
                complain(f"left to itself; it is run {self._run_id}. {_WAYS_BACK}")
            return INTERRUPTED
        finally:
            self._printer.flush()
        if run.status is RunStatus.RUNNING:
            complain(f"still running as run {self._run_id}. {_WAYS_BACK}")
            return TIMED_OUT
        return exit_status(run)

    async def _follow(self) -> RunResult:
        """Return the run as it is at its end, or when the wait is over."""
        client, options = self._client, self._options
        if options.session is None and (await client.status()).state is ShellState.AVAILABLE:
            with contextlib.suppress(ShellAlreadyStarted):
                await client.startup()
        shell = client if options.session is None else client.sessions.use(options.session)
        self._started = True
        if self._form is OutputFormat.RAW and sys.stdin.isatty():
            from shelld_py.client.attach import Attachment

            attachment = Attachment(client, options.session or "main", self._run_id, known=False)
            works = (attachment.begin(partial(self._start, shell)), attachment.show(), attachment.type_when_asked())
            ended = None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._left()):
                    ended = await attachment.perform(*works)
            return ended or await client.runs.get(self._run_id, max_output=1)
        hinted = False
        async with contextlib.aclosing(self._events(shell)) as events:
            async for event in events:
                self._printer.show(event)
                if isinstance(event, Result):
                    run = event.run
                    if run.status is RunStatus.RUNNING and run.awaiting_input and not hinted:
                        hinted = True
                        self._printer.flush()
                        complain(f"the command waits for input. To answer it, in another terminal: {_attach(run)}")
        return run

    def _left(self) -> float | None:
        return None if self._deadline is None else self._deadline - time.monotonic()

    async def _start(self, shell: AsyncClient | AsyncSession) -> RunResult:
        options = self._options
        return await shell.run(
            command_line(options.words),
            run_id=self._run_id,
            timeout=0,
            deadline=options.deadline,
            streams="separate" if options.separate else "merged",
            max_output=1,
        )

    async def _events(self, shell: AsyncClient | AsyncSession) -> AsyncGenerator[Event, None]:
        """Run it; yield its events until it has ended or the wait is over, each time that one ends with a result."""
        options = self._options
        events = shell.stream(
            command_line(options.words),
            run_id=self._run_id,
            timeout=options.timeout,
            deadline=options.deadline,
            streams="separate" if options.separate else "merged",
            format=self._form,
            on_input="return",
        )
        cursors = {Stream.STDOUT: 0, Stream.STDERR: 0}
        while True:
            async with contextlib.aclosing(events):
                async for event in events:
                    if isinstance(event, Result):
                        run = event.run
                    else:
                        cursors[event.stream] = event.cursor
                    yield event
            left = self._left()
            if run.status is not RunStatus.RUNNING or (left is not None and left <= 0):
                return
            events = self._client.runs.follow(
                self._run_id,
                cursor=cursors[Stream.STDOUT],
                stderr_cursor=cursors[Stream.STDERR],
                format=self._form,
                timeout=left,
            )

    def _interrupt(self) -> None:
        self._interrupts += 1
        if self._interrupts == 1 and self._started:
            self._killing = asyncio.ensure_future(self._kill())
        elif self._task is not None:
            self._task.cancel()

    async def _kill(self) -> None:
        try:
            await self._client.runs.kill(self._run_id)
        except NotFound:  # it has not begun: nothing will be waited for any more
            if self._task is not None:
                self._task.cancel()
        except ShelldError as error:
            complain(error.detail)


def command_line(words: list[str]) -> str:
    """Return what bash is given for the `words` of our command line: a single one as it is, several each quoted."""
    words = words[1:] if words[0] == "--" else words
    return words[0] if len(words) == 1 else shlex.join(words)


_WAYS_BACK: Final = "See `shelld-py attach`, `shelld-py kill`."


def exit_status(run: RunResult | None) -> int:
    """Return the exit status that stands for the end of `run`, as a shell would: 128 + n for signal n.

    0 for None: nobody waits for it any more. What cannot be seen from the status is said on standard error.
    """
    if run is None:
        return 0
    if run.error:
        complain(run.error)
    if run.exit_code is not None:
        return run.exit_code
    if run.signal is not None:
        return _SIGNALLED + run.signal
    if not run.error:
        complain(f"the run is {run.status}, its exit status is not known")
    return DAEMON_ERROR


async def _status(client: AsyncClient, options: argparse.Namespace) -> int:
    status = await (client if options.session is None else client.sessions.use(options.session)).status()
    if options.json:
        print(msgspec.json.encode(status).decode())
    else:
        print(describe(status, client.url))
    return 0


def describe(status: Status, url: str) -> str:
    """Return what a person wants to know of a shell, on one screen."""
    rows = [("state", status.state.value)]
    if status.session_id != "main":
        rows.append(("session", status.session_id))
    if status.working_directory is not None:
        rows.append(("directory", status.working_directory))
    if status.shell_pid is not None:
        rows.append(("bash", f"pid {status.shell_pid}"))
    if status.run is not None:
        rows += _describe_run(status.run)
    elif status.last_run_id is not None:
        rows.append(("last run", status.last_run_id))
    idle = f", ends after {format_duration(status.idle_timeout)} without a request" if status.idle_timeout else ""
    rows.append(("sessions", str(status.sessions)))
    rows.append(("daemon", f"{url}, version {status.version}, up {format_duration(round(status.uptime))}{idle}"))
    return "\n".join(f"{name:<10} {value}" for name, value in rows)


def _describe_run(run: ActiveRun) -> list[tuple[str, str]]:
    first_line, _, more = run.command.partition("\n")
    rows = [
        ("running", first_line + (" ..." if more else "")),
        ("run", f"{run.run_id}, for {format_duration(round(run.duration, 1))}, {run.cursor} bytes of output"),
    ]
    if run.foreground is not None:
        rows.append(("foreground", f"pid {run.foreground.pid}: {run.foreground.command}"))
    used = run.resources
    rows.append(("uses", f"{used.cpu_percent:g}% CPU, {used.memory_mb:.1f} MiB, processes: {used.processes}"))
    if run.awaiting_input:
        rows.append(("waits", f"for input: {_attach(run)}"))
    return rows


def _attach(run: RunResult) -> str:
    return f"shelld-py attach {run.run_id}"


async def _kill(client: AsyncClient, options: argparse.Namespace) -> int:
    if options.run_id is not None:
        result = await client.runs.kill(options.run_id, options.signal)
    else:
        shell = client if options.session is None else client.sessions.use(options.session)
        result = await shell.kill(options.signal)
    if not result.killed:
        print("nothing to kill")
        return 0
    print(f"{'killed' if options.signal is None else 'signalled'} run {result.run}; the shell is {result.state}")
    if result.survivors:
        print(f"still alive: {', '.join(map(str, result.survivors))}")
    return 0
