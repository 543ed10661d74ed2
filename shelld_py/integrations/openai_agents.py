"""shelld-py as the executor of the `shell` tool of OpenAI's Agents SDK. Made with openai-agents 0.24.0.

`Agent(tools=[shell_tool()])`; the daemon is that of `SHELLD_URL` and `SHELLD_KEY`.
"""

from agents import ShellCallOutcome, ShellCommandOutput, ShellCommandRequest, ShellResult, ShellTool

from shelld_py import AsyncClient

_LONGEST = 60_000


def shell_tool(url: str | None = None, key: str | None = None) -> ShellTool:
    """Return the tool: each command in a shell of its own, killed when its time is over."""
    client = AsyncClient(url, key)

    async def execute(request: ShellCommandRequest) -> ShellResult:
        action, outputs = request.data.action, []
        milliseconds = action.timeout_ms or _LONGEST
        for command in action.commands:
            run = await client.exec(
                command,
                deadline=f"{milliseconds}ms",
                streams="pipes",
                max_output=action.max_output_length or 0,
            )
            late = run.cause == "deadline"
            outcome = ShellCallOutcome("timeout") if late else ShellCallOutcome("exit", run.exit_code)
            outputs.append(ShellCommandOutput(run.stdout or "", run.stderr or "", outcome, command))
            if late:
                break
        return ShellResult(outputs, action.max_output_length)

    return ShellTool(executor=execute)
