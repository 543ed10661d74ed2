"""The editor that several makers of models have trained theirs on: one tool, four commands, on the file service."""

import re
from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from shelld_py.errors import (
    FileAlreadyExists,
    InvalidRequest,
    NotADirectory,
    ReplacementCountMismatch,
    ShelldError,
    TextNotFound,
)
from shelld_py.files import (
    ChangeResult,
    CreateRequest,
    InsertRequest,
    ReadRequest,
    ReplaceRequest,
    UpdateRequest,
    ViewRequest,
)
from shelld_py.request_data import Request
from shelld_py.tools.files import change_parts, lines_part, listing_text
from shelld_py.tools.texts import numbered_lines, with_footer
from shelld_py.tools.tool import ToolCall, ToolResult

_LEVELS: Final = 2
_SNIPPET_LINES: Final = 40
_HUNK: Final = re.compile(r"^@@ -\d+(?:,\d+)? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


class EditorCommand(StrEnum):
    """What the editor can do."""

    VIEW = "view"
    CREATE = "create"
    STR_REPLACE = "str_replace"
    INSERT = "insert"


class Editor(Request, frozen=True, kw_only=True):
    """A command of the editor, with the arguments that it needs."""

    command: Annotated[EditorCommand, Meta(description="What to do.")]
    path: Annotated[str, Meta(description="Path of the file, or for view of a directory.")]
    file_text: Annotated[str | None, Meta(description="create: the whole text of the file.")] = None
    view_range: Annotated[
        tuple[int, int] | None,
        Meta(description="view: first and last line, counted from 1, both included; -1 as last is the end."),
    ] = None
    old_str: Annotated[
        str | None, Meta(description="str_replace: the exact text to replace; it must occur just once.")
    ] = None
    new_str: Annotated[
        str | None, Meta(description="str_replace: the text to put in its place; without it, the text is deleted.")
    ] = None
    insert_line: Annotated[
        Annotated[int, Meta(ge=0)] | None, Meta(description="insert: the line after which to insert; 0: the beginning.")
    ] = None
    insert_text: Annotated[str | None, Meta(description="insert: the text to insert.")] = None


class EditorResult(msgspec.Struct, frozen=True, kw_only=True):
    """What the editor shows: numbered lines of the file, around the change where there was one, or a listing.

    `etag` and `diff` are those of the change, null for a view.
    """

    command: EditorCommand
    path: str
    output: str
    etag: str | None
    diff: str | None


async def str_replace_based_edit_tool(arguments: Editor, call: ToolCall) -> ToolResult:
    """Do what the editor is asked for."""
    commands: dict[EditorCommand, Callable[[Editor, ToolCall], Awaitable[ToolResult]]] = {
        EditorCommand.VIEW: _view,
        EditorCommand.CREATE: _create,
        EditorCommand.STR_REPLACE: _str_replace,
        EditorCommand.INSERT: _insert,
    }
    return await commands[arguments.command](arguments, call)


async def _view(arguments: Editor, call: ToolCall) -> ToolResult:
    if arguments.view_range is None:
        try:
            listing = await call.computer.files.perform(ViewRequest(path=arguments.path, depth=_LEVELS))
        except NotADirectory:
            pass
        else:
            text = listing_text(listing)
            result = EditorResult(command=arguments.command, path=listing.path, output=text, etag=None, diff=None)
            return ToolResult(result=result, text=text)
    read = await call.computer.files.perform(ReadRequest(path=arguments.path, view_range=arguments.view_range))
    numbered = numbered_lines(read.content, read.view_range[0])
    result = EditorResult(command=arguments.command, path=read.path, output=numbered, etag=read.etag, diff=None)
    return ToolResult(result=result, text=with_footer(numbered, read.path, lines_part(read)))


async def _create(arguments: Editor, call: ToolCall) -> ToolResult:
    content = _needed(arguments, "file_text")
    try:
        result = await call.computer.files.perform(CreateRequest(path=arguments.path, content=content), by="tools")
    except FileAlreadyExists:
        result = await call.computer.files.perform(UpdateRequest(path=arguments.path, content=content), by="tools")
    return await _changed(arguments, call, result, snippet=False)


async def _str_replace(arguments: Editor, call: ToolCall) -> ToolResult:
    request = ReplaceRequest(
        path=arguments.path,
        old_string=_needed(arguments, "old_str"),
        new_string=arguments.new_str or "",
        expected_replacements=1,
    )
    try:
        result = await call.computer.files.perform(request, by="tools")
    except (TextNotFound, ReplacementCountMismatch) as error:
        detail = error.detail.replace("old_string", "old_str")
        detail = detail.replace("not 1 as expected_replacements says", "but it must be unique")
        raise type(error)(detail, **error.extra) from None
    return await _changed(arguments, call, result, snippet=True)


async def _insert(arguments: Editor, call: ToolCall) -> ToolResult:
    if arguments.insert_line is None:
        raise _missing(arguments, "insert_line")
    text = _needed(arguments, "insert_text")
    request = InsertRequest(path=arguments.path, content=text, line=arguments.insert_line)
    return await _changed(arguments, call, await call.computer.files.perform(request, by="tools"), snippet=True)


async def _changed(arguments: Editor, call: ToolCall, changed: ChangeResult, *, snippet: bool) -> ToolResult:
    """Return the outcome of a change, with the lines around it as they are now."""
    lines = await _snippet(call, changed) if snippet else ""
    result = EditorResult(
        command=arguments.command, path=changed.path, output=lines, etag=changed.etag, diff=changed.diff
    )
    return ToolResult(result=result, text=with_footer(lines, *change_parts(changed)))


async def _snippet(call: ToolCall, changed: ChangeResult) -> str:
    """Return the lines of the first change, numbered. Something else may have changed the file again: then none."""
    hunk = _HUNK.search(changed.diff)
    if hunk is None:
        return ""
    first = max(1, int(hunk[1]))
    count = min(int(hunk[2] or 1), _SNIPPET_LINES)
    if count == 0:
        return ""
    try:
        read = await call.computer.files.perform(ReadRequest(path=changed.path, view_range=(first, first + count - 1)))
    except ShelldError:
        return ""
    return numbered_lines(read.content, first)


def _needed(arguments: Editor, name: str) -> str:
    value = getattr(arguments, name)
    if value is None:
        raise _missing(arguments, name)
    assert isinstance(value, str)
    return value


def _missing(arguments: Editor, name: str) -> InvalidRequest:
    return InvalidRequest(f"The command {arguments.command} needs the argument {name!r}.", argument=name)
