"""Requests that send input or signals: the same for a shell and for a run."""

import signal

from starlette.requests import Request as HttpRequest
from starlette.responses import PlainTextResponse, Response

from shelld_py.bash.command import check_encodable
from shelld_py.errors import InvalidRequest
from shelld_py.http.answers import json_response
from shelld_py.http.negotiation import Form, convert_fields, is_json, json_body, query_fields, requested_form
from shelld_py.http.parameters import StdinQuery
from shelld_py.models import AcceptedInput, StdinRequest


async def stdin_request(request: HttpRequest) -> StdinRequest:
    """Return what is to be typed: the raw body, or a JSON object. Raises `InvalidRequest`."""
    if is_json(request):
        wanted = await json_body(request, StdinRequest)
    else:
        fields: dict[str, object] = dict(query_fields(request, StdinQuery.__struct_fields__))
        fields["text"] = (await request.body()).decode("utf-8", "surrogateescape")
        wanted = convert_fields(fields, StdinRequest)
    check_encodable("text", wanted.text)
    return wanted


def accepted_response(request: HttpRequest, accepted: int, default: Form) -> Response:
    """Return the answer to input: how many bytes the run has accepted in all."""
    if requested_form(request.scope, default) is Form.TEXT:
        return PlainTextResponse(str(accepted))
    return json_response(AcceptedInput(accepted=accepted))


def signal_number(name: str) -> int:
    """Return the number of a signal: `TERM`, `SIGTERM` or `15`. Raises `InvalidRequest`."""
    number = (
        int(name)
        if name.isdecimal() and name.isascii()
        else getattr(signal, f"SIG{name.upper().removeprefix('SIG')}", None)
    )
    if not isinstance(number, int) or number not in signal.valid_signals():
        raise InvalidRequest(f"signal must be the name or number of a signal, such as TERM or 15, not {name!r}.")
    return int(number)
