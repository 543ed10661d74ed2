"""What every endpoint takes and answers, in one table: the source of the API's description.

A route without an entry here, or an entry without a route, fails a test. Nothing is imported from here before
the description is asked for. Behaviour is elsewhere.
"""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Any, Final, Literal

from msgspec import Meta

from shelld_py import errors, models
from shelld_py.http.endpoint import BYTES, EVENTS, JSON, TEXT, Answer, Body, Header, Operation, Tag, json_answer
from shelld_py.http.file_declarations import FILE_OPERATIONS
from shelld_py.http.parameters import (
    OutputQuery,
    ResultQuery,
    RunKillQuery,
    RunQuery,
    RunsQuery,
    ShutdownQuery,
    SignalQuery,
    StdinQuery,
    WaitQuery,
)
from shelld_py.http.tool_declarations import TOOL_OPERATIONS
from shelld_py.metadata import Metadata
from shelld_py.units import DURATION_PATTERN, LONGEST_TEXT

_OK: Final = HTTPStatus.OK
_Count = Annotated[int, Meta(ge=0)]
_Digits = Annotated[str, Meta(pattern=r"^\d+$")]

_Timeout = Annotated[str, Meta(pattern=f"{DURATION_PATTERN}|^$", max_length=LONGEST_TEXT)]

_RUN_HEADERS: Final = (
    Header(name="X-Run-Id", meaning="The run."),
    Header(name="X-Run-Status", meaning="What has become of it.", type=models.RunStatus),
    Header(name="X-Shell-State", meaning="The state of its shell.", type=models.ShellState),
    Header(name="X-Exit-Code", meaning="bash's `$?`, once it has ended.", type=int),
    Header(name="X-Signal", meaning="The signal that it died of.", type=int),
    Header(name="X-Working-Directory", meaning="The shell's directory, percent-encoded."),
    Header(name="X-Original-Size", meaning="Characters of the whole output.", type=_Count),
    Header(name="X-Truncated", meaning="Whether the output was cut.", type=bool),
    Header(name="X-Awaiting-Input", meaning="Whether it is seen waiting for terminal input.", type=bool),
)
_STILL_RUNNING: Final = (
    Header(name="Location", meaning="`/runs/RUN_ID`.", always=True),
    Header(name="Retry-After", meaning="Seconds.", type=_Count, always=True),
)
_OUTPUT_HEADERS: Final = (
    Header(name="X-Run-Id", meaning="The run."),
    Header(name="X-Next-Cursor", meaning="Where to read on.", type=_Count),
    Header(name="X-Run-Status", meaning="What has become of the run.", type=models.RunStatus),
    Header(name="X-Eof", meaning="Whether the run has ended and all has been given.", type=bool),
    Header(name="X-Dropped", meaning="Bytes before the output that were not kept.", type=_Count),
)
_SHELL_ENDED: Final = (errors.ShellNotStarted, errors.ShellUnrecoverable)
_STDIN_REFUSED: Final = (*_SHELL_ENDED, errors.NoRunningCommand, errors.StdinGap)
_RUN_REFUSED: Final = (errors.RunNotFound, errors.RunIdConflict, errors.ShellStartFailed)

_RUN_BODY: Final = Body(
    model=models.RunRequest,
    raw="The command, whatever the Content-Type.",
    required=True,
    example={"command": "echo hello", "timeout": "30s"},
)
_RUN_ANSWERS: Final[dict[int, Answer]] = {
    _OK: Answer(
        meaning="The output of the run, or its result, or events; whatever its exit code.",
        content={TEXT: str, BYTES: bytes, JSON: models.RunResult, EVENTS: str},
        headers=_RUN_HEADERS,
    ),
    HTTPStatus.ACCEPTED: Answer(
        meaning="The wait ended before the command did: it is still running, and nothing is lost.",
        content={TEXT: str, BYTES: bytes, JSON: models.RunResult},
        headers=(*_RUN_HEADERS, *_STILL_RUNNING),
    ),
}
_RUN: Final[dict[str, Any]] = {
    "query": RunQuery,
    "headers": (Header(name="X-Command-Timeout", meaning="Stands in for `timeout`.", type=_Timeout),),
    "body": _RUN_BODY,
    "answers": _RUN_ANSWERS,
}
_STATE_ANSWER: Final[dict[int, Answer]] = {
    _OK: Answer(meaning="The state of the shell after it.", content={TEXT: models.ShellState, JSON: models.StateAnswer})
}
_STDIN: Final[dict[str, Any]] = {
    "query": StdinQuery,
    "body": Body(model=models.StdinRequest, raw="The text, whatever the Content-Type.", example={"text": "yes\n"}),
    "answers": {
        _OK: Answer(meaning="The bytes accepted in all.", content={TEXT: _Digits, JSON: models.AcceptedInput}),
    },
}
_OUTPUT: Final[dict[str, Any]] = {
    "query": OutputQuery,
    "headers": (Header(name="Last-Event-ID", meaning="Stands in for `cursor`.", type=_Count),),
    "answers": {
        _OK: Answer(
            meaning="The output, or events until the run has ended.",
            content={TEXT: str, BYTES: bytes, JSON: models.OutputPart, EVENTS: str},
            headers=_OUTPUT_HEADERS,
        )
    },
}


def _verbs(prefix: str, tag: Tag, *refusals: type[errors.ShelldError]) -> dict[tuple[str, str], Operation]:
    """Return what can be done with the shell below `prefix`; `refusals` are for there being none."""
    whose = "the main shell" if tag is Tag.MAIN else "the session"
    return {
        ("POST", f"{prefix}/run"): Operation(
            tag=tag,
            **_RUN,
            summary=f"Run a command in {whose}",
            errors=(*refusals, *_SHELL_ENDED, errors.ShellBusy, *_RUN_REFUSED),
        ),
        ("POST", f"{prefix}/kill"): Operation(
            tag=tag,
            summary=f"End the command that {whose} runs, or send it one signal",
            query=SignalQuery,
            answers={
                _OK: Answer(meaning="What it has done.", content={TEXT: models.ShellState, JSON: models.KillResult})
            },
            errors=(*refusals, errors.ShellNotStarted),
        ),
        ("POST", f"{prefix}/recycle"): Operation(
            tag=tag,
            summary=f"Kill all that {whose} started, and start a fresh bash",
            answers=_STATE_ANSWER,
            errors=(*refusals, errors.ShellNotStarted, errors.ShellStartFailed),
        ),
        ("POST", f"{prefix}/stdin"): Operation(
            tag=tag,
            **_STDIN,
            summary=f"Type into the terminal of the command that {whose} runs",
            errors=(*refusals, *_STDIN_REFUSED),
        ),
        ("POST", f"{prefix}/resize"): Operation(
            tag=tag,
            summary=f"Set the size of the terminal of {whose}",
            body=Body(model=models.ResizeRequest, required=True, example={"rows": 40, "cols": 120}),
            answers=_STATE_ANSWER,
            errors=(*refusals, *_SHELL_ENDED),
        ),
        ("GET", f"{prefix}/status"): Operation(
            tag=tag,
            summary=f"The state of {whose}",
            answers={_OK: Answer(meaning="The state.", content={TEXT: models.ShellState, JSON: models.Status})},
            errors=refusals,
        ),
        ("GET", f"{prefix}/output"): Operation(
            tag=tag,
            **_OUTPUT,
            summary=f"The output of the current or last run of {whose}",
            errors=(*refusals, errors.RunNotFound),
        ),
    }


_MAIN: Final = {
    ("POST", "/startup"): Operation(
        tag=Tag.MAIN,
        summary="Start the main shell",
        body=Body(model=models.StartupRequest),
        answers=_STATE_ANSWER,
        errors=(errors.ShellAlreadyStarted, errors.ShellUnrecoverable, errors.ShellStartFailed),
    ),
    **_verbs("", Tag.MAIN),
    ("POST", "/exec"): Operation(
        tag=Tag.RUNS, **_RUN, summary="Run a command in a shell of its own", errors=_RUN_REFUSED
    ),
}

_SESSIONS: Final = {
    ("POST", "/sessions"): Operation(
        tag=Tag.SESSIONS,
        summary="Open a session",
        body=Body(model=models.StartupRequest),
        answers={HTTPStatus.CREATED: json_answer("The session.", models.SessionReference)},
        errors=(errors.TooManySessions, errors.ShellStartFailed),
    ),
    ("GET", "/sessions"): Operation(
        tag=Tag.SESSIONS,
        summary="All shells, the main shell first",
        answers={_OK: json_answer("Their status.", tuple[models.SessionStatus, ...])},
    ),
    ("GET", "/sessions/{session_id}"): Operation(
        tag=Tag.SESSIONS,
        summary="One shell",
        answers={_OK: json_answer("Its status.", models.SessionStatus)},
        errors=(errors.SessionNotFound,),
    ),
    ("DELETE", "/sessions/{session_id}"): Operation(
        tag=Tag.SESSIONS,
        summary="End a session and all it started",
        answers={_OK: json_answer("The session that was ended.", models.SessionReference)},
        errors=(errors.SessionNotFound,),
    ),
    **_verbs("/sessions/{session_id}", Tag.SESSIONS, errors.SessionNotFound),
}

_RUNS: Final = {
    ("GET", "/runs"): Operation(
        tag=Tag.RUNS,
        summary="All runs that are kept, newest first",
        query=RunsQuery,
        answers={_OK: json_answer("The results, without output.", tuple[models.RunResult, ...])},
    ),
    ("GET", "/runs/{run_id}"): Operation(
        tag=Tag.RUNS,
        summary="A run, with its output",
        query=ResultQuery,
        answers={_OK: json_answer("The result as it stands.", models.RunResult)},
        errors=(errors.RunNotFound,),
    ),
    ("DELETE", "/runs/{run_id}"): Operation(
        tag=Tag.RUNS,
        summary="Kill a run where it is going on, and remove its files",
        answers={_OK: json_answer("The run that was removed.", models.RunReference)},
        errors=(errors.RunNotFound,),
    ),
    ("GET", "/runs/{run_id}/output"): Operation(
        tag=Tag.RUNS, **_OUTPUT, summary="The output of a run, from a cursor on", errors=(errors.RunNotFound,)
    ),
    ("GET", "/runs/{run_id}/wait"): Operation(
        tag=Tag.RUNS,
        summary="Wait for the end of a run, for output, or for another condition",
        query=WaitQuery,
        answers={
            _OK: json_answer("The run has ended: its result.", models.WaitResult),
            HTTPStatus.ACCEPTED: Answer(
                meaning="It is still running.", content={JSON: models.WaitResult}, headers=_STILL_RUNNING
            ),
        },
        errors=(errors.RunNotFound, errors.PatternTooSlow),
    ),
    ("POST", "/runs/{run_id}/stdin"): Operation(
        tag=Tag.RUNS,
        **_STDIN,
        summary="Type into the terminal of a run",
        errors=(errors.RunNotFound, errors.SessionNotFound, *_STDIN_REFUSED),
    ),
    ("POST", "/runs/{run_id}/kill"): Operation(
        tag=Tag.RUNS,
        summary="End a run, or send it one signal",
        query=RunKillQuery,
        answers={_OK: json_answer("What it has done.", models.KillResult)},
        errors=(errors.RunNotFound, errors.SessionNotFound),
    ),
}

_DAEMON: Final = {
    ("POST", "/shutdown"): Operation(
        tag=Tag.DAEMON,
        summary="End the daemon, or make it new for the next client",
        query=ShutdownQuery,
        answers={
            _OK: Answer(
                meaning="It is ending; with `recycle`, the state of the main shell.",
                content={TEXT: Literal["shutting down", "available"], JSON: models.ShutdownAnswer},
            )
        },
    ),
    ("GET", "/metadata"): Operation(
        tag=Tag.DAEMON,
        summary="System, shell, and what may be used",
        answers={_OK: json_answer("What there is to know.", Metadata)},
    ),
    ("GET", "/health"): Operation(
        tag=Tag.DAEMON,
        summary="Whether the daemon lives; touches nothing",
        answers={_OK: Answer(meaning="It does.", content={TEXT: Literal["ok"], JSON: models.Health})},
        public=True,
    ),
    ("GET", "/openapi.json"): Operation(
        tag=Tag.DAEMON,
        summary="This description; touches nothing",
        answers={_OK: json_answer("An OpenAPI 3.1 document.", dict[str, Any])},
        public=True,
    ),
}

OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    **_MAIN, **_SESSIONS, **_RUNS, **FILE_OPERATIONS, **TOOL_OPERATIONS, **_DAEMON,
}  # fmt: skip
"""Every endpoint by its method and path."""

OTHER_PROTOCOLS: Final = frozenset({"/mcp", "/socket.io/"})
"""Paths that are served where a setting says so. What is spoken there describes itself."""
