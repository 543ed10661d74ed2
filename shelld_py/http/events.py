"""The endpoint for events of an adapter."""

from starlette.requests import Request as HttpRequest
from starlette.responses import Response

from shelld_py.errors import ShelldError
from shelld_py.http.answers import json_response
from shelld_py.http.negotiation import json_body, query_fields
from shelld_py.http.tools import ToolEndpoints


class EventEndpoints:
    """The handler for events."""

    def __init__(self, tools: ToolEndpoints) -> None:
        self._tools = tools

    async def event(self, request: HttpRequest) -> Response:
        """POST /events. A request that is no event is a problem; an event that fails is told as an event."""
        from shelld_py.tools.events import EventFailure, EventRequest, EventSuccess, adapter_of, failure, perform

        query_fields(request, ())
        event = await json_body(request, EventRequest)
        try:
            return json_response(EventSuccess(request_success=await perform(self._tools.toolbox, event)))
        except ShelldError as error:
            told = failure(error, event.request_id, adapter_of(event))
            return json_response(EventFailure(request_failed=told), error.status)
