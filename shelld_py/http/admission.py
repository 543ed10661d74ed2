"""Who is let in, decided from the head of a request alone, and what has been let in and is still going on.

A request is refused for its host or origin first, then for its key; what is refused reaches no handler, locks nothing,
does not touch the idle timer, and its body is not read. A request belongs to the key that it was admitted with: when
the key is forgotten, all that was admitted before ends (`end_requests`). Knows no endpoint.
"""

import asyncio
import ipaddress
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from starlette.types import Message, Receive, Scope

from shelld_py.config import ServerSettings
from shelld_py.errors import (
    BodyTooLarge,
    HostRefused,
    InvalidRequest,
    KeyMismatch,
    KeyRequired,
    ObserverKey,
    OriginRefused,
    Overloaded,
    ShelldError,
    ShuttingDown,
)
from shelld_py.http.exchange import length_of
from shelld_py.http.keylock import KeyLock, Observer, checked_key
from shelld_py.http.listener import Capacity
from shelld_py.http.requests import header, header_fields
from shelld_py.idle import IdleTimer
from shelld_py.units import format_size

_LAST_ANSWERS: Final = 1.0
"""Seconds for requests whose runs have just ended to be answered before they are cancelled: rendering a large output
takes some 100 ms. Only clients that do not read, and polls for nothing, use it up."""
_LOOPBACK_HOSTS: Final = ("localhost", "127.0.0.1", "[::1]")
_HOST: Final = re.compile(r"(?:\[[0-9a-z:.%]+\]|[^\x00-\x20\x7f\[\]:/?#@\\]*)(?::[0-9]*)?")
"""A name or an address, and a port (RFC 3986, 3.2.2), in lower case."""
_DEFAULT_PORTS: Final = {"http": "80", "https": "443"}


class Admitted:
    """A request that was let in. `ended` says why, where `Admission` has cancelled its task."""

    __slots__ = (
        "_limit", "_receive", "_received", "_scope", "_whole", "active", "ended", "grant", "task", "waits_for_body",
    )  # fmt: skip

    def __init__(self, scope: Scope, receive: Receive, limit: int, *, active: bool, grant: object) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.task = task
        self.ended: ShelldError | None = None
        self.grant = grant
        """Who has asked for it with less than the owner's key: an observer, a visitor of a port; else None."""
        self.active = active
        """Whether it counts for the idle timer."""
        self.waits_for_body = False
        self._scope = scope
        self._receive = receive
        self._limit = limit
        self._received = 0
        self._whole = False

    @property
    def upgraded(self) -> bool:
        """Whether its connection has gone over to another protocol: then it has no answer to be waited for."""
        return "upgraded" in self._scope

    async def receive(self) -> Message:
        """Return the next message of the server. Raises `BodyTooLarge` as soon as the body exceeds the limit."""
        self.waits_for_body = not self._whole
        message = await self._receive()
        self.waits_for_body = False
        if message["type"] == "http.request":
            self._received += len(message.get("body", b""))
            if self._received > self._limit:
                raise too_large(self._limit)
            self._whole = not message.get("more_body")
        return message


class Admission:
    """Lets requests in, and ends them."""

    def __init__(
        self,
        key_lock: KeyLock,
        idle: IdleTimer,
        settings: ServerSettings,
        capacity: Capacity,
        *,
        exists: Callable[[Scope], bool],
        continues: Callable[[Scope], bool],
        looks: Callable[[Scope], bool] = lambda _: False,
        visitor: Callable[[Scope], object] = lambda _: None,
        unlimited: Callable[[Scope], bool] = lambda _: False,
        passive: frozenset[tuple[str, str]] = frozenset(),
    ) -> None:
        """`exists` tells whether there is an endpoint for a request: one without does not lock.

        `continues` tells whether a request without a key goes on with what one with the key has begun, `looks` whether
        one does nothing but look, `visitor` who makes one that needs no key for it. For those of which `unlimited`
        says so, `server.max_body` does not hold; the methods and paths in `passive` are no activity.
        """
        self._key_lock = key_lock
        self._idle = idle
        self.check_site = Sites(settings).check
        self._limit = settings.max_body
        self._unlimited = unlimited
        self._passive = passive
        self._capacity = capacity
        self._exists = exists
        self._continues = continues
        self._looks = looks
        self._visitor = visitor
        self._withdrawals: set[asyncio.Task[None]] = set()
        key_lock.observers.on_end = self.withdraw
        self._closed: str | None = None
        self._admitted: set[Admitted] = set()

    def admit(self, scope: Scope, receive: Receive) -> Admitted:
        """Let a request in that needs a key; `release` it when it is over.

        Raises `HostRefused`, `OriginRefused`, `KeyRequired`, `KeyMismatch`, `ObserverKey`, `Overloaded`,
        `ShuttingDown`, `BodyTooLarge`.
        """
        self.check_site(scope)
        key = None
        visitor = self._visitor(scope)
        if visitor is None:
            try:
                key = checked_key(scope, self._key_lock)
            except KeyRequired:
                if not self._continues(scope):
                    raise
        observer: Observer | None = scope.get("observer")
        if observer and not self._looks(scope):
            raise ObserverKey("This key only looks. What changes anything needs the key of the owner.")
        if is_essential(scope):
            self._capacity.spare()
        elif self._capacity.scarce():
            raise Overloaded("Too many connections are open, or too few descriptors are left; try again later.")
        if self._closed:
            raise ShuttingDown(self._closed)
        endpoint = (scope.get("method"), scope["path"])
        active = endpoint not in self._passive and observer is None
        if active:
            self._idle.begin()
        if not self._key_lock.locked and key and self._exists(scope):
            self._key_lock.lock(key)
        limit = sys.maxsize if self._unlimited(scope) else self._limit
        admitted = Admitted(scope, receive, limit, active=active, grant=observer or visitor)
        self._admitted.add(admitted)
        declared = (scope.get("fields") or header_fields(scope)).get(b"content-length", b"")
        if declared.isdigit() and length_of(declared) > limit:
            self.release(admitted)
            raise too_large(limit)
        return admitted

    def release(self, admitted: Admitted) -> None:
        """A request that was let in is over."""
        self._admitted.discard(admitted)
        if admitted.active:
            self._idle.end()

    def begin(self) -> None:
        """Count something that a client has asked for, for the idle timer. Raises `ShuttingDown`."""
        self.check_open()
        self._idle.begin()

    @property
    def waiting(self) -> int:
        """How many requests have been let in and are not over."""
        return len(self._admitted)

    def check_open(self) -> None:
        """Raise `ShuttingDown` where nobody is let in any more."""
        if self._closed:
            raise ShuttingDown(self._closed)

    def end(self) -> None:
        """What was counted by `begin` is over."""
        self._idle.end()

    def close(self, reason: str) -> None:
        """Let nobody in from now on."""
        self._closed = reason

    @contextmanager
    def closed(self, reason: str) -> Iterator[None]:
        """Let nobody in for as long as this lasts. Raises `ShuttingDown` where nobody is let in already."""
        self.check_open()
        self._closed = reason
        try:
            yield
        finally:
            if self._closed is reason:
                self._closed = None

    async def refuse_bodies(self) -> None:
        """End all requests whose body has not come yet: nothing of them is to be carried out."""
        await self._end(lambda admitted: admitted.waits_for_body, timeout=0.0)

    async def end_requests(self) -> None:
        """End all requests but the one that asks for it. Returns when they are over, threads included."""
        await self._end(lambda admitted: admitted.upgraded, timeout=0.0)
        await self._end(lambda _: True, timeout=_LAST_ANSWERS)

    def withdraw(self, grant: object) -> None:
        """End what goes on with a key, or a cookie, that has ended."""
        reason = KeyMismatch("The key has expired, or was withdrawn.")
        ending = self._end(lambda admitted: admitted.grant is grant, timeout=0.0, reason=reason)
        task = asyncio.get_running_loop().create_task(ending)
        self._withdrawals.add(task)
        task.add_done_callback(self._withdrawals.discard)

    async def _end(self, which: Callable[[Admitted], bool], timeout: float, reason: ShelldError | None = None) -> None:
        own = asyncio.current_task()
        ending = [admitted for admitted in self._admitted if which(admitted) and admitted.task is not own]
        tasks = {admitted.task for admitted in ending}
        if tasks and timeout:
            _, tasks = await asyncio.wait(tasks, timeout=timeout)
        for admitted in ending:
            admitted.ended = reason or ShuttingDown(self._closed or "The request was ended.")
        while tasks:
            # Once more each second: the first one may be spent on a send to a client that does not read.
            for task in tasks:
                task.cancel()
            _, tasks = await asyncio.wait(tasks, timeout=1.0)


class Sites:
    """Which names the daemon answers to, and from which web sites.

    A web page can make its own name point to 127.0.0.1 (DNS rebinding), and is then of the same origin as the daemon
    for the browser. It cannot choose the header Host, which has that name.
    """

    def __init__(self, settings: ServerSettings) -> None:
        own = (*_LOOPBACK_HOSTS, _bracketed(settings.host)) if _is_loopback(settings.host) else ()
        listed = (*own, *settings.hosts) if own or settings.hosts else ()
        self._hosts = frozenset(listed)
        self._origins = frozenset(settings.origins)
        self._known: tuple[bytes | None, bytes | None] | None = None

    def check(self, scope: Scope) -> None:
        """Raises `InvalidRequest`, `HostRefused`, `OriginRefused`."""
        fields = scope.get("fields") or header_fields(scope)
        host, origin = fields.get(b"host"), fields.get(b"origin")
        if host is None or len(fields) != len(scope["headers"]):
            check_host(scope)
        if (host, origin) == self._known:
            return
        name = (host or b"").decode("latin-1").strip().lower()
        if self._hosts and without_port(name) not in self._hosts:
            raise HostRefused(
                f"This daemon is not reached as {without_port(name)!r}, but as one of "
                f"{', '.join(sorted(self._hosts))}. The setting server.hosts adds others."
            )
        if not _HOST.fullmatch(name):
            raise InvalidRequest("The header Host is not a name or an address, with or without a port.")
        if origin is not None:
            site = origin.decode("latin-1").strip().lower()
            if site not in self._origins and not _same_host(site, name):
                raise OriginRefused(
                    f"Pages of {site!r} may not speak to this daemon. The setting server.origins lists those that may."
                )
        self._known = (host, origin)  # most clients send the same ones each time


def check_host(scope: Scope) -> None:
    """Raise `InvalidRequest` where not exactly one host is named (RFC 9112, 3.2).

    Of two hosts a proxy may have looked at the other one. In HTTP/1.0 there need not be any.
    """
    host = header(scope, b"host")
    if host is None:
        if scope.get("http_version") == "1.1":
            raise InvalidRequest("The request has no header Host, which HTTP/1.1 asks for.")
    elif len(header_fields(scope)) != len(scope["headers"]) and _times(b"host", scope) > 1:
        raise InvalidRequest("The request has more than one header Host.")


def _times(name: bytes, scope: Scope) -> int:
    return sum(other == name for other, _ in scope["headers"])


def is_essential(scope: Scope) -> bool:
    """Whether a request has to be possible however little there is left: it frees something."""
    method, path = scope.get("method"), scope["path"]
    return method == "DELETE" or (method == "POST" and (path == "/shutdown" or path.endswith("/kill")))


def too_large(limit: int) -> BodyTooLarge:
    """Return the refusal of a body over `limit` bytes."""
    return BodyTooLarge(f"The body is larger than server.max_body, which is {format_size(limit)}.")


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def without_port(name: str) -> str:
    """Return the name or address of a Host header (RFC 9110, 7.2)."""
    host, separator, port = name.rpartition(":")
    return host if separator and port.isdecimal() else name


def _same_host(origin: str, host: str) -> bool:
    """Whether an origin (RFC 6454) is that of a page which was loaded from `host`, itself HOST or HOST:PORT."""
    scheme, separator, authority = origin.partition("://")
    default = _DEFAULT_PORTS.get(scheme)
    return bool(separator) and default is not None and _named(authority, default) == _named(host, default)


def _named(authority: str, default_port: str) -> str:
    return authority.removesuffix(f":{default_port}")
