"""Operations on files below a set of allowed directories, for use as a library.

`async with FileService(settings, ...) as files: await files.perform(ReadRequest(path="README.md"))`

This is all that others may import. What is more than data is imported when it is first asked for: who only needs the
data (a client) does not pay for it.
"""

import importlib
from typing import TYPE_CHECKING, Any

from shelld_py.files.models import (
    ArchiveFormat,
    ArchiveResult,
    ByteRange,
    ChangeRequest,
    ChangeResult,
    CreateRequest,
    DeleteRequest,
    Entry,
    FileRequest,
    FileType,
    FindRequest,
    FindResult,
    FoundFile,
    HistoryRequest,
    HistoryResult,
    InsertRequest,
    KeptChange,
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
    from shelld_py.files.operations import CHANGE, EDIT, OPERATIONS, PLACE, READ, SEARCH, Effect, FileOperation
    from shelld_py.files.packing import Archive
    from shelld_py.files.reading import RawFile
    from shelld_py.files.service import FileService
    from shelld_py.files.tree_changes import Comparison, Looks

__all__ = [
    "CHANGE",
    "EDIT",
    "OPERATIONS",
    "PLACE",
    "READ",
    "SEARCH",
    "Archive",
    "ArchiveFormat",
    "ArchiveResult",
    "ByteRange",
    "ChangeRequest",
    "ChangeResult",
    "Comparison",
    "CreateRequest",
    "DeleteRequest",
    "Effect",
    "Entry",
    "FileOperation",
    "FileRequest",
    "FileService",
    "FileType",
    "FindRequest",
    "FindResult",
    "FoundFile",
    "HistoryRequest",
    "HistoryResult",
    "InsertRequest",
    "KeptChange",
    "Looks",
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


_LATER = {
    "Archive": "packing",
    "CHANGE": "operations",
    "Comparison": "tree_changes",
    "EDIT": "operations",
    "Effect": "operations",
    "FileOperation": "operations",
    "FileService": "service",
    "Looks": "tree_changes",
    "OPERATIONS": "operations",
    "PLACE": "operations",
    "RawFile": "reading",
    "READ": "operations",
    "SEARCH": "operations",
}


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_LATER[name]}"), name)
