"""Repeated requests: an Idempotency-Key makes a POST happen once (draft-ietf-httpapi-idempotency-key-header).

A request that starts a run is remembered by the id of its run, and a repeat joins that run. Every other
POST is remembered by its answer, and a repeat gets that answer. What was refused is not remembered: nothing
was done. Neither is an answer that broke off: nobody could tell it from a whole one. All is kept for an hour, and no
more of it than a few mebibytes.
"""

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Callable
from http import HTTPStatus
from typing import Final
from weakref import WeakValueDictionary

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shelld_py.errors import IdempotencyMismatch, InvalidRequest
from shelld_py.http.requests import header
from shelld_py.large_json import joined

_LIFETIME: Final = 3600.0
_MOST_ENTRIES: Final = 1000
_MOST_BYTES: Final = 4 * 1024 * 1024
_LONGEST_KEY: Final = 255


class _Kept(Struct):
    fingerprint: str
    created_at: float
    run_id: str | None = None
    answer: "asyncio.Future[list[Message]] | None" = None
    size: int = 0


class Repeats:
    """What was done for which Idempotency-Key. Shared by the middleware below and the requests for runs."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` gives seconds that only grow."""
        self._clock = clock
        self._entries: OrderedDict[str, _Kept] = OrderedDict()
        self._size = 0
        """Bytes of all answers that are kept."""
        self._starting: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def starting(self, key: str) -> asyncio.Lock:
        """Return what to hold from asking for the run of `key` until that is remembered.

        To start one may take its time (a shell of its own comes first); simultaneous repeats wait for it here.
        """
        return self._starting.setdefault(key, asyncio.Lock())

    def run_id(self, key: str | None, fingerprint: str) -> str | None:
        """Return the run that was started with `key`. Raises `IdempotencyMismatch` if for something else."""
        entry = self.find(key, fingerprint) if key else None
        return entry.run_id if entry else None

    def remember_run(self, key: str | None, fingerprint: str, run_id: str) -> None:
        """Remember that the request with `key` has started a run."""
        if key:
            self.add(key, fingerprint).run_id = run_id

    def find(self, key: str, fingerprint: str) -> _Kept | None:
        """Return what is known of `key`. Raises `IdempotencyMismatch` if it was used for something else."""
        self._expire()
        entry = self._entries.get(key)
        if entry and entry.fingerprint != fingerprint:
            raise IdempotencyMismatch(
                "The Idempotency-Key was used for another request. Use a new one for each request."
            )
        return entry

    def add(self, key: str, fingerprint: str) -> _Kept:
        """Begin to remember `key`."""
        entry = self._entries[key] = _Kept(fingerprint, self._clock())
        return entry

    def keep(self, key: str, entry: _Kept, answer: list[Message]) -> None:
        """Keep the answer to the request with `key`, unless that has been forgotten meanwhile."""
        if self._entries.get(key) is entry:
            entry.size = sum(len(message.get("body", b"")) for message in answer)
            self._size += entry.size

    def discard(self, key: str) -> None:
        """Forget `key`: nothing was done for it."""
        entry = self._entries.pop(key, None)
        self._size -= entry.size if entry else 0

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self._size = 0

    def _expire(self) -> None:
        oldest = self._clock() - _LIFETIME
        while self._entries:
            key, entry = next(iter(self._entries.items()))
            if entry.created_at >= oldest and len(self._entries) <= _MOST_ENTRIES and self._size <= _MOST_BYTES:
                return
            self.discard(key)


def idempotency_key(scope: Scope) -> str | None:
    """Return the Idempotency-Key of a request. Raises `InvalidRequest` for one that is too long."""
    value = header(scope, b"idempotency-key")
    if not value:
        return None
    if len(value) > _LONGEST_KEY:
        raise InvalidRequest(f"The Idempotency-Key is longer than {_LONGEST_KEY} bytes.")
    return value.decode("latin-1")


class AnswerRepeats:
    """Answers a repeated POST with the answer to the first. Requests for runs see to it themselves."""

    def __init__(self, app: ASGIApp, *, repeats: Repeats, starts_run: Callable[[str], bool]) -> None:
        """`starts_run` tells by its path whether a request starts a run."""
        self._app = app
        self._repeats = repeats
        self._starts_run = starts_run

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request."""
        key = idempotency_key(scope) if scope["method"] == "POST" else None
        if key is None or self._starts_run(scope["path"]):
            await self._app(scope, receive, send)
            return
        body = await joined(HttpRequest(scope, receive).stream())
        target = f"{scope['path']}?{scope['query_string'].decode('latin-1')}"
        fingerprint = hashlib.blake2b(target.encode() + b"\n" + body, digest_size=16).hexdigest()
        while (entry := self._repeats.find(key, fingerprint)) and entry.answer:
            messages = await asyncio.shield(entry.answer)
            for message in messages:
                await send(dict(message))
            if messages:
                return
        await self._perform(key, fingerprint, body, scope, receive, send)

    async def _perform(
        self, key: str, fingerprint: str, body: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        entry = self._repeats.add(key, fingerprint)
        entry.answer = asyncio.get_running_loop().create_future()
        messages: list[Message] = []
        size = 0
        given = False

        async def receive_again() -> Message:
            nonlocal given
            if given:
                return await receive()
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send_and_keep(message: Message) -> None:
            nonlocal size
            size += len(message.get("body", b""))
            if size <= _MOST_BYTES:
                messages.append(dict(message))
            await send(message)

        try:
            await self._app(scope, receive_again, send_and_keep)
        finally:
            if _is_whole(messages) and messages[0]["status"] < HTTPStatus.BAD_REQUEST:
                self._repeats.keep(key, entry, messages)
                entry.answer.set_result(messages)
            else:
                self._repeats.discard(key)
                entry.answer.set_result([])


def _is_whole(answer: list[Message]) -> bool:
    return bool(answer) and answer[-1]["type"] == "http.response.body" and not answer[-1].get("more_body", False)
