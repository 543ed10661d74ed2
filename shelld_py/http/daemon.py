"""Endpoints for the daemon itself: whether it lives, what it knows of the machine, its description, its end."""

import asyncio
from operator import attrgetter
from typing import Annotated, Any, Final, Literal

from msgspec import Meta
from starlette.responses import Response

from shelld_py.http.endpoint import JSON, Call, Endpoint, Tag, ok
from shelld_py.http.requests import Form, Query
from shelld_py.metadata import Metadata
from shelld_py.models import Health, ShutdownAnswer


class ShutdownQuery(Query, frozen=True, kw_only=True):
    """Of the end of the daemon."""

    recycle: Annotated[bool, Meta(description="Make all new for the next client, and stay.")] = False


async def _health(_: Call[None, None]) -> Health:
    return Health()


async def _metadata(call: Call[Query, None]) -> Metadata:
    return await call.computer.metadata()


async def _shutdown(call: Call[ShutdownQuery, None]) -> ShutdownAnswer:
    """End the daemon, or make it new for the next client."""
    if call.query.recycle:
        await call.services.recycle()
        return ShutdownAnswer(state="available")
    call.services.shut_down()
    return ShutdownAnswer(state="shutting down")


async def _describe(call: Call[None, None]) -> Response:
    """Describe this API in OpenAPI 3.1. The document is made when it is first asked for."""
    from shelld_py.http.openapi import document

    return Response(await asyncio.to_thread(document, call.services.endpoints), media_type=JSON)


ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/health",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_health,
        summary="Whether the daemon lives; touches nothing",
        answers=ok("It does.", Health, text=Literal["ok"]),
        text=attrgetter("status"),
        public=True,
    ),
    Endpoint(
        method="POST",
        path="/shutdown",
        tag=Tag.DAEMON,
        default=Form.TEXT,
        handler=_shutdown,
        summary="End the daemon, or make it new for the next client",
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
        tag=Tag.DAEMON,
        handler=_metadata,
        summary="System, shell, and what may be used",
        query=Query,
        answers=ok("What there is to know.", Metadata),
    ),
    Endpoint(
        method="GET",
        path="/openapi.json",
        tag=Tag.DAEMON,
        handler=_describe,
        summary="This description; touches nothing",
        answers=ok("An OpenAPI 3.1 document.", dict[str, Any]),
        public=True,
    ),
)
