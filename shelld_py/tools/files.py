"""Tools for files: the operations of the file service, with a text for the model."""

from shelld_py.files import (
    ChangeResult,
    CreateRequest,
    DeleteRequest,
    FileType,
    FindRequest,
    FindResult,
    InsertRequest,
    MoveRequest,
    MoveResult,
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
from shelld_py.tools.texts import counted, with_footer
from shelld_py.tools.tool import Call, Outcome


async def view(arguments: ViewRequest, call: Call) -> Outcome:
    """List a directory."""
    result = await call.computer.files.view(arguments)
    return Outcome(result=result, text=listing_text(result))


async def read(arguments: ReadRequest, call: Call) -> Outcome:
    """Read a file."""
    result = await call.computer.files.read(arguments)
    return Outcome(
        result=result, text=with_footer(result.content, result.path, lines_part(result), f"etag {result.etag}")
    )


async def create(arguments: CreateRequest, call: Call) -> Outcome:
    """Make a file."""
    return _changed(await call.computer.files.create(arguments))


async def delete(arguments: DeleteRequest, call: Call) -> Outcome:
    """Delete a file."""
    return _changed(await call.computer.files.delete(arguments))


async def move(arguments: MoveRequest, call: Call) -> Outcome:
    """Move a file."""
    return _changed(await call.computer.files.move(arguments))


async def update(arguments: UpdateRequest, call: Call) -> Outcome:
    """Replace the content of a file."""
    return _changed(await call.computer.files.update(arguments))


async def insert(arguments: InsertRequest, call: Call) -> Outcome:
    """Insert text after a line."""
    return _changed(await call.computer.files.insert(arguments))


async def replace(arguments: ReplaceRequest, call: Call) -> Outcome:
    """Replace text."""
    return _changed(await call.computer.files.replace(arguments))


async def undo(arguments: UndoRequest, call: Call) -> Outcome:
    """Take back the last change of a file."""
    return _changed(await call.computer.files.undo(arguments))


async def search(arguments: SearchRequest, call: Call) -> Outcome:
    """Search in files."""
    result = await call.computer.files.search(arguments)
    return Outcome(result=result, text=_matches_text(result))


async def find(arguments: FindRequest, call: Call) -> Outcome:
    """Find files by name."""
    result = await call.computer.files.find(arguments)
    return Outcome(result=result, text=_found_text(result))


def listing_text(result: ViewResult) -> str:
    """Return a directory as a list of names; directories end in a slash."""
    names = (f"{entry.name}{'/' if entry.type is FileType.DIRECTORY else ''}\n" for entry in result.entries)
    count = counted(result.total_entries, "entry", "entries")
    return with_footer(
        "".join(names), result.path, f"the first {len(result.entries)} of {count}" if result.truncated else count
    )


def lines_part(result: ReadResult) -> str:
    """Return which lines of a file were read."""
    first, last = result.view_range
    return f"lines {first} to {last} of {result.total_lines}" if result.total_lines else "an empty file"


def change_parts(result: ChangeResult) -> list[str]:
    """Return what a change has done."""
    parts = [f"{result.operation} {result.path}"]
    if isinstance(result, MoveResult):
        parts = [f"move {result.source_path} to {result.path}"]
    elif isinstance(result, UndoResult):
        parts = [f"undo of {result.undone} {result.path}"]
    if isinstance(result, ReplaceResult):
        parts.append(counted(result.replacements, "replacement"))
    if result.etag is not None:
        parts.append(counted(result.size, "byte"))
    if result.undo_depth:
        parts.append(f"undo takes back {counted(result.undo_depth, 'change')}")
    return parts


def _changed(result: ChangeResult) -> Outcome:
    return Outcome(result=result, text=with_footer(result.diff, *change_parts(result)))


def _matches_text(result: SearchResult) -> str:
    lines: list[str] = []
    last = 0, ""
    for match in result.matches:
        first = match.line - len(match.before)
        if lines and (match.before or match.after) and last != (first, match.path):
            lines.append("--")
        lines += [f"{match.path}-{number}-{text}" for number, text in enumerate(match.before, first)]
        lines.append(f"{match.path}:{match.line}:{match.text}")
        lines += [f"{match.path}-{number}-{text}" for number, text in enumerate(match.after, match.line + 1)]
        last = match.line + len(match.after) + 1, match.path
    count = counted(len(result.matches), "matching line")
    return with_footer(
        "".join(f"{line}\n" for line in lines),
        f"the first {count}, there are more" if result.truncated else count,
        f"{counted(result.files_searched, 'file')} searched",
        f"{result.files_skipped} skipped" if result.files_skipped else None,
    )


def _found_text(result: FindResult) -> str:
    count = counted(result.total, "file")
    return with_footer(
        "".join(f"{file.path}\n" for file in result.files),
        f"the newest {len(result.files)} of {count}" if result.truncated else count,
        result.path,
    )
