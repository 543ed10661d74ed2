"""What must hold of a file before anything is done to it: `if_match`, `if_none_match`. Decisions, no changes."""

from shelld_py.errors import PreconditionFailed
from shelld_py.files.models import ChangeRequest
from shelld_py.files.open_file import OpenFile


def check_preconditions(
    request: ChangeRequest, file: OpenFile | None, path: str, *, destination_exists: bool | None = None
) -> None:
    """Raise `PreconditionFailed` unless `file`, None for no file, is what the request asks for.

    `if_none_match` is about the destination where there is one.
    """
    exists = file is not None if destination_exists is None else destination_exists
    if request.if_none_match and exists:
        raise precondition_failed(path, "if_none_match is *, but the file exists", file.etag if file else None)
    wanted = request.if_match
    if wanted is None:
        return
    if file is None:
        raise precondition_failed(path, "if_match is given, but there is no file", None)
    if wanted != "*" and wanted.removeprefix("W/").strip('"') != file.etag:
        raise precondition_failed(path, f"if_match is {wanted}, but the etag is {file.etag}", file.etag)


def precondition_failed(path: str, reason: str, etag: str | None) -> PreconditionFailed:
    """Return the error for a condition that does not hold; `etag` is the present one."""
    detail = f"{path} is not as expected: {reason}. Nothing was changed; read the file again."
    return PreconditionFailed(detail, path=path, etag=etag)
