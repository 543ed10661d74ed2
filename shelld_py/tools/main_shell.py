"""Tools for the main shell: the persistent bash that one agent works in."""

import asyncio
from typing import Final

from shelld_py.bash.command import input_bytes
from shelld_py.errors import InvalidRequest, NoRunningCommand, RunNotFound, ShellBusy, ShellUnrecoverable
from shelld_py.models import OutputFormat, RunResult, RunStatus, ShellState, Stream
from shelld_py.output.reading import Unfinished, read_output, start_of_last_line
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.shells.screens import settled
from shelld_py.shells.shell import Shell
from shelld_py.tools.commands import failed, longest_wait, needed_command, projection, shown, wait_for_run
from shelld_py.tools.data import DEFAULT_PIECE, BashArguments, BashInput, BashResult, BashScreen
from shelld_py.tools.texts import bash_advice, deadline_note, ending_parts, run_text, seconds_text, with_footer
from shelld_py.tools.tool import ToolCall, ToolResult

_WAIT: Final = 45.0
"""Seconds that a call waits unless it says otherwise: clients often give up after sixty."""
_ANSWER_WAIT: Final = 10.0
_KEYS_WAIT: Final = 1.0
"""A program that draws waits for the next key all the time, and is not always seen to: bash_screen shows it."""
_TOLD_OF_COMMAND: Final = 80
_RESTART: Final = 'bash {"restart": true} starts a fresh one'


async def bash(arguments: BashArguments, call: ToolCall) -> ToolResult:
    """Run a command in the main shell, which is started when it is first needed; or start a fresh one."""
    if arguments.command is None and not arguments.restart:
        raise InvalidRequest("bash needs the argument 'command', or 'restart': true.", argument="command")
    command = None if arguments.command is None else needed_command(arguments.command)
    shell = await _started(call, restart=arguments.restart)
    if command is None:
        return _restarted(shell)
    before = await _earlier_ending(call)
    deadline = None if arguments.deadline_ms is None else arguments.deadline_ms / 1000
    run = await _submit(call, shell, Command(text=command, deadline=deadline, changes=arguments.changes))
    call.view.run_id, call.view.cursor = run.run_id, 0
    await wait_for_run(call, run, _longest_wait(call, arguments.timeout_ms, _WAIT))
    cursor = _seen_after(run)
    result = await shown(call, run)
    if result.status is RunStatus.RUNNING:
        call.view.cursor = cursor
    else:
        call.view.run_id = None
    text = run_text(
        result,
        f"the shell has ended, {_RESTART}" if result.state is ShellState.UNRECOVERABLE else "",
        before,
        deadline_note(run),
        directory=result.working_directory,
        advice=bash_advice(awaiting_input=result.awaiting_input),
    )
    return _outcome(result, result.stdout or "", text, restarted=arguments.restart)


async def bash_input(arguments: BashInput, call: ToolCall) -> ToolResult:
    """Type into the command that runs in the main shell, wait, and give what it has written since it was last seen."""
    run = call.computer.main.run
    if run is None:
        return await _rest(call, typed=bool(arguments.text or arguments.keys))
    view = call.view
    if view.run_id != run.run_id:
        view.run_id, view.cursor = run.run_id, 0
    if arguments.text and arguments.keys:
        raise InvalidRequest("There are both text and keys: leave out one of them.", argument="keys")
    if arguments.text or arguments.keys:
        text = input_bytes(arguments.text)
        if arguments.keys:
            text = await call.computer.input_for(run, arguments.keys)
        await call.computer.main.write_stdin(text, eof=False, offset=None, run=run)
    default = _ANSWER_WAIT if arguments.text else _KEYS_WAIT if arguments.keys else _WAIT
    await wait_for_run(call, run, _longest_wait(call, arguments.timeout_ms, default), started_here=False)
    return await _new_output(call, run)


async def bash_screen(arguments: BashScreen, call: ToolCall) -> ToolResult:
    """Show the terminal of the main shell, once the program in it has done with drawing."""
    last = call.computer.main.last_run
    if last is None:
        raise RunNotFound("No command has been run in this shell: bash runs one.")
    run = await call.computer.store.get(last.run_id)
    await settled(run, None, longest_wait(call, arguments.wait_ms / 1000))
    screen = await call.computer.screens.shown(run)
    running = screen.status is RunStatus.RUNNING
    cursor = screen.cursor
    text = with_footer(
        "\n".join(screen.lines).rstrip("\n"),
        f"{screen.rows} rows, {screen.cols} columns",
        f"cursor in row {cursor.row + 1}, column {cursor.col + 1}{'' if cursor.visible else ', not shown'}",
        'bash_input {"keys": ["Down", "Enter"]} presses keys' if running else "the command has ended",
    )
    return ToolResult(result=screen, text=text, run_id=run.run_id, running=running, is_error=False)


async def _started(call: ToolCall, *, restart: bool) -> Shell:
    """Return the main shell, started if need be; with `restart`, a fresh one. A call that is cancelled ends neither."""
    return await asyncio.shield(call.computer.carry_through(_start(call, restart=restart)))


async def _start(call: ToolCall, *, restart: bool) -> Shell:
    computer = call.computer
    async with call.view.starting:
        if computer.main.state is ShellState.AVAILABLE:
            await computer.startup(StartupRequest())
        elif restart:
            await computer.recycle(computer.main)
    return computer.main


async def _submit(call: ToolCall, shell: Shell, command: Command) -> LiveRun:
    """Start a command. Where that cannot be, say what can be done."""
    try:
        async with call.computer.comparing(command, shell) as comparison:
            return shell.submit(command, comparison=comparison)
    except ShellBusy as error:
        run = shell.run
        if run is None:
            raise
        said = (
            run.command.text
            if len(run.command.text) <= _TOLD_OF_COMMAND
            else run.command.text[:_TOLD_OF_COMMAND] + "..."
        )
        detail = (
            f"The command was not run: {said!r} is still going on in this shell, for {seconds_text(run.duration)}. "
            f"{bash_advice(awaiting_input=run.awaiting_input)}."
        )
        raise ShellBusy(detail, **error.extra, run_id=run.run_id) from None
    except ShellUnrecoverable as error:
        raise ShellUnrecoverable(f"{error.detail} {_RESTART}.", **error.extra) from None


async def _earlier_ending(call: ToolCall) -> str:
    """Return what is to be told of a command that has ended since it was last seen; it counts as told then."""
    view = call.view
    run = await call.computer.store.find(view.run_id) if view.run_id else None
    if run is None or run.running:
        return ""
    result = run.result()
    read_on = f'its output since: shell_read {{"shell_id": "{run.run_id}", "from_cursor": {view.cursor}}}'
    return f"the command before has ended: {', '.join(ending_parts(result))}; {read_on}"


async def _rest(call: ToolCall, *, typed: bool) -> ToolResult:
    """Return the rest of a command that has ended since it was last seen."""
    view = call.view
    run = await call.computer.store.find(view.run_id) if view.run_id else None
    if run is None:
        raise NoRunningCommand(
            "No command is running in this shell: bash runs one.", state=call.computer.main.state.value
        )
    return await _new_output(call, run, "the command had ended, nothing was typed" if typed else "")


async def _new_output(call: ToolCall, run: Run, note: str = "") -> ToolResult:
    """Return what a command has written since it was last seen, and remember that it is seen now."""
    view, log = call.view, run.log(Stream.STDOUT)
    await run.measure()
    result = run.result()
    running = result.status is RunStatus.RUNNING
    output, more = "", False
    if log:
        unfinished = Unfinished.END
        if running:
            unfinished = Unfinished.TAKE if result.awaiting_input else Unfinished.SHOW
        reading = await asyncio.to_thread(read_output, log, view.cursor, DEFAULT_PIECE, OutputFormat.TEXT, unfinished)
        assert isinstance(reading.data, str)
        output, view.cursor = reading.data, reading.next_cursor
        more = not running and reading.next_cursor < log.size
    if not running and not more:
        view.run_id = None
    text = with_footer(
        output,
        *ending_parts(result),
        seconds_text(result.duration),
        result.working_directory,
        note,
        bash_advice(awaiting_input=result.awaiting_input) if running else None,
        'more output: bash_input {"text": ""}' if more else None,
    )
    return _outcome(result, output, text)


def _seen_after(run: Run) -> int:
    """Return the cursor from which somebody who is shown all so far reads on."""
    log = run.log(Stream.STDOUT)
    if log is None:
        return 0
    return log.size if run.awaiting_input else start_of_last_line(log)


def _longest_wait(call: ToolCall, milliseconds: int | None, default: float) -> float:
    if milliseconds is not None:
        return longest_wait(call, milliseconds / 1000)
    return longest_wait(call, min(default, call.computer.settings.timeout.command))


def _restarted(shell: Shell) -> ToolResult:
    result = BashResult(
        output="",
        exit_code=None,
        signal=None,
        status=None,
        awaiting_input=False,
        error=None,
        working_directory=shell.working_directory,
        duration=0.0,
        run_id=None,
        restarted=True,
    )
    return ToolResult(result=result, text=with_footer("", "a fresh shell is ready", shell.working_directory))


def _outcome(result: RunResult, output: str, text: str, *, restarted: bool = False) -> ToolResult:
    return ToolResult(
        result=projection(BashResult, result, output=output, restarted=restarted),
        text=text,
        run_id=result.run_id,
        running=result.status is RunStatus.RUNNING,
        is_error=failed(result),
    )
