"""Tools that run one command to its end, and sessions."""

import secrets
import shlex
from typing import Final

from shelld_py.models import Command, RunResult, RunStatus, StartupRequest, Streams
from shelld_py.shells.run import Run
from shelld_py.tools.models import (
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
from shelld_py.tools.running import failed, needed_command, patience, resolved_directory, run_and_show, start_run
from shelld_py.tools.texts import ending_parts, job_advice, run_text, session_advice, with_footer
from shelld_py.tools.tool import Call, Outcome

_LONGEST_ARGUMENT: Final = 96 * 1024
"""Bytes of one argument of a program that are safe everywhere: the kernel takes 128 KiB (execve(2))."""


async def run_shell_command(arguments: RunShellCommand, call: Call) -> Outcome:
    """Run a command as `bash -c` does, in a fresh shell."""
    text = needed_command(arguments.command)
    directory = resolved_directory(call, arguments.directory)
    command = Command(
        text=as_bash_c(call.computer.settings.shell.command, text),
        directory=directory,
        description=arguments.description,
        streams=Streams.SEPARATE,
    )
    run = await start_run(call, call.computer.shells.one_shot(command, None))
    result = await run_and_show(call, run, patience(call))
    advice = job_advice(run.run_id, None, awaiting_input=result.awaiting_input)
    running = result.status is RunStatus.RUNNING
    return Outcome(
        result=RunShellCommandResult(
            command=arguments.command,
            directory=directory,
            stdout=result.stdout or "",
            stderr=result.stderr or "",
            error=f"The command is {ending_parts(result)[0]}: {advice}." if running else result.error,
            exit_code=result.exit_code,
            signal=result.signal,
            background_pids=result.background_pids,
        ),
        text=run_text(result, directory=directory, advice=advice),
        run_id=run.run_id,
        running=running,
        is_error=failed(result),
    )


async def open_session(_: NoArguments, call: Call) -> Outcome:
    """Open a session."""
    shell = await call.computer.shells.open(StartupRequest())
    result = SessionResult(session_id=shell.session_id)
    return Outcome(result=result, text=with_footer("", f"session {shell.session_id} is open"))


async def close_session(arguments: CloseSession, call: Call) -> Outcome:
    """Close a session."""
    await call.computer.shells.close(arguments.session_id, "The session was closed.")
    result = SessionResult(session_id=arguments.session_id)
    return Outcome(result=result, text=with_footer("", f"session {arguments.session_id} is closed"))


async def execute_command(arguments: ExecuteCommand, call: Call) -> Outcome:
    """Run a command in a session, or in a shell of its own."""
    command = Command(text=needed_command(arguments.command), streams=Streams.SEPARATE)
    if arguments.session_id is None:
        run = await start_run(call, call.computer.shells.one_shot(command, None))
    else:
        run = call.computer.shell(arguments.session_id).submit(command)
    shown = await run_and_show(call, run, patience(call))
    if arguments.session_id is None:
        advice = job_advice(run.run_id, None, awaiting_input=shown.awaiting_input)
    else:
        advice = session_advice(run.run_id)
    result = ExecuteCommandResult(
        stdout=shown.stdout or "",
        stderr=shown.stderr or "",
        exit_code=shown.exit_code,
        original_stdout_size=shown.original_stdout_size,
        original_stderr_size=shown.original_stderr_size,
    )
    return _outcome(result, shown, run, advice)


async def shell_exec(arguments: ShellExec, call: Call) -> Outcome:
    """Run a command in a shell of its own."""
    command = Command(
        text=needed_command(arguments.command),
        directory=arguments.directory,
        description=arguments.description,
        stdin=arguments.stdin,
        environment=arguments.environment,
        streams=arguments.streams,
    )
    run = await start_run(call, call.computer.shells.one_shot(command, None))
    result = await run_and_show(call, run, patience(call, arguments.timeout), arguments.max_output)
    return _outcome(result, result, run, job_advice(run.run_id, None, awaiting_input=result.awaiting_input))


async def shell_metadata(_: NoArguments, call: Call) -> Outcome:
    """Tell the machine and its shell."""
    known = await call.computer.metadata()
    result = ShellMetadataResult(
        operating_system=known.operating_system,
        shell=known.shell,
        workspace_directory=known.workspace_directory,
    )
    return Outcome(result=result, text=f"{result.operating_system}\n{result.shell}\n{result.workspace_directory}\n")


def as_bash_c(shell: str, command: str) -> str:
    """Return a command line that runs `command` as `bash -c` does: not interactive, `exit` and `$$` its own.

    `shell` is the command line of the shell. A command that is too long for an argument is given on a
    descriptor, which is closed before it runs.
    """
    program = shlex.quote(shlex.split(shell)[0])
    if len(command.encode("utf-8", "surrogateescape")) <= _LONGEST_ARGUMENT:
        return f"{program} -c {shlex.quote(command)}"
    mark = f"END_{secrets.token_hex(16)}"
    return f"{program} -c 'eval \"$(</dev/fd/9)\" 9<&-' 9<<'{mark}'\n{command}\n{mark}\n"


def _outcome(result: RunResult | ExecuteCommandResult, shown: RunResult, run: Run, advice: str) -> Outcome:
    return Outcome(
        result=result,
        text=run_text(shown, directory=shown.directory or shown.working_directory, advice=advice),
        run_id=run.run_id,
        running=shown.status is RunStatus.RUNNING,
        is_error=failed(shown),
    )
