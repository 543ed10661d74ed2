"""What schemathesis makes of the description is asked of a running daemon: every answer must be a declared one.

A command is what may not be made up: it comes from a list of harmless ones, text for a terminal likewise. The
daemon works in a directory of its own, in which its shells find no programs, and its file operations are confined.
`FUZZ_EXAMPLES` says how many requests each operation gets, `FUZZ_SEED` makes them others each time.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as st
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from shelld_py.api.app import ENDPOINTS
from shelld_py.api.openapi import document
from tests.daemons import KEY, RunningDaemon, running_daemon

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "3"))
SEED = os.environ.get("FUZZ_SEED")
API = schemathesis.openapi.from_dict(json.loads(document(ENDPOINTS)))
DECLARED = {(endpoint.method, endpoint.path): endpoint for endpoint in ENDPOINTS}
FUZZED = sorted(DECLARED.keys() - {("POST", "/shutdown"), ("GET", "/events")})
"""All but the one that ends the daemon, and the one whose answer does not end."""

COMMANDS = (
    "true",
    "false",
    "echo out",
    "echo err >&2",
    "printf 'a\\nb'",
    "exit 3",
    "read -r -t 0.1 line",
    "((",
    "set -e; false",
)
TYPED = ("", "x", "line\n", "\x03")
ACCEPTED = (None, "application/json", "text/plain", "text/event-stream", "application/problem+json")
RUNS = ("fuzzed-1", "fuzzed-2")
TOOLS = ("shell_metadata", "shell_status", "shell_read", "view", "read", "search", "no_such_tool")
"""Those that execute nothing."""
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    negative_data_rejection,
]


class Target:
    """The daemon, with a shell that is ready, a session and runs that have ended."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._daemon = daemon
        self.url = daemon.url
        self.connection = requests.Session()
        self.sessions: tuple[str, ...] = ()

    def prepare(self) -> None:
        """Bring back what an operation may have ended."""
        if self._daemon.state() != "ready":
            self._daemon.fresh()
        self._daemon.client.put("/files/raw?path=notes.txt", content=b"one\ntwo\n")
        sessions = [item["session_id"] for item in self._daemon.json("GET", "/sessions")]
        while len(sessions) < 2:
            sessions.append(self._daemon.json("POST", "/sessions")["session_id"])
        for session_id in sessions[3:]:
            self._daemon.client.delete(f"/sessions/{session_id}")
        self.sessions = tuple(sessions[:3])
        for run_id in RUNS:
            self._daemon.run("echo out; echo err >&2", run_id=run_id, streams="separate")


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    settings = {
        "timeout__command": "300ms",
        "timeout__command_maximum": "300ms",
        "timeout__command_lifetime": "2s",
        "timeout__kill": "300ms",
    }
    directory: Path = tmp_path_factory.mktemp("fuzzed")
    with running_daemon(directory, config='[shell.environment]\nPATH = "/nonexistent"\n', **settings) as daemon:
        yield Target(daemon)


@pytest.mark.parametrize(("method", "path"), FUZZED, ids=[" ".join(endpoint) for endpoint in FUZZED])
def test_no_answer_is_undeclared(target: Target, method: str, path: str) -> None:
    operation = API[path][method]
    target.prepare()
    cases = operation.as_strategy(generation_mode=GenerationMode.POSITIVE)
    declared = DECLARED[method, path]
    if declared.body or declared.query:
        cases |= operation.as_strategy(generation_mode=GenerationMode.NEGATIVE)

    @settings(
        max_examples=EXAMPLES,
        derandomize=SEED is None,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(case=cases, data=st.data())
    def ask(case: Case, data: st.DataObject) -> None:
        make_sensible(case, data, target.sessions)
        make_harmless(case, data)
        headers = {"X-Shell-Key": KEY}
        if accept := data.draw(st.sampled_from(ACCEPTED)):
            headers["Accept"] = accept
        answer = case.call(target.url, session=target.connection, headers=headers, timeout=120)
        case.validate_response(answer, checks=CHECKS[:-1] if overridden(case) else CHECKS)

    (seed(int(SEED))(ask) if SEED else ask)()


def overridden(case: Case) -> bool:
    """Whether a parameter, be it wrong, may have no effect: the body goes before the query, that before the header."""
    runs = case.path.endswith(("/run", "/exec"))
    return runs and bool((case.media_type == "application/json" and case.query) or "X-Command-Timeout" in case.headers)


def make_sensible(case: Case, data: st.DataObject, sessions: tuple[str, ...]) -> None:
    """Let most requests be for a run, a session and a file that there are."""
    for name, known in (("run_id", RUNS), ("session_id", sessions)):
        if name in case.path_parameters and data.draw(st.integers(0, 3)):
            case.path_parameters[name] = data.draw(st.sampled_from(known))
    if case.path.startswith("/files/") and isinstance(case.body, dict) and data.draw(st.booleans()):
        there = "." if case.path in ("/files/view", "/files/search", "/files/find") else "notes.txt"
        for name in ("path", "source_path"):
            if isinstance(case.body.get(name), str):
                case.body[name] = there
    if case.path == "/files/raw" and isinstance(case.query.get("path"), str) and data.draw(st.booleans()):
        case.query["path"] = "notes.txt"


def make_harmless(case: Case, data: st.DataObject) -> None:
    """Let nothing be executed, or typed, but what is known to be harmless."""
    for name in [name for name in case.headers if name.lower() == "content-type"]:
        del case.headers[name]
    if "name" in case.path_parameters:
        case.path_parameters["name"] = data.draw(st.sampled_from(TOOLS))
    for ending, field, harmless in (
        ("/run", "command", COMMANDS),
        ("/exec", "command", COMMANDS),
        ("/stdin", "text", TYPED),
    ):
        if not case.path.endswith(ending):
            continue
        chosen = data.draw(st.sampled_from(harmless))
        if case.media_type != "application/json":
            case.body = chosen
        elif isinstance(case.body, dict) and isinstance(case.body.get(field), str):
            case.body[field] = chosen
