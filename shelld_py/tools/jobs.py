"""Tools for a command that is started, and then asked after: each runs in a shell of its own."""

import msgspec

from shelld_py.bash.command import input_bytes
from shelld_py.errors import NoRunningCommand
from shelld_py.models import RunStatus, Stream, Streams
from shelld_py.output.reading import Reading
from shelld_py.request_data import Command
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.tools.commands import longest_wait, needed_command, projection, shown, start_run, wait_for_run
from shelld_py.tools.data import (
    DEFAULT_PIECE,
    ShellById,
    ShellCloseResult,
    ShellRead,
    ShellReadResult,
    ShellStart,
    ShellStartResult,
    ShellStatusResult,
    ShellWait,
    ShellWaitResult,
    ShellWrite,
    ShellWriteResult,
)
from shelld_py.tools.texts import (
    counted,
    deadline_note,
    ending_parts,
    job_advice,
    numbers,
    output_text,
    seconds_text,
    with_footer,
)
from shelld_py.tools.tool import ToolCall, ToolResult


async def shell_start(arguments: ShellStart, call: ToolCall) -> ToolResult:
    """Start a command."""
    command = Command(
        text=needed_command(arguments.command),
        directory=arguments.directory,
        description=arguments.description,
        environment=arguments.environment,
        streams=Streams.MERGED,
        deadline=arguments.deadline,
    )
    run = await start_run(call, call.computer.shells.one_shot(command, None))
    if arguments.inline_wait:
        await run.wait(longest_wait(call, arguments.inline_wait), for_input=True)
    if run.running:
        call.computer.store.publish(run)
    reading = await _read(run, 0)
    result = ShellStartResult(shell_id=run.run_id, status=run.status, output=_text(reading), cursor=reading.next_cursor)
    return _about(run, result, result.output, reading.next_cursor, f"shell_id {run.run_id}")


async def shell_status(arguments: ShellById, call: ToolCall) -> ToolResult:
    """Tell how a command stands."""
    run = await call.computer.store.get(arguments.shell_id)
    known = run.result()
    result = projection(ShellStatusResult, known, shell_id=known.run_id)
    left = f"left in the background: pid {numbers(known.background_pids)}" if known.background_pids else ""
    return _about(run, result, "", None, f"{counted(known.cursor, 'byte')} of output", left)


async def shell_read(arguments: ShellRead, call: ToolCall) -> ToolResult:
    """Read output from a cursor on, without waiting."""
    run = await call.computer.store.get(arguments.shell_id)
    reading = await _read(run, arguments.from_cursor, stream=arguments.stream, limit=arguments.limit)
    result = ShellReadResult(
        shell_id=run.run_id,
        output=_text(reading),
        next_cursor=reading.next_cursor,
        status=run.result().status,
        eof=_at_end(run, arguments.stream, reading.next_cursor),
        dropped=reading.dropped,
    )
    return _about(run, result, result.output, result.next_cursor, *_reading_parts(result))


async def shell_wait(arguments: ShellWait, call: ToolCall) -> ToolResult:
    """Wait for the end, or for output past a cursor; a command that waits for input is not waited for."""
    run = await call.computer.store.get(arguments.shell_id)
    timeout = longest_wait(call, arguments.timeout)
    if arguments.from_cursor is None:
        if isinstance(run, LiveRun):
            await wait_for_run(call, run, timeout, started_here=False)
        known = await shown(call, run)
        output, stderr, next_cursor, dropped = known.stdout or "", known.stderr or "", known.cursor, 0
    else:
        reading = await _read(run, arguments.from_cursor, wait=timeout)
        known = run.result()
        output, stderr, next_cursor, dropped = _text(reading), "", reading.next_cursor, reading.dropped
    result = projection(
        ShellWaitResult,
        known,
        shell_id=run.run_id,
        output=output,
        stderr=stderr,
        next_cursor=next_cursor,
        eof=_at_end(run, Stream.STDOUT, next_cursor),
        dropped=dropped,
    )
    return _about(run, result, output_text(output, stderr), next_cursor, *_reading_parts(result))


async def shell_write(arguments: ShellWrite, call: ToolCall) -> ToolResult:
    """Type into a running command."""
    run = await call.computer.store.get(arguments.shell_id)
    if not isinstance(run, LiveRun) or not run.running:
        raise NoRunningCommand(f"The command of shell_id {run.run_id} has ended.", run_id=run.run_id)
    cursor = run.result().cursor
    text = input_bytes(arguments.text)
    accepted = await call.computer.shell(run.session_id).write_stdin(text, eof=arguments.eof, offset=None, run=run)
    result = ShellWriteResult(shell_id=run.run_id, accepted=accepted)
    return _about(run, result, "", cursor, f"{counted(len(text), 'byte')} typed")


async def shell_close(arguments: ShellById, call: ToolCall) -> ToolResult:
    """Kill a command if it runs, and forget its output."""
    run = await call.computer.store.get(arguments.shell_id)
    done = await call.computer.close_run(run)
    result = ShellCloseResult(shell_id=arguments.shell_id, killed=done.killed)
    said = "killed and closed" if done.killed else "closed; it had ended"
    return ToolResult(result=result, text=with_footer("", f"shell_id {arguments.shell_id} is {said}"))


async def _read(
    run: Run, cursor: int, *, stream: Stream = Stream.STDOUT, limit: int = DEFAULT_PIECE, wait: float = 0.0
) -> Reading:
    return await run.read(stream, cursor, limit=limit, wait=wait, for_input=True)


def _text(reading: Reading) -> str:
    assert isinstance(reading.data, str)
    return reading.data


def _at_end(run: Run, stream: Stream, cursor: int) -> bool:
    log = run.log(stream)
    return not run.running and (log is None or cursor >= log.size)


def _reading_parts(result: ShellReadResult) -> list[str]:
    dropped = f"{result.dropped} bytes before this were not kept" if result.dropped else ""
    more = result.status is not RunStatus.RUNNING and not result.eof
    return [dropped, f"more: shell_read from_cursor {result.next_cursor}" if more else ""]


def _about(run: Run, result: msgspec.Struct, body: str, cursor: int | None, *parts: str) -> ToolResult:
    """Return the outcome of a call about a command: `body`, and how the command stands."""
    known = run.result()
    running = known.status is RunStatus.RUNNING
    advice = job_advice(run, cursor, awaiting_input=known.awaiting_input) if running else None
    text = with_footer(body, *ending_parts(known), seconds_text(known.duration), deadline_note(run), *parts, advice)
    return ToolResult(result=result, text=text, run_id=run.run_id, running=running)
