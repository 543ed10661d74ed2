"""A shell as a library: `async with Shell(...)`, without HTTP and without a daemon."""

import asyncio
import signal
from pathlib import Path
from typing import Any

import pytest

from shelld_py.config import OnExit
from shelld_py.errors import (
    Conflict,
    DirectoryGone,
    InvalidRequest,
    RunIdConflict,
    ShellBusy,
    ShellNotStarted,
    ShellStartFailed,
    StdinGap,
)
from shelld_py.linux import processes
from shelld_py.models import Cause, RunStatus, ShellState, Stream, Streams
from shelld_py.output.text import render
from shelld_py.request_data import Command, StartupRequest
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.shell import Shell
from tests.shells.places import in_shell, until

AVAILABLE, READY, BUSY, UNRECOVERABLE = ShellState


async def ran(shell: Shell, text: str, **fields: Any) -> LiveRun:
    """Run a command to its end."""
    run = shell.submit(Command(text=text, **fields))
    await run.wait(60)
    assert not run.running, output(run)
    return run


def output(run: LiveRun, stream: Stream = Stream.STDOUT) -> str:
    """Return what a run has written."""
    log = run.log(stream)
    assert log is not None
    return render(log.read(0, 1 << 20).data)


def test_a_command_and_its_result(tmp_path: Path) -> None:
    """A run has output, an exit code, a duration; the shell is ready again."""

    async def test(shell: Shell) -> None:
        run = await ran(shell, "echo hello; (exit 3)", description="greets")
        assert output(run) == "hello\n"
        result = run.result()
        assert (result.status, result.cause, result.exit_code) == (RunStatus.COMPLETED, Cause.EXIT, 3)
        assert (result.session_id, result.description, result.cursor) == ("main", "greets", 6)
        assert 0 < result.duration < 10
        assert (shell.state, shell.run, shell.last_run) == (READY, None, run)

    in_shell(tmp_path, test)


def test_the_shell_keeps_its_state(tmp_path: Path) -> None:
    """Variables, directory, functions, aliases and `$?` are there for the next command."""

    async def test(shell: Shell) -> None:
        await ran(shell, "x=5; mkdir sub; cd sub; f() { echo f$1; }; alias g='echo g'; false")
        run = await ran(shell, "echo $? $x ${PWD##*/}; f 1; g; echo $FROM_HOST $TERM $PAGER; stty size")
        assert output(run) == "1 5 sub\nf1\ng\nyes xterm-256color cat\n24 80\n"
        assert shell.working_directory == str(tmp_path / "work/sub")

    in_shell(tmp_path, test)


def test_what_holds_for_one_command_alone(tmp_path: Path) -> None:
    """Directory, environment and standard input of a command do not stay, and streams can go apart."""

    async def test(shell: Shell) -> None:
        (tmp_path / "work/sub").mkdir()
        command = {"directory": "sub", "environment": {"A": "it's"}, "stdin": "in\nput", "streams": Streams.SEPARATE}
        run = await ran(shell, "pwd; echo $A; cat; echo err >&2", **command)
        assert output(run) == f"{tmp_path}/work/sub\nit's\nin\nput"
        assert output(run, Stream.STDERR) == "err\n"
        run = await ran(shell, "pwd; echo ${A-none}; [ -t 0 ] && echo terminal; echo err >&2")
        assert output(run) == f"{tmp_path}/work\nnone\nterminal\nerr\n"
        assert run.log(Stream.STDERR) is None

    in_shell(tmp_path, test)


@pytest.mark.parametrize("command", ["exit 4", "set -e; (exit 4)", "trap 'echo bye' EXIT; exit 4"])
def test_exit_ends_the_run_and_not_the_shell(tmp_path: Path, command: str) -> None:
    """With `on_exit = restore` variables and directory are as they were, and the pid too."""

    async def test(shell: Shell) -> None:
        pid = shell.pid
        await ran(shell, "x=(1 2); cd /; f() { echo f; }")
        run = await ran(shell, command)
        assert run.ending is not None
        assert (run.ending.status, run.ending.exit_code, run.ending.restored) == (RunStatus.COMPLETED, 4, True)
        assert output(run) == ("bye\n" if "trap" in command else "")
        assert shell.state is READY
        assert output(await ran(shell, "echo ${x[1]} $PWD; f; true; echo $-")).startswith("2 /\nf\n")
        assert shell.pid == pid

    in_shell(tmp_path, test)


@pytest.mark.parametrize(
    ("command", "cause", "code"),
    [
        ("exit 4", Cause.SHELL_EXITED, 4),
        ("exec true", Cause.SHELL_REPLACED, 0),
        ("kill -9 $$", Cause.SHELL_CRASHED, 137),
    ],
)
def test_the_end_of_the_shell(tmp_path: Path, command: str, cause: Cause, code: int) -> None:
    """The run is lost, the shell unrecoverable, and a recycle makes it ready again, as it was in the beginning."""

    async def test(shell: Shell) -> None:
        run = await ran(shell, command)
        assert run.ending is not None
        assert (run.ending.status, run.ending.cause, run.ending.exit_code) == (RunStatus.LOST, cause, code)
        await until(lambda: shell.state is UNRECOVERABLE)
        assert shell.pid is None
        assert shell.working_directory is None
        with pytest.raises(Conflict, match="must be recycled"):
            shell.submit(Command(text="true"))
        await shell.recycle()
        assert shell.state is READY
        assert output(await ran(shell, "pwd")) == f"{tmp_path}/work\n"

    in_shell(tmp_path, test, on_exit=OnExit.END)


def test_requests_in_the_wrong_state(tmp_path: Path) -> None:
    """They are refused as the table says, and change nothing."""

    async def test(shell: Shell) -> None:
        with pytest.raises(Conflict, match="already started"):
            await shell.start(StartupRequest())
        with pytest.raises(Conflict, match="No command is running"):
            await shell.write_stdin(b"x", eof=False, offset=None)
        run = shell.submit(Command(text="read x; echo got $x"))
        assert shell.state is BUSY
        with pytest.raises(Conflict, match="busy"):
            shell.submit(Command(text="true"))
        await run.wait(10, for_input=True)
        await shell.write_stdin(b"it\n", eof=False, offset=None)
        await run.wait(60)
        assert output(run) == "got it\n"
        await shell.end("The test is over.")
        with pytest.raises(Conflict, match="not been started"):
            shell.submit(Command(text="true"))
        with pytest.raises(Conflict, match="not been started"):
            await shell.recycle()

    in_shell(tmp_path, test)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "a\0b"},
        {"text": "\ud800"},
        {"text": "true", "stdin": "\ud800"},
        {"text": "true", "directory": "/not/there"},
        {"text": "true", "environment": {"A B": "x"}},
        {"text": "true", "environment": {"A": "x\0"}},
    ],
)
def test_commands_that_cannot_be_run(tmp_path: Path, fields: dict[str, Any]) -> None:
    """They are refused before anything begins, and the shell stays ready."""

    async def test(shell: Shell) -> None:
        with pytest.raises(InvalidRequest):
            shell.submit(Command(**fields))
        assert shell.state is READY
        assert shell.last_run is None

    in_shell(tmp_path, test)


def test_a_run_id_that_is_taken(tmp_path: Path) -> None:
    """The command is not run a second time, and the shell stays ready."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="echo x >>count"), "mine")
        await run.wait(60)
        with pytest.raises(RunIdConflict):
            shell.submit(Command(text="echo x >>count"), "mine")
        assert shell.state is READY
        assert (tmp_path / "work/count").read_text() == "x\n"

    in_shell(tmp_path, test)


def test_typing(tmp_path: Path) -> None:
    """A command that waits for input is seen to wait; a repeat with its offset is typed once; EOF ends the input."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="cat"))
        await run.wait(10, for_input=True)
        assert run.awaiting_input
        assert await shell.write_stdin(b"one\n", eof=False, offset=0) == 4
        assert await shell.write_stdin(b"one\ntwo", eof=False, offset=0) == 7
        with pytest.raises(StdinGap, match="7 bytes"):
            await shell.write_stdin(b"x", eof=False, offset=9)
        await shell.write_stdin(b"", eof=True, offset=None)
        await run.wait(60)
        assert output(run) == "one\ntwo"

    in_shell(tmp_path, test)


def test_typing_ahead(tmp_path: Path) -> None:
    """What is typed as soon as the run has been submitted, before it reads, is accepted and not lost."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="read -t 0.5 x; echo got $x"))
        assert await shell.write_stdin(b"it\n", eof=False, offset=0) == 3
        await run.wait(60)
        assert output(run) == "got it\n"

    in_shell(tmp_path, test)


def test_killing(tmp_path: Path) -> None:
    """A kill ends what runs, keeps the shell, and leaves a result that says so."""

    async def test(shell: Shell) -> None:
        pid = shell.pid
        run = shell.submit(Command(text="echo begun; sleep 60; echo not reached"))
        await until(lambda: output(run) == "begun\n")
        killed = await shell.kill()
        assert (killed.run, killed.killed, killed.state) == (run.run_id, True, READY)
        assert run.ending is not None
        assert (run.ending.status, run.ending.cause, run.ending.error) == (
            RunStatus.KILLED,
            Cause.KILLED,
            "Killed by request.",
        )
        assert output(run).rstrip("\n") == "begun"
        assert output(await ran(shell, "echo $$")) == f"{pid}\n"
        nothing = await shell.kill()
        assert (nothing.run, nothing.killed) == (None, False)

    in_shell(tmp_path, test)


def test_killing_what_ignores_interrupts(tmp_path: Path) -> None:
    """After the grace period all that the command started is killed, in whatever session it is."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="(trap '' INT TERM; echo begun; setsid sleep 60 & sleep 61)"))
        await until(lambda: "begun" in output(run) and len(list(processes.descendants(shell.pid or 0))) == 3)
        below = list(processes.descendants(shell.pid or 0))
        await shell.kill()
        assert run.status is RunStatus.KILLED
        await until(lambda: not any(processes.still_alive(stat) for stat in below))
        assert shell.state is READY

    in_shell(tmp_path, test, kill_grace=0.1)


def test_a_kill_whose_interrupt_never_comes_through(tmp_path: Path) -> None:
    """What an interrupt takes counts: where there is no moment for one, the next step comes all the same."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="echo begun; sleep 60"))
        await until(lambda: output(run) == "begun\n")
        bash = shell._bash
        assert bash is not None
        async with bash._gate.held():
            killed = await shell.kill()
        assert (killed.killed, killed.state) == (True, UNRECOVERABLE)
        assert run.status is RunStatus.KILLED

    in_shell(tmp_path, test, kill_grace=0.1)


def test_one_signal(tmp_path: Path) -> None:
    """It goes to the foreground, and the command may do with it what it likes."""

    async def test(shell: Shell) -> None:
        run = shell.submit(
            Command(text="bash -c \"trap 'echo usr1; exit 5' USR1; echo begun; while :; do sleep 0.01; done\"")
        )
        await until(lambda: output(run) == "begun\n")
        assert (await shell.kill(signal.SIGUSR1)).killed
        await run.wait(60)
        assert run.ending is not None
        assert (run.ending.exit_code, run.ending.cause) == (5, Cause.EXIT)
        assert output(run).endswith("usr1\n")

    in_shell(tmp_path, test)


def test_a_lifetime(tmp_path: Path) -> None:
    """A command that runs longer than it may is killed, and the error names the setting."""

    async def test(shell: Shell) -> None:
        run = await ran(shell, "sleep 60")
        assert run.ending is not None
        assert (run.ending.status, run.ending.cause) == (RunStatus.KILLED, Cause.LIFETIME)
        assert run.ending.error == "Killed: it ran longer than timeout.command_lifetime, which is 200ms."

    in_shell(tmp_path, test, command_lifetime=0.2)


def test_a_wait_that_ends_before_the_command(tmp_path: Path) -> None:
    """Nothing happens to the command; whoever waits again gets its end."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text="echo begun; read; echo done"))
        await run.wait(0.05)
        assert run.running
        assert run.result().status is RunStatus.RUNNING
        await shell.write_stdin(b"\n", eof=False, offset=None)
        await asyncio.gather(run.wait(60), run.wait(60))
        assert output(run) == "begun\ndone\n"

    in_shell(tmp_path, test)


def test_background_processes(tmp_path: Path) -> None:
    """They are named in the result, live on, write to their own run's log, and end with the shell."""
    left: list[processes.ProcessStat] = []

    async def test(shell: Shell) -> None:
        run = await ran(shell, "{ until [ -e go ]; do sleep 0.01; done; echo late; sleep 60; } & echo early")
        assert output(run).endswith("early\n")
        assert len(run.background_pids) >= 1
        left.extend(stat for pid in run.background_pids if (stat := processes.process_stat(pid)))
        other = await ran(shell, "echo other")
        assert output(other) == "other\n"
        assert other.background_pids == ()
        (tmp_path / "work/go").touch()
        await until(lambda: "late\n" in output(run))
        assert output(other) == "other\n"

    in_shell(tmp_path, test)
    assert left
    assert not any(processes.still_alive(stat) for stat in left)


def test_recycling_under_a_run(tmp_path: Path) -> None:
    """The run ends as recycled, all that the shell started is gone, and the new bash is as the first one was."""

    async def test(shell: Shell) -> None:
        await ran(shell, "x=1; cd /; setsid sleep 60 &")
        below = list(processes.descendants(shell.pid or 0))
        assert below
        pid = shell.pid
        run = shell.submit(Command(text="echo begun; sleep 60"))
        await until(lambda: output(run) == "begun\n")
        await shell.recycle()
        assert run.ending is not None
        assert (run.ending.status, run.ending.cause) == (RunStatus.KILLED, Cause.RECYCLED)
        assert not any(processes.still_alive(stat) for stat in below)
        assert output(await ran(shell, "echo ${x-none} $PWD")) == f"none {tmp_path}/work\n"
        assert shell.pid != pid

    in_shell(tmp_path, test)


def test_a_recycle_without_the_directory_to_begin_in_is_refused(tmp_path: Path) -> None:
    """Nothing is killed for a bash that could not start."""

    async def test(shell: Shell) -> None:
        await ran(shell, "x=1; cd /; rmdir ~")
        with pytest.raises(DirectoryGone, match="is gone"):
            await shell.recycle()
        assert output(await ran(shell, "echo $x; mkdir ~")) == "1\n"
        await shell.recycle()
        assert shell.state is READY

    in_shell(tmp_path, test)


@pytest.mark.parametrize("way", ["recycle", "end"])
def test_no_run_begins_in_a_bash_that_is_ending(tmp_path: Path, way: str) -> None:
    """While a ready shell is recycled or closed it takes no command, and what comes of that is as asked for."""

    async def test(shell: Shell) -> None:
        for _ in range(5):
            ending = asyncio.create_task(shell.recycle() if way == "recycle" else shell.end("The test ended it."))
            await asyncio.sleep(0)
            assert not ending.done()
            while not ending.done():
                assert shell.state is (READY if way == "recycle" else AVAILABLE)
                with pytest.raises(ShellBusy if way == "recycle" else ShellNotStarted):
                    shell.submit(Command(text="echo late"))
                await asyncio.sleep(0)
            if way == "end":
                await shell.start(StartupRequest())
            assert shell.state is READY
            assert output(await ran(shell, "echo next")) == "next\n"

    in_shell(tmp_path, test)


def test_resizing_and_looking(tmp_path: Path) -> None:
    """A running program sees the new size; foreground and resources tell what goes on."""

    async def test(shell: Shell) -> None:
        assert shell.foreground is None
        run = shell.submit(Command(text="read; stty size"))
        await run.wait(10, for_input=True)
        shell.resize(50, 132)
        assert shell.foreground is not None
        assert shell.foreground.pid == shell.pid
        assert shell.resources().processes >= 1
        assert shell.resources().memory_mb > 1
        await shell.write_stdin(b"\n", eof=False, offset=None)
        await run.wait(60)
        assert output(run) == "50 132\n"

    in_shell(tmp_path, test)


@pytest.mark.parametrize(
    ("request_", "error", "match"),
    [
        (StartupRequest(working_directory="/not/there"), InvalidRequest, "/not/there"),
        (StartupRequest(environment={"1A": "x"}), InvalidRequest, "1A"),
    ],
)
def test_a_start_that_cannot_be(tmp_path: Path, request_: StartupRequest, error: type[Exception], match: str) -> None:
    """The shell stays available, and can be started rightly after that, as the request asks."""

    async def test(shell: Shell) -> None:
        await shell.end("The test begins again.")
        with pytest.raises(error, match=match):
            await shell.start(request_)
        assert shell.state is AVAILABLE
        await shell.start(StartupRequest(working_directory="/usr", environment={"A": "b"}, rows=10, cols=20))
        assert output(await ran(shell, "pwd; echo $A; stty size")) == "/usr\nb\n10 20\n"

    in_shell(tmp_path, test)


@pytest.mark.parametrize("command", ["/not/there", "/bin/true", "/bin/false -x"])
def test_a_program_that_is_no_shell(tmp_path: Path, command: str) -> None:
    """The error names it, nothing of it stays, and the shell is available."""

    async def test(shell: Shell) -> None:
        raise AssertionError("it has started")

    with pytest.raises(ShellStartFailed, match=command.partition(" ")[0]):
        in_shell(tmp_path, test, command=command)


def test_a_bash_that_dies_as_it_starts(tmp_path: Path) -> None:
    """Whatever the moment: a shell whose bash is dead does not say that it is ready."""
    startup = tmp_path / "startup"

    async def test(shell: Shell) -> None:
        for milliseconds in range(8, 40):
            startup.write_text(f"(yes & sleep {milliseconds / 1000}; kill -9 $$; kill -9 $!) &\n")
            try:
                await shell.recycle()
            except ShellStartFailed:  # it was too early
                assert shell.state is UNRECOVERABLE
                continue
            await until(lambda: shell.pid is None)
            assert shell.state is not READY
        startup.write_text("")
        await shell.recycle()
        assert shell.state is READY

    startup.touch()
    in_shell(tmp_path, test, command=f"/bin/bash --rcfile {startup}")


def test_large_and_binary_output(tmp_path: Path) -> None:
    """Every byte arrives, before the run ends."""

    async def test(shell: Shell) -> None:
        run = await ran(shell, "head -c 900000 /dev/zero; printf 'end\\xff'")
        log = run.log(Stream.STDOUT)
        assert log is not None
        assert log.size == 900_004
        assert log.read(900_000, 10).data == b"end\xff"

    in_shell(tmp_path, test)


@pytest.mark.parametrize("way", ["end", "recycle"])
def test_the_end_of_a_shell_does_not_wait_for_counting(tmp_path: Path, way: str) -> None:
    """After a flood of colours it comes before the output's size is known, which is counted when it is asked for."""

    async def test(shell: Shell) -> None:
        run = shell.submit(Command(text=r"yes $'\e[31mred\e[0m' | head -c 16000000"))
        await run.wait(60)
        if way == "recycle":
            await shell.recycle()
        else:
            await shell.end("test")
        assert (run.hurried, run.counted) == (True, False)

    in_shell(tmp_path, test)
