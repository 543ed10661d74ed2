"""The endpoints that the client of kubernetes-sigs/agent-sandbox (k8s-agent-sandbox on PyPI) asks of a runtime.

Its contract, not ours: so they are served only with `server.agent_sandbox`, and not part of the API's description. They
need the key like all else; that client sends it with `extra_headers`.
"""

import re
from collections.abc import AsyncIterator
from datetime import datetime
from http import HTTPStatus
from typing import Final

import msgspec
from starlette.responses import StreamingResponse

from shelld_py.errors import FileNotFound, InvalidRequest, NotAFile
from shelld_py.files import ChangeRequest, ChangeResult, FileType, ViewRequest
from shelld_py.http.answers import result_of_events
from shelld_py.http.endpoint import BYTES, JSON, Body, Call, Endpoint, Success, Tag, ok
from shelld_py.http.requests import header
from shelld_py.large_json import joined
from shelld_py.models import Cause, OutputFormat, Streams
from shelld_py.output.excerpt import OutputChoice
from shelld_py.request_data import Command, Request

_TIMED_OUT: Final = 124
"""The exit code of a command that was killed at its time limit, as timeout(1) has it."""
_NO_EXIT_CODE: Final = -1
_BOUNDARY: Final = re.compile(rb'multipart/form-data;(?:.*;)? *boundary="?([!-~]{1,70}?)"? *(?:;.*)?', re.IGNORECASE)
_FILE_NAME: Final = re.compile(rb'content-disposition:[^\r\n]*; *filename="([^"\r\n]*)"', re.IGNORECASE)
_LONGEST_PART_HEAD: Final = 16 * 1024
_ESCAPES: Final = {"%22": '"', "%0D": "\r", "%0A": "\n"}
"""What a file name has in place of these (HTML, "Multipart form data"); no other percent sign means anything."""


class ExecuteRequest(Request, frozen=True, kw_only=True):
    """A command, and for how many seconds it may run."""

    command: str
    timeout_seconds: float | None = None


class ExecuteAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What has become of it."""

    stdout: str
    stderr: str
    exit_code: int
    timed_out: bool


class UploadAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What was made of a file."""

    message: str


class ListedEntry(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a directory; `mod_time` is Unix time."""

    name: str
    size: int
    type: str
    mod_time: float


class ExistsAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Whether something is there."""

    path: str
    exists: bool


async def _execute(call: Call[None, ExecuteRequest]) -> ExecuteAnswer:
    """Run a command in a shell of its own, with nothing to read, and answer when it has ended."""
    wanted, settings = call.body, call.computer.settings
    if not wanted.command.strip():
        raise InvalidRequest("The command is empty.")
    most = settings.timeout.command_maximum
    seconds = most if wanted.timeout_seconds is None else min(wanted.timeout_seconds, most)
    if not seconds > 0:
        raise InvalidRequest("timeout_seconds must be longer than 0: at that moment the command is killed.")
    command = Command(text=wanted.command, stdin="", streams=Streams.SEPARATE, deadline=seconds)
    run = await call.computer.shells.one_shot(command, None)
    call.request.scope["run"] = run
    await run.wait()
    result = await result_of_events(run, OutputChoice.of(OutputFormat.RAW, None, settings.output))
    timed_out = result.cause is Cause.DEADLINE
    code = _TIMED_OUT if timed_out else result.exit_code
    return ExecuteAnswer(
        stdout=result.stdout or "",
        stderr=(result.stderr or "") + (f"{result.error}\n" if result.error else ""),
        exit_code=_NO_EXIT_CODE if code is None else code,
        timed_out=timed_out,
    )


async def _upload(call: Call[None, None]) -> UploadAnswer:
    """Write the file of a multipart body; its name is the path."""
    settings = call.computer.settings.server
    body = await joined(call.request.stream())
    path, content = part_of(header(call.request.scope, b"content-type") or b"", body)
    call.request.scope["asked"] = ({"path": path},)  # for the audit log: of other requests it stands in query or body

    async def pieces() -> AsyncIterator[bytes]:
        yield content

    preconditions: ChangeRequest[ChangeResult] = ChangeRequest()
    await call.computer.files.write_raw(path, pieces(), preconditions, max_size=settings.max_body)
    return UploadAnswer(message=f"File '{path}' uploaded successfully.")


def part_of(content_type: bytes, body: bytes) -> tuple[str, bytes]:
    """Return the file name and the content of the one part that a multipart body has. Raises `InvalidRequest`."""
    found = _BOUNDARY.fullmatch(content_type.strip()[:1024])
    if not found:
        raise InvalidRequest("The body must be multipart/form-data with a boundary, and the file as its only part.")
    begin, end = b"--" + found[1] + b"\r\n", b"\r\n--" + found[1]
    head_end = body.find(b"\r\n\r\n", 0, _LONGEST_PART_HEAD)
    content_end = body.find(end, head_end + 2)
    if not body.startswith(begin) or head_end < 0 or content_end < 0:
        raise InvalidRequest("The multipart body is not whole: it must begin and end with its boundary.")
    if not body.startswith(b"--", content_end + len(end)):
        raise InvalidRequest("The multipart body must have one part: the file.")
    name = next((found for line in body[:head_end].split(b"\r\n") if (found := _FILE_NAME.match(line))), None)
    if not name or not name[1]:
        raise InvalidRequest("The part of the multipart body must have a filename: the path of the file.")
    try:
        path = name[1].decode()
    except UnicodeDecodeError:
        raise InvalidRequest("The filename of the multipart body must be UTF-8.") from None
    for escape, character in _ESCAPES.items():
        path = path.replace(escape, character)
    return path, body[head_end + 4 : content_end]


async def _download(call: Call[None, None]) -> StreamingResponse:
    file = await call.computer.files.read_raw(_path(call))
    headers = {"Content-Length": str(file.length)} if file.size is not None else {}
    return StreamingResponse(file.chunks(), HTTPStatus.OK, headers, BYTES)


async def _list(call: Call[None, None]) -> tuple[ListedEntry, ...]:
    """List a directory. What is neither a file nor a directory is left out: that client knows nothing else."""
    listing = await call.computer.files.perform(ViewRequest(path=_path(call), hidden=True))
    return tuple(
        ListedEntry(
            name=entry.name,
            size=entry.size,
            type=entry.type.value,
            mod_time=datetime.fromisoformat(entry.modified_at).timestamp(),
        )
        for entry in listing.entries
        if entry.type in (FileType.FILE, FileType.DIRECTORY)
    )


async def _exists(call: Call[None, None]) -> ExistsAnswer:
    path = _path(call)
    if path == ".":  # the base directory is no name in a directory, which is what is looked for below
        return ExistsAnswer(path=path, exists=True)
    try:
        (await call.computer.files.read_raw(path)).close()
    except NotAFile:
        return ExistsAnswer(path=path, exists=True)
    except FileNotFound:
        return ExistsAnswer(path=path, exists=False)
    return ExistsAnswer(path=path, exists=True)


def _path(call: Call[None, None]) -> str:
    """Return the rest of the path of the URL; where there is none, the base directory is meant."""
    return call.request.path_params["path"] or "."


_ABOUT: Final = "As k8s-agent-sandbox expects it."
ENDPOINTS: Final = (
    Endpoint(
        method="POST",
        path="/execute",
        name="agent_sandbox_execute",
        tag=Tag.RUNS,
        handler=_execute,
        summary="Run a command",
        description=_ABOUT,
        body=Body(model=ExecuteRequest, required=True),
        answers=ok("What has become of it.", ExecuteAnswer),
    ),
    Endpoint(
        method="POST",
        path="/upload",
        name="agent_sandbox_upload",
        tag=Tag.FILES,
        handler=_upload,
        summary="Write a file",
        description=_ABOUT,
        body=Body(raw="A multipart form with one file."),
        answers=ok("It was written.", UploadAnswer),
    ),
    Endpoint(
        method="GET",
        path="/download/{path:path}",
        name="agent_sandbox_download",
        tag=Tag.FILES,
        handler=_download,
        summary="Read a file",
        description=_ABOUT,
        answers={HTTPStatus.OK: Success(meaning="Its bytes.", content={BYTES: bytes})},
    ),
    Endpoint(
        method="GET",
        path="/list/{path:path}",
        name="agent_sandbox_list",
        tag=Tag.FILES,
        handler=_list,
        summary="List a directory",
        description=_ABOUT,
        answers={HTTPStatus.OK: Success(meaning="Its entries.", content={JSON: tuple[ListedEntry, ...]})},
    ),
    Endpoint(
        method="GET",
        path="/exists/{path:path}",
        name="agent_sandbox_exists",
        tag=Tag.FILES,
        handler=_exists,
        summary="Whether something is there",
        description=_ABOUT,
        answers=ok("Whether it is.", ExistsAnswer),
    ),
)
