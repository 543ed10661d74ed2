"""How calls are sent, and when again: written once, as coroutines over an `_Http`, for both clients.

The one that blocks runs these to their end by itself: nothing that they await there ever waits, because its `_Http`
blocks. Knows httpx, and nothing of what is asked.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Generator
from typing import Any, Final, Protocol

import httpx

from shelld_py.client.call import Answer, Call, T
from shelld_py.client.connection import SOCKET_OPTIONS, Attempts, Connection, answer_of, result_of
from shelld_py.client.events import EVENTS_TYPE, Following
from shelld_py.client.uploads import Upload

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
        while True:
            try:
                result = result_of(call, await self._answer(call))
            finally:
                if isinstance(call.content, Upload):
                    call.content.close()
            following = call.following(result) if call.following else None
            if following is None:
                return result
            call = following

    async def _answer(self, call: Call[T]) -> Answer:
        attempts = Attempts(self._connection)
        while True:
            try:
                answer = answer_of(await self._http.request(**self._connection.arguments(call)))
            except httpx.RequestError as error:
                pause: float | None = attempts.after_failure(call, error)
            else:
                pause = attempts.after_answer(call, answer)
                if pause is None:
                    return answer
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


def _run_now(work: Coroutine[Any, Any, T]) -> T:
    """Return what `work` returns, which never has to wait for an event loop."""
    try:
        work.send(None)
    except StopIteration as end:
        result: T = end.value
        return result
    raise RuntimeError("a client that blocks has nothing to await")


def iterate_now(items: AsyncGenerator[T, None]) -> Generator[T, None, None]:
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
        return iterate_now(self._sender.events(following))


def blocking(connection: Connection, transport: httpx.BaseTransport | None) -> tuple[_BlockingSender, httpx.Client]:
    """Return what sends calls over `connection` and blocks meanwhile, and what is to be closed at the end."""
    http = _BlockingHttp(connection.encrypted, transport)
    return _BlockingSender(_Sender(connection, http)), http.http


def awaiting(connection: Connection, transport: httpx.AsyncBaseTransport | None) -> tuple[_Sender, httpx.AsyncClient]:
    """Return what sends calls over `connection` while others go on, and what is to be closed at the end."""
    http = _AwaitingHttp(connection.encrypted, transport)
    return _Sender(connection, http), http.http
