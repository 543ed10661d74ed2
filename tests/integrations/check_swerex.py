"""The semantics of a SWE-ReX runtime, which ships no checks of its own (scripts/test-integrations runs this)."""

import asyncio
import tempfile
from pathlib import Path

import pytest
from swerex import exceptions
from swerex.runtime.abstract import (
    BashAction,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from shelld_py.integrations.swerex import ShelldRuntime


async def _session(runtime):
    async def run(command, **options):
        return await runtime.run_in_session(BashAction(command=command, **options))

    assert (await runtime.is_alive()).is_alive
    await runtime.create_session(CreateBashSessionRequest())
    with pytest.raises(exceptions.SessionExistsError):
        await runtime.create_session(CreateBashSessionRequest())
    assert (await run("x=3; cd /tmp")).exit_code == 0
    assert (await run("echo $x $PWD")).output == "3 /tmp\n"
    with pytest.raises(exceptions.NonZeroExitCodeError):
        await run("false")
    assert (await run("(exit 4)", check="silent")).exit_code == 4
    with pytest.raises(exceptions.CommandTimeoutError):
        await run("sleep 60", timeout=0.5)
    assert (await run("echo $x")).output == "3\n"
    with pytest.raises(exceptions.BashIncorrectSyntaxError):
        await run("if; then")
    await run("python3 -q", is_interactive_command=True, timeout=10)
    assert "42" in (await run("print(6*7)", is_interactive_command=True)).output
    await run("exit()", is_interactive_quit=True)
    with pytest.raises(exceptions.SessionDoesNotExistError):
        await run("true", session="none")
    await runtime.close_session(CloseBashSessionRequest())


async def _commands_and_files(runtime, place):
    assert (await runtime.execute(Command(command=["echo", "a b"]))).stdout == "a b\n"
    done = await runtime.execute(Command(command="echo $A; exit 3", shell=True, env={"A": "1"}))
    assert (done.stdout, done.exit_code) == ("1\n", 3)
    with pytest.raises(exceptions.CommandTimeoutError):
        await runtime.execute(Command(command="sleep 60", shell=True, timeout=0.5))
    await runtime.write_file(WriteFileRequest(path=f"{place}/a/b", content="hé"))
    assert (await runtime.read_file(ReadFileRequest(path=f"{place}/a/b"))).content == "hé"
    with pytest.raises(FileNotFoundError):
        await runtime.read_file(ReadFileRequest(path=f"{place}/none"))
    await runtime.upload(UploadRequest(source_path=f"{place}/a", target_path=f"{place}/up"))
    assert Path(place, "up/b").read_text(encoding="utf-8") == "hé"


def test_a_runtime():
    """Sessions with state, time-outs that keep them, interactive programs, commands, files, directories."""

    async def body():
        runtime = ShelldRuntime()
        await _session(runtime)
        with tempfile.TemporaryDirectory() as place:
            await _commands_and_files(runtime, place)
        await runtime.close()

    asyncio.run(body())
