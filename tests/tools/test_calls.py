"""Calls as protocols make them, without HTTP: progress, cancellation, handing over."""

import asyncio
import itertools
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from shelld_py.computer import Computer, Surroundings
from shelld_py.config import Settings
from shelld_py.linux import processes
from shelld_py.models import RunStatus, ShellState
from shelld_py.tools.catalogue import Toolbox
from shelld_py.tools.tool import CallContext, Progress
from tests.tools.conftest import Bench

LOGGER = logging.getLogger("tests.tools.calls")

Body = Callable[[Computer, Toolbox], Awaitable[None]]


def with_toolbox(directory: Path, test: Body) -> None:
    """Run `test` with the tools of a computer, and end it; no process of it may stay."""

    async def body() -> None:
        work = directory / "work"
        work.mkdir()
        surroundings = Surroundings(
            environment={"PATH": os.environ["PATH"], "HOME": str(work)},
            working_directory=str(work),
            data_directory=directory / "data",
            open_files=(1024, 4096),
        )
        computer = Computer(Settings(), surroundings, LOGGER)
        for pid in processes.children(os.getpid()):
            computer.reaper.own(pid)
        before = set(processes.children(os.getpid()))
        computer.open()
        try:
            async with asyncio.timeout(60):
                await test(computer, Toolbox(computer))
        finally:
            await computer.end()
            computer.close()
        assert set(processes.children(os.getpid())) <= before

    asyncio.run(body())


async def started(computer: Computer, count: int = 1) -> None:
    """Return when so many commands are running; the time is bounded by the test's own."""
    while sum(run.running for run in computer.store.live()) < count:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("tool", ["bash", "run_shell_command", "execute_command", "shell_exec"])
def test_progress_is_reported_while_a_command_runs(tmp_path: Path, tool: str) -> None:
    """At every interval at the latest, with the last line of output."""

    async def test(_: Computer, toolbox: Toolbox) -> None:
        seen: list[Progress] = []

        async def tell(progress: Progress) -> None:
            seen.append(progress)
            if progress.last_line == "half way":
                (tmp_path / "go").touch()

        context = CallContext(on_progress=tell, progress_interval=0.05)
        command = f"echo half way; until [ -e {tmp_path}/go ]; do sleep 0.02; done; echo done"
        outcome = await toolbox.call(tool, {"command": command}, context)
        assert "half way\ndone\n" in outcome.text
        assert {progress.run_id for progress in seen} == {outcome.run_id}
        assert {progress.output_size for progress in seen if progress.last_line == "half way"} == {len("half way\n")}
        assert [progress.seconds for progress in seen] == sorted(progress.seconds for progress in seen)

    with_toolbox(tmp_path, test)


def test_new_output_is_reported_without_waiting_for_the_interval(tmp_path: Path) -> None:
    """But not faster than the pace, and what is not new is not told again."""

    async def test(_: Computer, toolbox: Toolbox) -> None:
        seen: list[Progress] = []

        async def tell(progress: Progress) -> None:
            seen.append(progress)
            (tmp_path / progress.last_line).touch()

        context = CallContext(on_progress=tell, progress_interval=60, progress_pace=0.1)
        command = f"for i in 1 2 3; do echo -n; echo $i; until [ -e {tmp_path}/$i ]; do sleep 0.01; done; done"
        outcome = await toolbox.call("shell_exec", {"command": command}, context)
        assert not outcome.running
        assert [progress.last_line for progress in seen] == ["1", "2", "3"]
        seconds = [0.0, *(progress.seconds for progress in seen)]
        assert min(later - earlier for earlier, later in itertools.pairwise(seconds)) > 0.09

    with_toolbox(tmp_path, test)


def test_cancelling_while_the_main_shell_restarts_lets_it_start(tmp_path: Path) -> None:
    """Half a restart would leave no shell. What was to be run in it is not run."""

    async def test(_: Computer, toolbox: Toolbox) -> None:
        await toolbox.call("bash", {"command": "never=1"})
        arguments = {"command": "never=2", "restart": True}
        call = asyncio.create_task(toolbox.call("bash", arguments, CallContext(interrupt_on_cancel=True)))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert (await toolbox.call("bash", {"command": "echo ${never-well}"})).text.startswith("well\n")

    with_toolbox(tmp_path, test)


def test_cancelling_ends_the_command_and_keeps_the_shell(tmp_path: Path) -> None:
    """The cancelled call has ended only when the command has, so the next one finds the shell ready."""

    async def test(computer: Computer, toolbox: Toolbox) -> None:
        context = CallContext(interrupt_on_cancel=True)
        await toolbox.call("bash", {"command": "kept=1"})
        call = asyncio.create_task(toolbox.call("bash", {"command": "sleep 60"}, context))
        await started(computer)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert computer.main.state is ShellState.READY
        assert computer.main.last_run is not None
        assert computer.main.last_run.status is RunStatus.KILLED
        assert (await toolbox.call("bash", {"command": "echo $kept"})).text.startswith("1\n")

    with_toolbox(tmp_path, test)


def test_cancelling_leaves_the_command_where_it_shall(tmp_path: Path) -> None:
    async def test(computer: Computer, toolbox: Toolbox) -> None:
        call = asyncio.create_task(toolbox.call("bash", {"command": "sleep 0.3; echo on"}))
        await started(computer)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert computer.main.state is ShellState.BUSY
        outcome = await toolbox.call("bash_input", {"text": ""})
        assert outcome.text.startswith("on\n[exit code 0, ")

    with_toolbox(tmp_path, test)


def test_cancelling_a_wait_ends_nothing(tmp_path: Path) -> None:
    """Only the call that has started a command ends it."""

    async def test(computer: Computer, toolbox: Toolbox) -> None:
        context = CallContext(interrupt_on_cancel=True)
        await toolbox.call("bash", {"command": "sleep 60", "timeout_ms": 0})
        started = await toolbox.call("shell_start", {"command": "sleep 60"})
        waits = [
            asyncio.create_task(toolbox.call("bash_input", {"text": ""}, context)),
            asyncio.create_task(toolbox.call("shell_wait", {"shell_id": started.run_id}, context)),
        ]
        done, _ = await asyncio.wait(waits, timeout=0.1)
        assert not done
        for wait in waits:
            wait.cancel()
        await asyncio.wait(waits)
        assert [run.running for run in computer.store.live()] == [True, True]

    with_toolbox(tmp_path, test)


@pytest.mark.parametrize("tool", ["run_shell_command", "execute_command", "shell_exec", "shell_start"])
def test_cancelling_while_the_shell_starts_leaves_nothing(tmp_path: Path, tool: str) -> None:
    async def test(computer: Computer, toolbox: Toolbox) -> None:
        context = CallContext(interrupt_on_cancel=True)
        call = asyncio.create_task(toolbox.call(tool, {"command": "sleep 60"}, context))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        while len(computer.shells.all) > 1 or not (await computer.store.results())[0]:
            await asyncio.sleep(0.005)
        while computer.store.live():
            await asyncio.sleep(0.005)
        ((result,), _) = await computer.store.results()
        assert result.status is RunStatus.KILLED

    with_toolbox(tmp_path, test)


def test_patience_hands_over_to_a_run(tmp_path: Path) -> None:
    """Whatever the arguments want; shell_wait then goes on, as patiently."""

    async def test(_: Computer, toolbox: Toolbox) -> None:
        context = CallContext(longest_wait=0.1)
        outcome = await toolbox.call("shell_exec", {"command": "sleep 0.5; echo done", "timeout": 50}, context)
        assert outcome.running
        again = await toolbox.call("shell_wait", {"shell_id": outcome.run_id, "timeout": 50}, context)
        assert again.running
        last = await toolbox.call("shell_wait", {"shell_id": outcome.run_id})
        assert (last.running, last.text.startswith("done\n[exit code 0, ")) == (False, True)

    with_toolbox(tmp_path, test)


def test_many_first_calls_of_bash_start_one_shell(tmp_path: Path) -> None:
    """All but one find it busy, none finds it unstarted."""

    async def test(computer: Computer, toolbox: Toolbox) -> None:
        calls = [toolbox.call("bash", {"command": "sleep 0.2; echo $$"}) for _ in range(4)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        assert sorted(type(answer).__name__ for answer in answers) == 3 * ["ShellBusy"] + ["ToolResult"]
        assert computer.main.state is ShellState.READY

    with_toolbox(tmp_path, test)


def test_the_answer_is_the_result(bench: Bench) -> None:
    """No more than the members that the tool's result has; headers tell how the command stands."""
    answer = bench.daemon.client.post("/tools/execute_command", json={"command": "echo out; (exit 3)"})
    assert answer.json() == {
        "stdout": "out\n",
        "stderr": "",
        "exit_code": 3,
        "original_stdout_size": 4,
        "original_stderr_size": 0,
    }
    assert (answer.headers["x-is-error"], answer.headers["x-running"]) == ("false", "false")
    assert bench.daemon.client.get(f"/runs/{answer.headers['x-run-id']}").json()["exit_code"] == 3


def test_a_running_command_is_told_by_headers(bench: Bench) -> None:
    answer = bench.daemon.client.post("/tools/shell_exec?timeout=0", json={"command": "sleep 60"})
    assert (answer.json()["status"], answer.headers["x-running"]) == ("running", "true")
    bench.daemon.client.delete(f"/runs/{answer.headers['x-run-id']}")


def test_full_must_be_true_or_false(bench: Bench) -> None:
    answer = bench.daemon.client.post("/tools/shell_metadata?full=maybe")
    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")
