"""The API described in OpenAPI 3.1, made from the declarations of the endpoints.

The schemas are those of the models that requests are checked with and answers are made of. This file is imported,
and the document made, when it is first asked for. It knows what endpoints declare, not what they do.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

import msgspec

from shelld_py import errors
from shelld_py.errors import (
    BodyTimeout,
    BodyTooLarge,
    HostRefused,
    IdempotencyMismatch,
    InvalidRequest,
    KeyMismatch,
    KeyRequired,
    MethodNotAllowed,
    NotFound,
    ObserverKey,
    OriginRefused,
    Overloaded,
    ShelldError,
    ShuttingDown,
)
from shelld_py.http.answers import PROBLEM_TYPE
from shelld_py.http.endpoint import BYTES, EVENTS, JSON, TEXT, Body, Endpoint, Header, Success, Tag
from shelld_py.http.requests import Form
from shelld_py.models import GapEvent, OutputEvent, RunResult
from shelld_py.version import __version__

Document = dict[str, Any]

_SCHEMAS: Final = "#/components/schemas/"
_PATH_PARAMETER: Final = re.compile(r"\{(\w+)\}")
_ANYWHERE: Final = (InvalidRequest, MethodNotAllowed, BodyTooLarge, ShelldError)
_WITH_KEY: Final = (
    KeyRequired,
    KeyMismatch,
    ObserverKey,
    HostRefused,
    OriginRefused,
    BodyTimeout,
    Overloaded,
    ShuttingDown,
)
_POST_HEADER: Final = Header(
    name="Idempotency-Key",
    meaning="The same key with the same request is not done again.",
    type=Annotated[str, msgspec.Meta(max_length=255)],
)
_LICENSE: Final = {"name": "No license has been given", "identifier": "NOASSERTION"}
_CONTACT: Final = {"name": "The operator of this daemon"}
_TAGS: Final[Mapping[Tag, str]] = {
    Tag.MAIN: "The one shell that is always there, at the root: its commands share variables, directory and terminal.",
    Tag.SESSIONS: "More shells like it, each with an id of its own.",
    Tag.RUNS: "Commands, while they run and after: results, output by cursor, input, waiting, killing.",
    Tag.FILES: "Files below the allowed directories, with changes that can be undone.",
    Tag.TOOLS: "What the model of an agent may call, described for it.",
    Tag.DAEMON: "The daemon itself: health, end, and what describes it.",
}
_DESCRIPTION: Final = """\
A persistent bash in a pseudo-terminal, commands whose output is read by cursor, sessions, and file operations that
can be undone.

The paths of the main shell answer in text unless `Accept` names another of the media types, all others in JSON.
Errors are one line of text in the first case and a problem document in the second. `HEAD` is answered wherever
`GET` is. A header `X-Request-Id` of 1 to 128 characters out of `A-Za-z0-9._-` is given back in the answer."""


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """Why a request was refused (RFC 9457): `code` is for programs, `detail` for people.

    Further members depend on the code.
    """

    type: Literal["about:blank"] = "about:blank"
    title: str
    status: int
    code: str
    detail: str


@lru_cache(maxsize=1)
def document(endpoints: tuple[Endpoint, ...]) -> bytes:
    """Return the document for `endpoints` as JSON."""
    return msgspec.json.encode(_Writer(endpoints).document())


def error_kinds(kind: type[ShelldError] = ShelldError) -> list[type[ShelldError]]:
    """Return all errors that a caller can meet."""
    below = [found for sub in kind.__subclasses__() if sub.__module__ == errors.__name__ for found in error_kinds(sub)]
    return [kind, *below]


class _Writer:
    """Makes the parts of one document; the schemas of all models are made at once."""

    def __init__(self, endpoints: tuple[Endpoint, ...]) -> None:
        self._endpoints = endpoints
        types = [Problem, OutputEvent, GapEvent, RunResult]
        for endpoint in endpoints:
            types += _types(endpoint)
        distinct = {repr(kind): kind for kind in types}
        schemas, components = msgspec.json.schema_components(distinct.values(), ref_template=f"{_SCHEMAS}{{name}}")
        self._schemas: dict[str, Document] = dict(zip(distinct, map(_portable, schemas), strict=True))
        self._components: Document = _portable(components)
        self._queries = {
            query.__name__: self._components.pop(query.__name__)
            for query in dict.fromkeys(endpoint.query for endpoint in endpoints)
            if query
        }
        meanings = {kind.code: (kind.__doc__ or "").splitlines()[0] for kind in error_kinds()}
        self._components["Problem"]["properties"]["code"] |= {
            "enum": list(meanings),
            "description": "\n".join(f"- `{code}`: {meaning}" for code, meaning in meanings.items()),
        }
        for name in self._request_schemas():
            self._components[name] = _without_defaults(self._components[name])
        self._shared: dict[str, Any] = {}

    def document(self) -> Document:
        """Return all of it."""
        paths: dict[str, Any] = {}
        for endpoint in self._endpoints:
            paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = self._operation(endpoint)
        return {
            "openapi": "3.1.0",
            "info": {
                "title": "shelld-py",
                "version": __version__,
                "description": _DESCRIPTION,
                "license": _LICENSE,
                "contact": _CONTACT,
            },
            "servers": [{"url": "/"}],
            "security": [{"ShellKey": []}, {"Bearer": []}],
            "tags": [{"name": tag.value, "description": meaning} for tag, meaning in _TAGS.items()],
            "paths": paths,
            "components": {
                "schemas": dict(sorted(self._components.items())),
                "responses": dict(sorted(self._shared.items())),
                "headers": {
                    "X-Request-Id": {
                        "description": "Names the request in the log.",
                        "required": True,
                        "schema": {"type": "string", "pattern": "^[A-Za-z0-9._-]{1,128}$"},
                    }
                },
                "securitySchemes": {
                    "ShellKey": {"type": "apiKey", "in": "header", "name": "X-Shell-Key"},
                    "Bearer": {"type": "http", "scheme": "bearer"},
                },
            },
        }

    def _request_schemas(self) -> set[str]:
        """Return the names of all schemas that a body is made of."""
        found: set[str] = set()
        bodies = [endpoint.body for endpoint in self._endpoints if endpoint.body]
        waiting = [self._schema(body.model) for body in bodies if body.model]
        while waiting:
            names = set(_references(waiting.pop())) - found
            found |= names
            waiting += [self._components[name] for name in names]
        return found

    def _operation(self, endpoint: Endpoint) -> Document:
        described: Document = {
            "operationId": endpoint.name,
            "tags": [endpoint.tag.value],
            "summary": endpoint.summary,
            "description": endpoint.description,
        }
        if parameters := self._parameters(endpoint):
            described["parameters"] = parameters
        if endpoint.body:
            described["requestBody"] = self._body(endpoint.body)
        described["responses"] = {
            **{str(int(status)): self._answer(answer, endpoint.default) for status, answer in endpoint.answers.items()},
            **self._refusals(endpoint),
        }
        if endpoint.public:
            described["security"] = []
        return described

    def _parameters(self, endpoint: Endpoint) -> list[Document]:
        found: list[Document] = [
            {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
            for name in _PATH_PARAMETER.findall(endpoint.path)
        ]
        if endpoint.query:
            query = self._queries[endpoint.query.__name__]
            for name, schema in query.get("properties", {}).items():
                required = name in query.get("required", ())
                found.append(_parameter(name, "query", _without_null(schema), required=required))
        headers = (*endpoint.headers, _POST_HEADER) if endpoint.method == "POST" else endpoint.headers
        for header in headers:
            found.append(
                _parameter(header.name, "header", {**self._schema(header.type), "description": header.meaning})
            )
        return found

    def _body(self, body: Body) -> Document:
        content: Document = {}
        if body.model:
            content[JSON] = {"schema": self._schema(body.model)}
            if body.example:
                content[JSON]["example"] = body.example
        if body.raw and body.model:
            content[TEXT] = {"schema": {"type": "string", "description": body.raw}}
        if body.unlimited_with:
            meaning = f"With `{body.unlimited_with}`: the standard input."
            # Beside other kinds of body, generators need a type to tell them apart by.
            content[BYTES] = {"schema": {"type": "string", "format": "binary", "description": meaning}}
        elif body.raw and not body.model:
            content[BYTES] = {"schema": {"description": body.raw}}
        return {"required": body.required, "content": content}

    def _answer(self, answer: Success, default: Form) -> Document:
        """Describe an answer, its default form first: generators of clients take the first."""
        first = TEXT if default is Form.TEXT else JSON
        kinds = sorted(answer.content.items(), key=lambda item: item[0] != first)
        content = {kind: {"schema": self._content(kind, model)} for kind, model in kinds}
        return {"description": answer.meaning, "headers": self._headers(answer.headers), "content": content}

    def _content(self, media_type: str, kind: Any) -> Document:
        if media_type == BYTES:
            return {"description": "The very bytes."}
        if media_type != EVENTS:
            return self._schema(kind)
        own = isinstance(kind, Mapping)
        events = kind if own else {"output": OutputEvent, "gap": GapEvent, "result": RunResult}
        ids = "Ids only grow." if own else "The id of `output` and `gap` is a cursor."
        return {
            "description": f"Each of the server-sent events. {ids}",
            "oneOf": [_event(name, self._schema(event)) for name, event in events.items()],
        }

    def _headers(self, headers: tuple[Header, ...]) -> Document:
        own = {
            header.name: {
                "description": header.meaning,
                "schema": self._schema(header.type),
                **({"required": True} if header.always else {}),
            }
            for header in headers
        }
        return {"X-Request-Id": {"$ref": "#/components/headers/X-Request-Id"}, **own}

    def _refusals(self, endpoint: Endpoint) -> Document:
        """Return the answers for all errors that this operation can meet, by status."""
        kinds: list[type[ShelldError]] = [*_ANYWHERE, *(() if endpoint.public else _WITH_KEY)]
        if endpoint.method == "POST":
            kinds.append(IdempotencyMismatch)
        if _PATH_PARAMETER.search(endpoint.path):
            kinds.append(NotFound)
        common = _by_status(kinds)
        found = {}
        for status, codes in sorted(_by_status([*kinds, *endpoint.errors]).items()):
            if endpoint.failure or codes != common.get(status):
                found[str(status)] = self._refusal(status, codes, endpoint.failure)
                continue
            name = HTTPStatus(status).phrase.replace(" ", "")
            self._shared[name] = self._refusal(status, codes)
            found[str(status)] = {"$ref": f"#/components/responses/{name}"}
        return found

    def _refusal(self, status: int, codes: Iterable[str], failure: Any = None) -> Document:
        members = {"status": {"type": "integer", "enum": [status]}, "code": {"type": "string", "enum": [*codes]}}
        schema = {"allOf": [self._schema(Problem), {"properties": members}]}
        return {
            "description": f"{HTTPStatus(status).phrase}: " + ", ".join(f"`{code}`" for code in codes) + ".",
            "headers": self._headers(()),
            "content": {
                PROBLEM_TYPE: {"schema": schema},
                TEXT: {"schema": {"type": "string"}},
                **({JSON: {"schema": self._schema(failure)}} if failure else {}),
            },
        }

    def _schema(self, kind: Any) -> Document:
        return self._schemas[repr(kind)]


def _event(name: str, data: Document) -> Document:
    """Return the schema of one event, as later versions of OpenAPI write it."""
    return {
        "type": "object",
        "properties": {
            "event": {"type": "string", "enum": [name]},
            "id": {"type": "string", "pattern": r"^\d+$"},
            "data": {"type": "string", "contentMediaType": JSON, "contentSchema": data},
        },
        "required": ["event", "data"],
    }


def _portable(schema: Any) -> Any:
    """Return a schema that more tools understand.

    So many items of one type are a list of them, without `prefixItems`; a constant is an enumeration of one, and an
    enumeration of texts says that it is one.
    """
    if isinstance(schema, list):
        return [_portable(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    schema = {name: _portable(part) for name, part in schema.items()}
    if "const" in schema:
        schema["enum"] = [schema.pop("const")]
    items = schema.get("prefixItems")
    if isinstance(items, list) and all(item == items[0] for item in items):
        del schema["prefixItems"]
        schema["items"] = items[0]
    if isinstance(values := schema.get("enum"), list) and all(isinstance(value, str) for value in values):
        schema["type"] = "string"
    return schema


def _without_defaults(schema: Document) -> Document:
    """Return the schema of an object whose members tell their defaults in words.

    Generators take a member with a default for one that is always there, which it is in no request.
    """
    members = {}
    for name, given in schema.get("properties", {}).items():
        member = {key: value for key, value in given.items() if key != "default"}
        default = given.get("default")
        if default not in (None, {}, [], ""):
            told = f"{member.get('description', '')} Default: `{msgspec.json.encode(default).decode()}`."
            member["description"] = told.strip()
        members[name] = member
    return {**schema, "properties": members} if members else schema


def _references(schema: Any) -> Iterator[str]:
    """Yield the names of the schemas that a schema refers to."""
    for part in schema if isinstance(schema, list) else schema.values() if isinstance(schema, dict) else ():
        yield from _references(part)
    if isinstance(schema, dict) and isinstance(name := schema.get("$ref"), str):
        yield name.removeprefix(_SCHEMAS)


def _types(endpoint: Endpoint) -> Iterable[Any]:
    """Yield all that an operation needs a schema of."""
    if endpoint.query:
        yield endpoint.query
    if endpoint.body and endpoint.body.model:
        yield endpoint.body.model
    if endpoint.failure:
        yield endpoint.failure
    headers = [*endpoint.headers, _POST_HEADER]
    for answer in endpoint.answers.values():
        headers += answer.headers
        for media_type, kind in answer.content.items():
            if media_type != BYTES:
                yield from kind.values() if isinstance(kind, Mapping) else (kind,)
    yield from (header.type for header in headers)


def _by_status(kinds: Iterable[type[ShelldError]]) -> dict[int, list[str]]:
    """Return the codes of errors by their status."""
    found: dict[int, list[str]] = {}
    for kind in dict.fromkeys(kinds):
        found.setdefault(kind.status, []).append(kind.code)
    return found


def _parameter(name: str, place: str, schema: Document, *, required: bool = False) -> Document:
    """Return a parameter; what its schema says of its meaning is said of the parameter."""
    schema = dict(schema)
    meaning = schema.pop("description", "")
    return {
        "name": name,
        "in": place,
        **({"description": meaning} if meaning else {}),
        **({"required": True} if required else {}),
        "schema": schema,
    }


def _without_null(schema: Document) -> Document:
    """Return the schema of a parameter: one that may be left out cannot be null."""
    kinds = [kind for kind in schema.get("anyOf", ()) if kind != {"type": "null"}]
    rest = {name: value for name, value in schema.items() if name != "anyOf" and (name, value) != ("default", None)}
    if not kinds:
        return rest
    return {**kinds[0], **rest} if len(kinds) == 1 else {"anyOf": kinds, **rest}
