"""The shell tool of OpenAI's Agents SDK (scripts/test-integrations runs this)."""

import asyncio
from types import SimpleNamespace

from shelld_py.integrations.openai_agents import shell_tool


def test_a_shell_tool():
    """Streams and exit status; what takes too long is killed, and what comes after it is not run."""
    commands = ["echo a; echo b >&2; exit 2", "sleep 60", "echo never"]
    action = SimpleNamespace(commands=commands, timeout_ms=500, max_output_length=None)

    async def body():
        return await shell_tool().executor(SimpleNamespace(data=SimpleNamespace(action=action)))

    first, second = asyncio.run(body()).output
    assert (first.stdout, first.stderr, first.outcome.type, first.outcome.exit_code) == ("a\n", "b\n", "exit", 2)
    assert second.outcome.type == "timeout"
