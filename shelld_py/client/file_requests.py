"""Calls about files; `base` is `/files`. Paths are the daemon's, relative ones from its base directory.

Each builder's docstring is that of the method that the clients make of it.
"""

import re
from collections.abc import Sequence
from http import HTTPStatus
from pathlib import Path
from typing import Final, Literal, TypedDict, Unpack, cast

import msgspec

from shelld_py.client.call import JSON_CONTENT, Answer, Call, T, decoded, json_content, parameters
from shelld_py.client.uploads import LocalPath
from shelld_py.files import (
    ArchiveResult,
    ChangeResult,
    FindResult,
    HistoryResult,
    MoveResult,
    ReadResult,
    ReplaceResult,
    SearchResult,
    UndoResult,
    ViewResult,
)

_SEARCH_TIME: Final = 60.0
"""Seconds after which a search has certainly been stopped."""
_CONTENT_RANGE: Final = re.compile(r"bytes (\d+)-\d+/(\d+)")


FormatOfArchive = Literal["tar", "tar.gz", "zip"]


class RawContent(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of a file: `content` begins at offset `start` of a file of `size` bytes; large files have no `etag`."""

    content: bytes
    start: int
    size: int
    etag: str | None


class Precondition(TypedDict, total=False):
    """What must hold for a change: the file's `etag` (`*` for any file), or that there is no file (`*`)."""

    if_match: str | None
    if_none_match: Literal["*"] | None


def view(base: str, path: str = ".", *, depth: int | None = None, hidden: bool | None = None) -> Call[ViewResult]:
    """List a directory, `depth` levels of it."""
    return _operation(base, "view", ViewResult, path=path, depth=depth, hidden=hidden)


def read(base: str, path: str, *, view_range: tuple[int, int] | None = None) -> Call[ReadResult]:
    """Read text: all of it, or the lines from the first to the last of `view_range` (from 1; -1 is the end)."""
    return _operation(base, "read", ReadResult, path=path, view_range=view_range)


def create(base: str, path: str, content: str, **precondition: Unpack[Precondition]) -> Call[ChangeResult]:
    """Make a new file, and its parents. Raises `FileAlreadyExists`."""
    return _operation(base, "create", ChangeResult, path=path, content=content, **precondition)


def delete(base: str, path: str, **precondition: Unpack[Precondition]) -> Call[ChangeResult]:
    """Delete a file."""
    return _operation(base, "delete", ChangeResult, path=path, **precondition)


def move(
    base: str,
    source_path: str,
    destination_path: str,
    *,
    overwrite: bool | None = None,
    **precondition: Unpack[Precondition],
) -> Call[MoveResult]:
    """Move a file; cannot be undone. Raises `FileAlreadyExists`."""
    paths = {"source_path": source_path, "destination_path": destination_path}
    return _operation(base, "move", MoveResult, **paths, overwrite=overwrite, **precondition)


def update(base: str, path: str, content: str, **precondition: Unpack[Precondition]) -> Call[ChangeResult]:
    """Replace the whole content of a file. Raises `FileNotFound`."""
    return _operation(base, "update", ChangeResult, path=path, content=content, **precondition)


def insert(base: str, path: str, content: str, line: int, **precondition: Unpack[Precondition]) -> Call[ChangeResult]:
    """Put text after a line; 0 is the beginning. Raises `LineOutOfRange`."""
    return _operation(base, "insert", ChangeResult, path=path, content=content, line=line, **precondition)


def replace(
    base: str,
    path: str,
    old_string: str,
    new_string: str,
    *,
    expected_replacements: int | None = None,
    **precondition: Unpack[Precondition],
) -> Call[ReplaceResult]:
    """Replace every occurrence of a text. Raises `TextNotFound`, `ReplacementCountMismatch`."""
    strings = {"old_string": old_string, "new_string": new_string}
    return _operation(
        base,
        "replace",
        ReplaceResult,
        path=path,
        **strings,
        expected_replacements=expected_replacements,
        **precondition,
    )


def undo(base: str, path: str, *, force: bool | None = None, **precondition: Unpack[Precondition]) -> Call[UndoResult]:
    """Take back the last change of a file. Raises `NothingToUndo`; `FileChanged` unless `force`."""
    return _operation(base, "undo", UndoResult, path=path, force=force, **precondition)


def history(base: str, path: str | None = None, *, limit: int | None = None) -> Call[HistoryResult]:
    """List the changes that can be undone, of a file or of all below a directory, the newest first."""
    return _operation(base, "history", HistoryResult, path=path, limit=limit)


def search(
    base: str,
    pattern: str,
    path: str | None = None,
    *,
    literal: bool | None = None,
    case_sensitive: bool | None = None,
    include: Sequence[str] | None = None,
    exclude: Sequence[str] | None = None,
    context: int | None = None,
    limit: int | None = None,
) -> Call[SearchResult]:
    """Look for a regular expression, or with `literal` a text, in the lines of files. Raises `SearchTooSlow`."""
    return _operation(
        base,
        "search",
        SearchResult,
        pattern=pattern,
        path=path,
        literal=literal,
        case_sensitive=case_sensitive,
        include=include,
        exclude=exclude,
        context=context,
        limit=limit,
    )


def find(base: str, pattern: str, path: str | None = None, *, limit: int | None = None) -> Call[FindResult]:
    """List the files that match a glob, the most recently modified first."""
    return _operation(base, "find", FindResult, pattern=pattern, path=path, limit=limit)


def read_raw(base: str, path: str, *, start: int | None = None, length: int | None = None) -> Call[RawContent]:
    """Read bytes of any file: all, or at most `length` of them from offset `start` on.

    Raises `RangeNotSatisfiable` where the file ends before `start`.
    """
    headers = {}
    if start is not None or length is not None:
        first = start or 0
        last = "" if length is None else first + (length or 1) - 1  # no range is empty
        headers = {"Range": f"bytes={first}-{last}"}
    return Call(
        method="GET",
        path=f"{base}/raw",
        parse=_nothing_of if length == 0 else _raw_content,
        params=parameters(path=path),
        headers=headers,
        parsed=() if start else (HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,),
    )


def write_raw(base: str, path: str, content: bytes, **precondition: Unpack[Precondition]) -> Call[ChangeResult]:
    """Make a file of these bytes, or replace it."""
    headers = {"Content-Type": "application/octet-stream"}
    if etag := precondition.get("if_match"):
        headers["If-Match"] = etag if etag == "*" else f'"{etag}"'
    if precondition.get("if_none_match"):
        headers["If-None-Match"] = "*"
    return Call(
        method="PUT",
        path=f"{base}/raw",
        parse=decoded(ChangeResult),
        params=parameters(path=path),
        headers=headers,
        content=content,
    )


def read_archive(
    base: str,
    path: str,
    *,
    format: FormatOfArchive | None = None,  # noqa: A002
    exclude: Sequence[str] = (),
    ignored: bool | None = None,
) -> Call[bytes]:
    """Read a directory, or a file, as an archive (`tar.gz` unless said otherwise).

    What the globs `exclude` match is left out; with `ignored` false, what .gitignore files name is too.
    """
    params = [*parameters(path=path, format=format, ignored=ignored), *(("exclude", glob) for glob in exclude)]
    return Call(method="GET", path=f"{base}/archive", parse=_content, params=params, wait=None)


def write_archive(
    base: str,
    path: str,
    content: bytes,
    *,
    format: FormatOfArchive | None = None,  # noqa: A002
    overwrite: bool | None = None,
) -> Call[ArchiveResult]:
    """Unpack an archive below the directory `path`. Raises `BadArchive`; `FileAlreadyExists` unless `overwrite`."""
    return Call(
        method="PUT",
        path=f"{base}/archive",
        parse=decoded(ArchiveResult),
        params=parameters(path=path, format=format, overwrite=overwrite),
        headers={"Content-Type": "application/octet-stream"},
        content=content,
        wait=None,
    )


def upload(base: str, source: str | Path, path: str) -> Call[ChangeResult | ArchiveResult]:
    """Make a file of the daemon's machine of one of this, or replace it; of a directory, all that is below it.

    It is read while it is sent, and may be as large as the daemon takes. Raises `OSError` for what cannot be read.
    """
    local = Path(source)
    put = write_archive(base, path, b"", format="tar") if local.is_dir() else write_raw(base, path, b"")
    return cast("Call[ChangeResult | ArchiveResult]", msgspec.structs.replace(put, content=LocalPath(local), wait=None))


def _content(answer: Answer) -> bytes:
    return answer.content


def _operation(base: str, name: str, kind: type[T], **fields: object) -> Call[T]:
    content = json_content(fields)
    return Call(
        method="POST",
        path=f"{base}/{name}",
        parse=decoded(kind),
        headers=JSON_CONTENT,
        content=content,
        wait=_SEARCH_TIME,
    )


def _nothing_of(answer: Answer) -> RawContent:
    """Return what is told of the file, without the byte that had to be asked for."""
    return msgspec.structs.replace(_raw_content(answer), content=b"")


def _raw_content(answer: Answer) -> RawContent:
    if answer.status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:  # from its beginning on: there is nothing in it
        return RawContent(content=b"", start=0, size=0, etag=None)
    etag = answer.headers.get("etag", "").strip('"') or None
    if place := _CONTENT_RANGE.fullmatch(answer.headers.get("content-range", "")):
        return RawContent(content=answer.content, start=int(place[1]), size=int(place[2]), etag=etag)
    return RawContent(content=answer.content, start=0, size=len(answer.content), etag=etag)
