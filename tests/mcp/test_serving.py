"""/mcp as part of the daemon: the key, limits, idleness, the end, the next client, and what it costs if not used."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from shelld_py.errors import InvalidRequest
from shelld_py.mcp.endpoint import parted
from tests.api.test_kill import Waiting
from tests.daemons import KEY, Answer, RunningDaemon, wait_for
from tests.mcp.clients import connected, mcp, text_of

ROOT = Path(__file__).parent.parent.parent
ACCEPT = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}},
}


def initialized(daemon: RunningDaemon, key: str = KEY) -> str:
    """Begin a session of the protocol by hand; return its id."""
    answer = daemon.ask("POST", "/mcp", body=json.dumps(INITIALIZE), headers=ACCEPT, key=key)
    assert answer.status == 200, answer.body
    return answer.headers["mcp-session-id"]


def called(daemon: RunningDaemon, session: dict[str, str], tool: str, **arguments: Any) -> Answer:
    """Call a tool by hand."""
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}
    return daemon.ask("POST", "/mcp", body=json.dumps(message), headers=session, key=KEY)


def test_without_the_setting_there_is_no_such_path(shared_daemon: RunningDaemon) -> None:
    answer = shared_daemon.ask("POST", "/mcp", body=json.dumps(INITIALIZE), headers=ACCEPT, key=KEY)
    assert answer.status == 404
    assert json.loads(answer.body)["code"] == "not_found"


def test_many_small_values_are_refused_before_the_protocol_reads_them(speaker: RunningDaemon) -> None:
    """A body has the bound of all JSON; long strings, and what is no JSON, are the protocol's to judge."""
    session = ACCEPT | {"Mcp-Session-Id": initialized(speaker)}
    refused = called(speaker, session, "bash", command=[[]] * 30_000)
    assert (refused.status, json.loads(refused.body)["code"]) == (400, "invalid_request")
    assert "65536 bytes besides strings" in json.loads(refused.body)["detail"]
    taken = called(speaker, session, "bash", command=f": {'x' * 200_000}; echo taken")
    assert taken.status == 200
    assert b"taken" in taken.body
    malformed = speaker.ask("POST", "/mcp", body="[" * 10_000, headers=session, key=KEY)
    assert malformed.status == 400
    assert b"jsonrpc" in malformed.body


def test_the_protocol_parses_no_more_than_a_bounded_piece() -> None:
    """Its parser works in the event loop: of a large message it gets all but the arguments of the tool."""
    arguments = {"path": "a", "content": "x\ud800" * 2_000_000}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": {"name": "create", "arguments": arguments}}
    rest, taken = parted(json.dumps(call).encode())
    assert taken == arguments
    assert json.loads(rest) == {**call, "params": {"name": "create", "arguments": {}}}
    for large in ({"id": "x" * 20_000}, {"params": ["x" * 20_000]}, ["x" * 20_000], "x" * 20_000):
        with pytest.raises(InvalidRequest, match="besides the arguments of a tool"):
            parted(json.dumps(large).encode())
    for malformed in (b"[" * 30_000, b'{"a": "' + b"x" * 5_000_000, b"\xff" * 5_000, b"[" * 3_000 + b"]" * 3_000):
        assert parted(malformed) == (b"?", None)


@pytest.mark.parametrize("version", ["2025-06-18", "2026-07-28"])
def test_large_arguments_reach_the_tool(speaker: RunningDaemon, version: str) -> None:
    """In both generations of the protocol."""
    content = f"{version} é\n" * 100_000
    params: dict[str, Any] = {"name": "create", "arguments": {"path": f"large-{version}", "content": content}}
    if version == "2025-06-18":
        headers = ACCEPT | {"Mcp-Session-Id": initialized(speaker)}
    else:
        headers = ACCEPT | {"MCP-Protocol-Version": version, "Mcp-Method": "tools/call", "Mcp-Name": "create"}
        params["_meta"] = {
            "io.modelcontextprotocol/protocolVersion": version,
            "io.modelcontextprotocol/clientCapabilities": {},
        }
    message = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": params}
    answer = speaker.ask("POST", "/mcp", body=json.dumps(message), headers=headers, key=KEY)
    assert answer.status == 200, answer.body
    assert (speaker.data.parent / "work" / f"large-{version}").read_text() == content


def test_the_protocol_is_loaded_when_it_is_first_spoken(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Neither the start nor the tools over HTTP load it: they do without its memory."""

    def loaded(daemon: RunningDaemon) -> bool:
        return "pydantic_core" in Path(f"/proc/{daemon.process.pid}/maps").read_text()

    daemon = start_daemon(server__mcp="true")
    assert len(daemon.json("GET", "/tools")) > 20
    assert not loaded(daemon)
    initialized(daemon)
    assert loaded(daemon)


def test_the_daemon_imports_nothing_of_it() -> None:
    script = "import sys, shelld_py.daemon, shelld_py.tools.catalogue; print({'mcp', 'pydantic'} & set(sys.modules))"
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


@pytest.mark.parametrize(
    ("installed", "said"),
    [
        (None, "needs the package mcp, which is not installed"),
        ("1.9.4", "needs version 2 of the package mcp, not 1.9.4"),
    ],
)
def test_without_the_extra_the_setting_says_what_to_install(tmp_path: Path, installed: str | None, said: str) -> None:
    """In an interpreter that has nothing but what reading a configuration needs."""
    packages = Path(sysconfig.get_paths()["platlib"])
    for pattern in ("tomli*", "*mypyc*", "msgspec*", "typing_extensions*"):
        for package in packages.glob(pattern):
            (tmp_path / package.name).symlink_to(package)
    if installed:
        metadata = tmp_path / f"mcp-{installed}.dist-info" / "METADATA"
        metadata.parent.mkdir()
        metadata.write_text(f"Metadata-Version: 2.1\nName: mcp\nVersion: {installed}\n")
    file = tmp_path / "config.toml"
    file.write_text("[server]\nmcp = true\n")
    environ = {"PYTHONPATH": f"{ROOT}:{tmp_path}", "PATH": os.environ["PATH"]}
    command = [sys.executable, "-S", "-m", "shelld_py", "check-config", str(file)]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.stderr == f"shelld-py: {file}: server.mcp: {said}: pip install '.[mcp]' in shelld-py's checkout\n"
    assert done.returncode == 2


def test_the_key_is_needed(speaker: RunningDaemon) -> None:
    for key, code in ((None, "key_required"), ("wrong", "key_mismatch")):
        answer = speaker.ask("POST", "/mcp", body=json.dumps(INITIALIZE), headers=ACCEPT, key=key)
        assert answer.status == 401
        assert json.loads(answer.body)["code"] == code

    async def connect() -> None:
        async with connected(speaker, key="wrong"):
            pass

    with pytest.raises((mcp.MCPError, ExceptionGroup)):
        asyncio.run(connect())


def test_the_key_may_be_a_bearer_token(speaker: RunningDaemon) -> None:
    headers = {**ACCEPT, "Authorization": f"Bearer {KEY}"}
    assert speaker.ask("POST", "/mcp", body=json.dumps(INITIALIZE), headers=headers).status == 200


def test_no_stream_is_open_for_nothing(speaker: RunningDaemon) -> None:
    answer = speaker.ask("GET", "/mcp", headers={"Accept": "text/event-stream"}, key=KEY)
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, POST")


def test_a_session_ends_on_request(speaker: RunningDaemon) -> None:
    session = {**ACCEPT, "Mcp-Session-Id": initialized(speaker)}
    ping = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "ping"})
    assert speaker.ask("POST", "/mcp", body=ping, headers=session, key=KEY).status == 200
    assert speaker.ask("DELETE", "/mcp", headers=session, key=KEY).status == 200
    assert speaker.ask("POST", "/mcp", body=ping, headers=session, key=KEY).status == 404


def test_a_body_has_the_limit_of_all_bodies(speaker: RunningDaemon) -> None:
    """The SDK's own, smaller limit is not in the way."""
    session = {**ACCEPT, "Mcp-Session-Id": initialized(speaker)}

    def create(size: int) -> Answer:
        return called(speaker, session, "create", path="large.txt", content="x" * size)

    refused = create(7 << 20)
    assert refused.status == 413
    assert json.loads(refused.body)["code"] == "body_too_large"
    assert create(9 << 19).status == 200
    assert (speaker.data.parent / "work" / "large.txt").stat().st_size == 9 << 19


def test_half_a_character_is_refused_in_words(speaker: RunningDaemon) -> None:
    """Of the two generations, the SDK reads a lone surrogate in the newer one alone."""
    envelope = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    session = {**ACCEPT, "Mcp-Session-Id": initialized(speaker)}
    called(speaker, session, "bash", command="cat", timeout_ms=1, restart=True)
    for tool, argument, code in (
        ("shell_status", "shell_id", "run_not_found"),
        ("bash_input", "text", "invalid_request"),
        ("bash", "command", "invalid_request"),
        ("run_shell_command", "command", "invalid_request"),
    ):
        params = {"name": tool, "arguments": {argument: "\ud800"}, "_meta": envelope}
        message = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params})
        routing = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": tool}
        answer = speaker.ask("POST", "/mcp", body=message, headers={**ACCEPT, **routing}, key=KEY)
        assert answer.status == 200
        result = json.loads(answer.body)["result"]
        assert result["isError"]
        assert result["_meta"]["shelld-py/error"]["code"] == code


def test_an_open_session_does_not_keep_the_daemon(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon(server__mcp="true", timeout__idle="3s")

    async def body() -> None:
        async with connected(daemon, "legacy"):
            assert await asyncio.to_thread(daemon.process.wait, 10) == 0

    asyncio.run(body())
    assert "no request for 3s" in daemon.log.read_text()


def test_nothing_wakes_up_when_all_has_been_answered(speaker: RunningDaemon) -> None:
    session = {**ACCEPT, "Mcp-Session-Id": initialized(speaker)}
    assert b'"isError":false' in called(speaker, session, "bash", command="echo", restart=True).body

    def rests() -> bool:
        before = _wake_ups(speaker)
        time.sleep(1.1)
        return _wake_ups(speaker) - before <= 1

    wait_for(rests)


def test_the_end_answers_who_waits_and_is_quick(start_daemon: Callable[..., RunningDaemon]) -> None:
    """In both generations, with a session open that does nothing."""
    daemon = start_daemon(server__mcp="true")
    initialized(daemon)

    async def body() -> None:
        async with (
            asyncio.timeout(60),
            connected(daemon, "legacy") as one,
            connected(daemon, "auto") as other,
        ):
            command = {"command": "echo begun; sleep 60"}
            calls = [asyncio.create_task(client.call_tool("run_shell_command", command)) for client in (one, other)]
            while [run["cursor"] for run in await asyncio.to_thread(daemon.json, "GET", "/runs")] != 2 * [6]:
                await asyncio.sleep(0.02)
            daemon.process.send_signal(signal.SIGTERM)
            for result in await asyncio.gather(*calls):
                assert result.is_error
                assert text_of(result).startswith("begun\n")
            assert await asyncio.to_thread(daemon.process.wait, 5) == 0

    asyncio.run(body())
    assert "not stopped" not in daemon.log.read_text()


def test_the_next_client_begins_anew(start_daemon: Callable[..., RunningDaemon]) -> None:
    """After a recycle of the daemon, the sessions of the earlier client are gone, and its calls are over."""
    daemon = start_daemon(key=None, server__mcp="true")
    session = {**ACCEPT, "Mcp-Session-Id": initialized(daemon)}
    call = {"name": "bash", "arguments": {"command": "sleep 60"}}
    message = json.dumps({"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": call})
    waiting = Waiting(daemon, "POST", "/mcp", message, **session)
    wait_for(lambda: daemon.state() == "busy")
    assert daemon.client.post("/shutdown?recycle=true").text == "available"
    waiting.answer()
    ping = json.dumps({"jsonrpc": "2.0", "id": 3, "method": "ping"})
    assert daemon.ask("POST", "/mcp", body=ping, headers=session, key="next").status == 404
    assert initialized(daemon, "next")
    assert daemon.ask("POST", "/mcp", body=ping, headers=session, key=KEY).status == 401


def _wake_ups(daemon: RunningDaemon) -> int:
    """Return how often the daemon's main thread has gone to sleep so far (proc_pid_status(5))."""
    status = Path(f"/proc/{daemon.process.pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
