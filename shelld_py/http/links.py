"""Links that let a browser in to one port: each works once, and leaves a cookie there.

Of links and cookies hashes are kept; both are good to the same moment. Who comes with such a cookie is a visitor. All
end with the key that they were made with. Knows nothing of how a request is passed on.
"""

import asyncio
import hmac
import secrets
import time
from collections.abc import Callable
from itertools import islice
from typing import Final

from msgspec import Struct
from starlette.responses import HTMLResponse, Response
from starlette.types import Scope

from shelld_py.errors import LinkNotFound, TooManyLinks
from shelld_py.http.keylock import digest_of
from shelld_py.http.requests import header_fields
from shelld_py.proxy.fields import COOKIE_PREFIX, cookies

PATH: Final = "/links/"
_MOST: Final = 100
_MOST_COOKIES: Final = 8
"""Of one name that are looked at: pages below other paths can set some, too."""
_PAGE: Final = """\
<!doctype html>
<meta charset="utf-8">
<meta http-equiv="refresh" content="0; url={path}">
<title>Port {port}</title>
<a href="{path}">Port {port}</a>
"""
"""Not a redirect: a browser that comes from another site would not send a strict cookie along with that."""


class Visitor(Struct, eq=False):
    """Who may reach one port: with the link until that is used, with the cookie from then on. Unix times."""

    port: int
    strip_prefix: bool
    """Whether paths go on without what is ours of them."""
    link: bytes | None
    """The hash of the link's secret, None once it has been used."""
    cookie: bytes | None
    expires_at: float
    timer: asyncio.TimerHandle | None = None


class Links:
    """The links of one key. Belongs to an event loop."""

    def __init__(self, *, secure: bool) -> None:
        """`secure` is whether browsers come over TLS."""
        self._visitors: list[Visitor] = []
        self.on_end: Callable[[Visitor], None] = lambda _: None
        """Called with one whose time is over."""
        self._secure = secure

    def add(self, port: int, seconds: float, *, strip_prefix: bool) -> tuple[str, float]:
        """Make a link; return its path, and when it ends. Raises `TooManyLinks`."""
        if len(self._visitors) >= _MOST:
            raise TooManyLinks(f"There are {_MOST} of them, used or not. Each ends by itself.")
        secret, ends = secrets.token_urlsafe(32), time.time() + seconds
        visitor = Visitor(port, strip_prefix, digest_of(secret.encode()), None, ends)
        visitor.timer = asyncio.get_running_loop().call_later(seconds, self._end, visitor)
        self._visitors.append(visitor)
        return PATH + secret, ends

    def use(self, secret: str) -> Response:
        """Return what a browser gets for a link: the cookie, and the way on. Raises `LinkNotFound`."""
        digest = digest_of(secret.encode())
        found = [each for each in self._visitors if each.link and hmac.compare_digest(each.link, digest)]
        if not found:
            raise LinkNotFound("There is no such link. It works once, and not for ever: make another one.")
        visitor, cookie = found[0], secrets.token_urlsafe(32)
        visitor.link, visitor.cookie = None, digest_of(cookie.encode())
        path = f"/ports/{visitor.port}/"
        age = max(1, round(visitor.expires_at - time.time()))
        attributes = f"Path={path}; Max-Age={age}; HttpOnly; SameSite=Strict{'; Secure' if self._secure else ''}"
        headers = {
            "Set-Cookie": f"{_name(visitor.port)}={cookie}; {attributes}",
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Opener-Policy": "same-origin",  # whoever opened it is not to be reached from there
            "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'",
        }
        return HTMLResponse(_PAGE.format(path=path, port=visitor.port), headers=headers)

    def visitor(self, scope: Scope, port: int) -> Visitor | None:
        """Return who comes with a cookie for this very port."""
        if b"cookie" not in header_fields(scope):
            return None
        given = (value for name, value in scope["headers"] if name == b"cookie")
        named = (cookie for value in given for cookie in cookies(value, _name(port).encode()))
        digests = [digest_of(cookie) for cookie in islice(named, _MOST_COOKIES)]
        found = [
            each
            for each in self._visitors
            for digest in digests
            if each.cookie and hmac.compare_digest(each.cookie, digest) and each.port == port
        ]
        return found[0] if found else None

    def clear(self) -> None:
        """End all."""
        for visitor in self._visitors.copy():
            self._end(visitor)

    def _end(self, visitor: Visitor) -> None:
        if visitor.timer:
            visitor.timer.cancel()
        self._visitors.remove(visitor)
        self.on_end(visitor)


def _name(port: int) -> str:
    return f"{COOKIE_PREFIX.decode()}{port}"
