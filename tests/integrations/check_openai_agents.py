"""The shell tool and the sandbox of OpenAI's Agents SDK (scripts/test-integrations runs this)."""

import asyncio
import io
import os
from types import SimpleNamespace

import pytest
from agents import RunConfig, Runner
from agents.sandbox import SandboxAgent, SandboxRunConfig, errors
from agents.sandbox.entries import File
from agents.sandbox.manifest import Manifest
from agents.sandbox.snapshot import LocalSnapshotSpec
from agents.testing import ScriptedModel, assistant_message, function_call

from shelld_py import Client
from shelld_py.integrations.openai_agents import shell_tool
from shelld_py.integrations.openai_sandbox import ShelldSandboxClient


def test_a_shell_tool():
    """Streams and exit status; what takes too long is killed, and what comes after it is not run."""
    commands = ["echo a; echo b >&2; exit 2", "sleep 60", "echo never"]
    action = SimpleNamespace(commands=commands, timeout_ms=500, max_output_length=None)

    async def body():
        return await shell_tool().executor(SimpleNamespace(data=SimpleNamespace(action=action)))

    first, second = asyncio.run(body()).output
    assert (first.stdout, first.stderr, first.outcome.type, first.outcome.exit_code) == ("a\n", "b\n", "exit", 2)
    assert second.outcome.type == "timeout"


async def test_a_sandbox_session(tmp_path):
    """Commands, files, users, and a directory that goes through a snapshot into another session."""
    client = ShelldSandboxClient()
    manifest = Manifest(entries={"given.txt": File(content=b"given\n"), "brief": File(content=b"-", ephemeral=True)})
    snapshot = LocalSnapshotSpec(base_path=tmp_path)
    session = await client.create(manifest=manifest, snapshot=snapshot)
    async with session:
        assert await session.running()
        done = await session.exec("cat given.txt; printf '\\377' >&2; exit 3")
        assert (done.stdout, done.stderr, done.exit_code) == (b"given\n", b"\xff", 3)
        with pytest.raises(errors.ExecTimeoutError):
            await session.exec("sleep 60", timeout=0.3)
        await session.write("a/b.bin", io.BytesIO(b"\xff\0"))
        assert (await session.read("a/b.bin")).read() == b"\xff\0"
        with pytest.raises(errors.WorkspaceReadNotFoundError):
            await session.read("none")
        await session.exec("ln -s /etc out")
        with pytest.raises(errors.InvalidManifestPathError):
            await session.read("out/passwd")
        await session.exec("rm out")
        if not os.geteuid():
            assert (await session.exec("id", "-un", shell=False, user="nobody")).stdout == b"nobody\n"
            with pytest.raises(errors.WorkspaceArchiveWriteError):
                await session.write("c", io.BytesIO(b""), user="nobody")
    kept = client.serialize_session_state(session.state)
    await client.delete(session)
    assert Client().exec(argv=["ls", session.state.manifest.root]).exit_code == 2
    again = await client.resume(client.deserialize_session_state(kept))
    async with again:
        assert (await again.exec("cat given.txt a/b.bin; ls")).stdout == b"given\n\xff\0a\nbrief\ngiven.txt\n"
    await client.delete(again)


async def test_a_sandbox_agent():
    """An agent of theirs, with a scripted model, works in the daemon."""
    model = ScriptedModel(
        [[function_call("exec_command", {"cmd": "echo $((6 * 7))"}, call_id="1")], [assistant_message("done")]]
    )
    agent = SandboxAgent(name="agent", model=model)
    config = RunConfig(sandbox=SandboxRunConfig(client=ShelldSandboxClient()), tracing_disabled=True)
    result = await Runner.run(agent, "How much is it?", run_config=config)
    assert result.final_output == "done"
    assert any("42" in str(item.get("output")) for item in result.to_input_list())
