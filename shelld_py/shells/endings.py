"""How a run ended, judged by what was done and seen. Pure functions: no processes, no I/O.

An exit code alone proves nothing: 137 is what a killed command leaves, and what `exit 137` leaves. That a
command died of a signal is believed when the shell was thrown back to its prompt (only SIGINT does that),
when the signal was sent from here or typed as a key, or when bash printed its notice (`Killed`,
`Segmentation fault`) as the last thing of the output.
"""

import re
import signal
from collections.abc import Set
from functools import cache
from typing import Final

from msgspec.structs import replace

from shelld_py.bash.process import Outcome
from shelld_py.bash.root import Death
from shelld_py.config import OnExit
from shelld_py.models import Cause, RunStatus
from shelld_py.shells.run import Ending

StopReason = tuple[RunStatus, Cause, str]
"""What a run was ended by on purpose: status, cause, error."""

_SIGNALLED: Final = 128
_UNEXPLAINED: Final = frozenset({Cause.SIGNAL, Cause.SHELL_CRASHED, Cause.SHELL_REPLACED})
_ENDING: Final = frozenset({
    signal.SIGHUP, signal.SIGILL, signal.SIGTRAP, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGUSR1,
    signal.SIGSEGV, signal.SIGUSR2, signal.SIGPIPE, signal.SIGALRM, signal.SIGXCPU, signal.SIGXFSZ, signal.SIGVTALRM,
    signal.SIGSYS,
})  # fmt: skip
"""Those that end an interactive bash, by way of its EXIT trap (terminating_signals in bash's sig.c)."""
_LIMITS: Final = frozenset({Cause.LIMIT, Cause.OOM, Cause.LIFETIME})


def judge(
    outcome: Outcome, *, stop: StopReason | None, signals_sent: Set[int], last_output: bytes, shell_name: str
) -> Ending:
    """Return how a run ended: `outcome` is what bash said, `stop` why it was stopped, if it was."""
    if outcome.death:
        return _broken(outcome.death, stop, shell_name, outcome.damage)
    died_of = outcome.died_of or _signal_of(outcome, signals_sent, last_output)
    if stop:
        status, cause, error = stop
        return Ending(status, cause, outcome.status, died_of, error, outcome.restored)
    if outcome.damage:
        return Ending(RunStatus.COMPLETED, Cause.UNKNOWN, error=outcome.damage)
    if died_of in signals_sent:
        error = f"Killed by request with {_name(died_of)}."
        code = outcome.status if outcome.handled is None else _SIGNALLED + (died_of or 0)
        return Ending(RunStatus.KILLED, Cause.KILLED, code, died_of, error, outcome.restored)
    cause = Cause.EXIT if died_of is None else Cause.SIGNAL
    return Ending(RunStatus.COMPLETED, cause, outcome.status, died_of, restored=outcome.restored)


def after_kernel_kills(ending: Ending, kills: int, *, certain: bool) -> Ending:
    """Return `ending` with what is due to the kernel having killed `kills` processes for want of memory.

    `certain` says that they were the shell's own. Otherwise they may have been others of the same container, and
    are believed to be this run's where it died of SIGKILL, which nobody here has sent.
    """
    died_of_it = ending.signal == signal.SIGKILL and ending.cause in _UNEXPLAINED
    if not kills or ending.status is RunStatus.KILLED or not (certain or died_of_it):
        return ending
    processes = "a process" if kills == 1 else f"{kills} processes"
    error = f"The kernel killed {processes}: the memory of the machine or container was exhausted."
    if ending.error and not died_of_it:
        error = f"{ending.error} {error}"
    return replace(ending, cause=Cause.OOM if died_of_it else ending.cause, error=error)


def with_message(ending: Ending, message: str) -> Ending:
    """Return `ending` with the operator's own sentence at the end of its error, where a limit was its cause."""
    if not message or ending.cause not in _LIMITS or not ending.error:
        return ending
    return replace(ending, error=f"{ending.error} {message}")


def _broken(death: Death, stop: StopReason | None, shell_name: str, damage: str | None) -> Ending:
    """The shell has ended under the run."""
    code = death.exit_code if death.signal is None else _SIGNALLED + death.signal
    if stop:
        status, cause, error = stop
        return Ending(status, cause, code, death.signal, error)
    if damage:
        return Ending(RunStatus.LOST, Cause.UNKNOWN, None, None, f"{damage} The shell was killed.")
    if death.reported is not None:
        return Ending(
            RunStatus.LOST, Cause.SHELL_EXITED, death.reported, None,
            f"The command ended the shell with exit status {death.reported} (shell.on_exit is {OnExit.END}).",
        )  # fmt: skip
    if death.name != shell_name:
        how = f"exit status {code}" if death.signal is None else _name(death.signal)
        return Ending(
            RunStatus.LOST, Cause.SHELL_REPLACED, code, death.signal,
            f"The command replaced the shell with {death.name} (exec), which has ended: {how}.",
        )  # fmt: skip
    if death.signal is not None:
        return Ending(
            RunStatus.LOST, Cause.SHELL_CRASHED, code, death.signal, f"The shell died of {_name(death.signal)}."
        )
    return Ending(RunStatus.LOST, Cause.SHELL_EXITED, code, None, f"The command ended the shell: exit status {code}.")


def _signal_of(outcome: Outcome, signals_sent: Set[int], last_output: bytes) -> int | None:
    """Return the signal that the command died of, where there is more to say so than the exit code."""
    if outcome.handled is not None:  # else bash has exited by itself: `set -e`, an expansion that failed
        return next((number for number in signals_sent & _ENDING if _name(number) not in outcome.handled), None)
    if outcome.status is None or outcome.status <= _SIGNALLED:
        return None
    number = outcome.status - _SIGNALLED
    text = signal.strsignal(number) if number in signal.valid_signals() else None
    if not text or outcome.restored:
        return None
    if outcome.interrupted or number in signals_sent or _notice(text).search(last_output):
        return number
    return None


def _name(number: int | None) -> str:
    try:
        return signal.Signals(number or 0).name
    except ValueError:
        return f"signal {number}"


@cache
def _notice(text: str) -> re.Pattern[bytes]:
    """Return what finds bash's word that a command has died of the signal that is described as `text`."""
    return re.compile(
        rb"(?:\A|\n)(?:[^\n]*: line \d+: +\d+ )?" + re.escape(text.encode()) + rb"(?: \(core dumped\))?(?: [^\n]*)?\n\Z"
    )
