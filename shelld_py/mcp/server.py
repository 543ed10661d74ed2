"""The catalogue of tools as a server of MCP, on the SDK's low-level server.

It serves both generations of the protocol: the one with a handshake and sessions (2024-11-05 to 2025-11-25), and the
one in which each request stands alone (2026-07-28). The only file that imports the SDK; see endpoint.py for when.
"""

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec
import sse_starlette.sse
from mcp import MCPError
from mcp.server.caching import CacheHint
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CallToolResult,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
)

from shelld_py.computer import Computer
from shelld_py.errors import ShelldError, ToolNotFound
from shelld_py.mcp.endpoint import ARGUMENTS
from shelld_py.tools.catalogue import Toolbox
from shelld_py.tools.shapes import Shape, listed
from shelld_py.tools.texts import seconds_text, with_footer
from shelld_py.tools.tool import CallContext, Progress, ToolResult
from shelld_py.version import __version__

_INSTRUCTIONS: Final = (
    "A computer to work on. `bash` runs commands in a shell that keeps its state; the tools for files read, search and "
    "edit. The last line of each answer, in brackets, says how a command ended. A command that takes long goes on, and "
    "that line says how to wait for it."
)
_SESSION_IDLE: Final = 12 * 3600.0
"""Seconds without a request after which a session of the protocol ends: clients are bad at beginning a new one."""
_MOST_SESSIONS: Final = 1000
_LISTING_LIFETIME: Final = 3_600_000
"""Milliseconds for which a client may keep the list of tools, which never changes."""
_LONGEST_REPORT: Final = 1.0
"""Seconds that a report of progress may take: a client that does not read holds up nothing."""
_LONGEST_INTERRUPTION: Final = 1.0
"""Seconds that a call waits for the interruption of one that was cancelled before."""
_LONGEST_LINE: Final = 200
_SURROGATE: Final = re.compile("[\ud800-\udfff]")

Context = ServerRequestContext[Any, Any]


@asynccontextmanager
async def session_manager(
    computer: Computer, toolbox: Toolbox, logger: logging.Logger
) -> AsyncIterator[StreamableHTTPSessionManager]:
    """What answers requests at /mcp, for as long as this lasts; then every call is over.

    The SDK's checks of the headers Host and Origin are off: the daemon has checked them before.
    """
    tools = _Tools(computer, toolbox, logger)
    server = Server(
        "shelld-py",
        version=__version__,
        title="shelld-py",
        instructions=_INSTRUCTIONS,
        cache_hints={"tools/list": CacheHint(ttl_ms=_LISTING_LIFETIME)},
        get_tool_input_schema=tools.input_schemas.get,
        on_list_tools=tools.list_tools,
        on_call_tool=tools.call_tool,
    )
    server.middleware.clear()
    _let_no_stream_poll()
    manager = StreamableHTTPSessionManager(
        server,
        max_request_body_size=max(1, computer.settings.server.max_body),
        session_idle_timeout=_SESSION_IDLE,
        max_sessions=_MOST_SESSIONS,
    )
    async with manager.run():
        yield manager
    await tools.settled()


class _Tools:
    """The handlers."""

    def __init__(self, computer: Computer, toolbox: Toolbox, logger: logging.Logger) -> None:
        self._computer = computer
        self._toolbox = toolbox
        self._logger = logger
        self._listing = ListToolsResult.model_validate(listed(Shape.MCP))
        self._interrupted: set[asyncio.Task[ToolResult]] = set()
        """Calls that were cancelled and that still interrupt their command: the next call finds the shell ready."""
        self.input_schemas = {tool.name: tool.input_schema for tool in self._listing.tools}

    async def list_tools(self, _context: Context, _params: PaginatedRequestParams | None) -> ListToolsResult:
        """All tools, on one page."""
        return self._listing

    async def call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        """Call a tool. What it refuses is a result, which a model can read; an unknown tool is the protocol's error."""
        try:
            self._toolbox.tool(params.name)
        except ToolNotFound as error:
            raise MCPError(INVALID_PARAMS, error.detail, {"code": error.code, **error.extra}) from None
        settings = CallContext(
            longest_wait=self._computer.settings.timeout.mcp,
            interrupt_on_cancel=True,
            protocol="mcp",
            on_progress=_reporter(context) if context.meta and "progress_token" in context.meta else None,
        )
        if self._interrupted:
            await asyncio.wait(self._interrupted, timeout=_LONGEST_INTERRUPTION)
        # A task of its own: a scope of anyio that is cancelled goes on to cancel whatever is then awaited, and what
        # interrupts a command must be awaited.
        large = context.request.scope.get(ARGUMENTS) if context.request else None
        work = self._toolbox.call(params.name, large or params.arguments or {}, settings)
        call = asyncio.get_running_loop().create_task(work)
        try:
            return _result(await asyncio.shield(call))
        except ShelldError as error:
            return _refusal(error)
        except asyncio.CancelledError:
            call.cancel()
            self._interrupted.add(call)
            call.add_done_callback(self._settled)
            raise
        except Exception:
            self._logger.exception("MCP: a fault of the daemon in the tool %s", params.name)
            return _refusal(ShelldError("A fault of the daemon; its log says which."))

    async def settled(self) -> None:
        """Return when no call is being done any more."""
        if self._interrupted:
            await asyncio.wait(set(self._interrupted))

    def _settled(self, call: "asyncio.Task[ToolResult]") -> None:
        """Take note of the end of a call that nobody waits for any more."""
        self._interrupted.discard(call)
        if not call.cancelled():
            call.exception()


def _result(outcome: ToolResult) -> CallToolResult:
    run = {"shelld-py/run": {"run_id": outcome.run_id, "running": outcome.running}} if outcome.run_id else None
    return CallToolResult(
        content=[TextContent(text=_printable(outcome.text))],
        structured_content=_printable(msgspec.to_builtins(outcome.result)),
        is_error=outcome.is_error,
        _meta=run,
    )


def _refusal(error: ShelldError) -> CallToolResult:
    text = with_footer(error.detail, f"error {error.code}")
    told = _printable({"code": error.code, "status": error.status, **error.extra})
    return CallToolResult(content=[TextContent(text=_printable(text))], is_error=True, _meta={"shelld-py/error": told})


def _reporter(context: Context) -> Callable[[Progress], Awaitable[None]]:
    """Return what reports progress to the client: seconds, the last line of output."""

    async def report(progress: Progress) -> None:
        line = _printable(progress.last_line.strip())[:_LONGEST_LINE]
        message = f"{seconds_text(progress.seconds)}: {line}" if line else seconds_text(progress.seconds)
        try:
            async with asyncio.timeout(_LONGEST_REPORT):
                await context.session.report_progress(round(progress.seconds, 3), message=message)
        except TimeoutError:
            return

    return report


def _printable(value: Any) -> Any:
    """Return `value` with U+FFFD for lone surrogates, which JSON can bring and the SDK cannot send."""
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {name: _printable(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_printable(member) for member in value]
    return value


def _let_no_stream_poll() -> None:
    """Keep sse-starlette from looking twice a second, for ever, whether the server is to exit: our end closes streams.

    Where that package has changed so that this does nothing, streams work all the same.
    """
    state = getattr(sse_starlette.sse, "_get_shutdown_state", None)
    if state is not None:
        state().watcher_started = True
