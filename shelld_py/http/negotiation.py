"""What a request asks for: the form of the answer, its body, its parameters. Parsing only, no effects."""

import contextlib
import re
from collections.abc import Mapping
from enum import Enum, StrEnum, auto
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request as HttpRequest
from starlette.types import Scope

from shelld_py.errors import InvalidRequest
from shelld_py.models import Request
from shelld_py.units import parse_duration

_Model = TypeVar("_Model", bound=Request)
_Choice = TypeVar("_Choice", bound=StrEnum)
_Decoded = TypeVar("_Decoded")
_QUALITY = re.compile(r"q=([01](?:\.\d{0,3})?)")
_UNKNOWN_FIELD = re.compile(r"Object contains unknown field `(.*?)`")


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


def header(scope: Scope, name: bytes) -> bytes | None:
    """Return the first header called `name` (lower case), or None."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]
    return next((value for key, value in headers if key == name), None)


def requested_form(scope: Scope, default: Form) -> Form:
    """Return the form that `Accept` prefers among those that there are (RFC 9110, 12.5.1), or the default."""
    accept = header(scope, b"accept")
    if accept is None or accept == b"*/*":
        return default
    best, preferred = 0.0, default
    for part in accept.decode("latin-1").lower().split(","):
        media_type, *parameters = (item.strip() for item in part.split(";"))
        quality = next((match for item in parameters if (match := _QUALITY.fullmatch(item))), None)
        weight = float(quality[1]) if quality else 1.0
        if media_type in _MEDIA_TYPES and weight > best:
            best, preferred = weight, _MEDIA_TYPES[media_type]
    return preferred


def is_json(request: HttpRequest) -> bool:
    """Return whether the body is declared to be JSON."""
    content_type = header(request.scope, b"content-type") or b""
    return content_type.split(b";", 1)[0].strip().lower() == b"application/json"


async def json_body(request: HttpRequest, model: type[_Model]) -> _Model:
    """Return the body, which must be a JSON object, as a `model`. An empty body is an empty object.

    Raises `InvalidRequest` with what is wrong and what there could be.
    """
    return decode_json(await request.body() or b"{}", model)


def decode_json(body: bytes, model: type[_Model], defaults: Mapping[str, object] | None = None) -> _Model:
    """Return the JSON object `body` as a `model`; fields that it lacks, or that are null, come from `defaults`."""
    try:
        if not defaults:
            with contextlib.suppress(msgspec.ValidationError):
                return _decoded(body, model)
        given = _decoded(body, dict[str, Any])
        return msgspec.convert({**(defaults or {}), **_without_nulls(given)}, model)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_explain(str(error), model)) from None


def json_object(body: bytes, what: str) -> dict[str, Any]:
    """Return the JSON object `body`, whatever its members are; an empty body is an empty object.

    Raises `InvalidRequest`, which says `what` the object is.
    """
    try:
        return _decoded(body or b"{}", dict[str, Any])
    except msgspec.ValidationError:
        raise InvalidRequest(f"The body must be a JSON object: {what}.") from None


def _decoded(body: bytes, kind: type[_Decoded]) -> _Decoded:
    """Return the JSON `body` as a `kind`. Raises `InvalidRequest` for no JSON, `ValidationError` for another kind."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError:
        raise
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidRequest(f"The body is not valid JSON: {error}.") from None


def _without_nulls(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is told: wrappers write null for what they leave out."""
    return {name: value for name, value in fields.items() if value is not None}


def convert_fields(fields: Mapping[str, object], model: type[_Model]) -> _Model:
    """Return `fields`, as they were written in a query string, as a `model`."""
    try:
        return msgspec.convert(fields, model, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidRequest(_explain(str(error), model)) from None


def query_fields(request: HttpRequest, allowed: tuple[str, ...]) -> dict[str, str]:
    """Return the parameters of the query string. Raises `InvalidRequest` for one that is not `allowed`."""
    fields: dict[str, str] = {}
    if not request.scope["query_string"]:
        return fields
    for name, value in request.query_params.multi_items():
        if name not in allowed:
            there = f"There are: {', '.join(allowed)}." if allowed else "There are none."
            raise InvalidRequest(f"There is no parameter {name!r} here. {there}")
        fields[name] = value
    return fields


def duration_field(name: str, value: object) -> float:
    """Return the seconds of a duration. Raises `InvalidRequest` that shows the right forms."""
    try:
        return parse_duration(value)
    except ValueError as error:
        raise InvalidRequest(f"{name} {error}.") from None


def boolean_field(name: str, value: str) -> bool:
    """Return a parameter that is true or false. Raises `InvalidRequest`."""
    if value not in ("true", "false"):
        raise InvalidRequest(f"{name} must be true or false, not {value!r}.")
    return value == "true"


def choice_field(name: str, fields: Mapping[str, str], kind: type[_Choice]) -> _Choice | None:
    """Return the member of `kind` that the parameter `name` names; None without it. Raises `InvalidRequest`."""
    if name not in fields:
        return None
    try:
        return kind(fields[name])
    except ValueError:
        raise InvalidRequest(f"{name} must be one of {', '.join(kind)}, not {fields[name]!r}.") from None


def integer_field(name: str, value: str, least: int) -> int:
    """Return a whole number of at least `least`. Raises `InvalidRequest`."""
    if not re.fullmatch(r"[0-9]{1,18}", value) or int(value) < least:
        raise InvalidRequest(f"{name} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def _explain(message: str, model: type[Request]) -> str:
    """Add to msgspec's message what would be right."""
    if match := _UNKNOWN_FIELD.search(message):
        names = ", ".join(model.__struct_fields__)
        return f"There is no field {match[1]!r} here. There are: {names}."
    return f"{message}."
