"""What the endpoints for tools and events take and answer: the part of the table in operations.py about them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from shelld_py import errors
from shelld_py.http.endpoint import JSON, TEXT, Answer, Body, Header, Operation, Tag, json_answer
from shelld_py.http.file_declarations import EDIT, READ, SEARCH
from shelld_py.http.parameters import CallQuery, ToolsQuery
from shelld_py.tools.events import EventFailure, EventRequest, EventSuccess

_OK: Final = HTTPStatus.OK
_WHATEVER_A_TOOL_MEETS: Final = (
    *EDIT,
    *READ,
    *SEARCH,
    errors.ReplacementCountMismatch,
    errors.TextNotFound,
    errors.LineOutOfRange,
    errors.TooManyTokens,
    errors.NothingToUndo,
    errors.SessionNotFound,
    errors.RunNotFound,
    errors.ShellNotStarted,
    errors.ShellBusy,
    errors.ShellAlreadyStarted,
    errors.ShellUnrecoverable,
    errors.NoRunningCommand,
    errors.TooManySessions,
    errors.ShellStartFailed,
)

TOOL_OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    ("GET", "/tools"): Operation(
        tag=Tag.TOOLS,
        summary="The tools for an agent's model",
        query=ToolsQuery,
        answers={
            _OK: json_answer("A list; for MCP, the result of `tools/list`.", list[dict[str, Any]] | dict[str, Any])
        },
    ),
    ("POST", "/tools/{name}"): Operation(
        tag=Tag.TOOLS,
        summary="Call a tool",
        description=(
            "The schema of the result is in `GET /tools`. With `full`, the answer is `tool`, `result`, `text`, "
            "`is_error`, `run_id` and `running`."
        ),
        query=CallQuery,
        body=Body(model=dict[str, Any], example={"command": "echo hello"}),
        answers={
            _OK: Answer(
                meaning="What it has given, also while its command is still running: the result, or all of it.",
                content={JSON: dict[str, Any], TEXT: str},
                headers=(
                    Header(name="X-Is-Error", meaning="Whether its command was killed or lost.", type=bool),
                    Header(name="X-Running", meaning="Whether its command is still running.", type=bool),
                    Header(name="X-Run-Id", meaning="The run of its command."),
                ),
            )
        },
        errors=(errors.ToolNotFound, *_WHATEVER_A_TOOL_MEETS),
    ),
    ("POST", "/events"): Operation(
        tag=Tag.TOOLS,
        summary="Call a tool by an event of an adapter",
        body=Body(
            model=EventRequest, required=True, example={"event_type": "execute_command", "data": {"command": "ls"}}
        ),
        answers={_OK: json_answer("What the tool has given.", EventSuccess)},
        errors=_WHATEVER_A_TOOL_MEETS,
        failure=EventFailure,
    ),
}
