"""Errors as answers: one line of text, or a problem document (RFC 9457). The one place that maps them."""

import json
from http import HTTPStatus

from starlette.responses import PlainTextResponse, Response

from shelld_py.errors import ShelldError

PROBLEM_TYPE = "application/problem+json"


def problem_response(error: ShelldError, *, as_text: bool) -> Response:
    """Return the answer for `error`: its detail alone, or a document with `code` and further members."""
    headers = {"WWW-Authenticate": 'Bearer realm="shelld"'} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "5"
    if error.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        headers["Content-Range"] = f"bytes */{error.extra['size']}"
    if isinstance(allowed := error.extra.get("allow"), str):
        headers["Allow"] = allowed
    if as_text:
        return PlainTextResponse(" ".join(error.detail.split()), error.status, headers)
    document = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        **error.extra,
    }
    return Response(json.dumps(document), error.status, headers, PROBLEM_TYPE)
