"""What the endpoints for files take and answer: the part of the table in operations.py that is about them."""

from collections.abc import Mapping
from http import HTTPStatus
from typing import Annotated, Final, Literal

from msgspec import Meta

from shelld_py import errors
from shelld_py.files import (
    ChangeResult,
    FindResult,
    MoveResult,
    ReadResult,
    ReplaceResult,
    SearchResult,
    UndoResult,
    ViewResult,
)
from shelld_py.http.endpoint import BYTES, Answer, Body, Header, Operation, Tag, json_answer
from shelld_py.http.files import FILE_REQUESTS
from shelld_py.http.parameters import RawFileQuery

_OK: Final = HTTPStatus.OK
_Range = Annotated[
    str, Meta(pattern=r"^\s*(?:[bB][yY][tT][eE][sS]=(?:\d{1,18}-\d{0,18}|-\d{1,18})|(?![bB][yY][tT][eE][sS]).*)\s*$")
]

PLACE: Final = (
    errors.PathNotAllowed,
    errors.PermissionDenied,
    errors.FileNotFound,
    errors.NotAFile,
    errors.FileOperationFailed,
)
READ: Final = (*PLACE, errors.ExtensionRefused, errors.NotText, errors.FileTooLarge)
CHANGE: Final = (*PLACE, errors.PreconditionFailed, errors.FileAlreadyExists, errors.FileChanged, errors.NoSpace)
EDIT: Final = (*CHANGE, errors.ExtensionRefused, errors.NotText, errors.FileTooLarge)
SEARCH: Final = (*PLACE, errors.NotADirectory, errors.SearchTooSlow)


def _file(
    name: str, summary: str, result: type, refusals: tuple[type[errors.ShelldError], ...], **example: object
) -> dict[tuple[str, str], Operation]:
    return {
        ("POST", f"/files/{name}"): Operation(
            tag=Tag.FILES,
            summary=summary,
            body=Body(model=FILE_REQUESTS[name], required=True, example=example),
            answers={_OK: json_answer("What was found or done.", result)},
            errors=refusals,
        )
    }


FILE_OPERATIONS: Final[Mapping[tuple[str, str], Operation]] = {
    **_file("view", "List a directory", ViewResult, (*PLACE, errors.NotADirectory), path=".", depth=2),
    **_file(
        "read",
        "Read a text file, or lines of it",
        ReadResult,
        (*READ, errors.LineOutOfRange, errors.TooManyTokens),
        path="notes.txt",
        view_range=[1, 20],
    ),
    **_file(
        "create",
        "Make a file",
        ChangeResult,
        (*CHANGE, errors.NotText, errors.FileTooLarge),
        path="notes.txt",
        content="one\n",
    ),
    **_file("delete", "Delete a file", ChangeResult, CHANGE, path="notes.txt"),
    **_file("move", "Move a file", MoveResult, CHANGE, source_path="notes.txt", destination_path="old/notes.txt"),
    **_file("update", "Replace the content of a file", ChangeResult, EDIT, path="notes.txt", content="two\n"),
    **_file(
        "insert",
        "Put text after a line",
        ChangeResult,
        (*EDIT, errors.LineOutOfRange),
        path="notes.txt",
        content="three\n",
        line=1,
    ),
    **_file(
        "replace",
        "Replace a text wherever it occurs",
        ReplaceResult,
        (*EDIT, errors.TextNotFound, errors.ReplacementCountMismatch),
        path="notes.txt",
        old_string="two",
        new_string="2",
    ),
    **_file(
        "undo", "Take back the last change of a file", UndoResult, (*CHANGE, errors.NothingToUndo), path="notes.txt"
    ),
    **_file("search", "Search in files", SearchResult, SEARCH, pattern="def main", include=["*.py"]),
    **_file("find", "Find files by name", FindResult, SEARCH, pattern="*.md"),
    ("GET", "/files/raw"): Operation(
        tag=Tag.FILES,
        summary="The bytes of a file",
        query=RawFileQuery,
        headers=(
            Header(name="Range", meaning="One range of bytes, such as `bytes=0-99`.", type=_Range),
            Header(name="If-Range", meaning="The ETag or Last-Modified that the file must have for a range of it."),
            Header(name="If-None-Match", meaning="The ETag of what is known already."),
        ),
        answers={
            _OK: Answer(
                meaning="All of them.",
                content={BYTES: bytes},
                headers=(
                    Header(name="Accept-Ranges", meaning="`bytes`.", always=True),
                    Header(name="Last-Modified", meaning="When the file was changed.", always=True),
                    Header(name="ETag", meaning="The hash of the content, where the file is not too large."),
                ),
            ),
            HTTPStatus.NOT_MODIFIED: Answer(meaning="It is what is known already.", content={}),
            HTTPStatus.PARTIAL_CONTENT: Answer(
                meaning="A range of them.",
                content={BYTES: bytes},
                headers=(Header(name="Content-Range", meaning="Which bytes, and of how many.", always=True),),
            ),
        },
        errors=(*PLACE, errors.RangeNotSatisfiable),
    ),
    ("PUT", "/files/raw"): Operation(
        tag=Tag.FILES,
        summary="Make or replace a file with the bytes of the body",
        query=RawFileQuery,
        headers=(
            Header(name="If-Match", meaning="The etag that the file must have; `*` for any file."),
            Header(name="If-None-Match", meaning="`*`: the file must not exist.", type=Literal["*"]),
        ),
        body=Body(raw="The bytes."),
        answers={_OK: json_answer("What it has made of the file.", ChangeResult)},
        errors=(*CHANGE, errors.FileTooLarge),
    ),
}
