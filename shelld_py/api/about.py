"""Endpoints for the daemon itself: whether it lives, what it knows of the machine, its description, its end."""

import asyncio
from http import HTTPStatus
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.responses import PlainTextResponse, Response

from shelld_py.errors import ShuttingDown
from shelld_py.http.endpoint import JSON, TEXT, Call, Endpoint, Success, Tag, ok
from shelld_py.http.requests import Form, Query, header
from shelld_py.metadata import Metadata
from shelld_py.version import __version__

_NAME: Final = "shelld-py"
_DOCUMENTS: Final = {
    "/docs": "the API for people",
    "/openapi.json": "the API for programs",
    "/llms.txt": "the API for models",
    "/health": "whether the daemon lives",
    "/ready": "whether it takes requests",
}
HTML: Final = "text/html"


class ShutdownAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon is ending, or has been made new."""

    state: Literal["shutting down", "available"]


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon lives."""

    status: Literal["ok"] = "ok"


class Readiness(msgspec.Struct, frozen=True, kw_only=True):
    """The daemon takes requests."""

    status: Literal["ready"] = "ready"


class About(msgspec.Struct, frozen=True, kw_only=True):
    """What answers here, and where it is described."""

    name: str = _NAME
    version: str
    description: str = (
        "A computer for an agent: a persistent bash over HTTP, sessions, and files. Every request needs the header "
        "X-Shell-Key, but for these:"
    )
    documents: tuple[str, ...] = tuple(_DOCUMENTS)


def _about_text(about: About) -> str:
    lines = [f"{about.name} {about.version}", about.description]
    return "".join(f"{line}\n" for line in [*lines, *(f"  {path}  {what}" for path, what in _DOCUMENTS.items())])


class ShutdownQuery(Query, frozen=True, kw_only=True):
    """Of the end of the daemon."""

    recycle: Annotated[bool, Meta(description="Make all new for the next client, and stay.")] = False


async def _health(_: Call[None, None]) -> Health:
    return Health()


async def _ready(call: Call[None, None]) -> Readiness:
    call.services.check_open()
    return Readiness()


async def _metadata(call: Call[Query, None]) -> Metadata:
    return await call.computer.metadata()


async def _shutdown(call: Call[ShutdownQuery, None]) -> ShutdownAnswer:
    """End the daemon, or make it new for the next client."""
    if call.query.recycle:
        await call.services.recycle()
        return ShutdownAnswer(state="available")
    call.services.shut_down()
    return ShutdownAnswer(state="shutting down")


async def _root(call: Call[None, None]) -> About | Response:
    """Say what this is: to a browser in HTML."""
    about = About(version=__version__)
    if b"text/html" not in (header(call.request.scope, b"accept") or b"").lower():
        return about
    from shelld_py.api.pages import HEADERS, page

    links = "".join(f'<li><a href="{path}">{path}</a>: {what}</li>' for path, what in _DOCUMENTS.items())
    console = '<p><a href="/console">The console</a>: to watch it, with the key.</p>'
    text = page(_NAME, f"<h1>{_NAME} {__version__}</h1><p>{about.description}</p><ul>{links}</ul>{console}")
    return Response(text, headers=HEADERS, media_type=HTML)


async def _reference(call: Call[None, None]) -> Response:
    """Show the API to people. The page is made when it is first asked for."""
    from shelld_py.api.openapi import document
    from shelld_py.api.pages import HEADERS, reference

    text = await asyncio.to_thread(lambda: reference(document(call.services.endpoints)))
    return Response(text, headers=HEADERS, media_type=HTML)


async def _tell_models(call: Call[None, None]) -> Response:
    """Tell the API to models. The text is made when it is first asked for."""
    from shelld_py.api.llms import text

    return PlainTextResponse(text(call.services.endpoints))


async def _describe(call: Call[None, None]) -> Response:
    """Describe this API in OpenAPI 3.1. The document is made when it is first asked for."""
    from shelld_py.api.openapi import document

    return Response(await asyncio.to_thread(document, call.services.endpoints), media_type=JSON)


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/",
        name="get_about",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_root,
        summary="What this is, and where it is described",
        description="Text for people and programs, HTML for browsers; touches nothing.",
        answers={
            HTTPStatus.OK: Success(meaning="A few lines.", content={TEXT: str, JSON: About, HTML: str}),
        },
        text=_about_text,
        public=True,
    ),
    Endpoint(
        method="GET",
        path="/docs",
        name="get_docs",
        tag=Tag.DAEMON,
        handler=_reference,
        summary="This description for people; touches nothing",
        description="One page of HTML, made from the OpenAPI document.",
        answers={HTTPStatus.OK: Success(meaning="A page that needs nothing from elsewhere.", content={HTML: str})},
        public=True,
    ),
    Endpoint(
        method="GET",
        path="/llms.txt",
        name="get_llms_text",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_tell_models,
        summary="The API in short, for a model; touches nothing",
        description="What an agent needs to work that was handed nothing but a URL and a key.",
        answers={HTTPStatus.OK: Success(meaning="Text in Markdown.", content={TEXT: str})},
        public=True,
    ),
    Endpoint(
        method="GET",
        path="/health",
        name="get_health",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_health,
        summary="Whether the daemon lives; touches nothing",
        description="For probes: it locks nothing, and is no activity.",
        answers=ok("It does.", Health, text=Literal["ok"]),
        text=attrgetter("status"),
        public=True,
    ),
    Endpoint(
        method="GET",
        path="/ready",
        name="get_readiness",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_ready,
        summary="Whether the daemon takes requests; touches nothing",
        description="For probes: refused while the daemon shuts down, or is made new for the next client.",
        answers=ok("It does.", Readiness, text=Literal["ready"]),
        text=attrgetter("status"),
        errors=(ShuttingDown,),
        public=True,
    ),
    Endpoint(
        method="POST",
        path="/shutdown",
        name="shutdown",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_shutdown,
        summary="End the daemon, or make it new for the next client",
        description="Every shell ends. With `recycle` the daemon stays, and forgets runs, undo history and the key.",
        query=ShutdownQuery,
        answers=ok(
            "It is ending; with `recycle`, the state of the main shell.",
            ShutdownAnswer,
            text=Literal["shutting down", "available"],
        ),
        text=attrgetter("state"),
    ),
    Endpoint(
        method="GET",
        path="/metadata",
        name="get_metadata",
        tag=Tag.DAEMON,
        handler=_metadata,
        looks=True,
        summary="System, shell, and what may be used",
        description="The operating system, bash, CPUs and memory, and the limits, time-outs and directories that hold.",
        query=Query,
        answers=ok("What there is to know.", Metadata),
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        name="get_openapi",
        tag=Tag.DAEMON,
        handler=_describe,
        summary="This description; touches nothing",
        description="In OpenAPI 3.1, made from the declarations that requests are parsed by.",
        answers=ok("An OpenAPI 3.1 document.", dict[str, Any]),
        public=True,
    ),
)
