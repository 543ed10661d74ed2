"""Which endpoint a request is for, and what to say where there is none. Knows no endpoint by name.

Routes are found by their path: in a table where that has no parameter, or one behind a noun.
"""

import difflib
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from shelld_py.errors import MethodNotAllowed, NotFound

Serve = Callable[[HttpRequest], Awaitable[Response]]
"""An endpoint with the services that it works on."""
_ONE_PARAMETER: Final = re.compile(
    r"/(?P<noun>[a-z]+)/\{(?P<parameter>\w+)(?:(?P<wide>:path)\}|\}(?P<rest>(?:/[a-z]+)?))"
)
"""A parameter is one segment of a path, or all that follows (`{path:path}`)."""
_WHATEVER: Final = "*"
"""In place of what stands behind a parameter that is all that follows."""
_BEHIND_SETTINGS: Final = {
    "/mcp": "server.mcp",
    "/socket.io": "server.socketio",
    "/execute": "server.agent_sandbox",
    "/upload": "server.agent_sandbox",
}
_OWN_NAME: Final = re.compile(r"^(/(?:runs|sessions|tools))/[^/]+")
_LONGEST_COMPARED: Final = 200


class RouteTable:
    """Finds the endpoint of a request: by its path, which has no parameter, or one behind a noun."""

    def __init__(
        self, served: Sequence[tuple[str, str, Serve]], others: Sequence[tuple[Sequence[str], str, ASGIApp]]
    ) -> None:
        """`served` has the method, the path and what serves it; `others` the methods and path of each application."""
        self.routes = [(method, path) for method, path, _ in served]
        """The methods and paths of all that is served; HEAD, which comes with each GET, is left out."""
        self._exact: dict[tuple[str, str], Serve] = {}
        self._below: dict[tuple[str, str, str], tuple[Serve, str]] = {}
        self._others: dict[tuple[str, str], ASGIApp] = {}
        for method, path, serve in served:
            found = _ONE_PARAMETER.fullmatch(path)
            if "{" in path and not found:
                raise ValueError(f"{path}: a parameter stands behind one noun, and at most one noun behind it")
            for each in (method, "HEAD") if method == "GET" else (method,):
                if found:
                    rest = _WHATEVER if found["wide"] else found["rest"]
                    self._below[each, found["noun"], rest] = serve, found["parameter"]
                else:
                    self._exact[each, path] = serve
        for methods, path, app in others:
            self.routes += [(method, path) for method in methods]
            self._others |= {(each, path): app for each in (*methods, *(("HEAD",) if "GET" in methods else ()))}

    def exists(self, scope: Scope) -> bool:
        """Whether there is an endpoint with the method and path of a request."""
        return self._takes(scope["method"], scope["path"])

    def find(self, scope: Scope) -> "Serve | None":
        """Return what serves a request, if it is one of our endpoints; its parameters are in the scope then."""
        method, path = scope["method"], scope["path"]
        scope["path_params"] = {}
        if serve := self._exact.get((method, path)):
            scope["endpoint"] = serve
            return serve
        if found := self._find_below(method, path):
            scope["endpoint"], parameter, value = found
            scope["path_params"] = {parameter: value}
            return found[0]
        return None

    def _find_below(self, method: str, path: str) -> tuple[Serve, str, str] | None:
        """Return what serves a path with a parameter, the name of that, and its value."""
        noun, behind, below = path[1:].partition("/")
        value, slash, rest = below.partition("/")
        if value and (found := self._below.get((method, noun, slash + rest))):
            return *found, value
        if behind and (found := self._below.get((method, noun, _WHATEVER))):
            return *found, below
        return None

    def _takes(self, method: str, path: str) -> bool:
        key = (method, path)
        return key in self._exact or key in self._others or self._find_below(method, path) is not None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve a request. Raises `NotFound`, `MethodNotAllowed`, and what the endpoint raises."""
        if serve := self.find(scope):
            response = await serve(HttpRequest(scope, receive))
            await response(scope, receive, send)
            return
        method, path = scope["method"], scope["path"]
        if app := self._others.get((method, path)):
            await app(scope, receive, send)
            return
        if allowed := ", ".join(sorted(each for each in self._methods if self._takes(each, path))):
            raise MethodNotAllowed(f"{path} does not take {method}, but {allowed}.", allow=allowed)
        raise unknown_path(path, (path for _, path in self.routes))

    @property
    def _methods(self) -> set[str]:
        return {"HEAD", *(method for method, _ in self.routes)}


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
