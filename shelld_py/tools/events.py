"""Events of an adapter: tools that are called by an event with a type, data and a request id.

    {"event_type": "execute_command", "data": {"command": "ls"}, "request_id": "1"}

What comes back is flat: the type of the adapter, the request id, and the members of the tool's result, or of the
error. How events travel is elsewhere. The tools are imported when the first event comes.
"""

import uuid
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from shelld_py.errors import InvalidRequest, ShelldError
from shelld_py.files import OPERATIONS
from shelld_py.request_data import Request
from shelld_py.validation import nearest, shown

if TYPE_CHECKING:
    from shelld_py.tools.catalogue import Toolbox
    from shelld_py.tools.tool import CallContext


class Adapter(StrEnum):
    """Which side of the computer an event is about."""

    SHELL = "shell"
    FILE = "file"


ADAPTERS: Final = {
    **dict.fromkeys(("open_session", "close_session", "execute_command", "shell_metadata"), Adapter.SHELL),
    **{operation.name: Adapter.FILE for operation in OPERATIONS.values() if operation.event},
}
"""The types of events, which are names of tools, with their adapter."""


class EventRequest(Request, frozen=True, kw_only=True):
    """An event; its data are the arguments of the tool of that name. Without a request id it is given one."""

    event_type: str
    data: dict[str, Any] = msgspec.field(default_factory=dict)
    request_id: Annotated[str, msgspec.Meta(min_length=1, max_length=256)] = msgspec.field(
        default_factory=lambda: uuid.uuid4().hex
    )

    @property
    def adapter(self) -> Adapter:
        """The adapter that the event is for. Raises `InvalidRequest` where there is no such event."""
        adapter = ADAPTERS.get(self.event_type)
        if adapter is None:
            near = nearest(self.event_type, ADAPTERS)
            hint = f"Do you mean {near}?" if near else f"There are: {', '.join(ADAPTERS)}."
            raise InvalidRequest(f"There is no event_type {shown(self.event_type)}. {hint}", nearest=near)
        return adapter


class EventSuccess(msgspec.Struct, frozen=True, kw_only=True):
    """What an event has given: `adapter_type`, `request_id`, and the members of the tool's result."""

    request_success: dict[str, Any]


class EventFailure(msgspec.Struct, frozen=True, kw_only=True):
    """Why an event has failed: `adapter_type`, `request_id`, `error` in words, `code`, `status`, and more."""

    request_failed: dict[str, Any]


async def perform(toolbox: "Toolbox", event: EventRequest, context: "CallContext | None" = None) -> dict[str, Any]:
    """Do what `event` asks for; return what is told of its success. Raises as `Toolbox.call`.

    Where a command is still running, `run_id` names it.
    """
    adapter = event.adapter
    outcome = await toolbox.call(event.event_type, event.data, context)
    running = {"run_id": outcome.run_id} if outcome.running else {}
    return {**headed(event.request_id, adapter), **msgspec.to_builtins(outcome.result), **running}


def headed(request_id: str | None, adapter: Adapter | None) -> dict[str, Any]:
    """Return what every answer begins with."""
    return {"adapter_type": adapter.value if adapter else None, "request_id": request_id}


def failure(error: ShelldError, request_id: str | None, adapter: Adapter | None) -> dict[str, Any]:
    """Return what is told of a failure: in words, by code and status, and what else the error holds."""
    told = {"error": error.detail, "code": error.code, "status": error.status}
    return {**headed(request_id, adapter), **told, **error.extra}


def adapter_of(event: EventRequest) -> Adapter | None:
    """Return the adapter of an event, if there is one."""
    return ADAPTERS.get(event.event_type)
