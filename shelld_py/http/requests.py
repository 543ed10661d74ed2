"""What a request asks for: the form of the answer, its query string, its body. Parsing only, no effects.

What may stand in a query string is a `Query` struct, what in a body a `Request` of the models. What is wrong is told
in words: `validation.py`.
"""

import asyncio
import re
import signal
from collections.abc import AsyncIterator, Callable, Container, Mapping
from enum import Enum, auto
from functools import lru_cache
from typing import Any, Concatenate, Final, ParamSpec, TypeVar, get_args, get_origin

import msgspec
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from shelld_py import large_json
from shelld_py.errors import InvalidRequest
from shelld_py.request_data import Request
from shelld_py.units import parse_duration
from shelld_py.validation import Fault, FaultKind, converted, nearest, shown

_SHORTEST_LIFETIME: Final = 0.1
_LONGEST_LIFETIME: Final = 365 * 86400.0

T = TypeVar("T")
P = ParamSpec("P")
_Struct = TypeVar("_Struct", bound=msgspec.Struct)
_Model = TypeVar("_Model", bound=Request)
_Query = TypeVar("_Query", bound="Query")
_QUALITY = re.compile(r"q=([01](?:\.\d{0,3})?)")
_TRACE: Final = re.compile(
    rb"(?P<version>[0-9a-f]{2})(?P<parent>-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2})(?P<more>-.*)?"
)
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_LARGE: Final = 4 * 1024
"""Bytes of a body from which on it is parsed in a thread: the dearest of this size takes some 0.3 ms."""

LARGEST: Final = 10**18 - 1
"""The largest number of a query string or a header: it has 18 digits."""


class Query(msgspec.Struct, frozen=True, kw_only=True):
    """The parameters of a query string: a field is a parameter, one with a default may be left out."""


class Form(Enum):
    """The form of an answer."""

    TEXT = auto()
    JSON = auto()
    EVENTS = auto()


_MEDIA_TYPES = {
    "text/event-stream": Form.EVENTS,
    "application/json": Form.JSON,
    "application/problem+json": Form.JSON,
    "text/plain": Form.TEXT,
}
_USUAL: Final = {media_type.encode(): form for media_type, form in _MEDIA_TYPES.items()}
"""What most `Accept` headers are."""


def header_fields(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers of a request by name (lower case), of equal ones the first. Made once for each request."""
    fields: dict[bytes, bytes] | None = scope.get("fields")
    if fields is None:
        fields = scope["fields"] = dict(reversed(scope["headers"]))
    return fields


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header called `name` (lower case), or None."""
    return (scope.get("fields") or header_fields(scope)).get(name)


def is_known(scope: Scope, etag: str | None) -> bool:
    """Return whether the client knows already what has this ETag (If-None-Match: RFC 9110, 13.1.2)."""
    given = (header(scope, b"if-none-match") or b"").decode("latin-1").split(",")
    known = [item.strip().removeprefix("W/").strip('"') for item in given]
    return etag in known or "*" in known


def parent_of_trace(scope: Scope) -> str | None:
    """Return the `traceparent` of a request in the form of version 00, where it has a valid one (W3C Trace Context).

    Of a later version what follows is not known, and is left out as the specification says.
    """
    found = _TRACE.fullmatch(header(scope, b"traceparent") or b"")
    if not found or found["version"] == b"ff" or (found["version"] == b"00" and found["more"]):
        return None
    return f"00{found['parent'].decode()}"


def requested_form(scope: Scope, default: Form) -> Form:
    """Return the form that `Accept` prefers among those that there are (RFC 9110, 12.5.1), or the default."""
    accept = (scope.get("fields") or header_fields(scope)).get(b"accept", b"*/*")
    return default if accept == b"*/*" else _USUAL.get(accept) or _preferred(accept, default)


def prefers(scope: Scope, media_type: str) -> bool:
    """Return whether `Accept` prefers a media type that a single endpoint has to those that all may have."""
    accept = header(scope, b"accept") or b""
    return media_type.encode() in accept.lower() and _best(accept, {*_MEDIA_TYPES, media_type}) == media_type


def _preferred(accept: bytes, default: Form) -> Form:
    best = _best(accept, _MEDIA_TYPES)
    return _MEDIA_TYPES[best] if best else default


def _best(accept: bytes, known: Container[str]) -> str | None:
    """Return the first of the media types that have the highest weight, among those that are known."""
    best, preferred = 0.0, None
    for part in accept.decode("latin-1").lower().split(","):
        media_type, *parameters = (item.strip() for item in part.split(";"))
        quality = next((match for item in parameters if (match := _QUALITY.fullmatch(item))), None)
        weight = float(quality[1]) if quality else 1.0
        if media_type in known and weight > best:
            best, preferred = weight, media_type
    return preferred


def is_json(request: HttpRequest) -> bool:
    """Return whether the body is declared to be JSON."""
    content_type = header(request.scope, b"content-type") or b""
    return content_type.split(b";", 1)[0].strip().lower() == b"application/json"


async def whole_body(request: HttpRequest) -> bytes:
    """Return the body. Raises `ClientDisconnect` where it does not come."""
    first = await request.receive()
    if first["type"] == "http.disconnect":
        raise ClientDisconnect
    begin: bytes = first.get("body", b"")
    if not first.get("more_body", False):  # as most are
        return begin

    async def pieces() -> AsyncIterator[bytes]:
        yield begin
        async for piece in request.stream():
            yield piece

    return await large_json.joined(pieces())


async def json_body(request: HttpRequest, model: type[_Model]) -> _Model:
    """Return the body, which must be a JSON object, as a `model`. An empty body is an empty object.

    Raises `InvalidRequest` with what is wrong and what there could be.
    """
    return await parsed(await whole_body(request) or b"{}", decode_json, model)


async def parsed(body: bytes, parse: Callable[Concatenate[bytes, P], T], *rest: P.args, **named: P.kwargs) -> T:
    """Return what `parse` makes of a body, of a large one in a thread, which gives way to the event loop."""
    if len(body) <= _LARGE:
        return parse(body, *rest, **named)
    return await asyncio.to_thread(parse, body, *rest, **named)


def decode_json(body: bytes, model: type[_Model], defaults: Mapping[str, object] | None = None) -> _Model:
    """Return the JSON object `body` as a `model`; fields that it lacks, or that are null, come from `defaults`."""
    if not defaults and len(body) <= large_json.MOST_BESIDES:
        try:
            decoded: _Model = _decoder(model).decode(body)
            return decoded
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass  # What is wrong is said below; null where a wrapper leaves something out is not wrong.
    given = json_object(body)
    return as_model({**(defaults or {}), **_without_nulls(given)}, model, "field")


def json_object(body: bytes, what: str = "") -> dict[str, Any]:
    """Return the JSON object `body`, whatever its members are. Raises `InvalidRequest`; `what` is what it holds."""
    try:
        given = large_json.decoded(body)
    except large_json.TooManyValues as error:
        raise InvalidRequest(str(error)) from None
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None
    if not isinstance(given, dict):
        raise InvalidRequest(f"The body must be a JSON object{what and ': '}{what}, not {shown(given)}.")
    return given


@lru_cache(maxsize=64)
def _decoder(model: type[_Model]) -> "msgspec.json.Decoder[_Model]":
    return msgspec.json.Decoder(model, float_hook=float)


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told: wrappers write null for what they leave out."""
    return {name: value for name, value in fields.items() if value is not None}


def query_of(request: HttpRequest, model: type[_Query]) -> _Query:
    """Return the query string as a `model`. Raises `InvalidRequest` with what is wrong and what there could be."""
    if not request.scope["query_string"] and (default := _of_nothing(model)):
        return default  # type: ignore[return-value]
    fields: dict[str, object] = {}
    kinds = _kinds(model)
    for name, value in request.query_params.multi_items():
        kind = kinds.get(name)
        if kind is None:
            raise _refusal(Fault(FaultKind.UNKNOWN, name), model, "parameter")
        if kind is tuple:
            fields[name] = (*fields.get(name, ()), value)  # type: ignore[misc]
        elif kind is int and _NUMBER.fullmatch(value):
            fields[name] = int(value)
        elif kind is bool and value in ("true", "false"):
            fields[name] = value == "true"
        else:
            fields[name] = value
    return as_model(fields, model, "parameter")


@lru_cache(maxsize=64)
def _of_nothing(model: type[Query]) -> Query | None:
    """Return what no query string says; None where something must be in it."""
    return None if any(field.required for field in msgspec.structs.fields(model)) else model()


@lru_cache(maxsize=64)
def _kinds(model: type[Query]) -> dict[str, type]:
    """Return for each parameter what its text is to be read as: a number, a truth value, one of many, or text."""
    return {field.name: _kind(field.type) for field in msgspec.structs.fields(model)}


def _kind(annotation: Any) -> type:
    """Return what is below `Annotated` and `| None`: int, bool or tuple; str for all else."""
    if get_origin(annotation) is tuple:
        return tuple
    inside = [part for part in get_args(annotation) if isinstance(part, type) or get_args(part)]
    kinds = [_kind(part) for part in inside] or [annotation]
    return next((kind for kind in (int, bool, tuple) if kind in kinds), str)


def as_model(given: Mapping[str, object], model: type[_Struct], noun: str) -> _Struct:
    """Return `given` as a `model`. Raises `InvalidRequest`, which calls its members by the `noun`."""
    found = converted(given, model)
    if isinstance(found, Fault):
        raise _refusal(found, model, noun)
    return found


def _refusal(fault: Fault, model: type[msgspec.Struct], noun: str) -> InvalidRequest:
    """Return the error for a member that is wrong; `noun` is what members are called there."""
    if fault.kind is FaultKind.MISSING:
        return InvalidRequest(f"The {noun} {fault.name} is missing: it {fault.reason}.")
    if fault.kind is FaultKind.WRONG:
        return InvalidRequest(f"{fault.name} {fault.reason}.")
    names = model.__struct_fields__
    near = nearest(fault.name, names)
    hint = f" Do you mean {near}?" if near else ""
    there = f"There are: {', '.join(names)}." if names else "There are none."
    return InvalidRequest(f"There is no {noun} {shown(fault.name)} here.{hint} {there}")


def duration_field(name: str, value: object) -> float:
    """Return the seconds of a duration. Raises `InvalidRequest` that shows the right forms."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidRequest(f"{name} {error}.") from None


def lifetime_field(name: str, value: object) -> float:
    """Return the seconds for which something that admits to the daemon is good. Raises `InvalidRequest`."""
    seconds = duration_field(name, value)
    if not _SHORTEST_LIFETIME <= seconds <= _LONGEST_LIFETIME:
        raise InvalidRequest(f"{name} must be between 100ms and a year (8760h).")
    return seconds


def number(name: str, value: str) -> int:
    """Return the whole number that a header says. Raises `InvalidRequest`."""
    if not _NUMBER.fullmatch(value):
        raise InvalidRequest(f"{name} must be a whole number of at least 0, not {shown(value)}.")
    return int(value)


def signal_number(name: str) -> int:
    """Return the number of a signal: `TERM`, `SIGTERM` or `15`. Raises `InvalidRequest`."""
    try:
        number = int(name) if _NUMBER.fullmatch(name) else signal.Signals[f"SIG{name.upper().removeprefix('SIG')}"]
        if number in signal.valid_signals():
            return int(number)
    except KeyError:
        pass  # No signal has that name.
    raise InvalidRequest(f"signal must be the name or number of a signal, such as TERM or 15, not {name!r}.")
