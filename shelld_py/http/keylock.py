"""The key: who may speak to the daemon.

The first request with a key to an existing endpoint locks the daemon to that key, unless one was set in
advance. Keys are compared in constant time.
"""

import hmac

from starlette.types import Scope

from shelld_py.audit import key_fingerprint
from shelld_py.config import KEY_PATTERN
from shelld_py.errors import KeyMismatch, KeyRequired
from shelld_py.http.requests import header_fields


class KeyHolder:
    """The key that the daemon is locked to, if any."""

    def __init__(self, preset: str | None) -> None:
        """`preset` is the key that was set in advance."""
        self._preset = preset.encode() if preset is not None else None
        self._key = self._preset
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

    def forget(self) -> None:
        """Unlock, for the next client; a key that was set in advance stays."""
        self._key, self.locked = self._preset, self._preset is not None


def checked_key(scope: Scope, holder: KeyHolder) -> bytes:
    """Return the key of a request. Raises `KeyRequired`, `KeyMismatch`. Where nothing is locked any key will do."""
    key = presented_key(scope)
    if not key:
        raise KeyRequired("The X-Shell-Key header is required.")
    if not holder.matches(key):
        raise KeyMismatch("The provided key does not match the locked key.")
    if not holder.locked and not KEY_PATTERN.fullmatch(key.decode("latin-1")):
        raise KeyRequired("The X-Shell-Key header must be 1 to 256 visible ASCII characters.")
    return key


def presented_key(scope: Scope) -> bytes:
    """Return the key of the X-Shell-Key header, or of `Authorization: Bearer`; empty where there is none."""
    fields = scope.get("fields") or header_fields(scope)
    key = fields.get(b"x-shell-key")
    if key is not None:
        return key.strip()
    scheme, _, token = fields.get(b"authorization", b"").partition(b" ")
    return token.strip() if scheme.lower() == b"bearer" else b""
