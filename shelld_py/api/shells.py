"""Endpoints that drive a shell: the main one at the root, sessions below /sessions/ID, and one for a single command."""

import asyncio
from http import HTTPStatus
from operator import attrgetter
from typing import Any, Final

import msgspec
from starlette.responses import PlainTextResponse, Response

from shelld_py import errors
from shelld_py.api.output import OUTPUT, OutputQuery, output_response
from shelld_py.api.runs import STDIN, STDIN_REFUSED, SignalQuery, signal_of, type_into
from shelld_py.api.submission import SHELL_ENDED, START_REFUSED
from shelld_py.errors import RunNotFound
from shelld_py.http.answers import list_response
from shelld_py.http.endpoint import JSON, Body, Call, Endpoint, Success, Tag, ok
from shelld_py.http.requests import Form, Query
from shelld_py.models import AcceptedInput, KillResult, SessionStatus, ShellState, Status, utc_timestamp
from shelld_py.request_data import ResizeRequest, ShellDocument, StartupRequest, StdinRequest
from shelld_py.shells.shell import Shell

_AT_ONCE: Final = 50
"""Shells whose status is looked at before others have their turn: a millisecond."""


class StateAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a shell after what was asked of it. Of a start with a `state`, also what could not be set."""

    state: ShellState
    not_restored: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


class SessionReference(msgspec.Struct, frozen=True, kw_only=True):
    """The session that was opened or ended. Where it began with a `state`, also what of that could not be set."""

    session_id: str
    not_restored: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET


async def _startup(call: Call[None, StartupRequest]) -> StateAnswer:
    await call.computer.startup(call.body)
    main = call.computer.main
    return StateAnswer(state=main.state, not_restored=_or_unset(main.not_restored))


def _or_unset(not_restored: tuple[str, ...] | None) -> tuple[str, ...] | msgspec.UnsetType:
    return msgspec.UNSET if not_restored is None else not_restored


async def _state(call: Call[None, None]) -> ShellDocument:
    return await call.computer.dump(call.shell)


async def _kill(call: Call[SignalQuery, None]) -> KillResult:
    return await call.shell.kill(signal_of(call.query))


async def _recycle(call: Call[None, None]) -> StateAnswer:
    shell = call.shell
    await call.computer.recycle(shell)
    return StateAnswer(state=shell.state)


async def _resize(call: Call[None, ResizeRequest]) -> StateAnswer:
    shell = call.shell
    shell.resize(call.body.rows, call.body.cols)
    return StateAnswer(state=shell.state)


async def _status(call: Call[None, None]) -> Status | Response:
    """Tell the state alone where that is all that is asked for: to look at the processes takes longer."""
    shell = call.shell
    if call.form is Form.TEXT:
        return PlainTextResponse(shell.state.value)
    return Status(**_status_members(call, shell))


async def _output(call: Call[OutputQuery, None]) -> Response:
    """Give the output of the current or last run."""
    shell = call.shell
    if shell.last_run is None:
        raise RunNotFound("No command has been run in this shell.")
    return await output_response(call, await call.computer.store.get(shell.last_run.run_id))


async def _stdin(call: Call[Any, StdinRequest]) -> AcceptedInput | Response:
    shell = call.shell
    return await type_into(call, shell, shell.run)


async def _open_session(call: Call[None, StartupRequest]) -> SessionReference:
    shell = await call.computer.open_session(call.body)
    return SessionReference(session_id=shell.session_id, not_restored=_or_unset(shell.not_restored))


async def _list_sessions(call: Call[Any, None]) -> Response:
    statuses, computer = [], call.computer
    for count, shell in enumerate([computer.main, *computer.shells.sessions], 1):
        statuses.append(session_status(call, shell))
        if count % _AT_ONCE == 0:
            await asyncio.sleep(0)
    return await list_response(statuses, {})


async def _get_session(call: Call[None, None]) -> SessionStatus:
    return session_status(call, call.shell)


async def _close_session(call: Call[None, None]) -> SessionReference:
    session_id = call.request.path_params["session_id"]
    await call.computer.shells.close(session_id, "The session was closed.")
    return SessionReference(session_id=session_id)


def session_status(call: Call[Any, Any], shell: Shell) -> SessionStatus:
    """Return the status of a shell as listings have it."""
    expires_at = call.computer.shells.expires_at(shell.session_id)
    return SessionStatus(
        **_status_members(call, shell),
        created_at=utc_timestamp(shell.created_at),
        expires_at=None if expires_at is None else utc_timestamp(expires_at),
    )


def _status_members(call: Call[Any, Any], shell: Shell) -> dict[str, Any]:
    idle = call.services.idle
    status = msgspec.structs.asdict(call.computer.status(shell))
    return {**status, "idle": round(idle.idle, 3), "idle_timeout": idle.timeout}


_COPY_REFUSED: Final = (errors.SessionNotFound, errors.ShellNotStarted, errors.ShellBusy, errors.StateUnavailable)
_STATE: Final[dict[str, Any]] = {
    "answers": ok("The state of the shell after it.", StateAnswer, text=ShellState),
    "text": attrgetter("state"),
}


def _verbs(prefix: str, tag: Tag, *refusals: type[errors.ShelldError]) -> tuple[Endpoint, ...]:
    """Return what can be done with the shell below `prefix`; `refusals` are for there being none."""
    main = tag is Tag.MAIN
    whose = "the main shell" if main else "the session"
    about: dict[str, Any] = {"tag": tag, "default": Form.TEXT if main else Form.JSON}
    return (
        Endpoint(
            method="GET",
            path=f"{prefix}/status",
            name="get_status" if main else "get_session_status",
            handler=_status,
            looks=True,
            summary=f"The state of {whose}",
            description=("The state alone as text; in JSON also the running command with its resources."),
            answers=ok("The state.", Status, text=ShellState),
            errors=refusals,
            **about,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/state",
            name="read_state" if main else "read_session_state",
            handler=_state,
            summary=f"What it takes to make a shell like {whose} again",
            description=(
                "Variables, functions, aliases, options, umask, traps and directories, for `state` of `POST /startup` "
                "and `POST /sessions`, on this machine or another. The shell must be `ready`."
            ),
            answers=ok("Its state.", ShellDocument),
            errors=(*refusals, *SHELL_ENDED, errors.ShellBusy, errors.StateUnavailable),
            tag=tag,
        ),
        Endpoint(
            method="GET",
            path=f"{prefix}/output",
            name="read_output" if main else "read_session_output",
            handler=_output,
            looks=True,
            summary=f"The output of the current or last run of {whose}",
            description=("As for any run: from a cursor on, all of it, or as events."),
            errors=(*refusals, errors.RunNotFound),
            **OUTPUT,
            **about,
        ),
        Endpoint(
            method="POST",
            path=f"{prefix}/stdin",
            name="write_stdin" if main else "write_session_stdin",
            handler=_stdin,
            summary=f"Type into the terminal of the command that {whose} runs",
            description=(
                "Text and control characters as somebody at the terminal would type them; with `wait`, answers "
                "with what the command wrote next."
            ),
            errors=(*refusals, *STDIN_REFUSED),
            **STDIN,
            **about,
        ),
        Endpoint(
            method="POST",
            path=f"{prefix}/kill",
            name="kill" if main else "kill_session",
            handler=_kill,
            summary=f"End the command that {whose} runs, or send it one signal",
            description=(
                "SIGINT first, SIGKILL to all that is left after `timeout.kill`; the shell is kept where possible."
            ),
            query=SignalQuery,
            answers=ok("What it has done.", KillResult, text=ShellState),
            text=attrgetter("state"),
            errors=(*refusals, errors.ShellNotStarted),
            **about,
        ),
        Endpoint(
            method="POST",
            path=f"{prefix}/recycle",
            name="recycle" if main else "recycle_session",
            handler=_recycle,
            summary=f"Kill all that {whose} started, and start a fresh bash",
            description=(
                "Its variables, functions and background processes are gone then; a running command ends as `killed`."
            ),
            errors=(*refusals, errors.ShellNotStarted, errors.DirectoryGone, *START_REFUSED),
            **_STATE,
            **about,
        ),
        Endpoint(
            method="POST",
            path=f"{prefix}/resize",
            name="resize" if main else "resize_session",
            handler=_resize,
            summary=f"Set the size of the terminal of {whose}",
            description=("The foreground programs are told by SIGWINCH."),
            body=Body(model=ResizeRequest, required=True, example={"rows": 40, "cols": 120}),
            errors=(*refusals, *SHELL_ENDED),
            **_STATE,
            **about,
        ),
    )


ENDPOINTS: Final = (
    *_verbs("", Tag.MAIN),
    Endpoint(
        method="POST",
        path="/startup",
        name="start",
        tag=Tag.MAIN,
        default=Form.TEXT,
        handler=_startup,
        summary="Start the main shell",
        description="Runs the hook `on_startup`, then starts bash. Only after this can commands run in the main shell.",
        body=Body(model=StartupRequest),
        errors=(
            errors.ShellAlreadyStarted,
            errors.ShellUnrecoverable,
            *_COPY_REFUSED,
            *START_REFUSED,
        ),
        **_STATE,
    ),
    Endpoint(
        method="POST",
        path="/sessions",
        name="open_session",
        tag=Tag.SESSIONS,
        handler=_open_session,
        summary="Open a session",
        description=(
            "A session is a bash of its own that keeps its state from command to command, until it is closed or "
            "idle for too long."
        ),
        body=Body(model=StartupRequest),
        answers={HTTPStatus.CREATED: Success(meaning="The session.", content={JSON: SessionReference})},
        errors=(errors.TooManySessions, *_COPY_REFUSED, errors.ShellUnrecoverable, *START_REFUSED),
    ),
    Endpoint(
        method="GET",
        path="/sessions",
        name="list_sessions",
        tag=Tag.SESSIONS,
        handler=_list_sessions,
        looks=True,
        summary="All shells, the main shell first",
        description="Each with its state, its running command, and when it ends if nothing is asked of it.",
        query=Query,
        answers=ok("Their status.", tuple[SessionStatus, ...]),
    ),
    Endpoint(
        method="GET",
        path="/sessions/{session_id}",
        name="get_session",
        tag=Tag.SESSIONS,
        handler=_get_session,
        looks=True,
        summary="One shell",
        description="`main` is the id of the main shell.",
        answers=ok("Its status.", SessionStatus),
        errors=(errors.SessionNotFound,),
    ),
    Endpoint(
        method="DELETE",
        path="/sessions/{session_id}",
        name="close_session",
        tag=Tag.SESSIONS,
        handler=_close_session,
        summary="End a session and all it started",
        description="Its runs and their output stay.",
        answers=ok("The session that was ended.", SessionReference),
        errors=(errors.SessionNotFound,),
    ),
    *_verbs("/sessions/{session_id}", Tag.SESSIONS, errors.SessionNotFound),
)
