"""Endpoints for the tools of an agent. What they do is in tools/, which is imported when it is first asked for."""

from functools import cached_property
from http import HTTPStatus
from typing import TYPE_CHECKING

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from shelld_py.computer import Computer
from shelld_py.http.answers import json_response
from shelld_py.http.negotiation import (
    Form,
    boolean_field,
    choice_field,
    duration_field,
    header,
    json_object,
    query_fields,
    requested_form,
)
from shelld_py.http.parameters import CallQuery, ToolsQuery

if TYPE_CHECKING:
    from shelld_py.tools.catalogue import Toolbox


class ToolEndpoints:
    """Handlers for the catalogue and for calls."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer

    @cached_property
    def toolbox(self) -> "Toolbox":
        """The tools: one set for whoever calls them, over HTTP or otherwise."""
        from shelld_py.tools.catalogue import Toolbox

        return Toolbox(self._computer)

    async def list_tools(self, request: HttpRequest) -> Response:
        """GET /tools."""
        from shelld_py.tools.shapes import Shape, listed

        fields = query_fields(request, ToolsQuery.__struct_fields__)
        return json_response(listed(choice_field("format", fields, Shape) or Shape.FULL))

    async def call(self, request: HttpRequest) -> Response:
        """POST /tools/NAME. A client that goes away leaves the command running."""
        from shelld_py.tools.models import CallAnswer
        from shelld_py.tools.tool import CallContext

        fields = query_fields(request, CallQuery.__struct_fields__)
        timeout = fields.get("timeout") or (header(request.scope, b"x-command-timeout") or b"").decode("latin-1")
        context = CallContext(patience=duration_field("timeout", timeout) if timeout else None)
        name = request.path_params["name"]
        self.toolbox.tool(name)
        full = boolean_field("full", fields["full"]) if "full" in fields else False
        arguments = json_object(await request.body(), "the arguments of the tool by name")
        outcome = await self.toolbox.call(name, arguments, context)
        if full:
            return json_response(
                CallAnswer(
                    tool=name,
                    result=outcome.result,
                    text=outcome.text,
                    is_error=outcome.is_error,
                    run_id=outcome.run_id,
                    running=outcome.running,
                )
            )
        headers = {"X-Is-Error": str(outcome.is_error).lower(), "X-Running": str(outcome.running).lower()}
        if outcome.run_id:
            headers["X-Run-Id"] = outcome.run_id
        if requested_form(request.scope, Form.JSON) is not Form.TEXT:
            return json_response(outcome.result, headers=headers)
        text = outcome.text.encode("utf-8", "surrogateescape")
        return Response(text, HTTPStatus.OK, headers, "text/plain; charset=utf-8")
