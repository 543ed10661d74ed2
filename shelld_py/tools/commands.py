"""Tools that run one command, and sessions; and what all tools do with a command: start it, wait for it, show it.

A call that is cancelled ends its command where its caller wants that; otherwise a command goes on whatever happens to
the call. Waiting never ends a command.
"""

import asyncio
import posixpath
from collections.abc import Coroutine
from typing import Any, Final, TypeVar

import msgspec

from shelld_py.bash.command import check_command
from shelld_py.errors import InvalidRequest
from shelld_py.models import OutputFormat, RunResult, RunStatus, Stream, Streams
from shelld_py.output.excerpt import OutputChoice, with_output
from shelld_py.output.text import INLINE_DRAWN, is_quick, render
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.tools.data import (
    CloseSession,
    ExecuteCommand,
    ExecuteCommandResult,
    NoArguments,
    RunShellCommand,
    RunShellCommandResult,
    SessionResult,
    ShellExec,
    ShellMetadataResult,
)
from shelld_py.tools.texts import deadline_note, ending_parts, job_advice, run_text, session_advice, with_footer
from shelld_py.tools.tool import Progress, ToolCall, ToolResult

_Struct = TypeVar("_Struct", bound=msgspec.Struct)

_LAST_BYTES: Final = 4096


async def run_shell_command(arguments: RunShellCommand, call: ToolCall) -> ToolResult:
    """Run a command by `bash -c`, with pipes and no input."""
    directory = resolved_directory(call, arguments.directory)
    command = Command(
        text=needed_command(arguments.command),
        directory=directory,
        description=arguments.description,
        streams=Streams.PIPES,
    )
    run = await start_run(call, call.computer.shells.one_shot(command, None))
    result = await run_and_show(call, run, longest_wait(call))
    advice = job_advice(run)
    running = result.status is RunStatus.RUNNING
    return ToolResult(
        result=projection(
            RunShellCommandResult,
            result,
            command=arguments.command,
            directory=directory,
            error=f"The command is {ending_parts(result)[0]}: {advice}." if running else result.error,
        ),
        text=run_text(result, directory=directory, advice=advice),
        run_id=run.run_id,
        running=running,
        is_error=failed(result),
    )


async def open_session(_: NoArguments, call: ToolCall) -> ToolResult:
    """Open a session."""
    shell = await call.computer.shells.open(StartupRequest())
    result = SessionResult(session_id=shell.session_id)
    return ToolResult(result=result, text=with_footer("", f"session {shell.session_id} is open"))


async def close_session(arguments: CloseSession, call: ToolCall) -> ToolResult:
    """Close a session."""
    await call.computer.shells.close(arguments.session_id, "The session was closed.")
    result = SessionResult(session_id=arguments.session_id)
    return ToolResult(result=result, text=with_footer("", f"session {arguments.session_id} is closed"))


async def execute_command(arguments: ExecuteCommand, call: ToolCall) -> ToolResult:
    """Run a command in a session, or in a shell of its own."""
    command = Command(text=needed_command(arguments.command), streams=Streams.SEPARATE)
    if arguments.session_id is None:
        run = await start_run(call, call.computer.shells.one_shot(command, None))
    else:
        run = call.computer.shell(arguments.session_id).submit(command)
    shown = await run_and_show(call, run, longest_wait(call))
    if arguments.session_id is None:
        advice = job_advice(run, awaiting_input=shown.awaiting_input)
    else:
        advice = session_advice(run.run_id)
    return _about(projection(ExecuteCommandResult, shown), shown, run, advice)


async def shell_exec(arguments: ShellExec, call: ToolCall) -> ToolResult:
    """Run a command in a shell of its own."""
    command = Command(
        text=needed_command(arguments.command),
        directory=arguments.directory,
        description=arguments.description,
        stdin=arguments.stdin,
        environment=arguments.environment,
        streams=arguments.streams,
        deadline=arguments.deadline,
        changes=arguments.changes,
    )
    run = await start_run(call, _started_alone(call, command))
    result = await run_and_show(call, run, longest_wait(call, arguments.timeout), arguments.max_output)
    return _about(result, result, run, job_advice(run, awaiting_input=result.awaiting_input))


async def _started_alone(call: ToolCall, command: Command) -> LiveRun:
    async with call.computer.comparing(command) as comparison:
        return await call.computer.shells.one_shot(command, None, comparison=comparison)


async def shell_metadata(_: NoArguments, call: ToolCall) -> ToolResult:
    """Tell the machine and its shell."""
    known = await call.computer.metadata()
    result = ShellMetadataResult(
        operating_system=known.operating_system,
        shell=known.shell,
        workspace_directory=known.workspace_directory,
    )
    return ToolResult(result=result, text=f"{result.operating_system}\n{result.shell}\n{result.workspace_directory}\n")


def _about(result: msgspec.Struct, shown: RunResult, run: LiveRun, advice: str) -> ToolResult:
    """Return what a call about `run` gives: `result` for programs, and for the model what is `shown` of it."""
    return ToolResult(
        result=result,
        text=run_text(shown, deadline_note(run), directory=shown.directory or shown.working_directory, advice=advice),
        run_id=run.run_id,
        running=shown.status is RunStatus.RUNNING,
        is_error=failed(shown),
    )


def needed_command(text: str | None) -> str:
    """Return a command. Raises `InvalidRequest` for one that is empty, or that bash cannot be given."""
    if text is None or not text.strip():
        raise InvalidRequest("The argument 'command' is empty: it must be a command line.", argument="command")
    check_command(text)
    return text


def resolved_directory(call: ToolCall, directory: str | None) -> str:
    """Return where a command in a fresh shell runs."""
    base = call.computer.directory
    return posixpath.normpath(posixpath.join(base, directory)) if directory else base


def longest_wait(call: ToolCall, wanted: float | None = None) -> float:
    """Return the seconds that a call waits for a command, which wants to wait `wanted` seconds."""
    timeouts = call.computer.settings.timeout
    most = timeouts.command_maximum if call.context.longest_wait is None else call.context.longest_wait
    return min(timeouts.command if wanted is None else wanted, most, timeouts.command_maximum)


async def start_run(call: ToolCall, starting: Coroutine[Any, Any, LiveRun]) -> LiveRun:
    """Start a run; a call that is cancelled meanwhile leaves none behind where it shall not."""
    task = call.computer.carry_through(starting)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        if call.context.interrupt_on_cancel:
            call.computer.carry_through(_end_started(call, task))
        raise


async def wait_for_run(call: ToolCall, run: LiveRun, timeout: float, *, started_here: bool = True) -> None:
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


async def shown(call: ToolCall, run: Run, maximum: int | None = None) -> RunResult:
    """Return the result of a run as it stands, with its output."""
    if isinstance(run, LiveRun) and run.running:
        call.computer.store.publish(run)
    choice = OutputChoice.of(OutputFormat.TEXT, maximum, call.computer.settings.output)
    await run.measure()
    return await with_output(run.result(), run.logs, choice, _where)


async def run_and_show(call: ToolCall, run: LiveRun, timeout: float, maximum: int | None = None) -> RunResult:
    """Wait for `run`, and return its result with its output."""
    await wait_for_run(call, run, timeout)
    return await shown(call, run, maximum)


def projection(kind: type[_Struct], known: RunResult, **own: object) -> _Struct:
    """Return a result of a tool: its `own` members, and those that a run result has of the same name."""
    shared = {name: getattr(known, name) for name in kind.__struct_fields__ if name not in own}
    return kind(**shared, **own)


def failed(result: RunResult) -> bool:
    """Return whether a command was ended before it was done. An exit code says nothing of that."""
    return result.status in (RunStatus.KILLED, RunStatus.LOST)


async def _wait_and_tell(call: ToolCall, run: LiveRun, timeout: float) -> None:
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


async def _wait_for_progress(call: ToolCall, run: LiveRun, told: int, left: float) -> None:
    """Return when there is more than `told` bytes of output to tell of, when it is time to, or all is over.

    That is when `run` has ended or waits for input, or after `left` seconds.
    """
    interval = min(left, call.context.progress_interval)
    pace = min(interval, call.context.progress_pace)
    await run.wait(pace, for_input=True)
    await run.until(lambda: not run.running or run.awaiting_input or _output_size(run) != told, interval - pace)


def _output_size(run: LiveRun) -> int:
    return sum(log.size for log in run.logs.values())


def _progress(run: LiveRun) -> Progress:
    log = run.log(Stream.STDOUT)
    size = log.size if log else 0
    last = log.read(max(0, size - _LAST_BYTES), _LAST_BYTES).data if log else b""
    last = last if is_quick(last) else last[-INLINE_DRAWN:]
    last_line = next((line for line in reversed(render(last).split("\n")) if line.strip()), "")
    return Progress(run_id=run.run_id, seconds=run.duration, output_size=size, last_line=last_line)


async def _end_started(call: ToolCall, starting: "asyncio.Task[LiveRun]") -> None:
    (done,), _ = await asyncio.wait({starting})
    if not done.cancelled() and done.exception() is None:
        run = done.result()
        await call.computer.shell(run.session_id).kill(None, run)


def _where(run_id: str, stream: Stream) -> str:
    told = ' and stream "stderr"' if stream is Stream.STDERR else ""
    return f'shell_read with shell_id "{run_id}"{told}'
