"""A terminal in a WebSocket: what a shell's runs write, as it comes, and what a person types into them.

Bytes of the terminal are binary messages, all else is JSON in text ones. What is shown is read from the logs of the
runs, so a client holds nothing but a place in them: one that is too slow is closed, and can come back.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from shelld_py import errors, large_json
from shelld_py.errors import InvalidRequest, NoRunningCommand, ObserverKey, ShelldError, UpgradeRequired, WatchOnly
from shelld_py.events import shortened
from shelld_py.http.actions import message as audited
from shelld_py.http.endpoint import Call, Endpoint, Success, Tag
from shelld_py.http.keylock import subprotocols
from shelld_py.http.requests import LARGEST, Query, as_model, header, parsed, signal_number
from shelld_py.models import GapEvent, RunResult, ShellState, Stream, as_json
from shelld_py.request_data import Command, CommandText, Request, ResizeRequest, RunId
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.shell import Shell
from shelld_py.units import MEBIBYTE
from shelld_py.validation import shown
from shelld_py.websocket import CloseCode, Closed, WebSocket, accepted

PROTOCOL: Final = "shelld.terminal.v1"
_VERSION: Final = b"13"
_MOST_BEHIND: Final = MEBIBYTE
"""Bytes of output that may wait for a client."""
_MOST_RUNS: Final = 1000
"""Runs that may wait for a client: it is told of each."""
_LARGEST_MESSAGE: Final = MEBIBYTE
"""Bytes of a message from a client: a large paste."""
_PIECE: Final = 256 * 1024
"""Bytes of output that are sent at once: as many as a terminal is drained of before others get their turn."""
_MOST_UNREAD: Final = 64 * 1024
"""Bytes of input that wait for the program, beyond which no more is taken from the client."""
_UNREAD_PAUSE: Final = 0.02
"""Seconds between two looks whether the program has read some of them."""


class TerminalQuery(Query, frozen=True, kw_only=True):
    """Of a terminal in a WebSocket."""

    replay: Annotated[
        int, Meta(ge=0, le=LARGEST, description="So many bytes of the output so far come first, or what there is.")
    ] = 65536
    watch: Annotated[bool, Meta(description="Only look: what is sent is refused.")] = False


class SignalMessage(Request, frozen=True, kw_only=True):
    """One signal for the command that runs."""

    signal: str
    run_id: RunId | None = None


class KillMessage(Request, frozen=True, kw_only=True):
    """The end of the command that runs."""

    run_id: RunId | None = None


class RunMessage(Request, frozen=True, kw_only=True):
    """A command to run."""

    command: CommandText


_MESSAGES: Final[dict[str, type[Request]]] = {
    "resize": ResizeRequest,
    "signal": SignalMessage,
    "kill": KillMessage,
    "run": RunMessage,
}


class WebSocketResponse(Response):
    """The answer that makes a WebSocket of a request for one; `serve` has it then, and returns why it is closed."""

    def __init__(self, request: Scope, subprotocol: str, serve: Callable[[WebSocket], Awaitable[Closed]]) -> None:
        """Raises `UpgradeRequired`, `InvalidRequest` for what is no request for one."""
        if "upgrade" not in request:
            raise UpgradeRequired(f"{request['path']} is a WebSocket: ask for it with `Upgrade: websocket`.")
        if header(request, b"sec-websocket-version") != _VERSION:
            raise UpgradeRequired("The header Sec-WebSocket-Version must be 13.")
        try:
            token = accepted(header(request, b"sec-websocket-key") or b"")
        except ValueError:
            raise InvalidRequest("The header Sec-WebSocket-Key must be the Base64 of 16 bytes.") from None
        offered = subprotocols(request)
        if offered and subprotocol not in offered:
            raise InvalidRequest(f"The header Sec-WebSocket-Protocol must offer {subprotocol}, or nothing.")
        headers = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Accept": token.decode()}
        if offered:
            headers["Sec-WebSocket-Protocol"] = subprotocol
        super().__init__(status_code=101, headers=headers)
        self._serve = serve

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        """Serve it to its end."""
        lines = b"".join(b"%b: %b\r\n" % field for field in self.raw_headers)
        reader, writer = scope["upgrade"](b"HTTP/1.1 101 Switching Protocols\r\n%b\r\n" % lines)
        websocket = WebSocket(reader, writer, client=False, max_message=_LARGEST_MESSAGE)
        end = Closed(CloseCode.GOING_AWAY, "The request was ended: the daemon, or its key, is going.")
        try:
            end = await self._serve(websocket)
        except Exception:
            end = Closed(CloseCode.FAULT, "A fault of the daemon; its log has more.")
            raise
        finally:
            await websocket.close(end.code, end.reason)


async def _terminal(call: Call[TerminalQuery, None]) -> Response:
    response = WebSocketResponse(call.request.scope, PROTOCOL, _Attached(call, call.shell).serve)
    if "observer" in call.request.scope and not call.query.watch:
        raise ObserverKey("This key only looks: ask for the terminal with watch=true.")
    return response


class _Shown:
    """How much a client has been shown of a run."""

    def __init__(self, run: LiveRun, begin: RunResult) -> None:
        self.run = run
        self.begin = begin
        """The run as the client is told of it first."""
        self.cursors = dict.fromkeys(Stream, 0)
        self.begun = self.ended = False
        """Whether the client was told of its begin, and of its end."""

    def skip(self, replay: int) -> None:
        """Begin so many bytes before the end of each stream."""
        for stream, log in self.run.logs.items():
            self.cursors[stream] = max(0, log.size - replay)

    @property
    def behind(self) -> int:
        """Bytes that it has written and that are not shown."""
        return self.run.written - sum(self.cursors.values())


class _Attached:
    """One client at the terminal of a shell."""

    def __init__(self, call: Call[TerminalQuery, None], shell: Shell) -> None:
        self._services = call.services
        self._computer = call.computer
        self._query = call.query
        self._shell = shell
        self._changed = asyncio.Event()
        self._state: ShellState | None = None
        """What the client was told last."""
        self._shown: deque[_Shown] = deque()
        """The run that is shown, and those that have begun since."""
        self._replayed = 0
        self._typed_into: LiveRun | None = None
        """The run that the client means when it types: what is typed for one must not reach the next."""
        self._noted: LiveRun | None = None
        """The run of which the audit log says that it was typed into."""
        self._scope = call.request.scope
        self._websocket: WebSocket

    async def serve(self, websocket: WebSocket) -> Closed:
        """Show and type until either side ends; return why."""
        self._websocket = websocket
        computer, shell = self._computer, self._shell
        computer.on_run_started.append(self._run_started)
        computer.on_state.append(self._state_changed)
        self._typed_into = shell.run
        loop = asyncio.get_running_loop()
        with contextlib.nullcontext() if self._query.watch else shell.attached():
            tasks = {loop.create_task(self._show()), loop.create_task(self._take())}
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                return done.pop().result()
            except Closed as closed:
                return closed
            finally:
                computer.on_run_started.remove(self._run_started)
                computer.on_state.remove(self._state_changed)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                for each in self._shown:
                    each.run.on_change.discard(self._changed.set)

    # --- what is shown --------------------------------------------------------------------------------

    def _run_started(self, run: LiveRun) -> None:
        if run.session_id == self._shell.session_id:
            self._add(_Shown(run, run.beginning()))

    def _add(self, shown: _Shown) -> None:
        self._shown.append(shown)
        shown.run.on_change.add(self._changed.set)
        self._changed.set()

    def _state_changed(self, session_id: str, _state: ShellState, _previous: ShellState) -> None:
        if session_id == self._shell.session_id:
            self._changed.set()

    async def _show(self) -> Closed:
        """Send what happens and what is written, until the shell ends. Raises `Closed`."""
        if current := self._shell.run:
            shown = _Shown(current, current.result())
            shown.skip(self._query.replay)
            self._replayed = shown.behind
            self._add(shown)
        while True:
            self._changed.clear()
            if self._state is not self._shell.state:
                self._state = self._shell.state
                await self._tell("state", {"state": self._state})
            if not await self._show_run():
                over = self._shell.state is ShellState.AVAILABLE and self._shell is not self._computer.main
                if over and all(each.ended for each in self._shown):
                    return Closed(CloseCode.NORMAL, "The session has ended.")
                await self._changed.wait()

    async def _show_run(self) -> bool:
        """Send the next thing that there is to say of the runs; return whether there was one."""
        if not self._shown:
            return False
        shown = self._shown[0]
        run = shown.run
        if not shown.begun:
            shown.begun = True
            self._typed_into = run
            await self._tell_run(shown.begin)
            return True
        if not run.light and await self._show_output(shown):
            return True
        if not run.running and not shown.ended:
            shown.ended = True
            await self._tell_run(run.result())
            return True
        if shown.ended and len(self._shown) > 1:
            run.on_change.discard(self._changed.set)
            self._shown.popleft()
            return True
        return False

    async def _show_output(self, shown: _Shown) -> bool:
        for stream, log in shown.run.logs.items():
            cursor = shown.cursors[stream]
            if cursor < log.size:
                chunk = log.read(cursor, _PIECE)
                shown.cursors[stream] = chunk.end
                if chunk.dropped:
                    gap = GapEvent(stream=stream, cursor=cursor, dropped=chunk.dropped)
                    await self._tell("gap", gap)
                if chunk.data:
                    await self._send(chunk.data)
                return True
        return False

    async def _tell_run(self, result: RunResult) -> None:
        await self._tell("run", shortened(result))

    async def _tell(self, kind: str, data: Any) -> None:
        members = as_json(data).decode()
        await self._send(f'{{"type":"{kind}",{members[1:]}')

    async def _send(self, message: bytes | str) -> None:
        """Send a message; while it waits for the client, look how far behind that is. Raises `Closed`."""
        self._websocket.put(message)
        if self._websocket.waiting <= _PIECE:
            await asyncio.sleep(0)
            return
        drained = asyncio.get_running_loop().create_task(self._websocket.drained())
        drained.add_done_callback(lambda _: self._changed.set())
        try:
            while not drained.done():
                self._changed.clear()
                behind = sum(each.behind for each in self._shown) - self._replayed
                if behind > _MOST_BEHIND or len(self._shown) > _MOST_RUNS:
                    raise Closed(CloseCode.TRY_AGAIN_LATER, "The output comes faster than it is read.")
                await self._changed.wait()
            drained.result()
        finally:
            drained.cancel()

    # --- what the client sends ------------------------------------------------------------------------

    async def _take(self) -> Closed:
        """Do what the client asks for until it leaves. Raises `Closed`."""
        while True:
            message = await self._websocket.receive()
            try:
                if self._query.watch:
                    raise WatchOnly("This connection only watches: open one without watch=true to type.")
                await self._do(message)
            except ShelldError as error:
                told = {"code": error.code, "detail": error.detail}
                await self._tell("error", told)

    async def _do(self, message: bytes | str) -> None:
        """Do one thing, which counts as a request to the daemon and to the session."""
        request = None if isinstance(message, bytes) else await parsed(message.encode(), _decoded)
        self._services.check_open()
        self._computer.shells.get(self._shell.session_id)
        self._services.idle.begin()
        try:
            match request:
                case None:
                    assert isinstance(message, bytes)
                    await self._type(message)
                case ResizeRequest():
                    self._shell.resize(request.rows, request.cols)
                case SignalMessage():
                    number, run = signal_number(request.signal), self._meant(request.run_id)
                    self._note("signal", request, run)
                    await self._shell.kill(number, run, person=True)
                case KillMessage():
                    run = self._meant(request.run_id)
                    self._note("kill", request, run)
                    await self._shell.kill(run=run, person=True)
                case RunMessage():
                    await self._run(request.command)
                    self._note("run", request, self._typed_into)
        finally:
            self._services.idle.end()

    def _meant(self, run_id: str | None) -> LiveRun | None:
        """Return the run that goes on. Raises `NoRunningCommand` where another was meant."""
        run = self._shell.run
        if run_id is not None and (run is None or run.run_id != run_id):
            raise NoRunningCommand("The run that was meant is not going on: nothing was sent to any other.")
        return run

    def _note(self, kind: str, request: object, run: LiveRun | None) -> None:
        """Have the audit log tell what somebody does; that somebody types into a run, once."""
        if audit := self._computer.audit:
            audit.note(**audited(self._scope, kind, request, run))

    async def _type(self, text: bytes) -> None:
        run = self._typed_into
        if run is None or not run.running:
            raise NoRunningCommand("No command is running: what is typed now would reach nobody.")
        if run is not self._noted:
            self._noted = run
            self._note("type", None, run)
        await self._shell.write_stdin(text, eof=False, offset=None, run=run, person=True)
        while self._waits(run):  # noqa: ASYNC110 (the kernel tells nobody when a program has read)
            await asyncio.sleep(_UNREAD_PAUSE)

    def _waits(self, run: LiveRun) -> bool:
        """Whether too much of what was typed is unread, and there is still somebody to go on."""
        return run.running and self._shell.unread_input > _MOST_UNREAD and not self._websocket.gone

    async def _run(self, text: str) -> None:
        if not text.strip():
            raise InvalidRequest("The command is empty.")
        computer, shell = self._computer, self._shell
        if computer.settings.shell.start_on_run and shell is computer.main:
            await computer.ensure_started()
        self._typed_into = shell.submit(Command(text=text), person=True)


def _decoded(text: bytes) -> Request:
    """Return a message in JSON. Raises `InvalidRequest`."""
    try:
        given = large_json.decoded(text)
    except large_json.TooManyValues as error:
        raise InvalidRequest(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The message is not valid JSON: {error}.") from None
    kind = given.pop("type", None) if isinstance(given, dict) else None
    model = _MESSAGES.get(kind) if isinstance(kind, str) else None
    if not isinstance(given, dict) or model is None:
        known = ", ".join(_MESSAGES)
        wrong = f"type {shown(kind)}" if isinstance(given, dict) else shown(given)
        raise InvalidRequest(f"A text message must be a JSON object whose type is one of {known}, not {wrong}.")
    return as_model(given, model, "member")


_TERMINAL: Final[dict[str, Any]] = {
    "method": "GET",
    "query": TerminalQuery,
    "handler": _terminal,
    "looks": True,
    "passive": True,
    "description": (
        f"A WebSocket of the subprotocol `{PROTOCOL}`: the output of the run and of those that follow, as it comes, "
        "and what is typed. Binary messages are bytes of the terminal, text messages JSON."
    ),
    "answers": {101: Success(meaning="The connection is a WebSocket from here on.", content={})},
}
ENDPOINTS: Final = (
    Endpoint(
        path="/terminal",
        name="open_terminal",
        tag=Tag.MAIN,
        summary="The terminal of the main shell, to watch and to type into",
        errors=(errors.UpgradeRequired,),
        **_TERMINAL,
    ),
    Endpoint(
        path="/sessions/{session_id}/terminal",
        name="open_session_terminal",
        tag=Tag.SESSIONS,
        summary="The terminal of a session, to watch and to type into",
        errors=(errors.UpgradeRequired, errors.SessionNotFound),
        **_TERMINAL,
    ),
)
