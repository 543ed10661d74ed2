"""The key: who may speak to the daemon.

The first request with a key to an existing endpoint locks the daemon to that key, unless one was set in
advance. Its owner can make further keys, which only look. Keys are compared in constant time.
"""

import asyncio
import base64
import hashlib
import hmac
import secrets
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from starlette.types import Scope

from shelld_py.audit import key_fingerprint
from shelld_py.config import KEY_PATTERN
from shelld_py.errors import KeyMismatch, KeyRequired, ObserverNotFound, TooManyObservers
from shelld_py.http.requests import header_fields

_MOST_OBSERVERS: Final = 100
_MOST_ENDED: Final = 1000
"""Keys that have ended and are known for it: who still asks with one must not lock the daemon for the next client."""
_KEY_PROTOCOL: Final = "key."


class Observer(Struct, frozen=True, eq=False):
    """Who has a key that only looks. Of the key its hash is kept; times are Unix times."""

    observer_id: str
    digest: bytes
    description: str | None
    created_at: float
    expires_at: float
    timer: asyncio.TimerHandle


class Observers:
    """The keys that only look. Belongs to an event loop."""

    def __init__(self) -> None:
        self._known: dict[str, Observer] = {}
        self._ended: deque[bytes] = deque(maxlen=_MOST_ENDED)
        self.on_end: Callable[[Observer], None] = lambda _: None
        """Called with one whose key has expired, or was withdrawn."""

    @property
    def all(self) -> list[Observer]:
        """Those whose keys are good, oldest first."""
        return list(self._known.values())

    def add(self, seconds: float, description: str | None) -> tuple[Observer, str]:
        """Make a key that is good for so long; return whose it is, and the key. Raises `TooManyObservers`."""
        if len(self._known) >= _MOST_OBSERVERS:
            raise TooManyObservers(f"There are {_MOST_OBSERVERS} of them. DELETE /observers/ID withdraws one.")
        observer_id, key, now = secrets.token_hex(6), secrets.token_urlsafe(32), time.time()
        timer = asyncio.get_running_loop().call_later(seconds, self._expire, observer_id)
        observer = Observer(observer_id, digest_of(key.encode()), description, now, now + seconds, timer)
        self._known[observer_id] = observer
        return observer, key

    def find(self, key: bytes) -> Observer | None:
        """Return whose key this is. All are compared, so that the time tells nothing."""
        digest = digest_of(key)
        found = [observer for observer in self._known.values() if hmac.compare_digest(observer.digest, digest)]
        return found[0] if found else None

    def had(self, key: bytes) -> bool:
        """Whether this was a key of one, and has ended."""
        return digest_of(key) in self._ended

    def remove(self, observer_id: str) -> None:
        """Withdraw a key. Raises `ObserverNotFound`."""
        observer = self._known.pop(observer_id, None)
        if observer is None:
            raise ObserverNotFound(f"There is no observer {observer_id[:50]}; its key may have expired.")
        observer.timer.cancel()
        self._ended.append(observer.digest)
        self.on_end(observer)

    def clear(self) -> None:
        """Withdraw all."""
        for observer_id in list(self._known):
            self.remove(observer_id)

    def _expire(self, observer_id: str) -> None:
        if observer_id in self._known:
            self.remove(observer_id)


def digest_of(secret: bytes) -> bytes:
    """Return what is kept of a secret that is only to be known again."""
    return hashlib.sha256(secret).digest()


class KeyLock:
    """The key that the daemon is locked to, if any."""

    def __init__(self, preset: str | None) -> None:
        """`preset` is the key that was set in advance."""
        self._preset = preset.encode() if preset is not None else None
        self._key = self._preset
        self.observers = Observers()
        self.locked = self._key is not None
        """Whether there is a key."""

    @property
    def fingerprint(self) -> str | None:
        """What stands for the key in the audit log."""
        return key_fingerprint(self._key) if self._key is not None else None

    def lock(self, key: bytes) -> None:
        """Lock to `key`: the first one stays."""
        if self._key is None:
            self._key, self.locked = key, True

    def matches(self, key: bytes) -> bool:
        """Whether `key` is the one; where there is none yet, any will do."""
        return self._key is None or hmac.compare_digest(self._key, key)

    def is_key(self, key: bytes) -> bool:
        """Whether `key` is the one, or one that only looks."""
        own = self._key is not None and hmac.compare_digest(self._key, key)
        return self.observers.find(key) is not None or own

    def forget(self) -> None:
        """Unlock, for the next client; a key that was set in advance stays."""
        self.observers.clear()
        self._key, self.locked = self._preset, self._preset is not None


def checked_key(scope: Scope, key_lock: KeyLock) -> bytes:
    """Return the key of a request. Raises `KeyRequired`, `KeyMismatch`. Where nothing is locked any key will do.

    Where it is one that only looks, the scope has the `observer`.
    """
    key = presented_key(scope)
    if not key:
        raise KeyRequired("The X-Shell-Key header is required.")
    if not key_lock.matches(key):
        if observer := key_lock.observers.find(key):
            scope["observer"] = observer
            return key
        raise KeyMismatch("The provided key does not match the locked key.")
    if not key_lock.locked:
        if not KEY_PATTERN.fullmatch(key.decode("latin-1")):
            raise KeyRequired("The X-Shell-Key header must be 1 to 256 visible ASCII characters.")
        if key_lock.observers.had(key):
            raise KeyMismatch("This key only looked, and has ended: it is nobody's.")
    return key


def presented_key(scope: Scope) -> bytes:
    """Return the key of the X-Shell-Key header, or of `Authorization: Bearer`; empty where there is none.

    A request for a WebSocket may have it as a subprotocol, `key.BASE64URL`.
    """
    fields = scope.get("fields") or header_fields(scope)
    key = fields.get(b"x-shell-key")
    if key is not None:
        return key.strip()
    scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
    if scheme:
        return token.strip() if scheme.lower() == b"bearer" else b""
    return _key_among(subprotocols(scope)) if "upgrade" in scope else b""


def subprotocols(scope: Scope) -> list[str]:
    """Return the subprotocols that a request offers for a WebSocket (RFC 6455, 4.1)."""
    offered = b",".join(value for name, value in scope["headers"] if name == b"sec-websocket-protocol")
    return [name.strip() for name in offered.decode("latin-1").split(",") if name.strip()]


def _key_among(names: Iterable[str]) -> bytes:
    """Return the key that stands among subprotocols, where pages of browsers can put it: they set no headers."""
    for name in names:
        if name.startswith(_KEY_PROTOCOL):
            text = name.removeprefix(_KEY_PROTOCOL).rstrip("=")
            try:
                return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            except ValueError:
                return b""
    return b""
