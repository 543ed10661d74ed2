"""Every error that a caller can meet, and what it means in HTTP.

The classes know nothing of a server: `status` is the number of RFC 9110 that fits the fault, `code` a
stable name for programs, and `detail` one sentence for people that says what was wrong and what to do.
"""

from typing import ClassVar


class ShelldError(Exception):
    """The base of all errors that are answers rather than faults of the daemon."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init__(self, detail: str, **extra: object) -> None:
        """`extra` holds further members of the problem document, such as `state` or `run_id`."""
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class InvalidRequest(ShelldError):
    """The request is malformed: bad JSON, an unknown field, an empty command, a bad duration."""

    status = 400
    code = "invalid_request"


class JsonWithoutContentType(InvalidRequest):
    """The body is JSON or a form where bash would take it for a command: a header is missing."""

    code = "json_without_content_type"


class KeyRequired(ShelldError):
    """No key, or one that no key can look like."""

    status = 401
    code = "key_required"


class KeyMismatch(ShelldError):
    """A key, but not the one that the daemon is locked to."""

    status = 401
    code = "key_mismatch"


class HostRefused(ShelldError):
    """The header Host names none of the hosts that the daemon answers to."""

    status = 403
    code = "host_not_allowed"


class OriginRefused(ShelldError):
    """The request was made by a page of another web site."""

    status = 403
    code = "origin_not_allowed"


class NotFound(ShelldError):
    """No such path."""

    status = 404
    code = "not_found"


class RunNotFound(NotFound):
    """No such run, or none yet."""

    code = "run_not_found"


class SessionNotFound(NotFound):
    """No such session, or it has ended."""

    code = "session_not_found"


class ToolNotFound(NotFound):
    """No such tool; `nearest` is the name most like it, null where none is."""

    code = "tool_not_found"


class RequestNotFound(NotFound):
    """No request of that id waits or is being done."""

    code = "request_not_found"


class MethodNotAllowed(ShelldError):
    """The path exists, but not with this method."""

    status = 405
    code = "method_not_allowed"


class BodyTooLarge(ShelldError):
    """The request's body exceeds `server.max_body`."""

    status = 413
    code = "body_too_large"


class BodyTimeout(ShelldError):
    """Nothing of the request's body came for `server.body_timeout`."""

    status = 408
    code = "body_timeout"


class Conflict(ShelldError):
    """The request does not fit the present state."""

    status = 409
    code = "conflict"


class ShellNotStarted(Conflict):
    """The shell is `available`: there is no bash yet."""

    code = "shell_not_started"


class ShellBusy(Conflict):
    """The shell is `busy` with a run."""

    code = "shell_busy"


class ShellAlreadyStarted(Conflict):
    """The shell is `ready` or `busy` already."""

    code = "shell_already_started"


class ShellUnrecoverable(Conflict):
    """The shell is `unrecoverable`: only a recycle helps."""

    code = "shell_unrecoverable"


class NoRunningCommand(Conflict):
    """Input for a command, but none is running."""

    code = "no_running_command"


class RunIdConflict(Conflict):
    """The run id is taken by a different request."""

    code = "run_id_conflict"


class RequestCancelled(Conflict):
    """The client has cancelled the request."""

    code = "request_cancelled"


class StdinGap(Conflict):
    """The offset lies behind what the run has accepted: bytes in between are missing."""

    code = "stdin_gap"


class IdempotencyMismatch(ShelldError):
    """The Idempotency-Key was used for another request."""

    status = 422
    code = "idempotency_mismatch"


class TooManySessions(ShelldError):
    """`limits.max_sessions` are open."""

    status = 429
    code = "too_many_sessions"


class TooManyRequests(ShelldError):
    """Too many requests of one client are waiting."""

    status = 429
    code = "too_many_requests"


class ShellStartFailed(ShelldError):
    """bash could not be started, or did not come up."""

    code = "shell_start_failed"


class Overloaded(ShelldError):
    """Too many connections are open, or too few descriptors are left, for anything but what must be possible."""

    status = 503
    code = "overloaded"


class TooFewDescriptors(Overloaded):
    """Too few descriptors are left for a shell."""

    code = "too_few_descriptors"


class ShuttingDown(ShelldError):
    """The daemon is on its way out."""

    status = 503
    code = "shutting_down"


class ConfigError(Exception):
    """A configuration that cannot be used. `str()` is the message for the operator, one problem a line."""


class PathNotAllowed(ShelldError):
    """The path leads outside the allowed directories; `allowed_directories` lists them."""

    status = 403
    code = "path_not_allowed"


class ExtensionRefused(ShelldError):
    """The policy does not let files of this extension be read; `security_mode` and the rule are told."""

    status = 403
    code = "extension_refused"


class PermissionDenied(ShelldError):
    """The system refuses: a read-only file or file system, or missing rights."""

    status = 403
    code = "permission_denied"


class FileNotFound(NotFound):
    """No such file or directory; `nearest` lists existing names like it."""

    code = "file_not_found"


class FileAlreadyExists(Conflict):
    """The file is there already and may not be replaced."""

    code = "file_exists"


class FileChanged(Conflict):
    """Something else changed the file in between; doing it all the same would lose that change."""

    code = "file_changed"


class NothingToUndo(Conflict):
    """No change of this file is kept (any more)."""

    code = "nothing_to_undo"


class PreconditionFailed(ShelldError):
    """`if_match` or `if_none_match` does not hold; `etag` is the present one, null when there is no file."""

    status = 412
    code = "precondition_failed"


class FileTooLarge(ShelldError):
    """The file, or the part of it that is asked for, exceeds the limit; `size` and `limit` are bytes."""

    status = 413
    code = "file_too_large"


class TooManyTokens(ShelldError):
    """The part that is asked for exceeds `files.max_token_count`; `tokens` is the estimate."""

    status = 413
    code = "too_many_tokens"


class NotText(ShelldError):
    """The content is not text: not valid UTF-8, or with NUL."""

    status = 415
    code = "not_text"


class NotAFile(ShelldError):
    """The path leads to a directory, device, fifo or socket where a regular file is needed."""

    status = 415
    code = "not_a_file"


class NotADirectory(ShelldError):
    """The path leads to a file where a directory is needed."""

    status = 415
    code = "not_a_directory"


class RangeNotSatisfiable(ShelldError):
    """The range of bytes begins behind the end of the file; `size` is its size in bytes."""

    status = 416
    code = "range_not_satisfiable"


class TextNotFound(ShelldError):
    """The text to replace does not occur; `nearest` holds the text most like it with its line numbers."""

    status = 422
    code = "text_not_found"


class ReplacementCountMismatch(ShelldError):
    """The text to replace occurs more or less often than expected; `lines` says where."""

    status = 422
    code = "replacement_count_mismatch"


class LineOutOfRange(ShelldError):
    """The file does not have such a line; `total_lines` says how many it has."""

    status = 422
    code = "line_out_of_range"


class SearchTooSlow(ShelldError):
    """The search took longer than it may."""

    status = 422
    code = "search_too_slow"


class PatternTooSlow(ShelldError):
    """The regular expression of a condition took too long."""

    status = 422
    code = "pattern_too_slow"


class NoSpace(ShelldError):
    """The disk, the quota or the limit on file sizes is exhausted; nothing was changed."""

    status = 507
    code = "no_space"


class FileOperationFailed(ShelldError):
    """The system failed in a way that has no name of its own here, such as an I/O error."""

    code = "file_operation_failed"
