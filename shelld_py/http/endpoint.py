"""An endpoint, declared once: what it takes, what does it, what it answers, how it can refuse.

From the same declaration a request is parsed and answered, the route is made, and the API's description is written
(`openapi.py`). A handler is given a `Call` with typed values and returns a model; one that returns a response of its
own (output in pieces, raw files) is left alone. The declarations stand in the rooms of their handlers.
"""

from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

from msgspec import Struct
from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from shelld_py.computer import Computer
from shelld_py.errors import ShelldError
from shelld_py.http.answers import json_response
from shelld_py.http.keylock import Observers
from shelld_py.http.repeats import Repeats
from shelld_py.http.requests import Form, Query, json_body, query_of, requested_form
from shelld_py.idle import IdleTimer
from shelld_py.shells.registry import MAIN
from shelld_py.shells.run import Run
from shelld_py.shells.shell import Shell

if TYPE_CHECKING:
    from shelld_py.http.proxied import ProxiedPorts
    from shelld_py.tools.catalogue import Toolbox

TEXT: Final = "text/plain"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"

_Query = TypeVar("_Query")
_Body = TypeVar("_Body")


class Tag(StrEnum):
    """What an endpoint is about."""

    MAIN = "main shell"
    SESSIONS = "sessions"
    RUNS = "runs"
    FILES = "files"
    TOOLS = "tools"
    DAEMON = "daemon"


class Header(Struct, frozen=True, kw_only=True):
    """A header of a request or an answer; `type` is what msgspec makes a schema from."""

    name: str
    meaning: str
    type: Any = str
    always: bool = False


class Body(Struct, frozen=True, kw_only=True):
    """What a request carries: a JSON object of the type `model`, raw bytes of a `raw` meaning, or either.

    `read` reads it, given the query, where it is more than that. For an `unlimited` one `server.max_body` does not
    hold: it is never held as a whole, and its handler bounds what it takes. With `unlimited_with` that is so of
    requests that have this parameter in their query string.
    """

    model: Any = None
    raw: str | None = None
    required: bool = False
    example: Mapping[str, object] | None = None
    read: Callable[[HttpRequest, Any], Awaitable[object]] | None = None
    unlimited: bool = False
    unlimited_with: str = ""


class Success(Struct, frozen=True, kw_only=True):
    """What a success carries: for each media type, the type that msgspec makes a schema from.

    For events that are not those of an output, it is a mapping from their names to the types of their data.
    """

    meaning: str
    content: Mapping[str, Any]
    headers: tuple[Header, ...] = ()


class Services(Struct, dict=True):
    """What handlers work on. `recycle` makes all new for the next client, `shut_down` ends the daemon.

    `check_open` raises `ShuttingDown` where no request is let in any more.
    """

    computer: Computer
    repeats: Repeats
    idle: IdleTimer
    recycle: Callable[[], Awaitable[None]]
    shut_down: Callable[[], None]
    check_open: Callable[[], None]
    endpoints: "tuple[Endpoint, ...]"
    observers: Observers
    proxied: "ProxiedPorts | None"

    @cached_property
    def toolbox(self) -> "Toolbox":
        """The tools: one set for whoever calls them. Imported when it is first asked for."""
        from shelld_py.tools.catalogue import Toolbox

        return Toolbox(self.computer)


class Call(Struct, Generic[_Query, _Body]):
    """A request to an endpoint, as its handler sees it."""

    services: Services
    computer: Computer
    """What the daemon serves."""
    request: HttpRequest
    form: Form
    query: _Query
    body: _Body

    @property
    def shell(self) -> Shell:
        """The shell that the path names; the main shell where it names none. Raises `SessionNotFound`."""
        scope, shells = self.request.scope, self.computer.shells
        session_id = scope["path_params"].get("session_id", MAIN)
        if "observer" in scope and (shell := shells.find(session_id)):
            return shell  # looking is no activity
        return shells.get(session_id)

    async def run(self) -> Run:
        """Return the run that the path names. Raises `RunNotFound`."""
        return await self.computer.store.get(self.request.path_params["run_id"])


class Endpoint(Struct, frozen=True, kw_only=True, eq=False):
    """An endpoint. `errors` are those of its own: what any request can meet is added by who describes it."""

    method: str
    path: str
    name: str
    """What a program calls it: the `operationId`."""
    tag: Tag
    summary: str
    description: str
    handler: Callable[[Call[Any, Any]], Awaitable[object]]
    answers: Mapping[int, Success]
    query: type[Query] | None = None
    """What may stand in the query string; without it, the query string is not looked at."""
    headers: tuple[Header, ...] = ()
    body: Body | None = None
    errors: tuple[type[ShelldError], ...] = ()
    failure: Any = None
    """The type of what tells an error in place of a problem, once the request is understood."""
    default: Form = Form.JSON
    """The form of its answers and errors where `Accept` names none."""
    text: Callable[[Any], object] | None = None
    """What of the model is its text form, where it has one."""
    public: bool = False
    """Whether it needs no key."""
    looks: bool = False
    """Whether it changes nothing, and nothing happens for it: so a key that only looks may ask for it."""
    passive: bool = False
    """Whether it is no activity, however long it lasts."""

    async def __call__(self, services: Services, request: HttpRequest) -> Response:
        """Serve a request. Raises what it can be refused with."""
        query = query_of(request, self.query) if self.query else None
        body = None
        if self.body and self.body.read:
            body = await self.body.read(request, query)
        elif self.body and self.body.model:
            body = await json_body(request, self.body.model)
        form = requested_form(request.scope, self.default)
        call = Call(services, services.computer, request, form, query, body)
        if services.computer.audit:
            request.scope["asked"] = (call.query, call.body)
        answer = await self.handler(call)
        if isinstance(answer, Response):
            return answer
        if self.text and call.form is Form.TEXT:
            return PlainTextResponse(str(self.text(answer)))
        return json_response(answer, next(iter(self.answers)))


def ok(meaning: str, model: Any, *, text: Any = None, headers: tuple[Header, ...] = ()) -> dict[int, Success]:
    """Return an answer that is JSON; also a `text` of that type, where there is one."""
    content = {JSON: model} if text is None else {TEXT: text, JSON: model}
    return {HTTPStatus.OK: Success(meaning=meaning, content=content, headers=headers)}
