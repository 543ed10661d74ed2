"""Answers: models as JSON, errors, and runs as text with headers, as JSON, or piece by piece where they are large."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from functools import cached_property, lru_cache
from http import HTTPStatus
from typing import Final
from urllib.parse import quote

import msgspec
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from shelld_py.errors import (
    NoRunningCommand,
    ShellAlreadyStarted,
    ShellBusy,
    ShelldError,
    ShellNotStarted,
    ShellUnrecoverable,
)
from shelld_py.models import OutputFormat, RunResult, RunStatus, Stream, as_json
from shelld_py.output.excerpt import LARGE, OutputChoice, pieces, with_output
from shelld_py.output.log import OutputLog
from shelld_py.output.text import is_plain
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run

TIMED_OUT: Final = "The command timed out waiting for completion and is still running."
AWAITING_INPUT: Final = "The command is waiting for input."
PROBLEM_TYPE: Final = "application/problem+json"
_LONGEST_ERROR: Final = 1000
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_TURN: Final = 128 * 1024
"""Bytes of JSON that are made before others have their turn: a millisecond."""
_PLAIN: Final = " !#$&'()*+,-./:;<=>?@[]^_`{|}~\""
"""Characters of a sentence that a header can have as they are."""
HINTS: Final[dict[type[ShelldError], str]] = {
    ShellNotStarted: "POST /startup starts it; shell.start_on_run does so by itself.",
    ShellBusy: "GET /status tells what runs, POST /kill ends it; POST /exec runs a command beside it.",
    ShellAlreadyStarted: "POST /run runs a command; POST /recycle starts a fresh bash.",
    ShellUnrecoverable: "POST /recycle starts a fresh bash.",
    NoRunningCommand: "POST /run runs a command.",
}
"""What to call next where the state of a shell does not allow a request. For a session, below /sessions/SESSION_ID."""


def http_date(seconds: float) -> str:
    """Return Unix time `seconds` as a header has it (RFC 9110, 5.6.7)."""
    at = time.gmtime(seconds)
    day = f"{_DAYS[at.tm_wday]}, {at.tm_mday:02d} {_MONTHS[at.tm_mon - 1]} {at.tm_year:04d}"
    return f"{day} {at.tm_hour:02d}:{at.tm_min:02d}:{at.tm_sec:02d} GMT"


def json_response(data: object, status: int = HTTPStatus.OK, headers: dict[str, str] | None = None) -> Response:
    """Return the answer that is `data` as JSON."""
    return Response(as_json(data), status, headers, "application/json")


async def list_response(items: Iterable[object], headers: dict[str, str]) -> Response:
    """Return the answer that is a list as JSON. The event loop gets on while a long one is made."""
    parts, size = [], 0
    for item in items:
        parts.append(part := as_json(item))
        size += len(part)
        if size > _TURN:
            size = 0
            await asyncio.sleep(0)
    return Response(b"[%b]" % b",".join(parts), HTTPStatus.OK, headers, "application/json")


def problem_response(error: ShelldError, *, as_text: bool) -> Response:
    """Return the answer for `error`: one line of text, or a problem document (RFC 9457) with further members."""
    headers = {"WWW-Authenticate": 'Bearer realm="shelld"'} if error.status == HTTPStatus.UNAUTHORIZED else {}
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["Retry-After"] = "5"
    if error.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        headers["Content-Range"] = f"bytes */{error.extra['size']}"
    if isinstance(allowed := error.extra.get("allow"), str):
        headers["Allow"] = allowed
    if as_text:
        text = " ".join(error.detail.split()).encode("utf-8", "backslashreplace")  # JSON can bring lone surrogates
        return PlainTextResponse(text, error.status, headers)
    document = {
        "type": "about:blank",
        "title": HTTPStatus(error.status).phrase,
        "status": error.status,
        "code": error.code,
        "detail": error.detail,
        **error.extra,
    }
    if "state" in error.extra and (hint := HINTS.get(type(error))):
        document["hint"] = hint
    return Response(json.dumps(document), error.status, headers, PROBLEM_TYPE)


async def result_of_events(run: Run, choice: OutputChoice) -> RunResult:
    """Return the result that ends the events of a run. As in these, bytes that were not UTF-8 are U+FFFD."""
    shown = await with_output(run.result(), run.logs, choice, _where)
    return msgspec.structs.replace(shown, stdout=_readable(shown.stdout), stderr=_readable(shown.stderr))


def _readable(text: str | None) -> str:
    return (text or "").encode("utf-8", "surrogateescape").decode("utf-8", "replace")


async def run_response(
    run: Run,
    result: RunResult,
    choice: OutputChoice,
    *,
    as_text: bool,
    directory: str | None = None,
    for_input: bool = True,
    timing: tuple[float, float, float] | None = None,
) -> Response:
    """Return the answer for a run as it stands, which `result` tells: 200 when it has ended, else 202.

    `for_input` is whether waiting for input was to end the wait; if not, the timeout has. `timing` tells when the
    request came, when bash had the command, and when the wait was over, in seconds of `time.perf_counter`.
    """
    running = result.status is RunStatus.RUNNING
    status = HTTPStatus.ACCEPTED if running else HTTPStatus.OK
    notice = AWAITING_INPUT if for_input and result.awaiting_input else TIMED_OUT
    headers = {"Location": f"/runs/{result.run_id}", "Retry-After": "1"} if running else {}
    logs = run.logs
    if choice.maximum == 0:
        sizes = [result.original_stdout_size, result.original_stderr_size, *(log.size for log in logs.values())]
        if max(sizes) > LARGE:
            return _streamed(result, logs, choice.form, status, headers, notice=notice if as_text else None)
    result = await with_output(result, logs, choice, _where)
    if timing:
        headers["Server-Timing"] = _server_timing(*timing, time.perf_counter())
    if not as_text:
        return json_response(result, status, headers)
    text = (result.stdout or "") + (result.stderr or "")
    if running:
        separator = "\n" if text and not text.endswith("\n") else ""
        text += separator + notice
    headers |= _run_headers(result, directory)
    return Response(text.encode("utf-8", "surrogateescape"), status, headers, text_type(choice.form))


def plain_response(
    run: LiveRun, choice: OutputChoice, *, as_text: bool, timing: tuple[float, float, float]
) -> Response | None:
    """Return the same answer as `run_response` for a run that has ended as most do; None where it has not.

    It was light, and all that it wrote is shown, as it is. Its headers are made at once, and cannot hold what no
    header may.
    """
    ended = run.ended_light
    if ended is None:
        return None
    record, output = ended
    if (output and not (output.isascii() and is_plain(output))) or 0 < choice.maximum < len(output):
        return None
    state = run.shell_state
    if as_text:
        directory = run.working_directory
        about = (
            f"x-run-id: {record.run_id}\r\n"
            f"x-run-status: {record.status}\r\n"
            f"x-shell-state: {state}\r\n"
            f"x-original-size: {len(output)}\r\n"
            "x-truncated: false\r\n"
            "x-awaiting-input: false\r\n"
            f"x-exit-code: {record.exit_code}\r\n"
        )
        if directory is not None:
            about += f"x-working-directory: {_quoted(directory)}\r\n"
        body, media_type = output, text_type(choice.form)
    else:
        result = record.result(output.decode("ascii"), "")
        if result.state is not state:
            result = msgspec.structs.replace(result, state=state)
        about, body, media_type = "", as_json(result), "application/json"
    lines = (
        f"server-timing: {_server_timing(*timing, time.perf_counter())}\r\n{about}"
        f"content-length: {len(body)}\r\ncontent-type: {media_type}\r\n"
    )
    return MadeResponse(lines.encode("ascii"), body)


class MadeResponse(Response):
    """An answer whose headers are made: whole lines, which a connection can write at once with the body."""

    def __init__(self, lines: bytes, body: bytes) -> None:
        self.status_code = HTTPStatus.OK
        self.background = None
        self.lines = lines
        self.body = body

    @cached_property
    def raw_headers(self) -> list[tuple[bytes, bytes]]:  # type: ignore[override]
        """The headers one by one."""
        return header_pairs(self.lines)


def header_pairs(lines: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that stand in whole lines one by one, as ASGI wants them."""
    parts = [line.partition(b": ") for line in lines.splitlines()]
    return [(name, value) for name, _, value in parts]


@lru_cache(maxsize=256)
def _quoted(directory: str) -> str:
    return quote(directory.encode("utf-8", "surrogateescape"))


def _server_timing(came: float, begun: float, waited: float, rendered: float) -> str:
    """Return the header of https://www.w3.org/TR/server-timing/, in milliseconds."""
    queue, bash, render = 1000 * (begun - came), 1000 * (waited - begun), 1000 * (rendered - waited)
    return "queue;dur=%.3f, bash;dur=%.3f, render;dur=%.3f" % (queue, bash, render)  # noqa: UP031 (half the time)


def text_type(form: OutputFormat) -> str:
    """Return the media type of an output; in raw form it is text in no known encoding."""
    return "text/plain; charset=utf-8" if form is OutputFormat.TEXT else "application/octet-stream"


def _where(run_id: str, stream: Stream) -> str:
    return f"GET /runs/{run_id}/output" + ("?stream=stderr" if stream is Stream.STDERR else "")


def in_header(error: str) -> str:
    """Return the error of a run as a header has it: percent-encoded, and cut."""
    return quote(error[:_LONGEST_ERROR].encode("utf-8", "surrogateescape"), safe=_PLAIN)


def _run_headers(result: RunResult, directory: str | None = None) -> dict[str, str]:
    """Return the headers of a plain answer; `directory` is the working directory with its very bytes."""
    directory = directory or result.working_directory
    headers = {
        "X-Run-Id": result.run_id,
        "X-Run-Status": result.status.value,
        "X-Shell-State": result.state.value,
        "X-Original-Size": str(result.original_stdout_size + result.original_stderr_size),
        "X-Truncated": str(result.truncated).lower(),
        "X-Awaiting-Input": str(result.awaiting_input).lower(),
    }
    if result.exit_code is not None:
        headers["X-Exit-Code"] = str(result.exit_code)
    if result.signal is not None:
        headers["X-Signal"] = str(result.signal)
    if result.error is not None:
        headers["X-Run-Error"] = in_header(result.error)
    if directory is not None:
        headers["X-Working-Directory"] = _quoted(directory)
    return headers


def _streamed(
    result: RunResult,
    logs: Mapping[Stream, OutputLog],
    form: OutputFormat,
    status: int,
    headers: dict[str, str],
    *,
    notice: str | None,
) -> Response:
    """Return all of a large output without ever holding all of it: as text, with `notice` if it runs, or as JSON."""
    ends = {stream: log.size for stream, log in logs.items()}
    if form is OutputFormat.RAW:
        result = msgspec.structs.replace(
            result, original_stdout_size=ends.get(Stream.STDOUT, 0), original_stderr_size=ends.get(Stream.STDERR, 0)
        )
    outputs = {stream: output_pieces(log, form, ends[stream]) for stream, log in logs.items()}
    if notice is not None:
        headers = {**headers, **_run_headers(result)}
        body = _text_body(result, outputs, notice)
        return StreamingResponse(body, status, headers, text_type(form))
    return StreamingResponse(_json_body(result, outputs), status, headers, "application/json")


async def _text_body(
    result: RunResult, outputs: Mapping[Stream, AsyncIterator[str]], notice: str
) -> AsyncIterator[bytes]:
    last = ""
    for pieces_of_stream in outputs.values():
        async for piece in pieces_of_stream:
            yield piece.encode("utf-8", "surrogateescape")
            last = piece or last
    if result.status is RunStatus.RUNNING:
        yield ("" if last.endswith("\n") else "\n").encode() + notice.encode()


async def _json_body(result: RunResult, outputs: Mapping[Stream, AsyncIterator[str]]) -> AsyncIterator[bytes]:
    separator = b"{"
    for name, value in msgspec.structs.asdict(result).items():
        if value is msgspec.UNSET:
            continue
        yield separator + msgspec.json.encode(name) + b":"
        separator = b","
        if name not in (Stream.STDOUT, Stream.STDERR):
            yield msgspec.json.encode(value)
            continue
        yield b'"'
        if Stream(name) in outputs:
            async for piece in outputs[Stream(name)]:
                yield json.dumps(piece)[1:-1].encode()
        yield b'"'
    yield b"}"


async def output_pieces(log: OutputLog, form: OutputFormat, end: int) -> AsyncIterator[str]:
    """Yield an output up to `end` in pieces of bounded size, each rendered in a thread."""
    source = pieces(log, form, end=end)
    while (piece := await asyncio.to_thread(next, source, None)) is not None:
        yield piece
