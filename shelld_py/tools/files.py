"""Tools for files: the operations of the file service, with a text for the model.

One for each entry of the table of operations that a model would use; what is said of a result depends on its type
alone.
"""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from shelld_py.files import (
    OPERATIONS,
    ChangeResult,
    Effect,
    FileRequest,
    FileType,
    FindResult,
    MoveResult,
    ReadResult,
    ReplaceResult,
    SearchResult,
    UndoResult,
    ViewResult,
)
from shelld_py.tools.texts import counted, with_footer
from shelld_py.tools.tool import Hints, Tool, ToolCall, ToolResult

_HINTS: Final = {
    Effect.READS: Hints(read_only=True, idempotent=True),
    Effect.ADDS: Hints(),
    Effect.CHANGES: Hints(destructive=True),
    Effect.REPLACES: Hints(destructive=True, idempotent=True),
}


async def perform(arguments: FileRequest[Any], call: ToolCall) -> ToolResult:
    """Do an operation."""
    result: msgspec.Struct = await call.computer.files.perform(arguments, by="tools")
    text = next(text for kind, text in _TEXTS.items() if isinstance(result, kind))
    return ToolResult(result=result, text=text(result))


FILE_TOOLS: Final = tuple(
    Tool(
        name=operation.name,
        title=operation.title,
        description=operation.description,
        arguments=operation.request,
        result=operation.result,
        hints=_HINTS[operation.effect],
        handler=perform,
    )
    for operation in OPERATIONS.values()
    if operation.tool
)
"""A tool for each operation that a model would use."""


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
    if not result.undo:
        parts.append(f"cannot be undone: {result.undo_reason}")
    elif result.undo_depth:
        parts.append(f"undo takes back {counted(result.undo_depth, 'change')}")
    return parts


def _read_text(result: ReadResult) -> str:
    return with_footer(result.content, result.path, lines_part(result), f"etag {result.etag}")


def _change_text(result: ChangeResult) -> str:
    return with_footer(result.diff, *change_parts(result))


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


_TEXTS: Final[dict[type, Callable[[Any], str]]] = {
    ViewResult: listing_text,
    ReadResult: _read_text,
    ChangeResult: _change_text,
    SearchResult: _matches_text,
    FindResult: _found_text,
}
