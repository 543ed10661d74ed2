"""Endpoints that show a terminal: its screen, as text, as data, as a picture; a recording of it."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from datetime import datetime
from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shelld_py import errors
from shelld_py.errors import RunNotFound
from shelld_py.http.endpoint import JSON, TEXT, Call, Endpoint, Header, Success, Tag
from shelld_py.http.requests import LARGEST, Form, Query, duration_field, prefers
from shelld_py.models import RunResult, RunStatus, Screen, Stream, Streams
from shelld_py.output.log import OutputLog
from shelld_py.output.recording import MEDIA_TYPE, recording
from shelld_py.request_data import DurationText
from shelld_py.shells.record import DEFAULT_SIZE
from shelld_py.shells.run import Run
from shelld_py.shells.screens import settled

_SVG: Final = "image/svg+xml"
_LONGEST_COMMAND: Final = 4096
"""Characters of a command that a recording tells: it may be as long as a request."""
_LONGEST_TITLE: Final = 200


class ScreenQuery(Query, frozen=True, kw_only=True):
    """Of a look at the screen."""

    wait: Annotated[
        DurationText,
        Meta(description="Wait for output after `at`, and then until there is none for 100 ms; so long at the most."),
    ] = "0"
    at: Annotated[int, Meta(ge=0, le=LARGEST, description="The `at` of the screen that is known.")] | None = None


async def _of_shell(call: Call[ScreenQuery, None]) -> Screen | Response:
    shell = call.shell
    if shell.last_run is None:
        raise RunNotFound("No command has been run in this shell.")
    return await _screen(call, await call.computer.store.get(shell.last_run.run_id))


async def _of_run(call: Call[ScreenQuery, None]) -> Screen | Response:
    return await _screen(call, await call.run())


async def _screen(call: Call[ScreenQuery, None], run: Run) -> Screen | Response:
    wait = min(duration_field("wait", call.query.wait), call.computer.settings.timeout.command_maximum)
    if wait:
        await settled(run, call.query.at, wait)
    if prefers(call.request.scope, _SVG):
        screen, picture = await call.computer.screens.picture(run)
        return Response(picture, headers=_headers(screen), media_type=_SVG)
    screen = await call.computer.screens.shown(run)
    if call.form is not Form.TEXT:
        return screen
    text = "\n".join(screen.lines).rstrip("\n")
    return PlainTextResponse(f"{text}\n" if text else "", headers=_headers(screen))


def _headers(screen: Screen) -> dict[str, str]:
    return {
        "X-Run-Id": screen.run_id,
        "X-Run-Status": screen.status.value,
        "X-Screen-At": str(screen.at),
        "X-Awaiting-Input": str(screen.awaiting_input).lower(),
    }


async def _recording(call: Call[None, None]) -> Response:
    """Return what there is of a run as a recording that a player shows."""
    run, settings = await call.run(), call.computer.settings.shell
    result, logs, timing = run.result(), run.logs, run.timing
    command = result.command[:_LONGEST_COMMAND]
    header: dict[str, object] = {
        "timestamp": int(datetime.fromisoformat(result.started_at).timestamp()),
        "command": _valid(command),
        "title": _valid((result.description or command).partition("\n")[0][:_LONGEST_TITLE]),
        "env": {"SHELL": settings.command, "TERM": settings.term},
    }
    if not run.running:
        header["duration"] = result.duration
    pieces = recording(
        header,
        [logs.get(stream) or OutputLog.of(b"") for stream in _streams(result)],
        run.sizes or ((0, *DEFAULT_SIZE),),
        timing.moments() if timing else (),
        result.duration,
        ended=not run.running,
    )
    return StreamingResponse(_in_thread(pieces), media_type=MEDIA_TYPE)


def _valid(text: str) -> str:
    """Return `text` without half a surrogate pair, which a client may have sent."""
    return text.encode("utf-8", "replace").decode()


def _streams(result: RunResult) -> tuple[Stream, ...]:
    return (Stream.STDOUT,) if result.streams is Streams.MERGED else (Stream.STDOUT, Stream.STDERR)


async def _in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        if piece:  # an empty one would end the answer
            yield piece


_SCREEN: Final[dict[str, Any]] = {
    "method": "GET",
    "query": ScreenQuery,
    "description": (
        "For programs that draw: rows, cursor and title as a person would see them; of an ended run, as it was at its "
        "end. With `wait`, what it looks like when the program has done with what was typed."
    ),
    "answers": {
        200: Success(
            meaning="The screen.",
            content={TEXT: str, JSON: Screen, _SVG: str},
            headers=(
                Header(name="X-Run-Id", meaning="The run."),
                Header(name="X-Run-Status", meaning="What has become of it.", type=RunStatus),
                Header(name="X-Screen-At", meaning="Bytes of the log that it shows.", type=Annotated[int, Meta(ge=0)]),
                Header(name="X-Awaiting-Input", meaning="Whether it is seen waiting for terminal input.", type=bool),
            ),
        )
    },
}
ENDPOINTS: Final = (
    Endpoint(
        path="/screen",
        name="read_screen",
        tag=Tag.MAIN,
        default=Form.TEXT,
        handler=_of_shell,
        looks=True,
        summary="The terminal of the main shell, as a person would see it",
        errors=(errors.RunNotFound,),
        **_SCREEN,
    ),
    Endpoint(
        path="/sessions/{session_id}/screen",
        name="read_session_screen",
        tag=Tag.SESSIONS,
        handler=_of_shell,
        looks=True,
        summary="The terminal of a session, as a person would see it",
        errors=(errors.SessionNotFound, errors.RunNotFound),
        **_SCREEN,
    ),
    Endpoint(
        path="/runs/{run_id}/screen",
        name="read_run_screen",
        tag=Tag.RUNS,
        handler=_of_run,
        looks=True,
        summary="The terminal of a run, as a person would see it",
        errors=(errors.RunNotFound,),
        **_SCREEN,
    ),
    Endpoint(
        method="GET",
        path="/runs/{run_id}/recording",
        name="read_run_recording",
        tag=Tag.RUNS,
        handler=_recording,
        looks=True,
        summary="The terminal of a run as it went on, for a player",
        description=(
            "An asciicast of version 2, which asciinema plays; of a run that goes on, as far as it is. Without "
            "`output.timing`, and of a run of less than 50 ms, all comes at its end."
        ),
        answers={200: Success(meaning="The recording.", content={MEDIA_TYPE: str})},
        errors=(errors.RunNotFound,),
    ),
)
