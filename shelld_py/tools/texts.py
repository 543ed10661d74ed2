"""What a model reads: the output as it is, and one line below it that says how it ended and what to do next.

Pure functions.
"""

import json
import signal
from collections.abc import Iterable
from typing import Final

from shelld_py.models import Cause, RunResult, RunStatus, Streams
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run
from shelld_py.units import format_duration

_MOST_LINES: Final = 50
"""Changes of files that a model reads of; a program has them all."""
_HUNDREDTHS: Final = 10.0
"""Seconds up to which a duration is told in hundredths."""


def with_footer(body: str, *parts: str | None) -> str:
    """Return `body` with a last line of `parts` in brackets; those that are empty are left out."""
    footer = f"[{', '.join(part for part in parts if part)}]"
    if not body:
        return footer
    return f"{body}{'' if body.endswith(chr(10)) else chr(10)}{footer}"


def output_text(stdout: str, stderr: str) -> str:
    """Return the output of a command whose streams are apart: standard error below a line that names it."""
    if not stderr:
        return stdout
    separator = "" if not stdout or stdout.endswith("\n") else "\n"
    return f"{stdout}{separator}[stderr]\n{stderr}"


def run_text(result: RunResult, *notes: str, directory: str | None, advice: str = "") -> str:
    """Return the text for a run with its output; `advice` says what to do as long as it is going on."""
    return with_footer(
        _with_changes(output_text(result.stdout or "", result.stderr or ""), result),
        *ending_parts(result),
        seconds_text(result.duration),
        directory,
        f"left in the background: pid {numbers(result.background_pids)}" if result.background_pids else None,
        f"changes of files: {result.changes_error.rstrip('.')}" if result.changes_error else None,
        *notes,
        advice if result.status is RunStatus.RUNNING else None,
    )


def _with_changes(output: str, result: RunResult) -> str:
    """Return an output with what the run did to files below it: a line that says so, and one for each."""
    if not isinstance(result.changes, tuple):
        return output
    lines = [f"{change.kind.value} {change.path}" for change in result.changes[:_MOST_LINES]]
    more = len(result.changes) - len(lines)
    if more or result.changes_truncated:
        lines.append(f"... and {more}{' or more' if result.changes_truncated else ''} others")
    separator = "" if not output or output.endswith("\n") else "\n"
    return "\n".join(
        [f"{output}{separator}[files changed]" if lines else f"{output}{separator}[no file changed]", *lines, ""]
    )


def ending_parts(result: RunResult) -> list[str]:
    """Return how a run ended, or that it has not; then what else there is to know of it."""
    notes = [warning.rstrip(".") for warning in result.warnings or ()]
    if result.typed_by_person is True:
        notes.append("a person has typed into this command's terminal, or sent it a signal")
    if result.status is RunStatus.RUNNING:
        return ["waiting for input" if result.awaiting_input else "still running", *notes]
    if result.cause is Cause.DEADLINE and result.error:
        return [result.error.rstrip(".").lower(), *notes]
    parts = [f"exit code {result.exit_code}" if result.exit_code is not None else "no exit code"]
    if result.signal is not None:
        parts.append(f"signal {signal_name(result.signal)}")
    if result.status is not RunStatus.COMPLETED:
        parts.append(result.status.value)
    if result.error:
        parts.append(result.error.rstrip("."))
    return parts + notes


def deadline_note(run: Run) -> str:
    """Return when a command that goes on will be killed, if it will."""
    if not isinstance(run, LiveRun) or not run.running or run.command.deadline is None:
        return ""
    return f"killed in {seconds_text(max(0.0, run.command.deadline - run.duration))} at its deadline"


def job_advice(run: Run, cursor: int | None = None, *, awaiting_input: bool = False) -> str:
    """Return how to go on with a command that runs in a shell of its own; some have no input that could be typed."""
    call = json.dumps({"shell_id": run.run_id} if cursor is None else {"shell_id": run.run_id, "from_cursor": cursor})
    if awaiting_input:
        return f"shell_write answers it, shell_wait {call} reads on, shell_close ends it"
    typed = isinstance(run, LiveRun) and (run.command.streams is not Streams.PIPES or run.command.stdin_open)
    types = "shell_write types into it, " if typed else ""
    return f"shell_wait {call} waits on, {types}shell_close ends it"


def session_advice(shell_id: str) -> str:
    """Return how to go on with a command that runs in a session."""
    call = json.dumps({"shell_id": shell_id})
    return f"shell_wait {call} waits on, shell_write types into it; the session is busy until it ends"


def bash_advice(*, awaiting_input: bool) -> str:
    """Return how to go on with a command that runs in the main shell."""
    interrupt = r'{"text": "\u0003"} interrupts it'
    if awaiting_input:
        return rf'bash_input {{"text": "ANSWER\n"}} answers it, {interrupt}'
    return f'bash_input {{"text": ""}} waits on, {interrupt}, bash {{"restart": true}} starts a fresh shell'


def seconds_text(seconds: float) -> str:
    """Return a duration as a footer tells it."""
    digits = 3 if seconds < 1 else 2 if seconds < _HUNDREDTHS else 0
    return format_duration(round(seconds, digits))


def signal_name(number: int) -> str:
    """Return the number of a signal with its name, where it has one."""
    try:
        return f"{number} ({signal.Signals(number).name})"
    except ValueError:
        return str(number)


def numbers(values: Iterable[int]) -> str:
    """Return numbers in a row."""
    return " ".join(map(str, values))


def counted(number: int, one: str, many: str | None = None) -> str:
    """Return a number with what it counts; `many` is the plural, where an s does not make it."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def numbered_lines(text: str, first: int) -> str:
    """Return `text` with a number before each line, as `cat -n` writes it; the first is `first`."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    return "".join(f"{number:6}\t{line}\n" for number, line in enumerate(lines, first))
