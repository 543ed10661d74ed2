"""Requests for a run, and for what is typed into one, in each form that they may come in. Parsing only, no effects.

A command is the raw body, with its options in the query string; or a JSON object has them all; or it stands in the
query string, and the body is its standard input. Knows nothing of how a run is started.
"""

import codecs
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta
from starlette.requests import Request as HttpRequest

from shelld_py import large_json
from shelld_py.bash.command import check_argv, check_encodable
from shelld_py.errors import InvalidRequest, JsonWithoutContentType
from shelld_py.http.requests import Query, decode_json, header, header_fields, is_json, parsed, whole_body
from shelld_py.request_data import (
    WAIT_FOR_REPLY,
    CommandText,
    DurationText,
    ExecRequest,
    Request,
    RunRequest,
    StdinOffset,
    StdinRequest,
)
from shelld_py.shells.keys import check_keys

_Model = TypeVar("_Model", bound=Request)
_Run = TypeVar("_Run", bound=RunRequest)
_PIECE: Final = 64 * 1024


class StdinQuery(Query, frozen=True, kw_only=True):
    """Of input whose text is the raw body."""

    eof: Annotated[bool, Meta(description="Type end-of-file after the text.")] = False
    offset: StdinOffset | None = None
    wait: Annotated[DurationText, Meta(description=WAIT_FOR_REPLY)] | None = None


_Variable = Annotated[
    str,
    Meta(
        description="NAME=VALUE, once for each variable.",
        extra_json_schema={"pattern": "^[A-Za-z_][A-Za-z0-9_]*="},
    ),
]
_AS_TEXT: Final = {
    "timeout": Annotated[DurationText, Meta(description="How long to wait.")] | None,
    "deadline": Annotated[DurationText, Meta(description="How long it may take: then it is killed.")] | None,
}


_CommandInQuery = Annotated[CommandText, Meta(description="The command: then the body is its standard input.")]


def _run_query(name: str, model: type[RunRequest], *own: tuple[str, Any, Any]) -> Any:
    return msgspec.defstruct(
        name,
        [
            *own,
            *(
                (field.name, _AS_TEXT.get(field.name, field.type), field.default)
                for field in msgspec.structs.fields(model)
                if field.name not in ("command", "argv", "environment")
            ),
            ("environment", tuple[_Variable, ...], ()),
        ],
        bases=(Query,),
        frozen=True,
        kw_only=True,
    )


RunQuery: Final = _run_query("RunQuery", RunRequest)
"""Of a command that is the raw body: what the JSON form takes, with the environment one by one."""
ExecQuery: Final = _run_query("ExecQuery", ExecRequest, ("command", _CommandInQuery | None, None))


async def run_request(request: HttpRequest, query: Any) -> RunRequest:
    """Return the request for a run: a JSON object, or the raw command, with what it lacks from the `RunQuery`.

    Raises `InvalidRequest`.
    """
    return await _run_request(request, query, RunRequest)


async def exec_request(request: HttpRequest, query: Any) -> ExecRequest:
    """Return the request for a run in a shell of its own, likewise."""
    return await _run_request(request, query, ExecRequest)


async def _run_request(request: HttpRequest, query: Any, model: type[_Run]) -> _Run:
    headers = request.scope.get("fields") or header_fields(request.scope)
    fields = _given(query) if request.scope["query_string"] else {}
    if "environment" in fields:
        fields["environment"] = _environment_parameters(query.environment)
    if timeout := headers.get(b"x-command-timeout"):
        fields.setdefault("timeout", timeout.decode("latin-1"))
    content_type = headers.get(b"content-type", b"")
    if "command" in fields:
        return _checked(_with_input(request, model, fields))
    return await parsed(await whole_body(request), _parsed_run, request, model, fields, content_type)


def _parsed_run(
    body: bytes, request: HttpRequest, model: type[_Run], fields: dict[str, object], content_type: bytes
) -> _Run:
    if content_type and is_json(request):
        return _checked(decode_json(body, model, fields))
    if fields or content_type or b"{" in body:
        _refuse_json(body, request)
        return _checked(_raw(model, "command", body, fields))
    return _checked(model(command=text_of(body)))


def _checked(wanted: _Run) -> _Run:
    """Return what asks for a command, if it does. Raises `InvalidRequest`."""
    if wanted.argv is not None:
        if wanted.command is not None:
            raise InvalidRequest("There are both command and argv: leave out one of them.")
        check_argv(wanted.argv)
    elif wanted.command is None:
        raise InvalidRequest('The field command is missing: it must be a string. Or give argv, such as ["ls", "-l"].')
    elif not wanted.command.strip():
        raise InvalidRequest('The command is empty. Send it as the body, or as "command" in a JSON object.')
    return wanted


def _with_input(request: HttpRequest, model: type[_Run], fields: dict[str, object]) -> _Run:
    """Return the request for a command whose standard input is the body, which is not read here."""
    content_type = header(request.scope, b"content-type") or b""
    if is_json(request) or content_type.strip().lower().startswith(b"multipart/"):
        raise InvalidRequest(
            "With command in the query string, the body is the standard input of the command: send that with "
            "Content-Type: application/octet-stream."
        )
    for name in ("stdin", "stdin_path", "stdin_open"):
        if name in fields:
            raise InvalidRequest(f"With command in the query string, the body is the standard input: leave out {name}.")
    return msgspec.structs.replace(model(), **fields)


def _refuse_json(body: bytes, request: HttpRequest) -> None:
    """Refuse what somebody means to be JSON, or a form, and bash would take for a command.

    A command can begin with a brace (`{ ls; }`), but is no JSON object then.
    """
    content_type = header(request.scope, b"content-type") or b""
    if content_type.strip().lower().startswith(b"multipart/"):
        raise JsonWithoutContentType(
            "The body is a multipart form. Send the command as the body, or a JSON object with the header "
            "Content-Type: application/json."
        )
    if not (body.lstrip()[:1] == b"{" and (b'"command"' in body or b'"argv"' in body)):
        return
    try:
        given = large_json.decoded(body)
    except (ValueError, RecursionError):
        return
    if isinstance(given, dict) and ("command" in given or "argv" in given):
        raise JsonWithoutContentType("The body is a JSON object, so send the header Content-Type: application/json.")


def _environment_parameters(values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if not all(separator for _, separator, _ in pairs):
        raise InvalidRequest("environment must be NAME=VALUE in a query string, once for each variable.")
    return {name: value for name, _, value in pairs}


async def stdin_request(request: HttpRequest, query: Any) -> StdinRequest:
    """Return what is to be typed: a JSON object, or the raw body with what the `StdinQuery` says of it.

    Raises `InvalidRequest`.
    """
    return await parsed(await large_json.joined(request.stream()), _parsed_input, request, _given(query))


def _parsed_input(body: bytes, request: HttpRequest, fields: dict[str, object]) -> StdinRequest:
    if is_json(request):
        wanted = decode_json(body or b"{}", StdinRequest, fields)
    else:
        wanted = _raw(StdinRequest, "text", body, fields)
    check_encodable("text", wanted.text)
    given = [name for name in ("text", "keys", "paste") if getattr(wanted, name)]
    if len(given) > 1:
        raise InvalidRequest(f"There are both {given[0]} and {given[1]}: leave out one of them.")
    check_keys(wanted.keys)
    check_encodable("paste", wanted.paste or "")
    return wanted


def _given(query: Query) -> dict[str, object]:
    """Return the parameters that say something else than their defaults."""
    default = type(query)()
    if query == default:
        return {}
    fields = query.__struct_fields__
    return {name: value for name in fields if (value := getattr(query, name)) != getattr(default, name)}


def _raw(model: type[_Model], name: str, body: bytes, fields: Mapping[str, object]) -> _Model:
    """Return a raw body as the member `name` of a `model`; bytes that are not UTF-8 come back as they are (PEP 383)."""
    return msgspec.structs.replace(model(**{name: text_of(body)}), **fields)


def text_of(body: bytes) -> str:
    """Return a raw body as text; of a large one a piece is decoded at a time, for that holds the interpreter."""
    if len(body) <= _PIECE:
        return body.decode("utf-8", "surrogateescape")
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    pieces = [decoder.decode(body[start : start + _PIECE]) for start in range(0, len(body), _PIECE)]
    return "".join((*pieces, decoder.decode(b"", final=True)))
