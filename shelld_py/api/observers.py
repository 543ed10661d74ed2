"""Keys that only look: a person who watches an agent needs no more, and cannot do harm by mistake.

What only looks is said by each endpoint (`looks`); all else is refused at the door.
"""

from http import HTTPStatus
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shelld_py import errors
from shelld_py.http.endpoint import JSON, Body, Call, Endpoint, Success, Tag, ok
from shelld_py.http.keylock import Observer
from shelld_py.http.requests import Query, lifetime_field
from shelld_py.models import NewObserver, ObserverStatus, utc_timestamp
from shelld_py.request_data import Duration, Request


class ObserverReference(msgspec.Struct, frozen=True, kw_only=True):
    """The key for looking that was withdrawn, by its id."""

    observer_id: str


class ObserverRequest(Request, frozen=True, kw_only=True):
    """A key that only looks: for how long, and for whom or what."""

    expires: Annotated[Duration, Meta(description="How long it is good for.")] = "1h"
    description: Annotated[str, Meta(max_length=1000, description="Shown in the list.")] | None = None


async def _add(call: Call[None, ObserverRequest]) -> NewObserver:
    seconds = lifetime_field("expires", call.body.expires)
    observer, key = call.services.observers.add(seconds, call.body.description)
    return NewObserver(observer_id=observer.observer_id, key=key, expires_at=utc_timestamp(observer.expires_at))


async def _list(call: Call[Query, None]) -> list[ObserverStatus]:
    return [_status(observer) for observer in call.services.observers.all]


async def _remove(call: Call[None, None]) -> ObserverReference:
    observer_id = call.request.path_params["observer_id"]
    call.services.observers.remove(observer_id)
    return ObserverReference(observer_id=observer_id)


def _status(observer: Observer) -> ObserverStatus:
    return ObserverStatus(
        observer_id=observer.observer_id,
        description=observer.description,
        created_at=utc_timestamp(observer.created_at),
        expires_at=utc_timestamp(observer.expires_at),
    )


ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/observers",
        name="add_observer",
        tag=Tag.DAEMON,
        handler=_add,
        summary="Make a key that only looks",
        description="The key is shown this once. It ends by itself, when it is withdrawn, and with the owner's key.",
        body=Body(model=ObserverRequest, example={"expires": "1h", "description": "for the reviewer"}),
        answers={HTTPStatus.CREATED: Success(meaning="The key.", content={JSON: NewObserver})},
        errors=(errors.TooManyObservers,),
    ),
    Endpoint(
        method="GET",
        path="/observers",
        name="list_observers",
        tag=Tag.DAEMON,
        handler=_list,
        summary="The keys that only look",
        description="Those that are good, oldest first, without the keys themselves.",
        query=Query,
        answers=ok("What is known of each.", list[ObserverStatus]),
    ),
    Endpoint(
        method="DELETE",
        path="/observers/{observer_id}",
        name="remove_observer",
        tag=Tag.DAEMON,
        handler=_remove,
        summary="Withdraw a key that only looks",
        description="What is going on with it ends at once.",
        answers=ok("The one that was withdrawn.", ObserverReference),
        errors=(errors.ObserverNotFound,),
    ),
)
