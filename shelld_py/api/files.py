"""Endpoints for files: the operations of the file service, each a JSON object in and out, and raw transfer."""

import contextlib
import re
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal
from urllib.parse import quote

from msgspec import Meta
from starlette.responses import Response, StreamingResponse

from shelld_py import errors
from shelld_py.errors import InvalidRequest
from shelld_py.files import (
    CHANGE,
    OPERATIONS,
    PLACE,
    ArchiveFormat,
    ArchiveResult,
    ByteRange,
    ChangeRequest,
    ChangeResult,
    Effect,
    FileOperation,
    RawFile,
)
from shelld_py.http.answers import http_date
from shelld_py.http.endpoint import BYTES, Body, Call, Endpoint, Header, Success, Tag, ok
from shelld_py.http.requests import Query, is_known
from shelld_py.models import within_calendar

if TYPE_CHECKING:
    from shelld_py.files import Archive

_ARCHIVES: Final = {
    ArchiveFormat.TAR: "application/x-tar",
    ArchiveFormat.TAR_GZ: "application/gzip",
    ArchiveFormat.ZIP: "application/zip",
}
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class RawFileQuery(Query, frozen=True, kw_only=True):
    """Of the bytes of a file."""

    path: Annotated[
        str,
        Meta(
            description="Relative to `files.base_directory`, or absolute.",
            extra_json_schema={"minLength": 1, "pattern": r"^[^\x00]+$"},
        ),
    ]


class _ArchivePath(Query, frozen=True, kw_only=True):
    path: Annotated[
        str,
        Meta(
            min_length=1,
            description="Relative to `files.base_directory`, or absolute.",
            extra_json_schema={"pattern": r"^[^\x00]+$"},
        ),
    ]
    format: Annotated[ArchiveFormat, Meta(description="The form of the archive.")] = ArchiveFormat.TAR_GZ


class ArchiveQuery(_ArchivePath, frozen=True, kw_only=True):
    """Of an archive to be made."""

    exclude: Annotated[tuple[str, ...], Meta(description="Globs of what to leave out, one each time.")] = ()
    ignored: Annotated[bool, Meta(description="Whether to take in what `.gitignore` files name.")] = True


class UnpackQuery(_ArchivePath, frozen=True, kw_only=True):
    """Of an archive to be unpacked."""

    overwrite: Annotated[bool, Meta(description="Whether to replace files that are there.")] = True


async def _read_raw(call: Call[RawFileQuery, None]) -> Response:
    """Give the bytes of any file, or a range of them (RFC 9110, 13 and 14)."""
    request = call.request
    wanted = request.headers.get("range") if request.method == "GET" else None
    byte_range = _byte_range(wanted) if wanted else None
    file = await call.computer.files.read_raw(_path(call))
    with contextlib.ExitStack() as closing:
        closing.callback(file.close)
        stored = file.size is not None
        headers = {"Accept-Ranges": "bytes" if stored else "none", **_validators(file)}
        if is_known(request.scope, file.etag):
            return Response(None, HTTPStatus.NOT_MODIFIED, headers)
        status = HTTPStatus.OK
        if byte_range and stored and request.headers.get("if-range") in (None, *_validators(file).values()):
            file.narrow(byte_range)
            status = HTTPStatus.PARTIAL_CONTENT
            headers["Content-Range"] = f"bytes {file.start}-{file.start + (file.length or 0) - 1}/{file.size}"
        if stored:
            headers["Content-Length"] = str(file.length)
        if request.method == "HEAD":
            return StreamingResponse(iter(()), status, headers, BYTES)  # adds no length of its own
        closing.pop_all()
        return StreamingResponse(file.chunks(), status, headers, BYTES)


async def _write_raw(call: Call[RawFileQuery, None]) -> ChangeResult:
    """Replace or make any file."""
    request, path = call.request, _path(call)
    if "content-range" in request.headers:  # whoever sends a part would lose the rest of the file (RFC 9110, 9.3.4)
        raise InvalidRequest("The body is to be the whole file: a part of one, with Content-Range, cannot be put.")
    if_none_match = request.headers.get("if-none-match")
    if if_none_match not in (None, "*"):
        raise InvalidRequest(f'If-None-Match must be "*": the file must not exist. It is {if_none_match!r}.')
    preconditions: ChangeRequest[ChangeResult] = ChangeRequest(
        if_match=_etag(request.headers.get("if-match")), if_none_match="*" if if_none_match else None
    )
    return await call.computer.files.write_raw(
        path, request.stream(), preconditions, max_size=call.computer.settings.server.max_body
    )


async def _read_archive(call: Call[ArchiveQuery, None]) -> Response:
    """Give what a path leads to as an archive. What is refused before its first bytes has a status of its own."""
    query = call.query
    archive = await call.computer.files.read_archive(
        query.path, query.format, exclude=query.exclude, ignored=query.ignored
    )
    disposition = f"attachment; filename*=UTF-8''{quote(archive.name, safe='')}"
    headers = {"Content-Disposition": disposition}
    async with contextlib.AsyncExitStack() as closing:
        closing.push_async_exit(archive)
        if call.request.method == "HEAD":
            return StreamingResponse(iter(()), HTTPStatus.OK, headers, _ARCHIVES[query.format])
        chunks = archive.chunks()
        first = await anext(chunks)
        closing.pop_all()
        return StreamingResponse(_archived(archive, first, chunks), HTTPStatus.OK, headers, _ARCHIVES[query.format])


async def _archived(archive: "Archive", first: bytes, others: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    async with archive:
        yield first
        async for chunk in others:
            yield chunk


async def _write_archive(call: Call[UnpackQuery, None]) -> ArchiveResult:
    """Unpack an archive."""
    query = call.query
    return await call.computer.files.write_archive(
        query.path, query.format, call.request.stream(), overwrite=query.overwrite
    )


def _path(call: Call[RawFileQuery, None]) -> str:
    if not call.query.path:
        raise InvalidRequest("The parameter path is empty: GET or PUT /files/raw?path=...")
    return call.query.path


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
    headers = {"Last-Modified": http_date(within_calendar(file.modified_at))}
    return {**headers, "ETag": f'"{file.etag}"'} if file.etag else headers


def _etag(value: str | None) -> str | None:
    return value.strip().strip('"') if value else None


_Range = Annotated[
    str, Meta(pattern=r"^\s*(?:[bB][yY][tT][eE][sS]=(?:\d{1,18}-\d{0,18}|-\d{1,18})|(?![bB][yY][tT][eE][sS]).*)\s*$")
]


async def _perform(call: Call[Query, Any]) -> object:
    """Do what the body asks for, which is of the operation's type."""
    return await call.computer.files.perform(call.body)


_NAMES: Final = {
    "view": "view_directory",
    "history": "list_file_changes",
    "search": "search_files",
    "find": "find_files",
}


def _declared(operation: FileOperation) -> Endpoint:
    return Endpoint(
        method="POST",
        path=f"/files/{operation.name}",
        name=_NAMES.get(operation.name, f"{operation.name}_file"),
        tag=Tag.FILES,
        handler=_perform,
        looks=operation.effect is Effect.READS,
        summary=operation.summary,
        description=operation.description,
        query=Query,
        body=Body(model=operation.request, required=True, example=operation.example),
        answers=ok("What was found or done.", operation.result),
        errors=operation.refusals,
    )


ENDPOINTS: Final = (
    *map(_declared, OPERATIONS.values()),
    Endpoint(
        method="GET",
        path="/files/raw",
        name="read_raw_file",
        handler=_read_raw,
        looks=True,
        tag=Tag.FILES,
        summary="The bytes of a file",
        description=(
            "Whatever they are: neither extension, size nor encoding matters. Ranges and validators are those of "
            "RFC 9110."
        ),
        query=RawFileQuery,
        headers=(
            Header(name="Range", meaning="One range of bytes, such as `bytes=0-99`.", type=_Range),
            Header(name="If-Range", meaning="The ETag or Last-Modified that the file must have for a range of it."),
            Header(name="If-None-Match", meaning="The ETag of what is known already."),
        ),
        answers={
            HTTPStatus.OK: Success(
                meaning="All of them.",
                content={BYTES: bytes},
                headers=(
                    Header(name="Accept-Ranges", meaning="`bytes`.", always=True),
                    Header(name="Last-Modified", meaning="When the file was changed.", always=True),
                    Header(name="ETag", meaning="The hash of the content, where the file is not too large."),
                ),
            ),
            HTTPStatus.NOT_MODIFIED: Success(meaning="It is what is known already.", content={}),
            HTTPStatus.PARTIAL_CONTENT: Success(
                meaning="A range of them.",
                content={BYTES: bytes},
                headers=(Header(name="Content-Range", meaning="Which bytes, and of how many.", always=True),),
            ),
        },
        errors=(*PLACE, errors.RangeNotSatisfiable),
    ),
    Endpoint(
        method="PUT",
        path="/files/raw",
        name="write_raw_file",
        handler=_write_raw,
        tag=Tag.FILES,
        summary="Make or replace a file with the bytes of the body",
        description="Missing parent directories are made, and the change can be undone.",
        query=RawFileQuery,
        headers=(
            Header(name="If-Match", meaning="The etag that the file must have; `*` for any file."),
            Header(name="If-None-Match", meaning="`*`: the file must not exist.", type=Literal["*"]),
        ),
        body=Body(raw="The bytes."),
        answers=ok("What it has made of the file.", ChangeResult),
        errors=(*CHANGE, errors.FileTooLarge),
    ),
    Endpoint(
        method="GET",
        path="/files/archive",
        name="read_archive",
        handler=_read_archive,
        looks=True,
        tag=Tag.FILES,
        summary="A directory or a file as an archive",
        description=(
            "Made while it is sent: names sorted and relative to the path, links as links. An archive that breaks off "
            "is not whole."
        ),
        query=ArchiveQuery,
        answers={
            HTTPStatus.OK: Success(
                meaning="The archive, made while it is sent.",
                content=dict.fromkeys(_ARCHIVES.values(), bytes),
                headers=(Header(name="Content-Disposition", meaning="A name for it.", always=True),),
            )
        },
        errors=PLACE,
    ),
    Endpoint(
        method="PUT",
        path="/files/archive",
        name="write_archive",
        handler=_write_archive,
        tag=Tag.FILES,
        summary="Unpack the archive in the body below a directory",
        description=(
            "The directory is made where it is missing. Entries that lead out of it, devices and fifos are refused. An "
            "error tells how far it came; what was unpacked before stays, and cannot be undone."
        ),
        query=UnpackQuery,
        body=Body(raw="The archive.", unlimited=True),
        answers=ok("What was unpacked.", ArchiveResult),
        errors=(*CHANGE, errors.NotADirectory, errors.FileTooLarge, errors.BadArchive),
    ),
)
