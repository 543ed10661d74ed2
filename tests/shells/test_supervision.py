"""What is seen of a run while it goes on: by a clock that the test turns, and a real bash."""

from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import pytest

from shelld_py.config import LimitSettings
from shelld_py.linux import processes
from shelld_py.models import Cause, RunStatus, ShellState
from shelld_py.request_data import Command
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.shell import Shell
from shelld_py.shells.supervision import Supervisor
from tests.shells.places import in_shell, until


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Bench:
    """A run in a shell, and a supervisor of its own that looks when the test turns the clock."""

    def __init__(self, shell: Shell, command: str, limits: LimitSettings) -> None:
        self.run = shell.submit(Command(text=command))
        self.clock = Clock()
        self.breaches: list[tuple[Cause, str]] = []
        bash = shell._bash
        assert bash is not None
        self.supervisor = Supervisor(
            self.run,
            bash,
            before=bash.usage(),
            limits=limits,
            on_breach=lambda *breach: self.breaches.append(breach),
            clock=self.clock,
        )
        self.supervisor.start()

    def after(self, seconds: float) -> None:
        """Let time pass, and do what is due by then."""
        self.clock.now += seconds
        self.supervisor.look()


def with_bench(
    directory: Path, command: str, test: Callable[[Bench], Awaitable[None]], limits: LimitSettings | None = None
) -> None:
    """Run `test` with a bench for `command`, and kill that then."""

    async def body(shell: Shell) -> None:
        bench = Bench(shell, command, limits or LimitSettings())
        try:
            await test(bench)
        finally:
            bench.supervisor.stop()
            await shell.kill()

    in_shell(directory, body, kill_grace=0.2)


def cpu_of(bench: Bench) -> float:
    return processes.tree_usage(bench.supervisor._bash.pid).cpu_seconds


def written(run: LiveRun, size: int) -> bool:
    return sum(log.size for log in run.logs.values()) >= size


def test_what_is_due_is_done_once_and_in_time(tmp_path: Path) -> None:
    """Not before its time, and not at all after the end."""

    async def test(bench: Bench) -> None:
        done: list[str] = []
        bench.supervisor.after(5, lambda: done.append("first"))
        bench.supervisor.after(7, lambda: done.append("second"))
        bench.after(4.9)
        assert done == []
        bench.after(0.1)
        assert done == ["first"]
        bench.supervisor.stop()
        bench.after(10)
        assert done == ["first"]

    with_bench(tmp_path, "sleep 60", test)


def test_three_quiet_looks_tell_that_a_command_waits(tmp_path: Path) -> None:
    """The first knows nothing of before, the second sees it wait, the third is certain. Input begins that anew."""

    async def test(bench: Bench) -> None:
        def looks(count: int) -> list[bool]:
            seen = []
            for _ in range(count):
                bench.run.awaiting_input = False
                bench.after(0.5)
                seen.append(bench.run.awaiting_input)
            return seen

        await bench.run.wait(10, for_input=True)  # the shell's own supervisor has seen it
        assert looks(4) == [False, False, True, True]
        bench.supervisor.input_given()
        assert not bench.run.awaiting_input
        assert looks(3) == [False, False, True]

    with_bench(tmp_path, "cat", test)


def test_looks_grow_rarer(tmp_path: Path) -> None:
    """The first after a tenth of a second, then up to three tenths apart, so that three fit into one second."""

    async def test(bench: Bench) -> None:
        looks: list[float] = []
        begin = bench.clock.now
        for _ in range(200):
            bench.run.peak_memory = 0
            bench.after(0.01)
            if bench.run.peak_memory:
                looks.append(round(bench.clock.now - begin, 2))
        assert 0.1 <= looks[0] <= 0.12
        pauses = [later - earlier for earlier, later in pairwise(looks)]
        assert min(pauses) >= 0.1
        assert max(pauses) <= 0.32

    with_bench(tmp_path, "sleep 60", test)


@pytest.mark.parametrize(
    ("limits", "command", "told"),
    [
        (LimitSettings(processes=2), "sleep 60 & sleep 60 & echo; wait", "limits.processes is 2"),
        (LimitSettings(memory_mb=1), "echo; sleep 60", "limits.memory_mb is 1"),
    ],
)
def test_a_broken_limit_is_told_once(tmp_path: Path, limits: LimitSettings, command: str, told: str) -> None:
    """With the figures, at the first look of its interval that sees it."""

    async def test(bench: Bench) -> None:
        await until(lambda: written(bench.run, 1))
        bench.after(limits.check_interval - 0.01)
        assert bench.breaches == []
        bench.after(0.02)
        ((cause, breach),) = bench.breaches
        assert cause is Cause.LIMIT
        assert told in breach
        for _ in range(5):
            bench.after(limits.check_interval)
        assert len(bench.breaches) == 1
        assert bench.run.peak_memory > 0

    with_bench(tmp_path, command, test, limits)


def test_the_share_of_the_cpu_is_that_of_the_interval(tmp_path: Path) -> None:
    """What was used before it does not count, nor does time in which nothing ran."""

    async def test(bench: Bench) -> None:
        interval = 2.0
        await until(lambda: cpu_of(bench) > 0.3)
        bench.after(interval)  # 0.3 s and more in two seconds: beyond 10 %
        assert len(bench.breaches) == 1
        assert "limits.cpu_percent is 10" in bench.breaches[0][1]

    with_bench(tmp_path, "while :; do :; done", test, LimitSettings(cpu_percent=10))


def test_use_counts_what_is_left_and_not_what_earlier_runs_left(tmp_path: Path) -> None:
    """CPU time is that of the run's own processes, with those in the background."""
    spin = "python3 -c \"import time\nwhile time.process_time() < 0.2: pass\nopen('done', 'w'); time.sleep(60)\""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text=f"{spin} & until [ -e done ]; do sleep 0.02; done"))
        await run.wait(60)
        assert run.status is RunStatus.COMPLETED
        assert run.cpu_seconds >= 0.2
        later = shell.submit(Command(text="true"))
        await later.wait(60)
        assert later.cpu_seconds < 0.2
        assert shell.state is ShellState.READY

    in_shell(tmp_path, test)
