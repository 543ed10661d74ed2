"""The one list of all tools, and calling them by name."""

from collections.abc import Mapping
from typing import Final

from shelld_py.audit import told
from shelld_py.computer import Computer
from shelld_py.errors import InvalidRequest, ShelldError, ToolNotFound
from shelld_py.models import RunResult, Screen
from shelld_py.tools import commands, data, editor, jobs, main_shell
from shelld_py.tools.files import FILE_TOOLS
from shelld_py.tools.schemas import Schema, arguments_schema
from shelld_py.tools.tool import CallContext, Hints, MainShellView, Tool, ToolCall, ToolResult
from shelld_py.validation import Fault, FaultKind, converted, nearest, shown

_READS: Final = Hints(read_only=True, idempotent=True)
_RUNS: Final = Hints(destructive=True, open_world=True)
_ADDS: Final = Hints()
_CHANGES: Final = Hints(destructive=True)

TOOLS: Final = (
    Tool(
        name="run_shell_command",
        title="Run a shell command",
        description=(
            "Run a command as `bash -c` does, in a fresh shell, and return its output and exit code. Nothing of it is "
            "kept for the next command: no variables, no directory. There is no terminal and no input: what asks gets "
            "end-of-file. Processes put in the background with & go on, "
            "and their pids are returned. A command that takes too long goes on, too: the answer says how to wait."
        ),
        arguments=data.RunShellCommand,
        result=data.RunShellCommandResult,
        hints=_RUNS,
        handler=commands.run_shell_command,
    ),
    Tool(
        name="open_session",
        title="Open a session",
        description=(
            "Open a bash that keeps its state (variables, directory, functions) from one execute_command to the next. "
            "Close it with close_session."
        ),
        arguments=data.NoArguments,
        result=data.SessionResult,
        hints=_ADDS,
        handler=commands.open_session,
    ),
    Tool(
        name="close_session",
        title="Close a session",
        description="Close a session. Everything that it started and that still runs is killed.",
        arguments=data.CloseSession,
        result=data.SessionResult,
        hints=_CHANGES,
        handler=commands.close_session,
    ),
    Tool(
        name="execute_command",
        title="Execute a command",
        description=(
            "Run a command in a session and return its output and exit code; the session keeps its state for the next "
            "one. Without session_id the command has a fresh shell of its own."
        ),
        arguments=data.ExecuteCommand,
        result=data.ExecuteCommandResult,
        hints=_RUNS,
        handler=commands.execute_command,
    ),
    Tool(
        name="shell_metadata",
        title="Describe the machine",
        description="Tell the operating system, the shell and the directory to work in.",
        arguments=data.NoArguments,
        result=data.ShellMetadataResult,
        hints=_READS,
        handler=commands.shell_metadata,
    ),
    Tool(
        name="shell_exec",
        title="Run a command to its end",
        description=(
            "Run one command in a shell of its own, wait for its end, and return all that is known of it. Use "
            "shell_start for what takes long, such as servers and builds."
        ),
        arguments=data.ShellExec,
        result=RunResult,
        hints=_RUNS,
        handler=commands.shell_exec,
    ),
    Tool(
        name="shell_start",
        title="Start a command",
        description=(
            "Start a command in a shell of its own and return at once with its shell_id. Ask after it with "
            "shell_status, shell_read and shell_wait, type into it with shell_write, end it with shell_close."
        ),
        arguments=data.ShellStart,
        result=data.ShellStartResult,
        hints=_RUNS,
        handler=jobs.shell_start,
    ),
    Tool(
        name="shell_status",
        title="Ask after a command",
        description="Tell whether a started command still runs, waits for input, or how it ended. Does not wait.",
        arguments=data.ShellById,
        result=data.ShellStatusResult,
        hints=_READS,
        handler=jobs.shell_status,
    ),
    Tool(
        name="shell_read",
        title="Read a command's output",
        description=(
            "Read the output of a started command from a cursor on, without waiting. The answer has the cursor for "
            "the next read. A line that is not finished yet comes when it is, or when the command waits for input."
        ),
        arguments=data.ShellRead,
        result=data.ShellReadResult,
        hints=_READS,
        handler=jobs.shell_read,
    ),
    Tool(
        name="shell_write",
        title="Type into a command",
        description="Type text into the terminal of a started command that is still running.",
        arguments=data.ShellWrite,
        result=data.ShellWriteResult,
        hints=_RUNS,
        handler=jobs.shell_write,
    ),
    Tool(
        name="shell_wait",
        title="Wait for a command",
        description=(
            "Wait until a started command has ended or waits for input, or with from_cursor until there is new "
            "output, and return the output. After the timeout it returns all the same; the command goes on."
        ),
        arguments=data.ShellWait,
        result=data.ShellWaitResult,
        hints=_READS,
        handler=jobs.shell_wait,
    ),
    Tool(
        name="shell_close",
        title="Close a command",
        description="Kill a started command if it still runs, and forget it with its output.",
        arguments=data.ShellById,
        result=data.ShellCloseResult,
        hints=_CHANGES,
        handler=jobs.shell_close,
    ),
    *FILE_TOOLS,
    Tool(
        name="bash",
        title="Run a command in the persistent bash",
        description=(
            "Run a command in a bash that keeps its state (variables, directory, functions) from call to call. Output "
            "is stdout and stderr as on a terminal. A command that outlives the wait goes on: the answer says so. "
            "Then bash_input types into it or waits on. With restart, a fresh bash is started."
        ),
        arguments=data.BashArguments,
        result=data.BashResult,
        hints=_RUNS,
        handler=main_shell.bash,
    ),
    Tool(
        name="bash_input",
        title="Type into the persistent bash",
        description=(
            "Type into the command that bash has left running, wait until it has ended or asks again, and return its "
            "new output. With an empty text it only waits and returns the new output. A program that draws takes keys, "
            "and bash_screen shows what it looks like."
        ),
        arguments=data.BashInput,
        result=data.BashResult,
        hints=_RUNS,
        handler=main_shell.bash_input,
    ),
    Tool(
        name="bash_screen",
        title="Look at the screen of the persistent bash",
        description=(
            "Show the terminal as a person would see it, with the place of the cursor. For programs that draw, such as "
            "vim, less, top and dialogs: press keys with bash_input, then look."
        ),
        arguments=data.BashScreen,
        result=Screen,
        hints=_READS,
        handler=main_shell.bash_screen,
    ),
    Tool(
        name="str_replace_based_edit_tool",
        title="View and edit files",
        description=(
            "View a file with line numbers, or a directory two levels deep; create a file or replace its content; "
            "replace a text that occurs once; insert text after a line."
        ),
        arguments=editor.Editor,
        result=editor.EditorResult,
        hints=_CHANGES,
        handler=editor.str_replace_based_edit_tool,
    ),
)
"""Every tool that there is, in the order of the listings."""


class Toolbox:
    """The tools on one computer, for one agent."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer
        self._tools = {tool.name: tool for tool in TOOLS}
        self._view = MainShellView()

    def tool(self, name: str) -> Tool:
        """Return a tool. Raises `ToolNotFound`, which names the nearest."""
        tool = self._tools.get(name)
        if tool is None:
            near = nearest(name, self._tools)
            hint = f" Do you mean {near}?" if near else f" There are: {', '.join(self._tools)}."
            raise ToolNotFound(f"There is no tool {shown(name)}.{hint}", nearest=near)
        return tool

    async def call(self, name: str, arguments: Mapping[str, object], context: CallContext | None = None) -> ToolResult:
        """Call a tool. Arguments that are null count as left out.

        Raises `ToolNotFound`, `InvalidRequest` for wrong arguments, and what the tool raises.
        """
        tool = self.tool(name)
        given = {key: value for key, value in arguments.items() if value is not None}
        wanted = converted(given, tool.arguments)
        if isinstance(wanted, Fault):
            raise _wrong_arguments(tool, wanted)
        call = ToolCall(computer=self._computer, view=self._view, context=context or CallContext())
        audit = self._computer.audit
        if not (audit and call.context.protocol):
            return await tool.handler(wanted, call)
        about = {"key": audit.current_key(), "action": f"{call.context.protocol} {name}", **told(given)}
        try:
            outcome = await tool.handler(wanted, call)
        except ShelldError as error:
            audit.note(**about, error=error.code)
            raise
        audit.note(**{**about, "run_id": outcome.run_id}, is_error=outcome.is_error)
        return outcome


def _wrong_arguments(tool: Tool, fault: Fault) -> InvalidRequest:
    """Return the error for arguments that are not what `tool` takes: which one, and what would be right."""
    members: dict[str, Schema] = arguments_schema(tool.arguments)["properties"]
    name = fault.name
    if fault.kind is FaultKind.UNKNOWN:
        near = nearest(name, members)
        hint = f" Do you mean {near!r}?" if near else ""
        names = f" It takes: {', '.join(members)}." if members else " It takes none."
        return InvalidRequest(f"{tool.name} has no argument {shown(name)}.{hint}{names}", argument=name)
    right = _described(members[name])
    if fault.kind is FaultKind.MISSING:
        return InvalidRequest(f"{tool.name} needs the argument {name!r}: {right}.", argument=name)
    return InvalidRequest(f"{tool.name}: {name} {fault.reason}. It is {right}.", argument=name)


def _described(schema: Schema) -> str:
    """Return what an argument is, in words: its type, what it may be, what it is for."""
    kind = str(schema["type"])
    if "enum" in schema:
        kind = f"one of {', '.join(schema['enum'])}"
    elif kind == "array":
        kind = f"array of {schema['items']['type']}s"
    elif "minimum" in schema:
        kind += f" of at least {schema['minimum']}"
    return f"{kind} ({str(schema['description']).rstrip('.')})"
