"""Endpoints for files: the operations of the file service, each a JSON object in and out, and raw transfer."""

import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any, Final

from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse

from shelld_py.computer import Computer
from shelld_py.errors import InvalidRequest
from shelld_py.files import (
    ByteRange,
    ChangeRequest,
    CreateRequest,
    DeleteRequest,
    FindRequest,
    InsertRequest,
    MoveRequest,
    RawFile,
    ReadRequest,
    ReplaceRequest,
    SearchRequest,
    UndoRequest,
    UpdateRequest,
    ViewRequest,
)
from shelld_py.http.answers import json_response
from shelld_py.http.negotiation import json_body, query_fields
from shelld_py.http.parameters import RawFileQuery
from shelld_py.models import Request

FILE_REQUESTS: Final[Mapping[str, type[Request]]] = {
    "view": ViewRequest,
    "read": ReadRequest,
    "create": CreateRequest,
    "delete": DeleteRequest,
    "move": MoveRequest,
    "update": UpdateRequest,
    "insert": InsertRequest,
    "replace": ReplaceRequest,
    "undo": UndoRequest,
    "search": SearchRequest,
    "find": FindRequest,
}
"""What each operation takes, by its name in the path."""

_MEDIA_TYPE = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class FileEndpoints:
    """Handlers for file operations."""

    def __init__(self, computer: Computer) -> None:
        self._computer = computer

    def operations(self) -> dict[str, Callable[[HttpRequest], Awaitable[Response]]]:
        """Return the handler of each operation by its name in the path."""
        return {name: self._operation(name, model) for name, model in FILE_REQUESTS.items()}

    async def read_raw(self, request: HttpRequest) -> Response:
        """GET and HEAD /files/raw: the bytes of any file, or a range of them (RFC 9110, 13 and 14)."""
        wanted = request.headers.get("range") if request.method == "GET" else None
        byte_range = _byte_range(wanted) if wanted else None
        file = await self._computer.files.read_raw(_path(request))
        with contextlib.ExitStack() as closing:
            closing.callback(file.close)
            stored = file.size is not None
            headers = {"Accept-Ranges": "bytes" if stored else "none", **_validators(file)}
            known = _etags(request.headers.get("if-none-match"))
            if known and (file.etag in known or "*" in known):
                return Response(None, HTTPStatus.NOT_MODIFIED, headers)
            status = HTTPStatus.OK
            if byte_range and stored and request.headers.get("if-range") in (None, *_validators(file).values()):
                file.narrow(byte_range)
                status = HTTPStatus.PARTIAL_CONTENT
                headers["Content-Range"] = f"bytes {file.start}-{file.start + (file.length or 0) - 1}/{file.size}"
            if stored:
                headers["Content-Length"] = str(file.length)
            if request.method == "HEAD":
                return StreamingResponse(iter(()), status, headers, _MEDIA_TYPE)  # adds no length of its own
            closing.pop_all()
            return StreamingResponse(_pieces(file), status, headers, _MEDIA_TYPE)

    async def write_raw(self, request: HttpRequest) -> Response:
        """PUT /files/raw: replace or make any file."""
        path = _path(request)
        if_none_match = request.headers.get("if-none-match")
        if if_none_match not in (None, "*"):
            raise InvalidRequest(f'If-None-Match must be "*": the file must not exist. It is {if_none_match!r}.')
        preconditions = ChangeRequest(
            if_match=_etag(request.headers.get("if-match")), if_none_match="*" if if_none_match else None
        )
        result = await self._computer.files.write_raw(
            path, request.stream(), preconditions, max_size=self._computer.settings.server.max_body
        )
        return json_response(result)

    def _operation(self, name: str, model: type[Request]) -> Callable[[HttpRequest], Awaitable[Response]]:
        async def handle(request: HttpRequest) -> Response:
            query_fields(request, ())
            wanted = await json_body(request, model)
            perform: Callable[[Any], Awaitable[object]] = getattr(self._computer.files, name)
            return json_response(await perform(wanted))

        return handle


async def _pieces(file: RawFile) -> AsyncIterator[bytes]:
    async with file:
        async for piece in file.chunks():
            yield piece


def _path(request: HttpRequest) -> str:
    fields = query_fields(request, RawFileQuery.__struct_fields__)
    if not fields.get("path"):
        raise InvalidRequest("The parameter path is missing: GET or PUT /files/raw?path=...")
    return fields["path"]


def _byte_range(value: str) -> ByteRange | None:
    """Return the range that is asked for; None for one in another unit, which counts for nothing (RFC 9110, 14.2)."""
    if not value.strip().lower().startswith("bytes"):
        return None
    match = _RANGE.fullmatch(value.strip().lower())
    if match is None or not (match[1] or match[2]):
        raise InvalidRequest(f"Range must be one range of bytes, such as bytes=0-99 or bytes=-100, not {value!r}.")
    return ByteRange(int(match[1]) if match[1] else None, int(match[2]) if match[2] else None)


def _validators(file: RawFile) -> dict[str, str]:
    """Return the headers by which a client can tell later whether the file is still the same."""
    headers = {"Last-Modified": formatdate(file.modified_at, usegmt=True)}
    return {**headers, "ETag": f'"{file.etag}"'} if file.etag else headers


def _etags(value: str | None) -> list[str]:
    return [item.strip().removeprefix("W/").strip('"') for item in value.split(",")] if value else []


def _etag(value: str | None) -> str | None:
    return value.strip().strip('"') if value else None
