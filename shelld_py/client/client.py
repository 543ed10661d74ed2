"""The two clients: `Client` for programs without an event loop, `AsyncClient` for those with one (asyncio).

How calls are sent, and when again, is written once, as coroutines over an `_Http`. The client that blocks runs these
to their end by itself: nothing that they await there ever waits, because its `_Http` blocks. What can be asked is in
verbs.py, what a verb sends and returns in the builder that it names.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final, Protocol, Self, Unpack

import httpx

from shelld_py.client.connection import SOCKET_OPTIONS, Attempts, Connection, Retries, answer_of, result_of
from shelld_py.client.events import EVENTS_TYPE, Following
from shelld_py.client.requests import PATIENCE, Call, FormatName, StartupOptions, StreamName, T, Upload, segment
from shelld_py.client.verbs import (
    AwaitingPart,
    BlockingPart,
    DaemonVerbs,
    FilesVerbs,
    ObserversVerbs,
    RunsVerbs,
    Sender,
    SessionsVerbs,
    SessionVerbs,
    ToolsVerbs,
)
from shelld_py.models import OutputPart, Stream

if TYPE_CHECKING:
    from shelld_py.websocket import WebSocket

_END: Final = object()
_WHOLE: Final = b"\n\n"
"""Where an event ends, or a comment which says no more than that the daemon lives."""


class _Http(Protocol):
    """What sends a request: httpx, blocking or not. Takes the arguments of `Connection.arguments`."""

    async def request(self, **arguments: Any) -> httpx.Response:
        """Return the response, read."""

    def stream(self, **arguments: Any) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        """Give the response, not read yet."""

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        """Yield what comes of the body, as it comes."""

    async def read(self, response: httpx.Response) -> None:
        """Read the whole body."""

    async def sleep(self, seconds: float) -> None:
        """Wait."""


class _BlockingHttp:
    """Blocks: its coroutines never wait for anything but the system."""

    def __init__(self, encrypted: bool, transport: httpx.BaseTransport | None) -> None:
        own = httpx.HTTPTransport(verify=encrypted, socket_options=SOCKET_OPTIONS)
        self.http = httpx.Client(transport=transport or own)

    async def request(self, **arguments: Any) -> httpx.Response:
        if isinstance(upload := arguments["content"], Upload):
            upload.rewind()
            arguments["content"] = iter(upload.read, b"")
        return self.http.request(**arguments)

    @contextlib.asynccontextmanager
    async def stream(self, **arguments: Any) -> AsyncIterator[httpx.Response]:
        with self.http.stream(**arguments) as response:
            yield response

    async def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        for chunk in response.iter_raw():
            yield chunk

    async def read(self, response: httpx.Response) -> None:
        response.read()

    async def sleep(self, seconds: float) -> None:
        time.sleep(seconds)  # noqa: ASYNC251 (that is the point)


class _AwaitingHttp:
    """Waits as asyncio does."""

    def __init__(self, encrypted: bool, transport: httpx.AsyncBaseTransport | None) -> None:
        own = httpx.AsyncHTTPTransport(verify=encrypted, socket_options=SOCKET_OPTIONS)
        self.http = httpx.AsyncClient(transport=transport or own)

    async def request(self, **arguments: Any) -> httpx.Response:
        if isinstance(upload := arguments["content"], Upload):
            arguments["content"] = self._sent(upload)
        return await self.http.request(**arguments)

    async def _sent(self, upload: Upload) -> AsyncGenerator[bytes, None]:
        await asyncio.to_thread(upload.rewind)
        while piece := await asyncio.to_thread(upload.read):
            yield piece

    def stream(self, **arguments: Any) -> contextlib.AbstractAsyncContextManager[httpx.Response]:
        return self.http.stream(**arguments)

    def chunks(self, response: httpx.Response) -> AsyncIterator[bytes]:
        return response.aiter_raw()

    async def read(self, response: httpx.Response) -> None:
        await response.aread()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _Sender:
    """Sends calls, again where that is allowed."""

    def __init__(self, connection: Connection, http: _Http) -> None:
        self._connection = connection
        self._http = http

    async def send(self, build: Callable[[], Call[T]]) -> T:
        """Return the result of the call that `build` makes. Raises `ShelldError`."""
        call = build()
        attempts = Attempts(self._connection)
        while True:
            try:
                answer = answer_of(await self._http.request(**self._connection.arguments(call)))
            except httpx.RequestError as error:
                pause: float | None = attempts.after_failure(call, error)
            else:
                pause = attempts.after_answer(call, answer)
                if pause is None:
                    return result_of(call, answer)
            await self._http.sleep(pause or 0)

    async def events(self, following: Following[T]) -> AsyncGenerator[T, None]:
        """Yield events until the last, over as many connections as it takes."""
        attempts = Attempts(self._connection)
        while not following.done:
            call = following.call()
            try:
                async with self._http.stream(**self._connection.arguments(call, EVENTS_TYPE)) as response:
                    if response.is_success:
                        following.opened()
                        async with contextlib.aclosing(self._http.chunks(response)) as chunks:  # type: ignore[type-var]
                            async for chunk in chunks:
                                if chunk.endswith(_WHOLE):
                                    attempts.failed = 0
                                for event in following.feed(chunk):
                                    attempts.failed = 0
                                    yield event
                        following.closed()
                        if following.done:
                            return
                        raise httpx.RemoteProtocolError("the events ended without a result")
                    await self._http.read(response)
                    answer = answer_of(response)
            except httpx.RequestError as error:
                pause: float | None = attempts.after_failure(call, error)
            else:
                pause = attempts.after_answer(call, answer)
                if pause is None:
                    result_of(call, answer)
            await self._http.sleep(pause or 0)


async def _pieces(read: Callable[[int], Awaitable[OutputPart]], cursor: int) -> AsyncGenerator[OutputPart, None]:
    """Yield what `read` gives from `cursor` on, and on, until the end of the run."""
    eof = False
    while not eof:
        part = await read(cursor)
        if part.output or part.dropped:
            yield part
        cursor, eof = part.next_cursor, part.eof


def _run_now(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, which never has to wait for an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a client that blocks has nothing to await")


def _iterate_now(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
    """Yield what `items` yields, as `_run_now`."""

    async def next_item() -> Any:
        return await anext(items, _END)

    try:
        while (item := _run_now(next_item())) is not _END:
            yield item
    finally:
        _run_now(_closed(items))


async def _closed(items: AsyncGenerator[T, None]) -> None:
    await items.aclose()


class _BlockingSender:
    """A `_Sender` for those who block."""

    def __init__(self, sender: _Sender) -> None:
        self._sender = sender

    def send(self, build: Callable[[], Call[T]]) -> T:
        return _run_now(self._sender.send(build))

    def events(self, following: Following[T]) -> Generator[T, None, None]:
        return _iterate_now(self._sender.events(following))


class Session(SessionVerbs, BlockingPart):
    """A shell of its own. As a context manager it is closed at the end."""

    def __init__(self, sender: Sender, session_id: str) -> None:
        super().__init__(sender, f"/sessions/{segment(session_id)}")
        self.session_id = session_id

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSession(SessionVerbs, AwaitingPart):
    """A shell of its own. As a context manager it is closed at the end."""

    def __init__(self, sender: Sender, session_id: str) -> None:
        super().__init__(sender, f"/sessions/{segment(session_id)}")
        self.session_id = session_id

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sessions(SessionsVerbs, BlockingPart):
    """The shells beside the main one."""

    def open(self, **options: Unpack[StartupOptions]) -> Session:
        """Open a shell: `with client.sessions.open() as session: session.run(...)`. Raises `TooManySessions`."""
        return self.use(self._open(**options))

    def use(self, session_id: str) -> Session:
        """Return the session with this id, without asking the daemon whether it is there."""
        return Session(self._sender, session_id)


class AsyncSessions(SessionsVerbs, AwaitingPart):
    """The shells beside the main one."""

    async def open(self, **options: Unpack[StartupOptions]) -> AsyncSession:
        """Open a shell: `async with await client.sessions.open() as session: ...`. Raises `TooManySessions`."""
        return self.use(await self._open(**options))

    def use(self, session_id: str) -> AsyncSession:
        """Return the session with this id, without asking the daemon whether it is there."""
        return AsyncSession(self._sender, session_id)


class Runs(RunsVerbs, BlockingPart):
    """All runs that the daemon keeps."""

    def pieces(
        self,
        run_id: str,
        *,
        cursor: int = 0,
        stream: StreamName = Stream.STDOUT,
        limit: int | None = None,
        format: FormatName | None = None,  # noqa: A002
    ) -> Generator[OutputPart, None, None]:
        """Yield the output of one stream from `cursor` on, as it comes, until the end of the run."""

        async def read(cursor: int) -> OutputPart:
            return self.output(run_id, cursor=cursor, stream=stream, limit=limit, format=format, wait=PATIENCE)

        return _iterate_now(_pieces(read, cursor))


class AsyncRuns(RunsVerbs, AwaitingPart):
    """All runs that the daemon keeps."""

    def pieces(
        self,
        run_id: str,
        *,
        cursor: int = 0,
        stream: StreamName = Stream.STDOUT,
        limit: int | None = None,
        format: FormatName | None = None,  # noqa: A002
    ) -> AsyncGenerator[OutputPart, None]:
        """Yield the output of one stream from `cursor` on, as it comes, until the end of the run."""

        def read(cursor: int) -> Awaitable[OutputPart]:
            return self.output(run_id, cursor=cursor, stream=stream, limit=limit, format=format, wait=PATIENCE)

        return _pieces(read, cursor)


class Observers(ObserversVerbs, BlockingPart):
    """The keys that only look."""


class AsyncObservers(ObserversVerbs, AwaitingPart):
    """The keys that only look."""


class Files(FilesVerbs, BlockingPart):
    """Files below the daemon's allowed directories."""


class AsyncFiles(FilesVerbs, AwaitingPart):
    """Files below the daemon's allowed directories."""


class Tools(ToolsVerbs, BlockingPart):
    """The daemon's tools for a model."""


class AsyncTools(ToolsVerbs, AwaitingPart):
    """The daemon's tools for a model."""


class Client(DaemonVerbs, BlockingPart):
    """A daemon, and its main shell. As a context manager its connections are closed at the end."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        """Without `url` and `key`, `SHELLD_URL` (or http://127.0.0.1:8080) and `SHELLD_KEY` are taken.

        `timeout` is how many seconds an answer may take beyond what a call waits for on purpose; `retries` is how
        often to send again what may be sent again. `transport` replaces the way to the daemon; without it, proxies
        of the environment are not used. Raises `ValueError` for what cannot be a URL or a key.
        """
        connection = Connection(url, key, timeout, retries or Retries())
        http = _BlockingHttp(connection.encrypted, transport)
        sender = _BlockingSender(_Sender(connection, http))
        super().__init__(sender, "")
        self.url = connection.url
        self._http = http.http
        self.sessions = Sessions(sender, "/sessions")
        self.runs = Runs(sender, "/runs")
        self.files = Files(sender, "/files")
        self.tools = Tools(sender, "/tools")
        self.observers = Observers(sender, "/observers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; runs and sessions stay."""
        self._http.close()


class AsyncClient(DaemonVerbs, AwaitingPart):
    """A daemon, and its main shell. As a context manager its connections are closed at the end."""

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        timeout: float = 30.0,
        retries: Retries | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """As that of `Client`."""
        connection = Connection(url, key, timeout, retries or Retries())
        http = _AwaitingHttp(connection.encrypted, transport)
        sender = _Sender(connection, http)
        super().__init__(sender, "")
        self.url = connection.url
        self._connection = connection
        self._http = http.http
        self.sessions = AsyncSessions(sender, "/sessions")
        self.runs = AsyncRuns(sender, "/runs")
        self.files = AsyncFiles(sender, "/files")
        self.tools = AsyncTools(sender, "/tools")
        self.observers = AsyncObservers(sender, "/observers")

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections; runs and sessions stay."""
        await self._http.aclose()

    async def terminal(self, session_id: str = "main", *, replay: int = 65536, watch: bool = False) -> "WebSocket":
        """Open the terminal of a shell, to be closed by `await terminal.close()`; see docs/api.md for its messages.

        Raises `TransportError` where it cannot be opened, and what refuses it.
        """
        from shelld_py.client.terminal import open_terminal

        return await open_terminal(self._connection, session_id, replay=replay, watch=watch)
