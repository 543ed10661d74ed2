"""Events of an adapter over Socket.IO, on the daemon's own port.

Client to server: `bot_response` (an event), `cancel_request` (`{"request_id"}`). Server to client, to the one that
asked: `request_queued`, and then `request_success` or `request_failed`, once for each request.

Each client has a queue and a task that takes one request after the other, so its requests are done in order. What a
client that has gone away had waiting is dropped; what was begun is finished.

Engine.IO, the transport, is reached with the key only. It gives each connection an id of 96 random bits, and clients
send no headers but with the first request; so a later request may name that id instead of the key. When the key is
forgotten, all connections end, and those that were opened before are not known any more.

Imported only where `server.socketio` is set.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import parse_qs

import socketio
from starlette.types import Receive, Scope, Send

from shelld_py.errors import (
    InvalidRequest,
    NotFound,
    RequestCancelled,
    RequestNotFound,
    ShelldError,
    TooManyRequests,
)
from shelld_py.http.requests import as_model
from shelld_py.tools.catalogue import Toolbox
from shelld_py.tools.events import EventRequest, adapter_of, failure, headed, perform
from shelld_py.tools.tool import CallContext
from shelld_py.validation import shown

_MOST_WAITING: Final = 100
_GENERATION: Final = "shelld_py.generation"
_CONTEXT: Final = CallContext(interrupt_on_cancel=True, protocol="socketio")

Admission = Callable[[], None]


class _Client:
    """The requests of one client: those that wait, and the one that is being done."""

    def __init__(self) -> None:
        self.waiting: dict[str, EventRequest] = {}
        self.current: tuple[str, asyncio.Task[dict[str, Any]]] | None = None
        self.worker: asyncio.Task[None] | None = None
        self.gone = False


class SocketEvents:
    """Serves Socket.IO: the ASGI application behind `/socket.io/`."""

    def __init__(
        self,
        toolbox: Callable[[], Toolbox],
        *,
        logger: logging.Logger,
        begin: Admission,
        end: Admission,
        max_message: int,
    ) -> None:
        """`begin` is called before each request is done and may refuse it, `end` after it. `max_message` is bytes."""
        self._toolbox = toolbox
        self._logger = logger
        self._begin = begin
        self._end = end
        self._clients: dict[str, _Client] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._working: set[asyncio.Task[dict[str, Any]]] = set()
        self._generation = object()
        """What connections carry that were opened since clients were last sent away."""
        quiet = logger.getChild("socketio")
        quiet.setLevel(logging.ERROR)  # what is more talkative shows commands and output
        self._server = socketio.AsyncServer(
            async_mode="asgi",
            async_handlers=False,
            max_http_buffer_size=max_message,
            logger=quiet,
            engineio_logger=quiet,
        )
        self._server.on("connect", self._connect)
        self._server.on("disconnect", self._disconnect)
        self._server.on("bot_response", self._bot_response)
        self._server.on("cancel_request", self._cancel_request)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request, or a WebSocket, that has been let through."""
        scope[_GENERATION] = self._generation
        try:
            await self._server.handle_request(scope, receive, send)
        except KeyError:
            raise NotFound("There is no such connection of Socket.IO, or it is closed.") from None

    def knows(self, scope: Scope) -> bool:
        """Return whether a request names a connection that was opened by one that has been let through."""
        # As text: of bytes, parse_qs takes only those whose values are ASCII.
        (connection, *_) = parse_qs(scope["query_string"].decode("latin-1")).get("sid", [""])
        return self._is_current(self._server.environ.get(connection))

    def drop_clients(self) -> None:
        """Send all clients away: nothing that they ask for from now on is done."""
        self._generation = object()
        for client in self._clients.values():
            self._leave(client)
        self._clients.clear()
        for connection in list(self._server.eio.sockets.values()):
            task = asyncio.get_running_loop().create_task(connection.close(wait=False))
            self._leaving.add(task)
            task.add_done_callback(self._leaving.discard)

    async def end_work(self) -> None:
        """End what clients have asked for and is still being done."""
        working = set(self._working)
        for task in working:
            task.cancel()
        if working:
            await asyncio.wait(working)

    async def aclose(self) -> None:
        """End what Socket.IO itself has going on, after the clients."""
        if self._leaving:
            await asyncio.wait(set(self._leaving))
        await self._server.shutdown()

    async def _connect(self, sid: str, environ: dict[str, Any], _auth: object = None) -> bool:
        if not self._is_current(environ):
            return False
        self._clients[sid] = _Client()
        return True

    def _is_current(self, environ: dict[str, Any] | None) -> bool:
        return environ is not None and environ["asgi.scope"].get(_GENERATION) is self._generation

    async def _disconnect(self, sid: str, _reason: object = None) -> None:
        client = self._clients.pop(sid, None)
        if client:
            self._leave(client)

    def _leave(self, client: _Client) -> None:
        client.gone = True
        client.waiting.clear()

    async def _bot_response(self, sid: str, data: object = None) -> dict[str, Any]:
        """Queue an event. The acknowledgement has its request id."""
        client = self._clients.get(sid)
        if client is None:
            return {"request_id": None}
        request_id = data.get("request_id") if isinstance(data, dict) else None
        adapter = None
        try:
            event = _event(data)
            request_id = event.request_id
            adapter = event.adapter
            if request_id in client.waiting or (client.current and client.current[0] == request_id):
                raise InvalidRequest(f"There is a request {request_id} already.")
            if len(client.waiting) >= _MOST_WAITING:
                raise TooManyRequests(f"{_MOST_WAITING} requests are waiting; wait for some of them to be done.")
        except ShelldError as error:
            known = request_id if isinstance(request_id, str) else None
            await self._server.emit("request_failed", failure(error, known, adapter), to=sid)
            return {"request_id": known}
        client.waiting[request_id] = event
        await self._server.emit("request_queued", headed(request_id, adapter), to=sid)
        if client.worker is None:
            client.worker = asyncio.get_running_loop().create_task(self._work(sid, client))
        return {"request_id": request_id}

    async def _cancel_request(self, sid: str, data: object = None) -> dict[str, Any]:
        """Cancel a request: one that waits is not done, a command that runs is interrupted.

        The acknowledgement says whether there was one. A request that is cancelled has failed.
        """
        client = self._clients.get(sid)
        inner = data.get("data", data) if isinstance(data, dict) else None
        request_id = inner.get("request_id") if isinstance(inner, dict) else None
        if client is None or not isinstance(request_id, str):
            return {"request_id": None, "cancelled": False}
        event = client.waiting.pop(request_id, None)
        if event:
            error: ShelldError = RequestCancelled("The request was cancelled before it was begun.")
            await self._server.emit("request_failed", failure(error, request_id, adapter_of(event)), to=sid)
        elif client.current and client.current[0] == request_id:
            client.current[1].cancel()
        else:
            error = RequestNotFound(f"There is no request {request_id} that waits or is being done.")
            await self._server.emit("request_failed", failure(error, request_id, None), to=sid)
            return {"request_id": request_id, "cancelled": False}
        return {"request_id": request_id, "cancelled": True}

    async def _work(self, sid: str, client: _Client) -> None:
        """Do the requests of a client, one after the other, until none waits."""
        while client.waiting:
            request_id = next(iter(client.waiting))
            event = client.waiting.pop(request_id)
            name, answer = await self._answer(client, event)
            client.current = None
            if not client.gone:
                await self._server.emit(name, answer, to=sid)
        client.worker = None

    async def _answer(self, client: _Client, event: EventRequest) -> tuple[str, dict[str, Any]]:
        """Do one request; return the event that tells what has become of it."""
        task = asyncio.get_running_loop().create_task(self._perform(event))
        client.current = (event.request_id, task)
        self._working.add(task)
        task.add_done_callback(self._working.discard)
        await asyncio.wait({task})
        if task.cancelled():
            error: ShelldError = RequestCancelled("The request was cancelled.")
        elif (fault := task.exception()) is None:
            return "request_success", task.result()
        elif isinstance(fault, ShelldError):
            error = fault
        else:
            self._logger.error("event %s: a fault of the daemon", event.request_id, exc_info=fault)
            error = ShelldError(f"A fault of the daemon; its log names event {event.request_id}.")
        return "request_failed", failure(error, event.request_id, adapter_of(event))

    async def _perform(self, event: EventRequest) -> dict[str, Any]:
        self._begin()
        try:
            return await perform(self._toolbox(), event, _CONTEXT)
        finally:
            self._end()


def _event(data: object) -> EventRequest:
    if not isinstance(data, dict):
        raise InvalidRequest(f"The event must be an object, not {shown(data)}.")
    return as_model(data, EventRequest, "member")
