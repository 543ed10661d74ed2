"""`shelld_py.Shell` and `shelld_py.Files`: without a daemon, in a program that has children of its own."""

import asyncio
import contextlib
import io
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

import shelld_py
from shelld_py.config import OutputSettings, Settings
from shelld_py.errors import FileNotFound, InvalidRequest, RunNotFound, ShellBusy
from shelld_py.files import CreateRequest, ReadRequest, UndoRequest
from shelld_py.linux import processes
from shelld_py.linux.syscalls import is_subreaper
from shelld_py.models import Cause, RunStatus, ShellState

ROOT = Path(__file__).parent.parent


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Path]:
    """A directory to work in; what was there before is there afterwards, and nothing else."""
    (tmp_path / "temporary").mkdir()
    (tmp_path / "work").mkdir()
    before = _own()
    with contextlib.chdir(tmp_path / "work"):
        tempfile.tempdir = str(tmp_path / "temporary")
        yield tmp_path / "work"
        tempfile.tempdir = None
    assert _own() == before
    assert list((tmp_path / "temporary").iterdir()) == []


def _own() -> tuple[set[int], set[str], bool]:
    """The children and descriptors of this process, and whether it adopts orphans."""
    return set(processes.children(os.getpid())), set(os.listdir("/proc/self/fd")), is_subreaper()


def in_shell(test: Callable[[shelld_py.Shell], Awaitable[None]], settings: Settings | None = None) -> None:
    async def body() -> None:
        async with asyncio.timeout(60), shelld_py.Shell(settings=settings) as shell:
            await test(shell)

    asyncio.run(body())


def test_the_example_of_the_readme_runs(place: Path) -> None:
    """It prints what its comment says."""
    blocks = re.findall(
        r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    (block,) = [block for block in blocks if "shelld_py.Shell" in block]
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(block, "README.md", "exec"), {"__name__": "__main__"})
    assert printed.getvalue() == "hello Ada\n3\n"


def test_results_are_those_of_the_daemon(place: Path) -> None:
    """State is kept from run to run, streams go apart, output is cut and can be had whole."""

    async def test(shell: shelld_py.Shell) -> None:
        done = await shell.run("x=5; cd /; echo out; echo err >&2; (exit 3)", streams="separate")
        assert (done.status, done.cause, done.exit_code) == (RunStatus.COMPLETED, Cause.EXIT, 3)
        assert (done.stdout, done.stderr, done.working_directory) == ("out\n", "err\n", "/")
        assert (await shell.run("echo $x $y; cat", environment={"y": "6"}, stdin="in")).stdout == "5 6\nin"
        done = await shell.run("seq 1000")
        assert done.truncated
        assert f"stdout of Shell.wait('{done.run_id}', max_output=0)" in (done.stdout or "")
        assert (await shell.wait(done.run_id, max_output=0)).stdout == "".join(f"{n}\n" for n in range(1, 1001))
        with pytest.raises(RunNotFound):
            await shell.wait("nonsense")
        with pytest.raises(InvalidRequest):
            await shell.run("echo \0")

    in_shell(test, Settings(output=OutputSettings(max_size=100, begin_size=50, end_size=50)))


def test_a_run_outlasts_its_wait_and_can_be_answered_and_killed(place: Path) -> None:
    """A time-out and a question end the wait and not the run."""

    async def test(shell: shelld_py.Shell) -> None:
        asking = await shell.run("read -p 'name? ' name; echo hello $name")
        assert (asking.status, asking.awaiting_input, asking.stdout) == (RunStatus.RUNNING, True, "name? ")
        with pytest.raises(ShellBusy):
            await shell.run("true")
        await shell.stdin("Ada\n")
        assert (await shell.wait()).stdout == "name? hello Ada\n"
        sleeping = await shell.run("sleep 60", timeout=0)
        assert (sleeping.timed_out, shell.state) == (True, ShellState.BUSY)
        assert (await shell.kill()).killed
        assert (await shell.wait()).cause is Cause.KILLED
        assert (await shell.run("sleep 60", deadline=0.1)).cause is Cause.DEADLINE
        with pytest.raises(InvalidRequest, match="deadline"):
            await shell.run("true", deadline=0)
        assert shell.state is ShellState.READY

    in_shell(test)


def test_what_a_shell_started_ends_with_it_and_the_programs_own_children_do_not(place: Path) -> None:
    """Also what left its session, and what bash left when it was killed; another shell is not concerned."""
    own = [subprocess.Popen(["sleep", "60"], start_new_session=new) for new in (True, False)]
    orphaned = subprocess.run(["sh", "-c", "setsid sleep 60 >&2 & echo $!"], stdout=subprocess.PIPE, check=True)

    async def test(shell: shelld_py.Shell) -> None:
        async with shelld_py.Shell() as other:
            assert is_subreaper()
            await other.run("sleep 60 & setsid sleep 60 & disown -a")
            await shell.run("sleep 60 & setsid sleep 60 & kill -9 $$")
            assert shell.state is ShellState.UNRECOVERABLE
            assert (await other.run("pgrep -P $$ -x sleep | wc -l")).stdout == "2\n"
            await shell.recycle()
            assert (await shell.run("echo again")).stdout == "again\n"
        for process in own:
            assert process.poll() is None

    in_shell(test)
    assert orphaned.stdout
    os.kill(int(orphaned.stdout), signal.SIGKILL)
    for process in own:
        process.kill()
        assert process.wait() == -signal.SIGKILL


def test_a_shell_that_does_not_start_leaves_nothing(place: Path) -> None:
    """The error says why."""

    async def body() -> None:
        async with shelld_py.Shell(str(place / "missing")):
            raise AssertionError

    with pytest.raises(InvalidRequest, match="missing"):
        asyncio.run(body())


def test_files_can_be_changed_and_undone(place: Path) -> None:
    """By the requests of the daemon, below the directories that were named."""

    async def body() -> None:
        async with shelld_py.Files(place) as files:
            await files.perform(CreateRequest(path="a.txt", content="one\n"))
            assert (await files.perform(ReadRequest(path="a.txt"))).content == "one\n"
            await files.perform(UndoRequest(path="a.txt"))
            with pytest.raises(FileNotFound):
                await files.perform(ReadRequest(path="a.txt"))
            with pytest.raises(shelld_py.ShelldError, match="/etc/passwd"):
                await files.perform(ReadRequest(path="/etc/passwd"))

    asyncio.run(body())
