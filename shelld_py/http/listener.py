"""Listens, and accepts connections, whatever the number of those that are open already.

Beyond `server.max_connections`, and when descriptors run out, room is made by ending the connection that has waited
longest without a request. Where all have one, a few more are let in, for requests that free something or tell whether
the daemon lives. Knows nothing of requests: `Admission` asks `Capacity` which it may let in.
"""

import asyncio
import contextlib
import errno
import heapq
import socket
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp
from uvicorn.config import Config
from uvicorn.server import Server as UvicornServer

from shelld_py.config import MetricsSettings, ServerSettings
from shelld_py.errors import ConfigError
from shelld_py.http.connection import Connection, Waiting
from shelld_py.linux import descriptors

LAST_ANSWERS: Final = 2
"""Seconds that answers which are under way get when the server ends."""
_RESERVE: Final = 24
"""Descriptors for when none is left: a few connections, and what /kill opens (a pidfd for each process, /proc)."""
_BEYOND: Final = 16
"""Connections beyond `server.max_connections`."""
_AT_ONCE: Final = 16
"""Connections that are accepted before others have their turn."""
_PAUSE: Final = 0.2
"""Seconds without accepting where there is no descriptor for it: the socket stays readable, so waiting for it spins."""


class Capacity:
    """What there is room for: connections and descriptors."""

    def __init__(self, settings: ServerSettings) -> None:
        self.connections: set[Any] = set()
        """Those that are open; uvicorn keeps it."""
        self._most = self._limit = settings.max_connections
        self._reserve = descriptors.Reserve(_RESERVE)

    def open(self) -> None:
        """Keep a reserve from now on."""
        self._reserve.fill()

    def limit(self) -> int:
        """Return how many connections there may be: half of all descriptors, so that strangers leave some to shells."""
        self._limit = min(self._most, (len(self.connections) + descriptors.free()) // 2)
        return self._limit

    def scarce(self) -> bool:
        """Whether there is too little of either to do more than what must be possible."""
        return (not self._reserve.kept and self._reserve.spent()) or len(self.connections) > self._limit

    def spare(self) -> None:
        """Free some descriptors, if need be, for a request that must be possible."""
        self._reserve.spare()

    def release(self) -> bool:
        """Free the reserve; return whether there was one."""
        return self._reserve.release()


class Listener:
    """What uvicorn takes for a server of asyncio."""

    def __init__(self, listening: socket.socket, capacity: Capacity, make: Callable[[], asyncio.Protocol]) -> None:
        """`make` makes a connection."""
        self._listening = listening
        self._capacity = capacity
        self._make = make
        self._loop = asyncio.get_running_loop()
        self._beginning: set[asyncio.Task[Any]] = set()
        self._oldest: list[Connection] = []
        """Those that are to end next, the very next last; of this turn."""
        self._pause: asyncio.TimerHandle | None = None
        self._resume()

    def close(self) -> None:
        """Accept no more."""
        if self._pause:
            self._pause.cancel()
        self._loop.remove_reader(self._listening)

    async def wait_closed(self) -> None:
        """Nothing is left to be waited for."""

    def _resume(self) -> None:
        self._pause = None
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        self._oldest.clear()
        for _ in range(_AT_ONCE):
            try:
                accepted, _address = self._listening.accept()
            except (BlockingIOError, InterruptedError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    continue  # the client has gone already (ECONNABORTED), or the like (accept(2))
                if not self._capacity.release():
                    self._end_oldest()
                    self._loop.remove_reader(self._listening)
                    self._pause = self._loop.call_later(_PAUSE, self._resume)
                    return
            else:
                self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        beyond = len(self._capacity.connections) + len(self._beginning) - self._capacity.limit()
        if beyond >= 0 and not self._end_oldest() and beyond >= _BEYOND:
            accepted.close()
            return
        accepted.setblocking(False)
        accepted.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        task = self._loop.create_task(self._loop.connect_accepted_socket(self._make, accepted))
        self._beginning.add(task)
        task.add_done_callback(self._beginning.discard)

    def _end_oldest(self) -> bool:
        """End the connection that has waited longest for a request, of those first that never had a good one."""
        if not self._oldest:
            # For all of a turn at once: to look at a thousand connections for each that comes would take 5 ms.
            connections = (each for each in self._capacity.connections if isinstance(each, Connection))
            waiting = (each for each in connections if each.waiting_since)
            self._oldest = heapq.nsmallest(_AT_ONCE, waiting, key=lambda each: (each.trusted, each.waiting_since))
            self._oldest.reverse()
        if not self._oldest:
            return False
        self._oldest.pop().give_way()
        return True


class Server(UvicornServer):
    """uvicorn without its signal handlers, and without its clock: it would wake up ten times a second."""

    def __init__(self, application: ASGIApp, settings: ServerSettings, capacity: Capacity) -> None:
        super().__init__(
            Config(
                application,
                log_config=None,
                access_log=False,
                interface="asgi3",
                lifespan="off",
                ws="wsproto" if settings.socketio else "none",
                ws_max_size=settings.max_body,
                http=partial(Connection, settings, Waiting()),  # type: ignore[arg-type]
                loop="none",
                server_header=False,
                date_header=False,
                proxy_headers=False,
                timeout_graceful_shutdown=LAST_ANSWERS,
            )
        )
        self._stopped = asyncio.Event()
        self._capacity = capacity
        self.server_state.connections = capacity.connections

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections."""
        options = {"config": self.config, "server_state": self.server_state, "app_state": {}}
        make = partial(self.config.http_protocol_class, **options)
        listeners: list[Any] = [Listener(listening, self._capacity, make) for listening in sockets or ()]
        self.servers = listeners
        self.started = True

    def stop(self) -> None:
        """Let `serve` return."""
        self.should_exit = True
        self._stopped.set()

    async def main_loop(self) -> None:
        """Wait for `stop`."""
        await self._stopped.wait()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals alone."""
        yield


def listen(
    settings: ServerSettings | MetricsSettings,
    section: str,
    port_setting: str = "port",
    taken: Callable[[tuple[Any, ...]], socket.socket | None] = lambda _: None,
) -> socket.socket:
    """Return the listening socket that a section of the settings asks for: one that is there, if `taken` has it.

    Raises `ConfigError`.
    """
    host, port = settings.host, settings.port
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = taken(address)
        if listener is None:
            listener = socket.socket(family, kind, protocol)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
    except OSError as error:
        raise ConfigError(
            f"{section}.host, {section}.{port_setting}: cannot listen on {host}:{port}: {error.strerror}"
        ) from None
    listener.listen(1024)
    listener.setblocking(False)
    return listener


def address_of(listener: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
