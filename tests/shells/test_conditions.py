"""Conditions of a run, as they are given and as they come true in a shell without a daemon."""

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from shelld_py.errors import InvalidRequest
from shelld_py.models import Stream
from shelld_py.request_data import Command
from shelld_py.shells.conditions import Condition, Kind, LogReader, Until
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.shell import Shell
from tests.shells.places import in_shell


def wait(shell: Shell, run: LiveRun, conditions: Sequence[str]) -> Until:
    """Return a wait for `conditions`, with lines looked for in standard output."""
    log = run.log(Stream.STDOUT)
    assert log is not None
    return Until([Condition.parse(text) for text in conditions], run, shell, [LogReader(Stream.STDOUT, log, 0)])


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("output:a:b", Condition("output:a:b", Kind.OUTPUT, pattern="a:b")),
        ("port:8080", Condition("port:8080", Kind.PORT, port=8080)),
        ("quiet:1m30s", Condition("quiet:1m30s", Kind.QUIET, seconds=90.0)),
        ("input", Condition("input", Kind.INPUT)),
        ("exit", Condition("exit", Kind.EXIT)),
    ],
)
def test_what_a_condition_means(text: str, meant: Condition) -> None:
    assert Condition.parse(text) == meant


@pytest.mark.parametrize(
    "text",
    ["", "output", "output:", "port:", "port:0", "port:65536", "port:8_0", "port:" + "9" * 5000, "port:\u0662",
     "quiet:", "quiet:soon", "quiet:" + "1" * 100_000, "input:", "exit:0", "Exit", "x:y"],
)  # fmt: skip
def test_what_is_no_condition(text: str) -> None:
    """It is refused with what would be right, however long it is."""
    with pytest.raises(InvalidRequest, match=r"^until: "):
        Condition.parse(text)


@pytest.mark.parametrize(
    ("command", "conditions", "first"),
    [
        ("echo one; echo two; read x", ["output:two", "output:one"], "output:one"),
        ("echo one; read x", ["input", "output:none"], "input"),
        ("echo one; read x", ["quiet:10ms", "exit"], "quiet:10ms"),
        ("echo one", ["output:none", "exit"], "exit"),
        ("echo one", ["output:none"], None),
        ("echo one; sleep 60", ["output:none"], None),
    ],
)
def test_which_comes_first(tmp_path: Path, command: str, conditions: list[str], first: str | None) -> None:
    """None where the time is over before, or where nothing is left that could bring one about."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text=command))
        patience = 0.5 if "sleep" in command else 15.0
        reached = await wait(shell, run, conditions).wait(patience)
        assert (reached and reached.text) == first
        await shell.kill()

    in_shell(tmp_path, test, kill_grace=0.2)


def test_a_wait_that_is_given_up(tmp_path: Path) -> None:
    """It leaves no task behind, and the command goes on."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="read x"))
        run.promote()
        before = asyncio.all_tasks()
        waiting = asyncio.create_task(wait(shell, run, ["output:x", "quiet:1h", "input", "port:1"]).wait(60))
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert asyncio.all_tasks() <= before
        assert run.running
        await shell.kill()

    in_shell(tmp_path, test)
