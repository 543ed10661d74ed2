"""A TCP proxy that breaks connections, and one way to call both clients."""

import asyncio
import contextlib
import inspect
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from shelld_py.client.verbs import Part

_PROBLEM = b'{"code": "shutting_down", "detail": "The daemon is being made new for the next client."}'
_REFUSAL = (
    b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/problem+json\r\nRetry-After: 0\r\n"
    b"Connection: close\r\nContent-Length: %d\r\n\r\n%s" % (len(_PROBLEM), _PROBLEM)
)


class Proxy:
    """Passes connections on to a daemon, and resets each after as many bytes of answers as `cuts` says.

    The first number is for the first connection, and so on; None, and what comes after the last, is not cut.
    A cut of 0 lets the request arrive and its answer not. The first `refusals` connections get a 503 instead, and
    with `once` there is but one connection: nobody listens any more after it.
    """

    def __init__(self, url: str, cuts: list[int | None], refusals: int = 0, *, once: bool = False) -> None:
        self._target = (urlsplit(url).hostname, urlsplit(url).port)
        self._cuts = list(cuts)
        self._refusals = refusals
        self._once = once
        self._sockets: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._server.getsockname()[1]}"
        self.connections = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Take no more connections, and break those that there are."""
        for item in (self._server, *self._sockets):
            _break(item)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                self.connections += 1
                if self._once:
                    _break(self._server)
                if self.connections <= self._refusals:
                    near.recv(65536)
                    near.sendall(_REFUSAL)
                    _break(near)
                    continue
                far = socket.create_connection(self._target)
                self._sockets += [near, far]
                left = self._cuts.pop(0) if self._cuts else None
                threading.Thread(target=self._pass_on, args=(near, far, None), daemon=True).start()
                threading.Thread(target=self._pass_on, args=(far, near, left), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, left: int | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if left is not None:
                    data, left = data[:left], left - len(data)
                target.sendall(data)
                if left is not None and left <= 0:
                    break
        _break(source)
        _break(target)


def _break(item: socket.socket) -> None:
    with contextlib.suppress(OSError):
        item.shutdown(socket.SHUT_RDWR)
    item.close()


@contextlib.contextmanager
def proxy(url: str, *cuts: int | None, refusals: int = 0, once: bool = False) -> Iterator[Proxy]:
    """A proxy in front of `url`."""
    item = Proxy(url, list(cuts), refusals, once=once)
    try:
        yield item
    finally:
        item.close()


class Blocking:
    """An asyncio client, or a part of one, that is called like the blocking one."""

    def __init__(self, item: Any, runner: asyncio.Runner) -> None:
        self._item = item
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._item, name)
        return self._wrapped(found) if not callable(found) else self._calling(found)

    def __enter__(self) -> "Blocking":
        return self._wrapped(self._runner.run(self._item.__aenter__()))

    def __exit__(self, *_: object) -> None:
        self._runner.run(self._item.__aexit__(None, None, None))

    def _calling(self, method: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            result = method(*arguments, **options)
            if inspect.iscoroutine(result):
                result = self._runner.run(result)
            return self._wrapped(result)

        return call

    def _wrapped(self, result: Any) -> Any:
        if inspect.isasyncgen(result):
            return self._items(result)
        if isinstance(result, Part):
            return Blocking(result, self._runner)
        return result

    def _items(self, generator: Any) -> Iterator[Any]:
        async def following() -> Any:
            return await anext(generator)

        try:
            with contextlib.suppress(StopAsyncIteration):
                while True:
                    yield self._runner.run(following())
        finally:
            self._runner.run(generator.aclose())
