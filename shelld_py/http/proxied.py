"""Which requests are passed on to a port of the shells, who may make them, and where browsers are let in.

Two addresses. On the daemon's own, a request to `/ports/PORT/…` needs the key, as all there. Browsers come to another
one, where there is nothing but ports and links: so what a program serves has another origin than the daemon's pages,
and reads neither them nor what they keep. Imported only where `server.proxy` is set.
"""

import re
from typing import Final

from starlette.types import Receive, Scope, Send

from shelld_py.computer import Computer
from shelld_py.errors import InvalidRequest, KeyRequired, MethodNotAllowed, NotFound, PortNotOpen
from shelld_py.http import links
from shelld_py.http.admission import without_port
from shelld_py.http.keylock import KeyLock
from shelld_py.http.links import Links, Visitor
from shelld_py.http.requests import header
from shelld_py.proxy.fields import Target

ROUTE: Final = "/ports/{port}/{path}"
_TARGET: Final = re.compile(rb"/ports/([1-9][0-9]{0,4})(/.*)?", re.DOTALL)
_MASKED: Final = f"{links.PATH}SECRET"
"""The path of a link in the log: who reads that is not to use it."""


class ProxiedPorts:
    """The ports of the shells, for requests that are passed on: an ASGI application."""

    def __init__(self, computer: Computer, key_lock: KeyLock) -> None:
        self._computer = computer
        self._key_lock = key_lock
        self._settings = computer.settings.server
        self.links = Links(secure=self._settings.proxy_url.startswith("https:"))
        self._port = 0
        self._own_ports: frozenset[int] = frozenset()

    def opened(self, port: int, own_ports: frozenset[int]) -> None:
        """Note the port of the address for browsers, and all on which the daemon itself listens."""
        self._port, self._own_ports = port, own_ports

    def for_browsers(self, scope: Scope) -> bool:
        """Whether a request has come to the address for browsers."""
        server = scope.get("server")
        return server is not None and server[1] == self._port

    def takes(self, scope: Scope) -> bool:
        """Whether a request is answered here; what it is for is in its scope then."""
        scope["target"] = None
        scope["for_browsers"] = self.for_browsers(scope)
        path: bytes = scope.get("raw_path", b"")
        found = _TARGET.fullmatch(path)
        if found and self._is_passed_on(scope, path):
            query = scope["query_string"]
            scope["target"] = Target(int(found[1]), (found[2] or b"") + (b"?" + query if query else b""))
            scope["route"] = ROUTE
        else:
            if scope["for_browsers"]:
                scope["route"] = "other"
            if scope["path"].startswith(links.PATH):  # at the wrong address, too
                scope["link"] = scope["path"].removeprefix(links.PATH)
                scope["path"] = _MASKED
        return scope["for_browsers"] or scope["target"] is not None

    def visitor(self, scope: Scope) -> Visitor | None:
        """Return who makes a request with the cookie of a link; there are such at the address for browsers alone."""
        target = scope.get("target")
        if target is None or not scope["for_browsers"]:
            return None
        visitor = scope["visitor"] = self.links.visitor(scope, target.port)
        return visitor

    def refuse(self) -> None:
        """Raise what a request to a port without key and cookie gets."""
        raise KeyRequired("The X-Shell-Key header is required, or a link: POST /ports/PORT/link makes one.")

    def link(self, port: int, seconds: float, scope: Scope, *, strip_prefix: bool) -> tuple[str, float]:
        """Make a link; return its URL, for who calls the daemon as this request does, and when it ends.

        Raises `InvalidRequest`, `TooManyLinks`.
        """
        if port in self._own_ports:
            raise InvalidRequest(f"The port {port} is the daemon's own.")
        path, ends = self.links.add(port, seconds, strip_prefix=strip_prefix)
        host = (header(scope, b"host") or b"127.0.0.1").decode("latin-1").strip().lower()
        return f"{self._settings.proxy_url or f'http://{without_port(host)}:{self._port}'}{path}", ends

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request that was let in, or that needs no key. Raises what it is refused with."""
        target: Target | None = scope["target"]
        if target is None:
            await self._answer_visitor(scope, receive, send)
        elif not target.path.startswith(b"/"):
            location = target.prefix + b"/" + target.path
            await send({"type": "http.response.start", "status": 307, "headers": [(b"location", location)]})
            await send({"type": "http.response.body", "body": b""})
        else:
            await self._pass_on(target, scope, receive, send)

    async def _answer_visitor(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer what is at the address for browsers and no port."""
        if "link" not in scope:
            raise NotFound(f"There is no path {scope['path']} here. There are /ports/PORT/, and links to them.")
        if scope["method"] != "GET":
            raise MethodNotAllowed(f"A link takes GET, not {scope['method']}.", allow="GET")
        await self.links.use(scope["link"])(scope, receive, send)

    async def _pass_on(self, target: Target, scope: Scope, receive: Receive, send: Send) -> None:
        from shelld_py.proxy.passing import ProxiedExchange, connect

        if target.port in self._own_ports:
            raise PortNotOpen(f"The port {target.port} is the daemon's own.")
        visitor: Visitor | None = scope.get("visitor")
        if visitor and not visitor.strip_prefix:
            target = target._replace(stripped=False)
        connected = await connect(target, self._roots)
        # Whatever is shown at the daemon's own address must not run there: pages of the daemon have that origin.
        added = [] if scope["for_browsers"] else [(b"content-security-policy", b"sandbox")]
        exchange = ProxiedExchange(connected, scope, receive, send, self._settings.proxy_timeout)
        await exchange.run(self._key_lock.is_key, added)

    def _is_passed_on(self, scope: Scope, path: bytes) -> bool:
        """Whether a request to a port is for that: not what asks for a link, nor for a tunnel to somewhere."""
        asks_for_link = scope["method"] == "POST" and path.endswith(b"/link") and path.count(b"/") == 3
        return scope["method"] != "CONNECT" and (scope["for_browsers"] or not asks_for_link)

    def _roots(self) -> list[int]:
        return [shell.pid for shell in self._computer.shells.all if shell.pid]
