"""The data of file operations: what requests carry in and what answers carry out.

Lines are counted from 1, sizes and offsets are bytes, times are RFC 3339 in UTC. An `etag` is the SHA-256 of a
file's content in hexadecimal. Paths in answers are real and absolute. Behaviour is elsewhere.
"""

from enum import StrEnum
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

from shelld_py.request_data import Request

Path = Annotated[str, msgspec.Meta(extra_json_schema={"minLength": 1, "pattern": r"^[^\x00]+$"})]
"""A path as a client writes it: absolute, or relative to the base directory. `paths.py` checks it."""

Count = Annotated[int, msgspec.Meta(ge=1)]
FilePath = Annotated[Path, msgspec.Meta(description="Path of the file: absolute, or relative to the base directory.")]
Content = Annotated[str, msgspec.Meta(description="The whole text of the file.")]
SearchRoot = Annotated[Path, msgspec.Meta(description="Directory or file to search; the base directory by default.")]
Globs = tuple[str, ...]
Result = TypeVar("Result", bound=msgspec.Struct)
Change = TypeVar("Change", bound="ChangeResult")


class FileType(StrEnum):
    """What a name in a directory stands for; links are not followed to find out."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class Operation(StrEnum):
    """A change of a file."""

    CREATE = "create"
    DELETE = "delete"
    MOVE = "move"
    UPDATE = "update"
    INSERT = "insert"
    REPLACE = "replace"
    WRITE = "write"
    UNDO = "undo"


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """A name in a directory."""

    name: str
    type: FileType
    size: int
    modified_at: str


class ViewResult(msgspec.Struct, frozen=True, kw_only=True):
    """The content of a directory. Deeper names are relative to it: `sub/name`.

    `directories` and `files` (all that is no directory) hold the names, `entries` both, sorted. When the list
    is cut, `truncated` is true; `total_entries` is how many there are either way.
    """

    path: str
    directories: tuple[str, ...]
    files: tuple[str, ...]
    entries: tuple[Entry, ...]
    truncated: bool
    total_entries: int


class ReadResult(msgspec.Struct, frozen=True, kw_only=True):
    """Text of a file, without a byte-order mark. `size` and `etag` are those of the whole file."""

    path: str
    content: str
    total_lines: int
    view_range: tuple[int, int]
    size: int
    etag: str


class ChangeResult(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a change has made of a file. Where there is no file now, `size` is 0 and `etag` null.

    `undo_depth` counts the changes that can be undone. `diff` is unified, and says so where it is cut. Where no copy
    of the file could be kept, `undo` is false and `undo_reason` says why; else both are left out.
    """

    path: str
    operation: Operation
    size: int
    etag: str | None
    undo_depth: int
    diff: str
    undo: bool = True
    undo_reason: str | None = None


class ReplaceResult(ChangeResult, frozen=True, kw_only=True):
    """A change that counts its replacements."""

    replacements: int


class MoveResult(ChangeResult, frozen=True, kw_only=True):
    """A move; `path` is the destination."""

    source_path: str
    destination_path: str


class UndoResult(ChangeResult, frozen=True, kw_only=True):
    """An undo, and which operation it has undone."""

    undone: Operation


class KeptChange(msgspec.Struct, frozen=True, kw_only=True):
    """A change that can be undone, and what it has made of the file, as the answer to it said.

    `diff` is empty where there was none to show, and of changes after which many others were made.
    """

    path: str
    operation: Operation
    changed_at: str
    size: int
    etag: str | None
    diff: str


class HistoryResult(msgspec.Struct, frozen=True, kw_only=True):
    """Changes that can be undone, the newest first; `total` counts those beyond the limit too."""

    path: str
    changes: tuple[KeptChange, ...]
    truncated: bool
    total: int


class Match(msgspec.Struct, frozen=True, kw_only=True):
    """A line that matches: `column` is that of its first match, in characters from 1. Long lines are cut."""

    path: str
    line: int
    column: int
    text: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()


class SearchResult(msgspec.Struct, frozen=True, kw_only=True):
    """Matching lines by path and line. `truncated` when there are more than the limit.

    `files_searched` counts the files that match the globs and may be read, `files_skipped` those that match them
    and may not: by extension or size. Files that are not text have no lines, so none that match.
    """

    path: str
    matches: tuple[Match, ...]
    truncated: bool
    files_searched: int
    files_skipped: int


class FoundFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file that a glob matches."""

    path: str
    size: int
    modified_at: str


class FindResult(msgspec.Struct, frozen=True, kw_only=True):
    """Files that match, the most recently modified first; `total` counts those beyond the limit too."""

    path: str
    files: tuple[FoundFile, ...]
    truncated: bool
    total: int


class FileRequest(Request, Generic[Result], frozen=True, kw_only=True):
    """What an operation takes. `Result` is what it gives: `FileService.perform` returns one for each request."""


class ViewRequest(FileRequest[ViewResult], frozen=True, kw_only=True):
    """Which directory to list, and how many levels of it."""

    path: Annotated[
        Path, msgspec.Meta(description="Path of the directory: absolute, or relative to the base directory.")
    ]
    depth: Annotated[Count, msgspec.Meta(description="How many levels of directories to list.")] = 1
    hidden: Annotated[bool, msgspec.Meta(description="Whether to list names that begin with a dot.")] = False


class ReadRequest(FileRequest[ReadResult], frozen=True, kw_only=True):
    """Which file to read, and which lines: the first and the last, both included; -1 is the end."""

    path: FilePath
    view_range: Annotated[
        tuple[int, int] | None,
        msgspec.Meta(description="First and last line to read, counted from 1, both included; -1 as last is the end."),
    ] = None


class ChangeRequest(FileRequest[Change], Generic[Change], frozen=True, kw_only=True):
    """What all changes take: the `etag` that the file must have, or `"*"` for a file that must not exist.

    An `if_match` of `"*"` asks for any file.
    """

    if_match: Annotated[
        str | None,
        msgspec.Meta(
            description="The etag that the file must have: the change is refused if the file has changed since."
        ),
    ] = None
    if_none_match: Annotated[Literal["*"] | None, msgspec.Meta(description='"*": the file must not exist.')] = None


class CreateRequest(ChangeRequest[ChangeResult], frozen=True, kw_only=True):
    """A new file; missing parents are made."""

    path: FilePath
    content: Content


class DeleteRequest(ChangeRequest[ChangeResult], frozen=True, kw_only=True):
    """A file to delete. Of a symbolic link, the link."""

    path: FilePath


class MoveRequest(ChangeRequest[MoveResult], frozen=True, kw_only=True):
    """A file to move. `if_match` is about the source, `if_none_match` about the destination."""

    source_path: Annotated[Path, msgspec.Meta(description="Path of the file to move.")]
    destination_path: Annotated[Path, msgspec.Meta(description="New path of the file, its name included.")]
    overwrite: Annotated[bool, msgspec.Meta(description="Whether to replace a file that is there.")] = False


class UpdateRequest(ChangeRequest[ChangeResult], frozen=True, kw_only=True):
    """The new content of an existing file."""

    path: FilePath
    content: Content


class InsertRequest(ChangeRequest[ChangeResult], frozen=True, kw_only=True):
    """Text to put after a line; 0 is the beginning."""

    path: FilePath
    content: Annotated[
        str, msgspec.Meta(description="The text to insert; line breaks around it are added where needed.")
    ]
    line: Annotated[int, msgspec.Meta(description="The line after which to insert; 0 is the beginning of the file.")]


class ReplaceRequest(ChangeRequest[ReplaceResult], frozen=True, kw_only=True):
    """Text to put in the place of every occurrence of another text, compared case-sensitively."""

    path: FilePath
    old_string: Annotated[
        str,
        msgspec.Meta(
            description="The exact text to replace, white space included.", extra_json_schema={"minLength": 1}
        ),
    ]
    new_string: Annotated[str, msgspec.Meta(description="The text to put in its place.")]
    expected_replacements: Annotated[
        Count | None,
        msgspec.Meta(description="How often the text must occur; without it, every occurrence is replaced."),
    ] = None


class UndoRequest(ChangeRequest[UndoResult], frozen=True, kw_only=True):
    """A file whose last change is to be undone; `force` does it over changes of others, too."""

    path: FilePath
    force: Annotated[bool, msgspec.Meta(description="Undo even if something else has changed the file since.")] = False


class HistoryRequest(FileRequest[HistoryResult], frozen=True, kw_only=True):
    """Of which file, or of the files below which directory, to list the changes that can be undone."""

    path: Annotated[
        Path,
        msgspec.Meta(description="A file, or a directory; either may be gone. The base directory by default."),
    ] = "."
    limit: Annotated[int, msgspec.Meta(ge=1, le=100, description="Changes in all.")] = 20


class SearchRequest(FileRequest[SearchResult], frozen=True, kw_only=True):
    """What to look for in the lines of files, and in which files.

    `pattern` is a regular expression in Python's dialect unless `literal`. `include` and `exclude` are globs:
    one without a slash matches names at any depth, others match paths below `path`. `context` is lines before
    and after, `limit` matching lines in all.
    """

    pattern: Annotated[str, msgspec.Meta(min_length=1, description="Regular expression (Python's dialect), or text.")]
    path: SearchRoot = "."
    literal: Annotated[bool, msgspec.Meta(description="Whether the pattern is plain text.")] = False
    case_sensitive: Annotated[bool, msgspec.Meta(description="Whether upper and lower case differ.")] = True
    include: Annotated[
        Globs, msgspec.Meta(description="Globs of files to search, such as *.py or src/**; all by default.")
    ] = ()
    exclude: Annotated[Globs, msgspec.Meta(description="Globs of files to leave out.")] = ()
    context: Annotated[int, msgspec.Meta(ge=0, le=100, description="Lines to show before and after each match.")] = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Matching lines in all.")] = 100


class FindRequest(FileRequest[FindResult], frozen=True, kw_only=True):
    """Which files to list: those below `path` that match the glob `pattern` (as `include` of a search)."""

    pattern: Annotated[
        str, msgspec.Meta(min_length=1, description="Glob such as *.py (at any depth) or src/**/test_*.")
    ]
    path: SearchRoot = "."
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="Files in all.")] = 100


class ArchiveFormat(StrEnum):
    """The form of an archive."""

    TAR = "tar"
    TAR_GZ = "tar.gz"
    ZIP = "zip"


class ArchiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """What was unpacked below the directory `path`: how many entries, and how many bytes their files have."""

    path: str
    entries: int
    bytes: int


class ByteRange(msgspec.Struct, frozen=True):
    """A range of bytes as RFC 9110 (14.1.2) means it: `first` to `last`, both included.

    Without `last` it goes to the end. Without `first`, it is the final `last` bytes.
    """

    first: int | None = None
    last: int | None = None
