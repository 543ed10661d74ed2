"""Operations on files below a set of allowed directories, for use as a library.

`async with FileService(settings, ...) as files: await files.read(ReadRequest(path="README.md"))`

The service is imported when it is first asked for: who only needs the data (a client) does not pay for it.
"""

from typing import TYPE_CHECKING, Any

from shelld_py.files.models import (
    ByteRange,
    ChangeRequest,
    ChangeResult,
    CreateRequest,
    DeleteRequest,
    Entry,
    FileType,
    FindRequest,
    FindResult,
    FoundFile,
    InsertRequest,
    Match,
    MoveRequest,
    MoveResult,
    Operation,
    ReadRequest,
    ReadResult,
    ReplaceRequest,
    ReplaceResult,
    SearchRequest,
    SearchResult,
    UndoRequest,
    UndoResult,
    UpdateRequest,
    ViewRequest,
    ViewResult,
)

if TYPE_CHECKING:
    from shelld_py.files.raw import RawFile
    from shelld_py.files.service import FileService

__all__ = [
    "ByteRange",
    "ChangeRequest",
    "ChangeResult",
    "CreateRequest",
    "DeleteRequest",
    "Entry",
    "FileService",
    "FileType",
    "FindRequest",
    "FindResult",
    "FoundFile",
    "InsertRequest",
    "Match",
    "MoveRequest",
    "MoveResult",
    "Operation",
    "RawFile",
    "ReadRequest",
    "ReadResult",
    "ReplaceRequest",
    "ReplaceResult",
    "SearchRequest",
    "SearchResult",
    "UndoRequest",
    "UndoResult",
    "UpdateRequest",
    "ViewRequest",
    "ViewResult",
]


def __getattr__(name: str) -> Any:
    if name == "FileService":
        from shelld_py.files.service import FileService

        return FileService
    if name == "RawFile":
        from shelld_py.files.raw import RawFile

        return RawFile
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
