"""A run is light until it proves otherwise: what makes it a full one, and that nobody can tell the difference."""

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from shelld_py.models import Cause, RunResult, RunStatus, ShellState, Stream, Streams
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells.live_run import SHORT, LiveRun
from shelld_py.shells.shell import Shell
from shelld_py.shells.startup import ShellContext
from tests.daemons import LONG
from tests.shells.places import in_shell, until, with_context


def content(run: LiveRun) -> bytes:
    """Return all that a run has written."""
    log = run.log(Stream.STDOUT)
    assert log is not None
    return log.read(0, log.size).data


def directories(shell: Shell) -> list[str]:
    """Return the runs that have a directory, shown or not, without the spare one."""
    data = shell._context.log_directory
    return os.listdir(data / "runs") + list(shell._context.store._directories._unpublished)


async def light(shell: Shell, text: str) -> LiveRun:
    """Start a command, and see that it is light."""
    run = shell.submit(Command(text=text))
    assert run.light
    return run


def test_a_run_that_ends_at_once_is_one_append(tmp_path: Path) -> None:
    """It has no directory and no task; answers, and what is kept, say what they say of any other."""

    async def test(shell: Shell) -> None:
        store = shell._context.store
        tasks = asyncio.all_tasks()
        for number in range(20):  # one that happens to last longer than 10 ms is no light one
            run = await light(shell, f"echo hello {number}; cd /usr; (exit 3)" if number % 2 else f"echo {number}")
            while run.running and run.light:
                await run.changed()
            await run.wait(10)
            if run.run_id not in directories(shell):
                assert asyncio.all_tasks() == tasks
            stored = await store.get(run.run_id)
            kept = stored.result()
            own = run.result()
            assert kept == own
            assert (own.status, own.cause, own.exit_code) == (RunStatus.COMPLETED, Cause.EXIT, 3 * (number % 2))
            assert own.original_stdout_size == own.cursor == len(content(run))
            log = stored.log(Stream.STDOUT)
            assert log is not None
            assert log.read(0, 100).data == content(run)

    in_shell(tmp_path, test)


async def _kill(shell: Shell, run: LiveRun) -> None:
    await shell.kill(None, run)


async def _signal(shell: Shell, run: LiveRun) -> None:
    await shell.kill(signal.SIGTERM, run)


async def _type(shell: Shell, run: LiveRun) -> None:
    await shell.write_stdin(b"\n", eof=False, offset=None, run=run)


async def _read(_: Shell, run: LiveRun) -> None:
    assert content(run) == b""


async def _ask(shell: Shell, run: LiveRun) -> None:
    assert run.result().status is RunStatus.RUNNING


async def _list(shell: Shell, run: LiveRun) -> None:
    results, _ = await shell._context.store.results()
    assert [result.run_id for result in results] == [run.run_id]


async def _publish(shell: Shell, run: LiveRun) -> None:
    shell._context.store.publish(run)


async def _wait(_: Shell, run: LiveRun) -> None:
    await until(lambda: not run.light)


async def _recycle(shell: Shell, _: LiveRun) -> None:
    await shell.recycle()


@pytest.mark.parametrize(
    "ask", [_kill, _signal, _type, _read, _ask, _list, _publish, _wait, _recycle], ids=lambda ask: ask.__name__[1:]
)
def test_who_asks_for_it_finds_a_full_run(tmp_path: Path, ask: Callable[[Shell, LiveRun], Awaitable[None]]) -> None:
    """With the same id, the same start and a directory, as if it had been one from the beginning."""

    async def test(shell: Shell) -> None:
        run = await light(shell, "read -t 20 x; sleep 0.05; echo end")
        before = (run.run_id, run.started_at, shell.session_id)
        await ask(shell, run)
        assert not run.light
        assert (run.run_id, run.started_at, run.session_id) == before
        if run.running and ask is not _type:
            await shell.write_stdin(b"\n", eof=False, offset=None)
        await run.wait(15)
        expected = RunStatus.KILLED if ask in (_kill, _recycle) else RunStatus.COMPLETED
        assert run.status in (expected, RunStatus.KILLED if ask is _signal else expected)
        if expected is RunStatus.COMPLETED and ask is not _signal:
            assert content(run) == b"end\n"
        assert shell.state is ShellState.READY
        next_run = await light(shell, "echo fine")
        await next_run.wait(10)
        assert content(next_run) == b"fine\n"

    in_shell(tmp_path, test)


@pytest.mark.parametrize(
    ("text", "size", "exit_code", "cause"),
    [
        (f"head -c {SHORT - 1} /dev/zero | tr '\\0' x", SHORT - 1, 0, Cause.EXIT),
        (f"head -c {SHORT + 1} /dev/zero | tr '\\0' x", SHORT + 1, 0, Cause.EXIT),
        ("head -c 300000 /dev/zero", 300_000, 0, Cause.EXIT),
        ("for i in {1..3000}; do printf '\\e[1mx\\r'; done", 18_000, 0, Cause.EXIT),
        ("(exit 200)", 0, 200, Cause.EXIT),
        ("exit 3", 0, 3, Cause.EXIT),
        ("sleep 60 &", 0, 0, Cause.EXIT),
        ("return 4", 0, 4, Cause.EXIT),
        ("kill -9 $$", 0, 137, Cause.SHELL_CRASHED),
        ("if", None, 2, Cause.EXIT),
    ],
)
def test_what_is_unusual_ends_as_a_full_run(
    tmp_path: Path, text: str, size: int | None, exit_code: int, cause: Cause
) -> None:
    """Much output, an exit, a death, a process that is left: nothing is lost, and the ending is the true one."""

    async def test(shell: Shell) -> None:
        run = await light(shell, text)
        await run.wait(15)
        result = run.result()
        assert (result.exit_code, result.cause) == (exit_code, cause)
        assert size in (None, len(content(run)))
        assert len(result.background_pids) == ("&" in text)
        if shell.state is ShellState.UNRECOVERABLE:
            await shell.recycle()
        await shell.wait_for_processes() if not result.background_pids else None
        after = shell.submit(Command(text="echo fine"))
        await after.wait(10)
        assert content(after) == b"fine\n"

    in_shell(tmp_path, test)


def test_what_is_never_light(tmp_path: Path) -> None:
    """Streams that go apart, a directory, variables or input of its own, and what runs beside others' processes."""

    async def test(shell: Shell) -> None:
        (tmp_path / "work/sub").mkdir()
        for fields in (
            {"streams": Streams.SEPARATE}, {"directory": "sub"}, {"environment": {"A": "b"}}, {"stdin": "x"},
        ):  # fmt: skip
            run = shell.submit(Command(text="echo out", **fields))
            assert not run.light
            await run.wait(10)
            assert content(run) == b"out\n"
        left = shell.submit(Command(text="sleep 60 & echo left"))
        await left.wait(10)
        beside = shell.submit(Command(text="echo beside"))
        assert not beside.light
        await beside.wait(10)
        assert content(beside) == b"beside\n"

    in_shell(tmp_path, test)


# --- a light run and a full one, played the same -----------------------------------------------------------

WORDS = ("a", "'b c'", '"$x"', "$((n + 1))", "~", "*", "$(echo sub)", "é", "$'\\t'", "${x:-none}")


def command(dice: random.Random) -> str:
    """Return a random command: ordinary ones, and those that change what the driver works with."""
    word, other = dice.choice(WORDS), dice.choice(WORDS)
    number = dice.randrange(300)
    return dice.choice(
        [
            f"echo {word} {other}", f"printf '%s\\n' {word}", f"x={word}; echo $x", f"n={number}", "echo $n $x $?",
            f"(exit {number})", "false", "true", ":", f"exit {number % 130}", "ls", f"mkdir -p d{number % 5}",
            f"cd d{number % 5}", "cd ..", "pwd", "cd -", f"f() {{ echo f {word}; return {number % 100}; }}", "f",
            "set -e; false; echo not", "set +e", "set -u; echo $unset; echo not", "set +u",
            "set -x; echo traced; set +x",
            "trap 'echo dbg' DEBUG", "trap - DEBUG", "trap 'echo err' ERR", "trap - ERR", "trap 'echo bye' EXIT",
            "trap - EXIT", "unset DIRSTACK", "PS1='$ '", "PROMPT_COMMAND='echo prompt'", "unset PROMPT_COMMAND",
            "shopt -s extglob nullglob", "shopt -u nullglob", "alias g='echo aliased'", "g", "unalias -a",
            "if", "echo 'unclosed", "for i in 1 2 3; do echo $i; done", "while read -t 0 y; do :; done", "echo err >&2",
            "stty raw; echo raw", "stty -a | grep -o -e '-echo '", "head -c 20000 /dev/zero | tr '\\0' y",
            "printf 'one\\rtwo\\n\\e[1mbold\\e[0m'", "kill -INT $$; echo after", "bash -c 'kill -9 $$'",
            "command -v ls",
            "return 5", "exec 3>/dev/null; echo >&3", "exec 3>&-", "cat <<< here",
            "echo a | tr a b; echo ${PIPESTATUS[@]}",
            f"sleep 0.0{number % 3}", "history | wc -l", "echo $LINENO", "eval 'echo evaluated'",
            "set -o noglob; echo *",
            "set +o noglob", "readonly r=1; r=2; echo not", "echo ${#BASH_SOURCE[@]}", "umask 027; umask", "ulimit -n",
        ]
    )  # fmt: skip


async def played(shell: Shell, text: str, *, full: bool) -> tuple[RunResult, bytes]:
    """Run a command, as a full run from the beginning or as it comes; return what is kept of it."""
    if shell.state is ShellState.UNRECOVERABLE:
        await shell.recycle()
    store = shell._context.store
    run = shell.submit(Command(text=text))
    if full:
        run.promote()
    await run.wait(60)
    assert not run.running, text
    await shell.wait_for_processes(run)
    kept = await store.get(run.run_id)
    result, log = kept.result(), kept.log(Stream.STDOUT)
    assert log is not None
    assert result.cursor == log.size
    return result, log.read(0, log.size).data


def told(result: RunResult, root: Path) -> dict[str, Any]:
    """Return what two plays of a command have in common."""
    where = result.working_directory
    return {
        "status": result.status,
        "cause": result.cause,
        "exit_code": result.exit_code,
        "signal": result.signal,
        "error": result.error,
        "restored": result.restored,
        "state": result.state,
        "size": result.original_stdout_size,
        "directory": where and where.replace(str(root), ""),
        "left": len(result.background_pids),
    }


def lines(output: bytes, root: Path) -> list[bytes]:
    """Return the lines of an output without traces, whose depth and order tell of the driver."""
    return [line for line in output.replace(os.fsencode(root), b"").split(b"\n") if not line.startswith(b"+")]


def test_light_and_full_runs_do_the_same(tmp_path: Path) -> None:
    """Random commands, one after the other: output, code, status, directory and what is kept are the same.

    With SHELLD_TEST_LONG=1 it is 20,000 commands, and random ones.
    """
    seed = random.SystemRandom().randrange(1 << 32) if LONG else 20
    count, series = (20_000, 40) if LONG else (160, 20)
    dice = random.Random(seed)

    async def test(context: ShellContext) -> None:
        done = lights = 0
        while done < count:
            roots = [Path(context.directory) / f"{done}-{kind}" for kind in ("light", "whole")]
            shells = [Shell(f"{done}-{kind}", context) for kind in ("light", "whole")]
            for shell, root in zip(shells, roots, strict=True):
                root.mkdir()
                await shell.start(StartupRequest(working_directory=str(root)))
            history = []
            for _ in range(series):
                history.append(text := command(dice))
                answers = [await played(shell, text, full=shell is shells[1]) for shell in shells]
                (ours, output), (theirs, other) = answers
                same = told(ours, roots[0]) == told(theirs, roots[1])
                assert same, (seed, history, told(ours, roots[0]), told(theirs, roots[1]))
                assert lines(output, roots[0]) == lines(other, roots[1]), (seed, history, output, other)
                lights += ours.run_id not in directories(shells[0])
                done += 1
            for shell in shells:
                await shell.end("The series is over.")
        assert lights > done / 3  # else the test compares a thing with itself

    with_context(tmp_path, test, patience=3600 if LONG else 120)
