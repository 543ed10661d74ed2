"""The HTTP application: every route in one list, and what each request passes on its way there.

    RequestLog > Activity > KeyLock > BodyLimit > AnswerRepeats > router > endpoint

A request that one of them refuses goes no further. An error raised anywhere is answered by RequestLog.
"""

import logging
import time
from collections.abc import Callable
from typing import Final

from starlette.routing import Route, Router
from starlette.types import ASGIApp, Receive, Scope, Send

from shelld_py.computer import Computer
from shelld_py.errors import ShuttingDown
from shelld_py.http.files import FileEndpoints
from shelld_py.http.keylock import KeyHolder, KeyLock
from shelld_py.http.mcp import METHODS, McpEndpoint
from shelld_py.http.middleware import Activity, BodyLimit, RequestLog
from shelld_py.http.repeats import AnswerRepeats, Repeats
from shelld_py.http.runs import RunEndpoints
from shelld_py.http.sessions import SessionEndpoints
from shelld_py.http.shells import TEXT_PATHS, ShellEndpoints
from shelld_py.http.tools import ToolEndpoints
from shelld_py.idle import IdleTimer

PUBLIC_PATHS: Final = frozenset({"/health"})


def routes(
    shells: ShellEndpoints, runs: RunEndpoints, sessions: SessionEndpoints, files: FileEndpoints, tools: ToolEndpoints
) -> list[Route]:
    """Return every path and method that there is, with its handler; the busiest first."""
    return [
        Route("/run", shells.run, methods=["POST"]),
        Route("/status", shells.status, methods=["GET"]),
        Route("/health", shells.health, methods=["GET"]),
        Route("/output", shells.output, methods=["GET"]),
        Route("/stdin", shells.stdin, methods=["POST"]),
        Route("/kill", shells.kill, methods=["POST"]),
        Route("/startup", shells.startup, methods=["POST"]),
        Route("/recycle", shells.recycle, methods=["POST"]),
        Route("/resize", shells.resize, methods=["POST"]),
        Route("/shutdown", shells.shutdown, methods=["POST"]),
        Route("/runs", runs.list_runs, methods=["GET"]),
        Route("/runs/{run_id}", runs.get_run, methods=["GET"]),
        Route("/runs/{run_id}", runs.delete, methods=["DELETE"]),
        Route("/runs/{run_id}/output", runs.output, methods=["GET"]),
        Route("/runs/{run_id}/wait", runs.wait, methods=["GET"]),
        Route("/runs/{run_id}/stdin", runs.stdin, methods=["POST"]),
        Route("/runs/{run_id}/kill", runs.kill, methods=["POST"]),
        Route("/exec", shells.execute, methods=["POST"]),
        Route("/metadata", sessions.metadata, methods=["GET"]),
        Route("/sessions", sessions.open, methods=["POST"]),
        Route("/sessions", sessions.list_sessions, methods=["GET"]),
        Route("/sessions/{session_id}", sessions.get_session, methods=["GET"]),
        Route("/sessions/{session_id}", sessions.close, methods=["DELETE"]),
        Route("/sessions/{session_id}/run", shells.run, methods=["POST"]),
        Route("/sessions/{session_id}/kill", shells.kill, methods=["POST"]),
        Route("/sessions/{session_id}/recycle", shells.recycle, methods=["POST"]),
        Route("/sessions/{session_id}/stdin", shells.stdin, methods=["POST"]),
        Route("/sessions/{session_id}/resize", shells.resize, methods=["POST"]),
        Route("/sessions/{session_id}/status", shells.status, methods=["GET"]),
        Route("/sessions/{session_id}/output", shells.output, methods=["GET"]),
        *(Route(f"/files/{name}", handle, methods=["POST"]) for name, handle in files.operations().items()),
        Route("/files/raw", files.read_raw, methods=["GET"]),
        Route("/files/raw", files.write_raw, methods=["PUT"]),
        Route("/tools", tools.list_tools, methods=["GET"]),
        Route("/tools/{name}", tools.call, methods=["POST"]),
    ]


def starts_run(path: str) -> bool:
    """Return whether a POST to `path` starts a run."""
    return path in ("/run", "/exec") or (path.startswith("/sessions/") and path.endswith("/run"))


class Application:
    """The ASGI application for one computer and one key."""

    def __init__(
        self,
        computer: Computer,
        keys: KeyHolder,
        idle: IdleTimer,
        *,
        logger: logging.Logger,
        admit: Callable[[], None],
        shut_down: Callable[[], None],
    ) -> None:
        """`admit` is called for each request with the right key and may refuse it; `shut_down` ends the daemon."""
        repeats = Repeats(time.monotonic)

        tools = ToolEndpoints(computer)
        self._mcp = McpEndpoint(computer, tools, logger) if computer.settings.server.mcp else None

        def reset() -> None:
            keys.forget()
            repeats.clear()
            if self._mcp:
                self._mcp.end_sessions()

        shells = ShellEndpoints(computer, repeats, idle, reset=reset, shut_down=shut_down)
        self._computer = computer
        self._idle = idle
        self._admit = admit
        runs, sessions, files = RunEndpoints(computer), SessionEndpoints(computer), FileEndpoints(computer)
        self.routes = routes(shells, runs, sessions, files, tools)
        if self._mcp:
            self.routes.append(Route("/mcp", self._mcp, methods=METHODS))
        app: ASGIApp = Router(self.routes, redirect_slashes=False)
        app = AnswerRepeats(app, repeats=repeats, starts_run=starts_run)
        app = BodyLimit(app, limit=computer.settings.server.max_body)
        app = KeyLock(app, holder=keys, routes=self.routes, public=PUBLIC_PATHS)
        app = Activity(app, begin=self._begin, end=idle.end)
        self._app = RequestLog(app, logger=logger, text_paths=TEXT_PATHS)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection scope. `app` in the scope makes the router raise rather than answer."""
        scope["app"] = self
        await self._app(scope, receive, send)

    async def aclose(self) -> None:
        """Part with the clients that are connected for longer than a request."""
        if self._mcp:
            await self._mcp.aclose()

    def _begin(self) -> None:
        if self._computer.resetting:
            raise ShuttingDown("The daemon is being made new for the next client.")
        self._admit()
        self._idle.begin()
