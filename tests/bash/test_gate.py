"""Signals to what bash executes: they reach it whenever they come."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from shelld_py.linux.processes import run_time
from tests.bash.driven import driven
from tests.daemons import wait_for


@contextlib.contextmanager
def starved(pid: int) -> Iterator[None]:
    """Leave a process, and what it starts, hardly any time on its processor."""
    own = {min(os.sched_getaffinity(0))}
    busy = subprocess.Popen(["sh", "-c", "while :; do :; done"])
    try:
        os.sched_setaffinity(busy.pid, own)
        wait_for(lambda: run_time(busy.pid) > 0.01)
        os.sched_setaffinity(pid, own)
        os.sched_setscheduler(pid, os.SCHED_IDLE, os.sched_param(0))
        yield
    finally:
        busy.kill()
        busy.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT])
def test_a_signal_to_a_command_that_bash_has_hardly_begun_with_is_not_lost(tmp_path: Path, number: int) -> None:
    """bash itself ignores some, and dies of others: they wait until the program is there."""

    async def test() -> None:
        async with asyncio.timeout(30), driven(tmp_path) as shell:
            with starved(shell.bash.pid):
                for _ in range(2):
                    running = asyncio.ensure_future(shell.run("sleep 60"))
                    await asyncio.sleep(0)
                    assert await shell.bash.signal(number)
                    _, outcome = await asyncio.wait_for(running, 10)
                    assert (outcome.status, outcome.death) == (128 + number, None)

    asyncio.run(test())


@pytest.mark.parametrize("command", ["while ! [[ $over ]]; do :; done", "read -r line"])
def test_a_signal_to_bash_itself_is_sent_when_it_is_seen_to_work_by_itself(tmp_path: Path, command: str) -> None:
    """It has a trap for it; nobody waits for a program that does not come."""

    async def test() -> None:
        async with asyncio.timeout(30), driven(tmp_path) as shell:
            await shell.run("trap 'over=1; echo trapped' TERM")
            running = asyncio.ensure_future(shell.run(command))
            await asyncio.sleep(0)
            assert await shell.bash.signal(signal.SIGTERM)
            shell.bash.type(b"line\n")
            output, outcome = await running
            assert (output, outcome.status) == ("trapped\n", 0)

    asyncio.run(test())


def test_a_signal_is_taken_once(tmp_path: Path) -> None:
    """A program that exits because of it has not lost it: the one after it is left alone, and it was sent."""

    async def test() -> None:
        async with asyncio.timeout(60), driven(tmp_path) as shell:
            ready = tmp_path / "ready"
            script = f"trap 'exit 5' USR1; : >{ready}; while :; do sleep 0.01; done"
            for _ in range(10):
                running = asyncio.ensure_future(shell.run(f'bash -c "{script}"; echo $?; sleep 0.05'))
                await asyncio.to_thread(wait_for, ready.exists)
                ready.unlink()
                assert await shell.bash.signal(signal.SIGUSR1)
                output, outcome = await running
                assert (output.splitlines()[-1], outcome.status) == ("5", 0)

    asyncio.run(test())


def test_a_signal_that_the_first_of_two_programs_has_not_lived_to_take_goes_to_the_second(tmp_path: Path) -> None:
    """Whoever sends one wants the command to get it, whatever program is just ending."""

    async def test() -> None:
        async with asyncio.timeout(60), driven(tmp_path) as shell:
            for _ in range(40):
                running = asyncio.ensure_future(shell.run("/bin/true; /bin/true; sleep 60"))
                await asyncio.sleep(0)
                assert await shell.bash.signal(signal.SIGTERM)
                # Where one of the first two has died of it, the third goes on, and gets one of its own.
                while not running.done():
                    await asyncio.wait({running}, timeout=0.05)
                    await shell.bash.signal(signal.SIGTERM)
                assert (await running)[1].status == 143

    asyncio.run(test())
