"""The one table of file operations: what each takes and gives, how it is done and locked, refused and described.

The service does an operation by its entry; HTTP, the API's description, tools and events read the same entry. So a new
operation is a request and a result in `models.py`, the function that does it, an entry here, a method of the client,
and its line in the docs. Knows nothing of HTTP, tools or events.
"""

import functools
from collections.abc import Callable, Mapping
from enum import Enum, auto
from typing import Any, Final, get_args

import msgspec
from msgspec import Struct

from shelld_py import errors
from shelld_py.files.changes import Changes
from shelld_py.files.models import (
    CreateRequest,
    DeleteRequest,
    FileRequest,
    FindRequest,
    HistoryRequest,
    InsertRequest,
    MoveRequest,
    ReadRequest,
    ReplaceRequest,
    SearchRequest,
    UndoRequest,
    UpdateRequest,
    ViewRequest,
)
from shelld_py.files.reading import ReadOperations
from shelld_py.files.search import SearchScope, find, search
from shelld_py.files.undoing import Undoing


class Access(Enum):
    """What an operation has to itself while it is done."""

    LOOK = auto()
    """Nothing: it is done in a thread, on the path as it is written."""
    SEARCH = auto()
    """A process of its own, which is stopped when it takes too long."""
    CHANGE = auto()
    """The file that the path leads to, in a directory that is there."""
    NEW = auto()
    """The file that the path leads to; missing directories are made."""
    ENTRY = auto()
    """The name itself: a symbolic link is not followed."""
    MOVE = auto()
    """The name of the source, and the place of the destination."""


class Effect(Enum):
    """What a caller may assume of an operation."""

    READS = auto()
    """It changes nothing."""
    ADDS = auto()
    """It makes what was not there."""
    CHANGES = auto()
    """What was there may be gone."""
    REPLACES = auto()
    """As `CHANGES`, but a second time with the same request does nothing more."""


class Rooms(Struct, frozen=True):
    """What does the operations."""

    reading: ReadOperations
    changes: Changes
    undoing: Undoing
    scope: SearchScope


class FileOperation(Struct, frozen=True, kw_only=True):
    """An operation: `work` gives what does it, called with the request, behind its `Location` where one is locked.

    `summary` is for who reads the API, `title` and `description` for a model that may call it. `refusals` are the
    errors of its own, `example` a request. `event` says whether it can be asked for by an event, `tool` whether by a
    model: what only people look at costs it the words of one more tool.
    """

    name: str
    request: type[FileRequest[Any]]
    work: Callable[[Rooms], Callable[..., msgspec.Struct]]
    access: Access
    effect: Effect
    summary: str
    title: str
    description: str
    refusals: tuple[type[errors.ShelldError], ...]
    example: Mapping[str, object]
    event: bool = True
    tool: bool = True

    @property
    def result(self) -> type[msgspec.Struct]:
        """What it gives: the request's type says it."""
        bases: tuple[Any, ...] = self.request.__orig_bases__  # type: ignore[attr-defined]
        result: type[msgspec.Struct] = get_args(bases[0])[0]
        return result


PLACE: Final = (
    errors.PathNotAllowed,
    errors.PermissionDenied,
    errors.FileNotFound,
    errors.NotAFile,
    errors.FileOperationFailed,
)
"""What any path can be refused for."""
READ: Final = (*PLACE, errors.ExtensionRefused, errors.NotText, errors.FileTooLarge)
CHANGE: Final = (*PLACE, errors.PreconditionFailed, errors.FileAlreadyExists, errors.FileChanged, errors.NoSpace)
EDIT: Final = (*CHANGE, errors.ExtensionRefused, errors.NotText, errors.FileTooLarge)
SEARCH: Final = (*PLACE, errors.NotADirectory, errors.SearchTooSlow)

_TABLE: Final = (
    FileOperation(
        name="view",
        request=ViewRequest,
        work=lambda rooms: rooms.reading.view,
        access=Access.LOOK,
        effect=Effect.READS,
        summary="List a directory",
        title="List a directory",
        description="List the files and directories in a directory, sorted by name.",
        refusals=(*PLACE, errors.NotADirectory),
        example={"path": ".", "depth": 2},
    ),
    FileOperation(
        name="read",
        request=ReadRequest,
        work=lambda rooms: rooms.reading.read,
        access=Access.LOOK,
        effect=Effect.READS,
        summary="Read a text file, or lines of it",
        title="Read a file",
        description="Read a text file, or some lines of it.",
        refusals=(*READ, errors.LineOutOfRange, errors.TooManyTokens),
        example={"path": "notes.txt", "view_range": [1, 20]},
    ),
    FileOperation(
        name="create",
        request=CreateRequest,
        work=lambda rooms: rooms.changes.create,
        access=Access.NEW,
        effect=Effect.ADDS,
        summary="Make a file",
        title="Create a file",
        description="Make a new text file, and its missing parent directories. Fails if the file exists.",
        refusals=(*CHANGE, errors.NotText, errors.FileTooLarge),
        example={"path": "notes.txt", "content": "one\n"},
    ),
    FileOperation(
        name="delete",
        request=DeleteRequest,
        work=lambda rooms: rooms.changes.delete,
        access=Access.ENTRY,
        effect=Effect.CHANGES,
        summary="Delete a file",
        title="Delete a file",
        description="Delete a file. It can be undone.",
        refusals=CHANGE,
        example={"path": "notes.txt"},
    ),
    FileOperation(
        name="move",
        request=MoveRequest,
        work=lambda rooms: rooms.changes.move,
        access=Access.MOVE,
        effect=Effect.CHANGES,
        summary="Move a file",
        title="Move a file",
        description="Move or rename a file, making missing parent directories. It cannot be undone.",
        refusals=CHANGE,
        example={"source_path": "notes.txt", "destination_path": "old/notes.txt"},
    ),
    FileOperation(
        name="update",
        request=UpdateRequest,
        work=lambda rooms: rooms.changes.update,
        access=Access.CHANGE,
        effect=Effect.REPLACES,
        summary="Replace the content of a file",
        title="Replace a file's content",
        description="Replace the whole content of a text file that exists.",
        refusals=EDIT,
        example={"path": "notes.txt", "content": "two\n"},
    ),
    FileOperation(
        name="insert",
        request=InsertRequest,
        work=lambda rooms: rooms.changes.insert,
        access=Access.CHANGE,
        effect=Effect.CHANGES,
        summary="Put text after a line",
        title="Insert lines",
        description="Insert text into a file after a line.",
        refusals=(*EDIT, errors.LineOutOfRange),
        example={"path": "notes.txt", "content": "three\n", "line": 1},
    ),
    FileOperation(
        name="replace",
        request=ReplaceRequest,
        work=lambda rooms: rooms.changes.replace,
        access=Access.CHANGE,
        effect=Effect.CHANGES,
        summary="Replace a text wherever it occurs",
        title="Replace text in a file",
        description=(
            "Replace every occurrence of a text in a file; upper and lower case differ. Give expected_replacements to "
            "be sure that no more is replaced than is meant."
        ),
        refusals=(*EDIT, errors.TextNotFound, errors.ReplacementCountMismatch),
        example={"path": "notes.txt", "old_string": "two", "new_string": "2"},
    ),
    FileOperation(
        name="undo",
        request=UndoRequest,
        work=lambda rooms: rooms.undoing.undo,
        access=Access.NEW,
        effect=Effect.CHANGES,
        summary="Take back the last change of a file",
        title="Undo a change",
        description="Take back the most recent change of a file, step by step.",
        refusals=(*CHANGE, errors.NothingToUndo),
        example={"path": "notes.txt"},
    ),
    FileOperation(
        name="history",
        request=HistoryRequest,
        work=lambda rooms: rooms.undoing.history,
        access=Access.LOOK,
        effect=Effect.READS,
        summary="List the changes that can be undone",
        title="List changes",
        description="List the changes of a file, or of all below a directory, that can be undone, the newest first.",
        refusals=PLACE,
        example={"path": "notes.txt"},
        event=False,
        tool=False,
    ),
    FileOperation(
        name="search",
        request=SearchRequest,
        work=lambda rooms: functools.partial(search, rooms.scope),
        access=Access.SEARCH,
        effect=Effect.READS,
        summary="Search in files",
        title="Search in files",
        description="Find the lines that match a pattern, in all files below a directory. Ignored files are left out.",
        refusals=SEARCH,
        example={"pattern": "def main", "include": ["*.py"]},
        event=False,
    ),
    FileOperation(
        name="find",
        request=FindRequest,
        work=lambda rooms: functools.partial(find, rooms.scope),
        access=Access.SEARCH,
        effect=Effect.READS,
        summary="Find files by name",
        title="Find files",
        description="Find files below a directory by a glob, the most recently changed first.",
        refusals=SEARCH,
        example={"pattern": "*.md"},
        event=False,
    ),
)

OPERATIONS: Final[Mapping[type[FileRequest[Any]], FileOperation]] = {
    operation.request: operation for operation in _TABLE
}
"""Every operation by the type of its request, in the order of the listings."""
