"""The tools over MCP, as the SDK's own client sees them, in both generations of the protocol."""

import asyncio
import os
import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from shelld_py.tools.catalogue import TOOLS
from tests.daemons import RunningDaemon
from tests.mcp.clients import connected, each_generation, mcp, text_of, with_client


@each_generation
def test_every_tool_is_listed_with_schemas_and_annotations(speaker: RunningDaemon, mode: str) -> None:
    async def test(client: Any) -> None:
        assert client.server_info.name == "shelld-py"
        listed = (await client.list_tools()).tools
        assert [tool.name for tool in listed] == [tool.name for tool in TOOLS]
        for tool, shown in zip(TOOLS, listed, strict=True):
            assert shown.title == shown.annotations.title == tool.title
            assert shown.description == tool.description
            for schema in (shown.input_schema, shown.output_schema):
                Draft202012Validator.check_schema(schema)
                assert schema["type"] == "object"
            hints = shown.annotations
            assert [hints.read_only_hint, hints.destructive_hint, hints.idempotent_hint, hints.open_world_hint] == [
                tool.hints.read_only, tool.hints.destructive, tool.hints.idempotent, tool.hints.open_world,
            ]  # fmt: skip

    with_client(speaker, mode, test)


@each_generation
def test_each_family_of_tools_answers_in_text_and_structure(speaker: RunningDaemon, mode: str, tmp_path: Path) -> None:
    """The client itself holds each structured result against the schema of the listing."""

    async def test(client: Any) -> None:
        async def call(tool: str, **arguments: Any) -> Any:
            result = await client.call_tool(tool, arguments)
            assert not result.is_error, text_of(result)
            assert result.structured_content is not None
            return result

        one = await call("run_shell_command", command="echo out; echo err >&2; exit 3")
        assert one.structured_content["exit_code"] == 3
        assert text_of(one).startswith("out\n[stderr]\nerr\n[exit code 3, ")
        assert one.meta["shelld-py/run"]["running"] is False

        session = (await call("open_session")).structured_content["session_id"]
        await call("execute_command", session_id=session, command="cd /; kept=1")
        there = await call("execute_command", session_id=session, command="echo $PWD $kept")
        assert there.structured_content["stdout"] == "/ 1\n"
        await call("close_session", session_id=session)

        job = (await call("shell_start", command="read line; echo got $line")).structured_content["shell_id"]
        await call("shell_write", shell_id=job, text="it\n")
        waited = await call("shell_wait", shell_id=job)
        assert (waited.structured_content["eof"], waited.structured_content["exit_code"]) == (True, 0)
        assert "got it" in waited.structured_content["output"]
        await call("shell_close", shell_id=job)

        await call("bash", command="kept=2", restart=True)
        assert (await call("bash", command="echo $kept")).structured_content["output"] == "2\n"

        file = f"{mode}.txt"
        await call("create", path=file, content="one\n")
        await call("str_replace_based_edit_tool", command="str_replace", path=file, old_str="one", new_str="two")
        assert text_of(await call("read", path=file)).startswith("two\n")
        await call("shell_metadata")

    with_client(speaker, mode, test)


@each_generation
def test_what_a_tool_refuses_is_a_result_that_a_model_can_read(speaker: RunningDaemon, mode: str) -> None:
    async def test(client: Any) -> None:
        async def refused(tool: str, **arguments: Any) -> tuple[str, dict[str, Any]]:
            result = await client.call_tool(tool, arguments)
            assert result.is_error
            assert result.structured_content is None
            return text_of(result), result.meta["shelld-py/error"]

        text, error = await refused("bash", comand="ls")
        expected = (
            "bash has no argument 'comand'. Do you mean 'command'? It takes: command, restart, timeout_ms, "
            "deadline_ms, changes."
        )
        assert text == f"{expected}\n[error invalid_request]"
        assert error == {"code": "invalid_request", "status": 400, "argument": "comand"}
        text, error = await refused("read", path="none.txt")
        assert "none.txt" in text
        assert error["status"] == 404
        assert (await refused("shell_status", shell_id="none"))[1]["code"] == "run_not_found"

        lost = await client.call_tool("run_shell_command", {"command": "kill -9 $PPID"})
        assert lost.is_error
        assert lost.structured_content["command"] == "kill -9 $PPID"
        assert "lost" in text_of(lost)

    with_client(speaker, mode, test)


@each_generation
def test_an_unknown_tool_is_an_error_of_the_protocol(speaker: RunningDaemon, mode: str) -> None:
    async def test(client: Any) -> None:
        with pytest.raises(mcp.MCPError, match=r"There is no tool 'bahs'\. Do you mean bash\?") as refusal:
            await client.call_tool("bahs", {})
        assert refusal.value.error.code == -32602

    with_client(speaker, mode, test)


@each_generation
def test_bytes_that_are_no_text_do_no_harm(speaker: RunningDaemon, mode: str) -> None:
    directory = speaker.data.parent / "work" / f"odd-{mode}"
    directory.mkdir()
    (Path(os.fsdecode(os.fsencode(directory) + b"/caf\xe9"))).touch()

    async def test(client: Any) -> None:
        result = await client.call_tool("view", {"path": str(directory)})
        assert "caf\ufffd" in text_of(result)
        assert "caf\ufffd" in str(result.structured_content)
        output = await client.call_tool("run_shell_command", {"command": r"printf '\xff\x00\x1b[1m'"})
        assert not output.is_error

    with_client(speaker, mode, test)


def test_a_long_command_reports_progress_and_hands_over(speaker: RunningDaemon) -> None:
    """In both generations at once; what was handed over can be waited for."""

    async def call(mode: str) -> None:
        seen: list[tuple[float, str]] = []

        async def on_progress(progress: float, _total: float | None, message: str | None) -> None:
            seen.append((progress, message or ""))

        async with connected(speaker, mode) as client:
            go = speaker.data.parent / f"go-{mode}"
            command = f"echo half way; sleep 1.2; echo more; until [ -e {go} ]; do sleep 0.05; done; echo done"
            result = await client.call_tool("shell_exec", {"command": command}, progress_callback=on_progress)
            run_id = result.meta["shelld-py/run"]["run_id"]
            assert result.meta["shelld-py/run"] == {"run_id": run_id, "running": True}
            assert result.structured_content["status"] == "running"
            assert f'shell_wait {{"shell_id": "{run_id}"}} waits on' in text_of(result)
            assert [re.sub(r"^[12](\.\d+)?s: ", "", message) for _, message in seen] == ["half way", "more"]
            assert seen[0][0] < seen[1][0]
            go.touch()
            last = await client.call_tool("shell_wait", {"shell_id": run_id})
            assert last.structured_content["output"] == "half way\nmore\ndone\n"
            assert last.structured_content["exit_code"] == 0

    async def both() -> None:
        async with asyncio.timeout(60):
            await asyncio.gather(call("legacy"), call("auto"))

    asyncio.run(both())


@each_generation
def test_cancelling_interrupts_the_command_and_keeps_the_shell(speaker: RunningDaemon, mode: str) -> None:
    """The next call waits for the interruption, which this command takes its time for."""
    command = "(trap 'sleep 0.2; exit' INT; echo begun; sleep 60)"

    async def test(client: Any) -> None:
        await client.call_tool("bash", {"command": "kept=1", "restart": True})
        call = asyncio.create_task(client.call_tool("bash", {"command": command}))
        while not (runs := [run for run in await _runs(speaker) if "sleep 60" in run["command"]]):
            await asyncio.sleep(0.02)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        after = await client.call_tool("bash", {"command": "echo $kept"})
        assert after.structured_content["output"] == "1\n"
        run = await asyncio.to_thread(speaker.finished, runs[-1]["run_id"])
        assert run["status"] == "killed"
        assert run["stdout"].startswith("begun\n")
        await asyncio.to_thread(speaker.client.delete, f"/runs/{run['run_id']}")

    with_client(speaker, mode, test)


@each_generation
def test_cancelling_while_the_shell_starts_does_it_no_harm(speaker: RunningDaemon, mode: str) -> None:
    async def test(client: Any) -> None:
        call = asyncio.create_task(client.call_tool("bash", {"command": "sleep 60", "restart": True}))
        await asyncio.sleep(0.005)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        after = await client.call_tool("bash", {"command": "echo well"})
        assert after.structured_content["output"] == "well\n"

    with_client(speaker, mode, test)


async def _runs(daemon: RunningDaemon) -> list[dict[str, Any]]:
    listing = await asyncio.to_thread(daemon.json, "GET", "/runs")
    return [run for run in listing if run["status"] == "running"]
