"""The two clients: `Client` for programs without an event loop, `AsyncClient` for those with one (asyncio).

What can be asked is in verbs.py, what a verb sends and returns in the builder that it names, how it is sent in
sending.py. What makes objects is here, and so written twice.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Self, Unpack

import httpx

from shelld_py.client.connection import Connection, Retries
from shelld_py.client.requests import StartupOptions
from shelld_py.client.run_requests import LONG_POLL, FormatName, StreamName
from shelld_py.client.sending import awaiting, blocking, iterate_now
from shelld_py.client.verbs import (
    Awaiting,
    Blocking,
    DaemonVerbs,
    Files,
    Observers,
    RunsVerbs,
    SessionsVerbs,
    SessionVerbs,
    Tools,
)
from shelld_py.models import OutputPart, Stream

if TYPE_CHECKING:
    from shelld_py.websocket import WebSocket


async def _pieces(read: Callable[[int], Awaitable[OutputPart]], cursor: int) -> AsyncGenerator[OutputPart, None]:
    """Yield what `read` gives from `cursor` on, and on, until the end of the run."""
    eof = False
    while not eof:
        part = await read(cursor)
        if part.output or part.dropped:
            yield part
        cursor, eof = part.next_cursor, part.eof


class Session(SessionVerbs[Blocking]):
    """A shell of its own. As a context manager it is closed at the end."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class AsyncSession(SessionVerbs[Awaiting]):
    """A shell of its own. As a context manager it is closed at the end."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()


class Sessions(SessionsVerbs[Blocking]):
    """The shells beside the main one."""

    def open(self, **options: Unpack[StartupOptions]) -> Session:
        """Open a shell: `with client.sessions.open() as session: session.run(...)`. Raises `TooManySessions`."""
        return self.use(self._open(**options))

    def use(self, session_id: str) -> Session:
        """Return the session with this id, without asking the daemon whether it is there."""
        return Session(self._sender, session_id)


class AsyncSessions(SessionsVerbs[Awaiting]):
    """The shells beside the main one."""

    async def open(self, **options: Unpack[StartupOptions]) -> AsyncSession:
        """Open a shell: `async with await client.sessions.open() as session: ...`. Raises `TooManySessions`."""
        return self.use(await self._open(**options))

    def use(self, session_id: str) -> AsyncSession:
        """Return the session with this id, without asking the daemon whether it is there."""
        return AsyncSession(self._sender, session_id)


class Runs(RunsVerbs[Blocking]):
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
            return self.output(run_id, cursor=cursor, stream=stream, limit=limit, format=format, wait=LONG_POLL)

        return iterate_now(_pieces(read, cursor))


class AsyncRuns(RunsVerbs[Awaiting]):
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
            return self.output(run_id, cursor=cursor, stream=stream, limit=limit, format=format, wait=LONG_POLL)

        return _pieces(read, cursor)


class Client(DaemonVerbs[Blocking]):
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
        sender, self._http = blocking(connection, transport)
        super().__init__(sender, "")
        self.url = connection.url
        self.sessions = Sessions(sender, "/sessions")
        self.runs = Runs(sender, "/runs")
        self.files = Files[Blocking](sender, "/files")
        self.tools = Tools[Blocking](sender, "/tools")
        self.observers = Observers[Blocking](sender, "/observers")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections; runs and sessions stay."""
        self._http.close()


class AsyncClient(DaemonVerbs[Awaiting]):
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
        sender, self._http = awaiting(connection, transport)
        super().__init__(sender, "")
        self.url = connection.url
        self._connection = connection
        self.sessions = AsyncSessions(sender, "/sessions")
        self.runs = AsyncRuns(sender, "/runs")
        self.files = Files[Awaiting](sender, "/files")
        self.tools = Tools[Awaiting](sender, "/tools")
        self.observers = Observers[Awaiting](sender, "/observers")

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
