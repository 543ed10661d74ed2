"""Which endpoint a request is for, and what to say where there is none. Knows no endpoint by name.

Routes are found by their path: in a table where that has no parameter, or one behind a noun.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shelld_py.errors import MethodNotAllowed, NotFound

if TYPE_CHECKING:
    from starlette.routing import Route, Router

Serve = Callable[[HttpRequest], Awaitable[Response]]
"""An endpoint with the services that it works on."""
_ONE_PARAMETER: Final = re.compile(r"/(?P<noun>[a-z]+)/\{(?P<parameter>\w+)\}(?P<rest>(?:/[a-z]+)?)")
_BEHIND_SETTINGS: Final = {
    "/mcp": "server.mcp",
    "/socket.io": "server.socketio",
    "/execute": "server.agent_sandbox",
    "/upload": "server.agent_sandbox",
}
_OWN_NAME: Final = re.compile(r"^(/(?:runs|sessions|tools))/[^/]+")
_LONGEST_COMPARED: Final = 200


class RouteTable:
    """Finds the endpoint of a request: by its path, which has no parameter or one behind a noun.

    So are all paths of ours. For any other, and to tell what is wrong, there is Starlette's router.
    """

    def __init__(
        self, served: Sequence[tuple[str, str, Serve]], others: Sequence[tuple[Sequence[str], str, ASGIApp]]
    ) -> None:
        """`served` has the method, the path and what serves it; `others` the same of what libraries serve."""
        self._served = served
        self._others = others
        self._exact: dict[tuple[str, str], Serve] = {}
        self._below: dict[tuple[str, str, str], tuple[Serve, str]] = {}
        for method, path, serve in served:
            found = _ONE_PARAMETER.fullmatch(path)
            for each in (method, "HEAD") if method == "GET" else (method,):
                if found:
                    self._below[each, found["noun"], found["rest"]] = serve, found["parameter"]
                elif "{" not in path:
                    self._exact[each, path] = serve

    @cached_property
    def routes(self) -> "list[Route]":
        """All, as Starlette has them. Made when they are first asked for: a pattern of each path is compiled."""
        from starlette.routing import Route

        own = [Route(path, serve, methods=[method]) for method, path, serve in self._served]
        return [*own, *(Route(path, app, methods=list(methods)) for methods, path, app in self._others)]

    @cached_property
    def _router(self) -> "Router":
        from starlette.routing import Router

        return Router(self.routes, redirect_slashes=False, default=_no_route)

    def _matching(self, scope: Scope, *, wholly: bool = False) -> "list[Route]":
        """Return the routes with the path of a request, or with its path and method."""
        from starlette.routing import Match

        least = Match.FULL if wholly else Match.PARTIAL
        return [route for route in self.routes if route.matches(scope)[0].value >= least.value]

    def exists(self, scope: Scope) -> bool:
        """Whether there is an endpoint with the method and path of a request."""
        return (scope["method"], scope["path"]) in self._exact or bool(self._matching(scope, wholly=True))

    def find(self, scope: Scope) -> "Serve | None":
        """Return what serves a request, if it is one of our endpoints; its parameters are in the scope then."""
        method, path = scope["method"], scope["path"]
        scope["path_params"] = {}
        if serve := self._exact.get((method, path)):
            scope["endpoint"] = serve
            return serve
        noun, _, rest = path[1:].partition("/")
        value, slash, rest = rest.partition("/")
        if value and (found := self._below.get((method, noun, slash + rest))):
            scope["path_params"] = {found[1]: value}
            scope["endpoint"] = found[0]
            return found[0]
        return None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Raises `NotFound`, `MethodNotAllowed`, and what the endpoint raises."""
        if serve := self.find(scope):
            response = await serve(HttpRequest(scope, receive))
            await response(scope, receive, send)
            return
        try:
            await self._router(scope, receive, send)
        except HTTPException:
            methods = {method for route in self._matching(scope) for method in route.methods or ()}
            allowed = ", ".join(sorted(methods))
            raise MethodNotAllowed(
                f"{scope['path']} does not take {scope['method']}, but {allowed}.", allow=allowed
            ) from None


def unknown_path(path: str, known: Iterable[str]) -> NotFound:
    """Return the error for a path that is not among those that are `known`; it names the nearest."""
    plain = path.rstrip("/").lower()
    if setting := _BEHIND_SETTINGS.get(plain):
        return NotFound(f"There is no path {path}: {setting} = true serves it.")
    names = {_OWN_NAME.sub(r"\1/{}", template): template for template in known}
    wanted = _OWN_NAME.sub(r"\1/{}", plain)
    near = difflib.get_close_matches(wanted, names, 1, 0.6) if len(plain) <= _LONGEST_COMPARED else []
    if not near:
        return NotFound(f"There is no path {path}. GET / says what there is.")
    return NotFound(f"There is no path {path}. Do you mean {names[near[0]]}?", nearest=names[near[0]])


async def _no_route(scope: Scope, _receive: Receive, _send: Send) -> None:
    raise unknown_path(scope["path"], (route.path for route in scope["app"].routes))
