"""Endpoints for the tools of an agent and the events of an adapter. What they do is in tools/, imported when needed."""

from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from shelld_py import errors
from shelld_py.errors import ShelldError
from shelld_py.files import EDIT, READ, SEARCH
from shelld_py.http.answers import json_response
from shelld_py.http.endpoint import JSON, TEXT, Body, Call, Endpoint, Header, Success, Tag, ok
from shelld_py.http.requests import Form, Query, duration_field, header, json_object, parsed
from shelld_py.large_json import joined
from shelld_py.request_data import DurationText
from shelld_py.tools.events import EventFailure, EventRequest, EventSuccess, adapter_of, failure, perform


class ToolsQuery(Query, frozen=True, kw_only=True):
    """Of the list of tools."""

    format: Annotated[Literal["full", "openai", "anthropic", "mcp"], Meta(description="Whose form the list has.")] = (
        "full"
    )


class CallQuery(Query, frozen=True, kw_only=True):
    """Of a call of a tool."""

    timeout: Annotated[DurationText, Meta(description="The longest that the call waits for a command.")] | None = None
    full: Annotated[bool, Meta(description="Answer with the result and the text, and how the command stands.")] = False


class CallAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What a call has given: the `result` of the tool's own model, and the `text` for a model of language.

    `run_id` and `running` are about the command of the call, where there was one.
    """

    tool: str
    result: Any
    text: str
    is_error: bool
    run_id: str | None
    running: bool


async def _list_tools(call: Call[ToolsQuery, None]) -> object:
    from shelld_py.tools.shapes import Shape, listed

    return listed(Shape(call.query.format))


async def _arguments(request: HttpRequest, _: CallQuery) -> dict[str, Any]:
    return await parsed(await joined(request.stream()) or b"{}", json_object, "the arguments of the tool by name")


async def _call_tool(call: Call[CallQuery, dict[str, Any]]) -> object:
    """Call a tool. A client that goes away leaves the command running."""
    from shelld_py.tools.tool import CallContext

    toolbox, name = call.services.toolbox, call.request.path_params["name"]
    timeout = call.query.timeout or (header(call.request.scope, b"x-command-timeout") or b"").decode("latin-1")
    context = CallContext(longest_wait=duration_field("timeout", timeout) if timeout else None)
    outcome = await toolbox.call(name, call.body, context)
    if call.query.full:
        return CallAnswer(
            tool=name,
            result=outcome.result,
            text=outcome.text,
            is_error=outcome.is_error,
            run_id=outcome.run_id,
            running=outcome.running,
        )
    headers = {"X-Is-Error": str(outcome.is_error).lower(), "X-Running": str(outcome.running).lower()}
    if outcome.run_id:
        headers["X-Run-Id"] = outcome.run_id
    if call.form is not Form.TEXT:
        return json_response(outcome.result, headers=headers)
    text = outcome.text.encode("utf-8", "surrogateescape")
    return Response(text, HTTPStatus.OK, headers, "text/plain; charset=utf-8")


async def _event(call: Call[Query, EventRequest]) -> object:
    """Call a tool by an event. A request that is no event is a problem; an event that fails is told as an event."""
    event = call.body
    try:
        return EventSuccess(request_success=await perform(call.services.toolbox, event))
    except ShelldError as error:
        told = failure(error, event.request_id, adapter_of(event))
        return json_response(EventFailure(request_failed=told), error.status)


_TOOL_REFUSALS: Final = (
    *EDIT,
    *READ,
    *SEARCH,
    errors.ReplacementCountMismatch,
    errors.TextNotFound,
    errors.LineOutOfRange,
    errors.TooManyTokens,
    errors.NothingToUndo,
    errors.SessionNotFound,
    errors.RunNotFound,
    errors.ShellNotStarted,
    errors.ShellBusy,
    errors.ShellAlreadyStarted,
    errors.ShellUnrecoverable,
    errors.NoRunningCommand,
    errors.TooManySessions,
    errors.ShellStartFailed,
)

ENDPOINTS: Final = (
    Endpoint(
        method="GET",
        path="/tools",
        name="list_tools",
        tag=Tag.TOOLS,
        handler=_list_tools,
        looks=True,
        summary="The tools for an agent's model",
        description="With their JSON schemas, in the form that the API of a model takes.",
        query=ToolsQuery,
        answers=ok("A list; for MCP, the result of `tools/list`.", list[dict[str, Any]] | dict[str, Any]),
    ),
    Endpoint(
        method="POST",
        path="/tools/{name}",
        name="call_tool",
        tag=Tag.TOOLS,
        handler=_call_tool,
        summary="Call a tool",
        description=(
            "The schema of the result is in `GET /tools`. With `full`, the answer is `tool`, `result`, `text`, "
            "`is_error`, `run_id` and `running`."
        ),
        query=CallQuery,
        body=Body(model=dict[str, Any], example={"command": "echo hello"}, read=_arguments),
        answers={
            HTTPStatus.OK: Success(
                meaning="What it has given, also while its command is still running: the result, or all of it.",
                content={JSON: dict[str, Any], TEXT: str},
                headers=(
                    Header(name="X-Is-Error", meaning="Whether its command was killed or lost.", type=bool),
                    Header(name="X-Running", meaning="Whether its command is still running.", type=bool),
                    Header(name="X-Run-Id", meaning="The run of its command."),
                ),
            )
        },
        errors=(errors.ToolNotFound, *_TOOL_REFUSALS),
    ),
    Endpoint(
        method="POST",
        path="/events",
        name="call_event",
        tag=Tag.TOOLS,
        handler=_event,
        summary="Call a tool by an event of an adapter",
        description="The event names a tool and holds its arguments; success and failure are told as events.",
        query=Query,
        body=Body(
            model=EventRequest, required=True, example={"event_type": "execute_command", "data": {"command": "ls"}}
        ),
        answers=ok("What the tool has given.", EventSuccess),
        errors=_TOOL_REFUSALS,
        failure=EventFailure,
    ),
)
