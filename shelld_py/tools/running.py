"""A command as a tool runs it: start it, wait for it with progress and cancellation, show it."""

import asyncio
import contextlib
import posixpath
from collections.abc import Coroutine
from typing import Any, Final

from shelld_py.bash.command import check_command
from shelld_py.errors import InvalidRequest
from shelld_py.models import OutputFormat, RunResult, RunStatus, Stream
from shelld_py.output.showing import OutputChoice, with_output
from shelld_py.output.text import render
from shelld_py.shells.run import Run
from shelld_py.shells.store import Entry
from shelld_py.tools.tool import Call, Progress

_LAST_BYTES: Final = 4096


def needed_command(text: str | None) -> str:
    """Return a command. Raises `InvalidRequest` for one that is empty, or that bash cannot be given."""
    if text is None or not text.strip():
        raise InvalidRequest("The argument 'command' is empty: it must be a command line.", argument="command")
    check_command(text)
    return text


def resolved_directory(call: Call, directory: str | None) -> str:
    """Return where a command in a fresh shell runs."""
    base = call.computer.directory
    return posixpath.normpath(posixpath.join(base, directory)) if directory else base


def patience(call: Call, wanted: float | None = None) -> float:
    """Return the seconds that a call waits for a command, which wants to wait `wanted` seconds."""
    timeouts = call.computer.settings.timeout
    most = timeouts.command_maximum if call.context.patience is None else call.context.patience
    return min(timeouts.command if wanted is None else wanted, most, timeouts.command_maximum)


async def start_run(call: Call, starting: Coroutine[Any, Any, Run]) -> Run:
    """Start a run; a call that is cancelled meanwhile leaves none behind where it shall not."""
    task = call.computer.carry_through(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if call.context.interrupt_on_cancel:
            call.computer.carry_through(_end_started(call, task))
        raise


async def wait_for_run(call: Call, run: Run, timeout: float, *, started_here: bool = True) -> None:
    """Wait until `run` has ended or waits for input, or for `timeout` seconds. The command is never ended by that.

    A call that is cancelled ends the command if it has started it, and if its caller wants that.
    """
    try:
        if call.context.on_progress is None:
            await run.wait(timeout, for_input=True)
        else:
            await _wait_and_tell(call, run, timeout)
    except asyncio.CancelledError:
        if started_here and call.context.interrupt_on_cancel and run.running:
            await asyncio.shield(call.computer.carry_through(call.computer.shell(run.session_id).kill(None, run)))
        raise
    if started_here and run.running and not run.awaiting_input:
        run.timed_out = True


async def shown(call: Call, entry: Entry, maximum: int | None = None) -> RunResult:
    """Return the result of a run as it stands, with its output."""
    computer = call.computer
    if entry.run and entry.run.running:
        computer.store.publish(entry.run, computer.state_of(entry.session_id))
    choice = OutputChoice.of(OutputFormat.TEXT, maximum, computer.settings.output)
    await computer.store.measure(entry)
    result = computer.store.result(entry, computer.state_of(entry.session_id))
    return await with_output(result, computer.store.log_reader(entry), choice, _where)


async def run_and_show(call: Call, run: Run, timeout: float, maximum: int | None = None) -> RunResult:
    """Wait for `run`, and return its result with its output."""
    entry = call.computer.store.entry(run.run_id)
    await wait_for_run(call, run, timeout)
    return await shown(call, entry, maximum)


def failed(result: RunResult) -> bool:
    """Return whether a command was ended before it was done. An exit code says nothing of that."""
    return result.status in (RunStatus.KILLED, RunStatus.LOST)


async def _wait_and_tell(call: Call, run: Run, timeout: float) -> None:
    """Wait as `Run.wait` does, and report how far it is in between."""
    tell = call.context.on_progress
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout
    told = 0
    while tell and (left := deadline - loop.time()) > 0:
        await _wait_for_progress(call, run, told, left)
        if not run.running or run.awaiting_input:
            return
        if loop.time() < deadline:
            told = _output_size(run)
            await tell(_progress(run))


async def _wait_for_progress(call: Call, run: Run, told: int, left: float) -> None:
    """Return when there is more than `told` bytes of output to tell of, when it is time to, or all is over.

    That is when `run` has ended or waits for input, or after `left` seconds.
    """
    interval = min(left, call.context.progress_interval)
    pace = min(interval, call.context.progress_pace)
    await run.wait(pace, for_input=True)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(interval - pace):
            while run.running and not run.awaiting_input and _output_size(run) == told:
                await run.changed()


def _output_size(run: Run) -> int:
    return sum(log.size for log in run.logs)


def _progress(run: Run) -> Progress:
    log = run.log(Stream.STDOUT)
    size = log.size if log else 0
    last = log.read(max(0, size - _LAST_BYTES), _LAST_BYTES).data if log else b""
    last_line = next((line for line in reversed(render(last).split("\n")) if line.strip()), "")
    return Progress(run_id=run.run_id, seconds=run.duration, output_size=size, last_line=last_line)


async def _end_started(call: Call, starting: "asyncio.Task[Run]") -> None:
    (done,), _ = await asyncio.wait({starting})
    if not done.cancelled() and done.exception() is None:
        run = done.result()
        await call.computer.shell(run.session_id).kill(None, run)


def _where(run_id: str, stream: Stream) -> str:
    told = ' and stream "stderr"' if stream is Stream.STDERR else ""
    return f'shell_read with shell_id "{run_id}"{told}'
