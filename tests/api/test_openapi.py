"""The description of the API is valid, complete, and true: every real answer is as it declares."""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from openapi_spec_validator import OpenAPIV31SpecValidator

from shelld_py.api.app import ENDPOINTS
from shelld_py.api.openapi import error_kinds
from tests.api.conftest import Gate
from tests.daemons import RunningDaemon
from tests.test_docs import application

JSON = {"Accept": "application/json"}
TEXT = {"Accept": "text/plain"}
EVENTS = {"Accept": "text/event-stream"}


@pytest.fixture(scope="module")
def description(shared_daemon: RunningDaemon) -> dict[str, Any]:
    """The document as the daemon gives it, to one who has no key."""
    answer = httpx.get(f"{shared_daemon.url}/openapi.json")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == "application/json"
    return answer.json()


def test_it_is_valid(description: dict[str, Any]) -> None:
    assert description["openapi"].startswith("3.1.")
    assert [error.message for error in OpenAPIV31SpecValidator(description).iter_errors()] == []


def test_its_schemas_are_those_of_its_dialect(description: dict[str, Any]) -> None:
    for name, schema in description["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert name == schema["title"]


def test_it_has_every_route_and_nothing_else(description: dict[str, Any], tmp_path: Any) -> None:
    """But for the other protocols, which describe themselves."""
    routes = set(application(tmp_path).routes)
    described = {(method.upper(), path) for path, item in description["paths"].items() for method in item}
    assert {path for _, path in routes - described} == {"/mcp"}
    assert described <= routes


def test_other_protocols_describe_themselves(start_daemon: Callable[..., RunningDaemon]) -> None:
    """What is served for MCP and Socket.IO is no part of the description, and does not stand in its way."""
    daemon = start_daemon(server__mcp="true", server__socketio="true")
    described = daemon.client.get("/openapi.json")
    assert described.status_code == 200
    assert not {"/mcp", "/socket.io/"} & described.json()["paths"].keys()


def test_every_error_code_is_in_the_answers(description: dict[str, Any]) -> None:
    codes = {kind.code for kind in error_kinds()}
    assert set(description["components"]["schemas"]["Problem"]["properties"]["code"]["enum"]) == codes
    told = {code for item in _operations(description) for code in _codes(description, item)}
    over_sockets = {"request_cancelled", "request_not_found", "too_many_requests", "watch_only"}
    passed_on = {"port_not_open", "bad_gateway", "port_timeout", "link_not_found"}
    assert codes - told == {"conflict", *over_sockets, *passed_on}, "the general class alone is never sent"


def test_every_operation_has_a_name_and_is_told_in_words(description: dict[str, Any]) -> None:
    """A name of its own that is one in a program, too; a summary, and a sentence that says more. So has every tag."""
    operations = list(_operations(description))
    ids = [operation["operationId"] for operation in operations]
    assert len(set(ids)) == len(ids)
    assert {"run", "exec", "read_run_output", "kill_session"} <= set(ids)
    assert all(re.fullmatch("[a-z]+(_[a-z]+)*", name) for name in ids)
    assert all(operation["summary"] and operation["description"].endswith(".") for operation in operations)
    tags = {tag["name"]: tag["description"] for tag in description["tags"]}
    assert all(tags[tag] for operation in operations for tag in operation["tags"])


def test_the_schemas_are_such_as_generators_of_clients_understand(description: dict[str, Any]) -> None:
    """Constants are enumerations of one, members of requests have no default, the default form stands first."""
    assert "const" not in set(_keys(description))
    for operation in _operations(description):
        body = operation.get("requestBody", {}).get("content", {}).get("application/json")
        assert body is None or "default" not in set(_keys(_whole(description, body["schema"])))
    paths = description["paths"]
    assert next(iter(paths["/exec"]["post"]["responses"]["200"]["content"])) == "application/json"
    assert next(iter(paths["/run"]["post"]["responses"]["200"]["content"])) == "text/plain"


def _keys(node: Any) -> Iterator[str]:
    """The keywords of a document, at any depth; names of members and paths are among them."""
    for name, value in node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ():
        yield from [name] if isinstance(name, str) else []
        yield from _keys(value)


def _whole(description: dict[str, Any], schema: Any) -> list[Any]:
    """A schema, and those that it refers to."""
    names = re.findall(r'#/components/schemas/(\w+)"', json.dumps(schema))
    return [schema, *(_whole(description, description["components"]["schemas"][name]) for name in set(names))]


def test_only_what_needs_no_key_says_so(description: dict[str, Any]) -> None:
    public = {path for path, item in description["paths"].items() if item.get("get", {}).get("security") == []}
    assert public == {"/", "/console", "/console/{asset}", "/docs", "/health", "/llms.txt", "/openapi.json", "/ready"}
    assert description["security"] == [{"ShellKey": []}, {"Bearer": []}]


def test_asking_for_it_does_not_lock_the_daemon(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon(key=None)
    assert daemon.ask("GET", "/openapi.json", key="a").status == 200
    assert daemon.ask("HEAD", "/openapi.json").status == 200
    assert daemon.ask("GET", "/status", key="b").status == 200
    assert daemon.ask("GET", "/openapi.json", key="c").status == 200


def test_every_answer_is_as_declared(daemon: RunningDaemon, description: dict[str, Any], gate: Gate) -> None:
    """Real requests to every endpoint, in each form; none has a member, status or header that is not declared."""
    checker = _Checker(description)
    for method, path, options, expected in _requests(daemon, gate):
        answer = daemon.client.request(method, path, **options)
        assert answer.status_code == expected, (method, path, answer.text)
        checker.check(answer)
    elsewhere = {("POST", "/startup"), ("POST", "/shutdown"), ("GET", "/console"), ("GET", "/console/{asset}")}
    elsewhere |= {("GET", "/terminal"), ("GET", "/sessions/{session_id}/terminal")}  # WebSockets: test_terminal.py
    elsewhere |= {("POST", "/ports/{port}/link")}  # behind a setting: test_proxy.py
    assert {(endpoint.method, endpoint.path) for endpoint in ENDPOINTS} - checker.seen == elsewhere, (
        "every endpoint has a success in this file"
    )


@pytest.mark.parametrize(
    ("query", "form", "told"),
    [
        ("?recycle=true", JSON, b'{"state":"available"}'),
        ("?recycle=true", {}, b"available"),
        ("", JSON, b'{"state":"shutting down"}'),
    ],
)
def test_beginning_and_end_are_as_declared(
    query: str,
    form: dict[str, str],
    told: bytes,
    description: dict[str, Any],
    start_daemon: Callable[..., RunningDaemon],
) -> None:
    daemon, checker = start_daemon(), _Checker(description)
    started = daemon.client.post("/startup", headers=form, json={"rows": 30, "cols": 100})
    ended = daemon.client.post(f"/shutdown{query}", headers=form)
    checker.check(started)
    checker.check(ended)
    assert ended.content == told
    assert checker.seen == {("POST", "/startup"), ("POST", "/shutdown")}


def _requests(daemon: RunningDaemon, gate: Gate) -> Iterator[tuple[str, str, dict[str, Any], int]]:
    """Yield method, path, options and the status that is expected."""
    work = daemon.data.parent / "work"
    for form in ({}, JSON):
        yield "GET", "/health", {"headers": form}, 200
        yield "GET", "/", {"headers": form}, 200
        yield "GET", "/", {"headers": {"Accept": "text/html"}}, 200
        yield "GET", "/docs", {"headers": form}, 200
        yield "GET", "/llms.txt", {"headers": form}, 200
        yield "GET", "/ready", {"headers": form}, 200
        yield "GET", "/status", {"headers": form}, 200
        yield "POST", "/startup", {"headers": form}, 409
        yield "GET", "/state", {"headers": form}, 200
        yield "POST", "/resize", {"headers": form, "json": {"rows": 40, "cols": 100}}, 200
        yield "POST", "/resize", {"headers": form, "json": {"rows": 0, "cols": 100}}, 400
        yield "POST", "/recycle", {"headers": form}, 200
        yield "POST", "/stdin", {"headers": form, "content": b"x"}, 409
        yield "POST", "/run", {"headers": form, "content": b"echo out; (exit 3)"}, 200
        yield "GET", "/output", {"headers": form}, 200
        yield "GET", "/screen?wait=0", {"headers": form}, 200
        yield "GET", "/screen", {"headers": {"Accept": "image/svg+xml"}}, 200
        yield "POST", "/run?changes=true", {"headers": form, "content": b": >changed"}, 200
        yield (
            "POST",
            "/exec?command=cat",
            {"headers": {**form, "Content-Type": "application/octet-stream"}, "content": b"\xff"},
            200,
        )
        yield "POST", "/run", {"headers": form, "content": b" "}, 400
        yield "POST", "/kill", {"headers": form}, 200
        yield "POST", "/kill?signal=NONE", {"headers": form}, 400
        yield "GET", "/nothing-here", {"headers": form}, 404
        yield "PATCH", "/status", {"headers": form}, 405
        yield "GET", "/status", {"headers": {**form, "X-Shell-Key": "wrong"}}, 401
    yield "GET", "/openapi.json", {}, 200
    yield "GET", "/metadata", {}, 200
    observer = daemon.client.post("/observers")
    yield "POST", "/observers", {"json": {"expires": "1s"}}, 201
    yield "GET", "/observers", {}, 200
    yield "GET", "/ports", {}, 200
    yield "POST", "/ports/80/link", {}, 404
    yield "DELETE", f"/observers/{observer.json()['observer_id']}", {}, 200
    yield "DELETE", "/observers/unknown", {}, 404
    # A run from its beginning to its end.
    fields = {"command": f"{gate}; echo done", "run_id": "described", "timeout": 0, "environment": {"A": "b"}}
    yield "POST", "/run", {"headers": JSON, "json": fields}, 202
    yield "POST", "/run", {"json": fields}, 202
    yield "POST", "/run", {"headers": JSON, "json": {"command": "true"}}, 409
    yield "POST", "/run", {"headers": JSON, "json": {"command": "true", "run_id": "described"}}, 409
    yield "GET", "/status", {"headers": JSON}, 200
    yield "POST", "/stdin?offset=9", {"headers": JSON, "content": b"x"}, 409
    yield "POST", "/stdin", {"content": b"x"}, 200
    yield "POST", "/stdin", {"headers": JSON, "json": {"text": "y", "offset": 1}}, 200
    yield "POST", "/runs/described/stdin", {"content": b"z"}, 200
    yield "POST", "/runs/described/stdin?wait=0", {"content": b"z"}, 200
    yield "POST", "/stdin?wait=0", {"content": b"z"}, 200
    yield "GET", "/runs/described/wait?timeout=0", {}, 202
    yield "GET", "/runs/described/wait?timeout=0&until=quiet:1h&until=exit", {}, 202
    yield "POST", "/kill?signal=CONT", {"headers": JSON}, 200
    gate.open()
    yield "GET", "/runs/described/wait?timeout=20s&max_output=1", {}, 200
    yield "GET", "/runs/described", {}, 200
    yield "GET", "/runs/unknown", {}, 404
    yield "GET", "/runs/described/screen", {}, 200
    yield "GET", "/runs/described/recording", {}, 200
    yield "GET", "/runs/unknown/recording", {}, 404
    yield "GET", "/runs?limit=2&status=completed", {}, 200
    yield "GET", "/runs?limit=none", {}, 400
    for form in ({}, TEXT, EVENTS):
        yield "GET", "/runs/described/output", {"headers": form}, 200
    yield "GET", "/runs/described/output?format=raw", {"headers": TEXT}, 200
    yield "GET", "/runs/described/output?cursor=0&limit=2&stream=stderr&wait=10ms", {}, 200
    yield "POST", "/runs/described/kill", {}, 200
    yield "POST", "/runs/described/stdin", {"content": b"z"}, 409
    yield "DELETE", "/runs/described", {}, 200
    yield "POST", "/run?format=raw", {"content": b"printf '\\377'"}, 200
    yield "POST", "/run?streams=separate", {"headers": EVENTS, "content": b"echo out; echo err >&2"}, 200
    for form in ({}, TEXT, EVENTS):
        yield "POST", "/exec", {"headers": form, "content": b"echo out; echo err >&2"}, 200
    yield "POST", "/exec", {"headers": {"Idempotency-Key": "one"}, "content": b"true"}, 200
    yield "POST", "/exec", {"headers": {"Idempotency-Key": "one"}, "content": b"false"}, 422
    # Sessions.
    session = daemon.client.post("/sessions", json={"rows": 30})
    assert session.status_code == 201
    below = f"/sessions/{session.json()['session_id']}"
    yield "POST", "/sessions", {"json": {"working_directory": str(work / "nowhere")}}, 400
    yield "GET", "/sessions", {}, 200
    yield "POST", "/sessions", {"json": {"copy_of": "main"}}, 201
    yield "GET", f"{below}/state", {}, 200
    yield "GET", below, {}, 200
    yield "GET", f"{below}/output", {}, 404
    for form in ({}, TEXT):
        yield "POST", f"{below}/run", {"headers": form, "content": b"echo out"}, 200
        yield "GET", f"{below}/status", {"headers": form}, 200
        yield "GET", f"{below}/output", {"headers": form}, 200
        yield "GET", f"{below}/screen", {"headers": form}, 200
        yield "POST", f"{below}/resize", {"headers": form, "json": {"rows": 40, "cols": 100}}, 200
        yield "POST", f"{below}/kill", {"headers": form}, 200
        yield "POST", f"{below}/recycle", {"headers": form}, 200
    yield "POST", f"{below}/run?timeout=0", {"content": b"read -r line"}, 202
    yield "POST", f"{below}/stdin", {"content": b"line\n"}, 200
    yield "DELETE", below, {}, 200
    yield "DELETE", below, {}, 404
    yield "POST", "/sessions", {}, 201
    # Tools and events.
    yield "GET", "/events?timeout=0", {}, 200
    yield "GET", "/events?types=states", {}, 400
    for shape in ("full", "openai", "anthropic", "mcp"):
        yield "GET", f"/tools?format={shape}", {}, 200
    yield "GET", "/tools?format=other", {}, 400
    for form in ({}, TEXT):
        yield "POST", "/tools/run_shell_command", {"headers": form, "json": {"command": "echo out"}}, 200
    yield "POST", "/tools/run_shell_command?full=true", {"json": {"command": "echo out"}}, 200
    yield "POST", "/tools/shell_status", {"json": {"shell_id": "unknown"}}, 404
    yield "POST", "/tools/run_shell_comand", {}, 404
    yield "POST", "/tools/read", {"json": {"path": 1}}, 400
    yield "POST", "/events", {"json": {"event_type": "shell_metadata"}}, 200
    yield "POST", "/events", {"json": {"event_type": "read", "data": {"path": "nothing-here"}}}, 404
    yield "POST", "/events", {"json": {"event_type": "reed"}}, 400
    yield "POST", "/events", {"json": []}, 400
    # Files.
    one, two = "described/one.txt", "described/two.txt"
    yield "POST", "/files/create", {"json": {"path": one, "content": "one\ntwo\n"}}, 200
    yield "POST", "/files/create", {"json": {"path": one, "content": ""}}, 409
    yield "POST", "/files/read", {"json": {"path": one, "view_range": [1, 1]}}, 200
    yield "POST", "/files/read", {"json": {"path": one, "view_range": [5, 6]}}, 422
    yield "POST", "/files/read", {"json": {"path": "/etc/passwd"}}, 403
    yield "POST", "/files/read", {"json": {"path": "described"}}, 415
    yield "POST", "/files/view", {"json": {"path": "described"}}, 200
    yield "POST", "/files/view", {"json": {"path": one}}, 415
    yield "POST", "/files/update", {"json": {"path": one, "content": "1\n2\n"}}, 200
    yield "POST", "/files/update", {"json": {"path": one, "content": "", "if_match": "0"}}, 412
    yield "POST", "/files/insert", {"json": {"path": one, "content": "3", "line": 2}}, 200
    yield "POST", "/files/replace", {"json": {"path": one, "old_string": "1", "new_string": "one"}}, 200
    yield "POST", "/files/replace", {"json": {"path": one, "old_string": "4", "new_string": "5"}}, 422
    yield "POST", "/files/search", {"json": {"path": "described", "pattern": "one", "context": 1}}, 200
    yield "POST", "/files/find", {"json": {"path": "described", "pattern": "*.txt"}}, 200
    yield "POST", "/files/history", {"json": {"path": "described"}}, 200
    yield "POST", "/files/history", {"json": {"path": "/etc"}}, 403
    yield "POST", "/files/undo", {"json": {"path": one}}, 200
    yield "POST", "/files/move", {"json": {"source_path": one, "destination_path": two}}, 200
    yield "POST", "/files/undo", {"json": {"path": one}}, 409
    yield "GET", f"/files/raw?path={two}", {}, 200
    yield "GET", f"/files/raw?path={two}", {"headers": {"Range": "bytes=1-2"}}, 206
    yield "GET", f"/files/raw?path={two}", {"headers": {"Range": "bytes=99-"}}, 416
    yield "GET", "/files/raw", {}, 400
    yield "PUT", f"/files/raw?path={two}", {"content": b"\0"}, 200
    yield "PUT", f"/files/raw?path={two}", {"content": b"", "headers": {"If-None-Match": "*"}}, 412
    for form in ("tar", "tar.gz", "zip"):
        yield "GET", f"/files/archive?path={two}&format={form}", {}, 200
    yield "GET", f"/files/archive?path={two}&format=rar", {}, 400
    yield "PUT", f"/files/archive?path={two}.d&format=tar", {"content": bytes(1024)}, 200
    yield "PUT", f"/files/archive?path={two}.d", {"content": b"x"}, 422
    yield "POST", "/files/read", {"json": {"path": two}}, 415
    yield "POST", "/files/delete", {"json": {"path": two}}, 200
    yield "POST", "/files/delete", {"json": {"path": two}}, 404


_CHANGES = ("ChangeResult", "ReplaceResult", "MoveResult", "UndoResult")
_REPLY = ("run_id", "output", "stderr", "cursor", "next_cursor", "awaiting_input", "status")
_OPTIONAL = {
    ("StateAnswer", "not_restored"),
    ("SessionReference", "not_restored"),
    ("WaitResult", "reached"),
    *(
        (name, member)
        for name in ("RunResult", "ActiveRun", "WaitResult")
        for member in ("warnings", "typed_by_person", "changes", "changes_truncated", "changes_error")
    ),
    ("OutputPart", "error"),
    *(("AcceptedInput", member) for member in _REPLY),
    *((name, member) for name in _CHANGES for member in ("undo", "undo_reason")),
}
"""The members that an answer may lack."""


class _Checker:
    """Compares answers with a description in which nothing may be beside what is declared."""

    def __init__(self, description: dict[str, Any]) -> None:
        self._paths = description["paths"]
        self._description = description
        components = json.loads(json.dumps(description["components"]))
        for name, schema in components["schemas"].items():
            if name != "Problem" and "properties" in schema:
                always = [member for member in schema["properties"] if (name, member) not in _OPTIONAL]
                schema |= {"additionalProperties": False, "required": always}
        self._components = components
        self.seen: set[tuple[str, str]] = set()
        """The endpoints that have been seen to succeed."""

    def check(self, answer: httpx.Response) -> None:
        """Check one answer: its status, media type, headers and content."""
        method, path = answer.request.method, self._template(answer.request.url.path)
        operation = self._operation(method, path)
        response = self._resolved(operation["responses"][str(answer.status_code)])
        media_type = answer.headers["content-type"].partition(";")[0]
        content = response["content"][media_type]
        declared = {name.lower(): self._resolved(header) for name, header in response["headers"].items()}
        own = {name for name in answer.headers if name.startswith("x-") or name in ("location", "retry-after")}
        assert own <= {*declared, "retry-after"}, (method, path)
        missing = [name for name, header in declared.items() if header.get("required") and name not in answer.headers]
        assert missing == [], (method, path)
        schema = content["schema"]
        if media_type.endswith("json"):
            self._validate(answer.json(), schema)
        elif media_type == "text/plain":
            self._validate(answer.text, schema)
        elif media_type == "text/event-stream":
            for event in answer.text.removesuffix("\n\n").split("\n\n"):
                fields = dict(line.split(": ", 1) for line in event.splitlines())
                self._validate(fields, schema)
                kinds = {kind["properties"]["event"]["enum"][0]: kind["properties"]["data"] for kind in schema["oneOf"]}
                self._validate(json.loads(fields["data"]), kinds[fields["event"]]["contentSchema"])
            assert answer.text.count("event: result\n") == (path != "/events")
        if answer.is_success:
            self.seen.add((method, path))

    def _operation(self, method: str, path: str) -> Any:
        """Return what is declared; where there is no such endpoint, what any operation says of its refusals."""
        item = self._paths.get(path, self._paths["/runs/{run_id}"])
        return item.get(method.lower()) or next(iter(item.values()))

    def _template(self, path: str) -> str:
        if path in self._paths:
            return path
        patterns = {template: re.sub(r"\{\w+\}", "[^/]+", template) for template in self._paths}
        return next((template for template, pattern in patterns.items() if re.fullmatch(pattern, path)), path)

    def _resolved(self, item: dict[str, Any]) -> dict[str, Any]:
        if "$ref" not in item:
            return item
        _, kind, name = item["$ref"].rsplit("/", 2)
        return self._components[kind][name]

    def _validate(self, instance: object, schema: dict[str, Any]) -> None:
        root = {**schema, "components": self._components}
        jsonschema.Draft202012Validator(root).validate(instance)


def _operations(description: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for item in description["paths"].values():
        yield from item.values()


def _codes(description: dict[str, Any], operation: dict[str, Any]) -> Iterator[str]:
    for response in operation["responses"].values():
        if "$ref" in response:
            response = description["components"]["responses"][response["$ref"].rpartition("/")[2]]
        problem = response["content"].get("application/problem+json")
        if problem:
            yield from problem["schema"]["allOf"][1]["properties"]["code"]["enum"]
