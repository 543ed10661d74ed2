"""Hooks: they run, they are logged, and they block nothing."""

import asyncio
import logging
import os
from pathlib import Path

import pytest

from shelld_py.config import HookSettings
from shelld_py.hooks import HookName, Hooks
from shelld_py.linux import processes
from shelld_py.linux.orphans import Reaper
from tests.daemons import wait_for

LOGGER = logging.getLogger("tests.unit.hooks")


def run_hook(directory: Path, command: str, name: HookName = HookName.STARTUP, **settings: object) -> None:
    """Run one hook to its end; no process and no descriptor of it may stay."""
    hooks = Hooks(
        HookSettings(**{f"on_{name}": command, **settings}),  # type: ignore[arg-type]
        environment={"PATH": os.environ["PATH"], "A": "b"},
        directory=str(directory),
        reaper=Reaper(),
        logger=LOGGER,
    )
    children, descriptors = processes.children(os.getpid()), len(os.listdir("/proc/self/fd"))
    asyncio.run(hooks.run(name))
    assert processes.children(os.getpid()) == children
    assert len(os.listdir("/proc/self/fd")) == descriptors


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """What the hooks log, from `info` on."""
    caplog.set_level(logging.INFO, LOGGER.name)
    return caplog


@pytest.mark.parametrize("name", HookName)
def test_a_hook_knows_its_name(tmp_path: Path, log: pytest.LogCaptureFixture, name: HookName) -> None:
    """It runs in the directory, with the environment and SHELLD_HOOK, and without a terminal or input."""
    run_hook(tmp_path, 'echo "$SHELLD_HOOK $A $(pwd) $(cat) $(tty)" >said; env >environment', name)
    assert (tmp_path / "said").read_text() == f"{name} b {tmp_path}  not a tty\n"
    names = [line.split("=")[0] for line in (tmp_path / "environment").read_text().splitlines()]
    assert [item for item in names if item.startswith("SHELLD_")] == ["SHELLD_HOOK"]
    assert [(item.levelname, item.getMessage()) for item in log.records] == [("INFO", f"hook {name}: done")]


def test_no_hook(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """An empty command is none: nothing is started or logged."""
    run_hook(tmp_path, "", shell_command="/not/there")
    assert not log.records


def test_a_hook_that_fails(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """Its exit status and what it wrote to either stream are logged; nothing is raised."""
    run_hook(tmp_path, "echo out; echo err >&2; exit 7")
    (record,) = log.records
    assert record.levelname == "ERROR"
    assert record.getMessage() == "hook startup: failed with exit status 7; it wrote: out\nerr"


def test_a_hook_that_dies_of_a_signal(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """That is a failure too."""
    run_hook(tmp_path, "kill -9 $$")
    assert "failed with exit status -9; it wrote: nothing" in log.text


def test_a_hook_that_takes_too_long(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """It is killed with what it has started, and logged with what it wrote."""
    run_hook(tmp_path, "trap '' TERM INT; echo begun; sleep 600.75 & echo $! >pid; sleep 601", timeout=2)
    assert "hook startup: killed, it took longer than hooks.timeout (2s); it wrote: begun" in log.text
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not (stat := processes.process_stat(pid)) or not stat.alive)


def test_a_hook_that_leaves_something_running(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """Its end is not waited for though it holds the output open, and it goes with the hook."""
    run_hook(tmp_path, "sleep 602 & echo $! >pid")
    assert "done" in log.text
    pid = int((tmp_path / "pid").read_text())
    wait_for(lambda: not (stat := processes.process_stat(pid)) or not stat.alive)


def test_a_hook_that_writes_a_lot(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """It is not held up by its own output, of which the end is logged."""
    run_hook(tmp_path, "yes | head -c 500000; echo the end; exit 1")
    message = log.records[0].getMessage()
    assert message.endswith("the end")
    assert len(message) < 10_000


def test_output_that_is_not_text(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """It is logged as far as it can be read."""
    run_hook(tmp_path, "printf 'a\\377b'; exit 1")
    assert log.records[0].getMessage().endswith("a\ufffdb")


@pytest.mark.parametrize(
    ("shell_command", "message"),
    [("/not/there", "cannot be started"), ("/etc/passwd", "cannot be started"), ("/bin/false", "exit status 1")],
)
def test_a_shell_that_cannot_be_started(
    tmp_path: Path, log: pytest.LogCaptureFixture, shell_command: str, message: str
) -> None:
    """That is logged like a failure, and blocks nothing."""
    run_hook(tmp_path, "true", shell_command=shell_command)
    assert f"hook startup: {message}" in log.text or message in log.text
    assert log.records[0].levelname == "ERROR"


def test_another_shell_with_arguments(tmp_path: Path, log: pytest.LogCaptureFixture) -> None:
    """`shell_command` is split into words; the hook is its last argument."""
    run_hook(tmp_path, 'echo "${BASH_VERSION:+bash} $-" >said', shell_command="/bin/bash -e -u")
    said = (tmp_path / "said").read_text()
    assert said.startswith("bash ")
    assert {"e", "u"} <= set(said)


def test_the_loop_goes_on_while_a_hook_runs(tmp_path: Path) -> None:
    """Waiting for a hook keeps nobody else from working."""
    hooks = Hooks(
        HookSettings(on_recycle="until [ -e go ]; do sleep 0.01; done"),
        environment={"PATH": os.environ["PATH"]},
        directory=str(tmp_path),
        reaper=Reaper(),
        logger=LOGGER,
    )

    async def test() -> None:
        hook = asyncio.ensure_future(hooks.run(HookName.RECYCLE))
        await asyncio.sleep(0.05)
        assert not hook.done()
        (tmp_path / "go").touch()
        await asyncio.wait_for(hook, 60)

    asyncio.run(test())
