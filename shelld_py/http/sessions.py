"""Endpoints for sessions, and what there is to know of the machine."""

from http import HTTPStatus

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from shelld_py.computer import Computer
from shelld_py.http.answers import json_response
from shelld_py.http.negotiation import json_body, query_fields
from shelld_py.idle import IdleTimer
from shelld_py.models import SessionReference, SessionStatus, StartupRequest, utc_timestamp
from shelld_py.shells.shell import Shell


class SessionEndpoints:
    """Handlers for the extra shells."""

    def __init__(self, computer: Computer, idle: IdleTimer) -> None:
        self._computer = computer
        self._idle = idle

    async def open(self, request: HttpRequest) -> Response:
        """POST /sessions."""
        shell = await self._computer.sessions.open(await json_body(request, StartupRequest))
        return json_response(SessionReference(session_id=shell.session_id), HTTPStatus.CREATED)

    async def list_sessions(self, request: HttpRequest) -> Response:
        """GET /sessions: the main shell first."""
        query_fields(request, ())
        computer = self._computer
        return json_response([self._described(shell) for shell in [computer.main, *computer.sessions.shells()]])

    async def get_session(self, request: HttpRequest) -> Response:
        """GET /sessions/ID."""
        return json_response(self._described(self._computer.shell(request.path_params["session_id"])))

    async def close(self, request: HttpRequest) -> Response:
        """DELETE /sessions/ID."""
        session_id = request.path_params["session_id"]
        await self._computer.sessions.close(session_id, "The session was closed.")
        return json_response(SessionReference(session_id=session_id))

    async def metadata(self, request: HttpRequest) -> Response:
        """GET /metadata."""
        query_fields(request, ())
        return json_response(await self._computer.metadata())

    def _described(self, shell: Shell) -> SessionStatus:
        expires_at = self._computer.sessions.expires_at(shell.session_id)
        return SessionStatus(
            **msgspec.structs.asdict(self._computer.status(shell)),
            idle=round(self._idle.idle, 3),
            idle_timeout=self._idle.timeout,
            created_at=utc_timestamp(shell.created_at),
            expires_at=None if expires_at is None else utc_timestamp(expires_at),
        )
