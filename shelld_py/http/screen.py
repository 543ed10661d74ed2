"""Endpoints that show the screen of a terminal: as text, as data, as a picture."""

from typing import Annotated, Any, Final

from msgspec import Meta
from starlette.responses import PlainTextResponse, Response

from shelld_py import errors
from shelld_py.errors import RunNotFound
from shelld_py.http.endpoint import JSON, TEXT, Call, Endpoint, Header, Success, Tag
from shelld_py.http.requests import LARGEST, Form, Query, duration_field, prefers
from shelld_py.models import DurationText, RunStatus, Screen
from shelld_py.shells.run import Run
from shelld_py.shells.screens import settled

_SVG: Final = "image/svg+xml"


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
)
