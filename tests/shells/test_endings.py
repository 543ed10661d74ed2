"""How a run ended, judged by what was done and seen and not by an exit code alone."""

import signal

import pytest

from shelld_py.bash.process import Outcome
from shelld_py.bash.root import Death
from shelld_py.models import Cause, RunStatus
from shelld_py.shells.endings import after_kernel_kills, judge
from shelld_py.shells.run import Ending

COMPLETED, KILLED, LOST = RunStatus.COMPLETED, RunStatus.KILLED, RunStatus.LOST
STOP = (RunStatus.KILLED, Cause.LIFETIME, "It took too long.")
DAMAGE = "The command left bash unable to report."


def ending(outcome: Outcome, *, sent: set[int] = frozenset(), output: bytes = b"", stop: object = None) -> Ending:  # type: ignore[assignment]
    """Return how the run ended, in a shell whose program is called bash."""
    return judge(outcome, stop=stop, signals_sent=sent, last_output=output, shell_name="bash")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("outcome", "sent", "output", "expected"),
    [
        pytest.param(Outcome(0), set(), b"", Ending(COMPLETED, Cause.EXIT, 0), id="success"),
        pytest.param(Outcome(3), set(), b"", Ending(COMPLETED, Cause.EXIT, 3), id="failure"),
        pytest.param(Outcome(127), set(), b"", Ending(COMPLETED, Cause.EXIT, 127), id="not found"),
        pytest.param(Outcome(137), set(), b"", Ending(COMPLETED, Cause.EXIT, 137), id="exit 137"),
        pytest.param(
            Outcome(0, restored=True, handled=frozenset()),
            {10},
            b"",
            Ending(KILLED, Cause.KILLED, 138, 10, "Killed by request with SIGUSR1.", True),
            id="bash died of a signal",
        ),
        pytest.param(
            Outcome(3, restored=True, handled=frozenset({"SIGUSR1"})),
            {10},
            b"",
            Ending(COMPLETED, Cause.EXIT, 3, restored=True),
            id="a trap took the signal",
        ),
        pytest.param(
            Outcome(3, restored=True), {10}, b"", Ending(COMPLETED, Cause.EXIT, 3, restored=True), id="exit after it"
        ),
        pytest.param(
            Outcome(1, restored=True, handled=frozenset()),
            {2},
            b"",
            Ending(COMPLETED, Cause.EXIT, 1, restored=True),
            id="errexit",
        ),
        pytest.param(Outcome(137), set(), b"Killed", Ending(COMPLETED, Cause.EXIT, 137), id="a notice has an end"),
        pytest.param(
            Outcome(137), set(), b"Killed\nmore\n", Ending(COMPLETED, Cause.EXIT, 137), id="not the last line"
        ),
        pytest.param(Outcome(137), set(), b"was Killed\n", Ending(COMPLETED, Cause.EXIT, 137), id="a word in a line"),
        pytest.param(
            Outcome(139), set(), b"Killed\n", Ending(COMPLETED, Cause.EXIT, 139), id="another signal's notice"
        ),
        pytest.param(Outcome(137), set(), b"out\nKilled\n", Ending(COMPLETED, Cause.SIGNAL, 137, 9), id="notice"),
        pytest.param(
            Outcome(137),
            set(),
            b"Killed                  sleep 9\n",
            Ending(COMPLETED, Cause.SIGNAL, 137, 9),
            id="notice with command",
        ),
        pytest.param(
            Outcome(137),
            set(),
            b"x: line 3:   77 Killed    sleep 9\n",
            Ending(COMPLETED, Cause.SIGNAL, 137, 9),
            id="notice of a script",
        ),
        pytest.param(
            Outcome(139),
            set(),
            b"Segmentation fault (core dumped)\n",
            Ending(COMPLETED, Cause.SIGNAL, 139, 11),
            id="core",
        ),
        pytest.param(Outcome(134), set(), b"Aborted\n", Ending(COMPLETED, Cause.SIGNAL, 134, 6), id="abort"),
        pytest.param(
            Outcome(143), set(), b"Terminated\n", Ending(COMPLETED, Cause.SIGNAL, 143, 15), id="kill from within"
        ),
        pytest.param(
            Outcome(130, interrupted=True),
            set(),
            b"",
            Ending(COMPLETED, Cause.SIGNAL, 130, 2),
            id="kill -INT from within",
        ),
        pytest.param(Outcome(130), set(), b"", Ending(COMPLETED, Cause.EXIT, 130), id="exit 130"),
        pytest.param(
            Outcome(130, interrupted=True),
            {2},
            b"",
            Ending(KILLED, Cause.KILLED, 130, 2, "Killed by request with SIGINT."),
            id="SIGINT by request",
        ),
        pytest.param(
            Outcome(143),
            {15},
            b"",
            Ending(KILLED, Cause.KILLED, 143, 15, "Killed by request with SIGTERM."),
            id="SIGTERM by request",
        ),
        pytest.param(Outcome(0), {15}, b"", Ending(COMPLETED, Cause.EXIT, 0), id="a signal that was survived"),
        pytest.param(Outcome(137), {15}, b"", Ending(COMPLETED, Cause.EXIT, 137), id="another signal was sent"),
        pytest.param(
            Outcome(137), {15}, b"Killed\n", Ending(COMPLETED, Cause.SIGNAL, 137, 9), id="another signal killed it"
        ),
        pytest.param(
            Outcome(4, restored=True),
            set(),
            b"",
            Ending(COMPLETED, Cause.EXIT, 4, restored=True),
            id="exit 4, restored",
        ),
        pytest.param(
            Outcome(137, restored=True),
            set(),
            b"Killed\n",
            Ending(COMPLETED, Cause.EXIT, 137, restored=True),
            id="exit 137, restored",
        ),
        pytest.param(Outcome(255), set(), b"", Ending(COMPLETED, Cause.EXIT, 255), id="no such signal"),
        pytest.param(
            Outcome(None, damage=DAMAGE), set(), b"", Ending(COMPLETED, Cause.UNKNOWN, error=DAMAGE), id="damage"
        ),
    ],
)
def test_endings_of_a_command(outcome: Outcome, sent: set[int], output: bytes, expected: Ending) -> None:
    """A signal is believed where there is more to say so than the exit code."""
    assert ending(outcome, sent=sent, output=output) == expected


@pytest.mark.parametrize(
    ("death", "expected"),
    [
        pytest.param(
            Death(3, None, "bash", 3),
            (
                LOST,
                Cause.SHELL_EXITED,
                3,
                None,
                "The command ended the shell with exit status 3 (shell.on_exit is end).",
            ),
            id="exit, on_exit = end",
        ),
        pytest.param(
            Death(3, None, "bash", None),
            (LOST, Cause.SHELL_EXITED, 3, None, "The command ended the shell: exit status 3."),
            id="unreported exit",
        ),
        pytest.param(
            Death(None, 9, "bash", None), (LOST, Cause.SHELL_CRASHED, 137, 9, "The shell died of SIGKILL."), id="killed"
        ),
        pytest.param(
            Death(None, 11, "bash", None),
            (LOST, Cause.SHELL_CRASHED, 139, 11, "The shell died of SIGSEGV."),
            id="crash",
        ),
        pytest.param(
            Death(0, None, "sleep", None),
            (
                LOST,
                Cause.SHELL_REPLACED,
                0,
                None,
                "The command replaced the shell with sleep (exec), which has ended: exit status 0.",
            ),
            id="exec",
        ),
        pytest.param(
            Death(None, 15, "sleep", None),
            (
                LOST,
                Cause.SHELL_REPLACED,
                143,
                15,
                "The command replaced the shell with sleep (exec), which has ended: SIGTERM.",
            ),
            id="exec, killed",
        ),
        pytest.param(
            Death(None, 40, "bash", None),
            (LOST, Cause.SHELL_CRASHED, 168, 40, "The shell died of signal 40."),
            id="real-time signal",
        ),
    ],
)
def test_endings_of_the_shell(death: Death, expected: tuple[RunStatus, Cause, int, int | None, str]) -> None:
    """A run whose shell ended under it is lost, and the error says how."""
    assert ending(Outcome(None, death=death)) == Ending(*expected)


@pytest.mark.parametrize(
    ("outcome", "code", "number", "restored"),
    [
        (Outcome(130, interrupted=True), 130, 2, False),
        (Outcome(0), 0, None, False),
        (Outcome(5, restored=True), 5, None, True),
        (Outcome(None, death=Death(None, 9, "bash", None)), 137, 9, False),
        (Outcome(None, death=Death(1, None, "sleep", None)), 1, None, False),
        (Outcome(None, damage=DAMAGE), None, None, False),
    ],
)
def test_a_run_that_was_stopped_on_purpose(
    outcome: Outcome, code: int | None, number: int | None, restored: bool
) -> None:
    """Whatever the stopping led to, the run ended for the reason that it was stopped for."""
    assert ending(outcome, sent={signal.SIGINT}, stop=STOP) == Ending(*STOP[:2], code, number, STOP[2], restored)


@pytest.mark.parametrize("number", sorted(signal.valid_signals()))
def test_every_signal_is_recognised_by_its_notice(number: int) -> None:
    """bash prints strsignal(3)'s text; a signal without one is recognised when it was sent from here."""
    text = signal.strsignal(number)
    assert text
    found = ending(Outcome(128 + number), output=f"{text}\n".encode())
    assert (found.cause, found.signal) == (Cause.SIGNAL, number)


@pytest.mark.parametrize(
    ("before", "certain", "cause"),
    [
        (Ending(COMPLETED, Cause.SIGNAL, 137, 9), False, Cause.OOM),
        (Ending(LOST, Cause.SHELL_CRASHED, 137, 9, "The shell died of SIGKILL."), False, Cause.OOM),
        (Ending(COMPLETED, Cause.EXIT, 2), True, Cause.EXIT),
        (Ending(COMPLETED, Cause.EXIT, 2), False, None),
        (Ending(COMPLETED, Cause.SIGNAL, 139, 11), False, None),
        (Ending(KILLED, Cause.KILLED, 137, 9, "Killed by request with SIGKILL."), True, None),
        (Ending(*STOP[:2], 137, 9, STOP[2]), True, None),
    ],
)
def test_kills_by_the_kernel(before: Ending, certain: bool, cause: Cause | None) -> None:
    """They are the cause of a SIGKILL that nobody sent, and worth a word where they were certainly the shell's."""
    after = after_kernel_kills(before, 2, certain=certain)
    assert after_kernel_kills(before, 0, certain=certain) == before
    if cause is None:
        assert after == before
    else:
        error = "The kernel killed 2 processes: the memory of the machine or container was exhausted."
        assert after == Ending(before.status, cause, before.exit_code, before.signal, error)
