"""Every error that a caller can meet, and what it means in HTTP.

The classes know nothing of a server: `status` is the number of RFC 9110 that fits the fault, `code` a
stable name for programs, and `detail` one sentence for people that says what was wrong and what to do.
"""

from typing import ClassVar


class ShelldError(Exception):
    """The base of all errors that are answers rather than faults of the daemon."""

    status: ClassVar[int] = 500
    code: ClassVar[str] = "internal_error"

    def __init_subclass__(cls, *, status: int | None = None, code: str | None = None) -> None:
        """What is not given is that of the class above."""
        super().__init_subclass__()
        cls.status = cls.status if status is None else status
        cls.code = cls.code if code is None else code

    def __init__(self, detail: str, **extra: object) -> None:
        """`extra` holds further members of the problem document, such as `state` or `run_id`."""
        super().__init__(detail)
        self.detail = detail
        self.extra = extra


class InvalidRequest(ShelldError, status=400, code="invalid_request"):
    """The request is malformed: bad JSON, an unknown field, an empty command, a bad duration."""


class JsonWithoutContentType(InvalidRequest, code="json_without_content_type"):
    """The body is JSON or a form where bash would take it for a command: a header is missing."""


class KeyRequired(ShelldError, status=401, code="key_required"):
    """No key, or one that no key can look like."""


class KeyMismatch(ShelldError, status=401, code="key_mismatch"):
    """A key, but not the one that the daemon is locked to."""


class ObserverKey(ShelldError, status=403, code="observer_key"):
    """The key only looks, and this does more."""


class WatchOnly(ShelldError, status=403, code="watch_only"):
    """The terminal was opened with `watch=true`."""


class TooManyObservers(ShelldError, status=429, code="too_many_observers"):
    """So many keys for looking are good already."""


class HostRefused(ShelldError, status=403, code="host_not_allowed"):
    """The header Host names none of the hosts that the daemon answers to."""


class OriginRefused(ShelldError, status=403, code="origin_not_allowed"):
    """The request was made by a page of another web site."""


class NotFound(ShelldError, status=404, code="not_found"):
    """No such path."""


class ObserverNotFound(NotFound, code="observer_not_found"):
    """No key for looking has this id; it may have expired."""


class RunNotFound(NotFound, code="run_not_found"):
    """No such run, or none yet."""


class SessionNotFound(NotFound, code="session_not_found"):
    """No such session, or it has ended."""


class ToolNotFound(NotFound, code="tool_not_found"):
    """No such tool; `nearest` is the name most like it, null where none is."""


class LinkNotFound(NotFound, code="link_not_found"):
    """No such link to a port: it has been used, or has expired."""


class RequestNotFound(NotFound, code="request_not_found"):
    """No request of that id waits or is being done."""


class MethodNotAllowed(ShelldError, status=405, code="method_not_allowed"):
    """The path exists, but not with this method."""


class BodyTooLarge(ShelldError, status=413, code="body_too_large"):
    """The request's body exceeds `server.max_body`."""


class BodyTimeout(ShelldError, status=408, code="body_timeout"):
    """Nothing of the request's body came for `server.body_timeout`."""


class Conflict(ShelldError, status=409, code="conflict"):
    """The request does not fit the present state."""


class ShellNotStarted(Conflict, code="shell_not_started"):
    """The shell is `available`: there is no bash yet."""


class ShellBusy(Conflict, code="shell_busy"):
    """The shell is `busy` with a run."""


class ShellAlreadyStarted(Conflict, code="shell_already_started"):
    """The shell is `ready` or `busy` already."""


class ShellUnrecoverable(Conflict, code="shell_unrecoverable"):
    """The shell is `unrecoverable`: only a recycle helps."""


class NoRunningCommand(Conflict, code="no_running_command"):
    """Input for a command, but none is running."""


class DirectoryGone(Conflict, code="directory_gone"):
    """A shell cannot be started again: the directory that it begins in is gone."""


class StateUnavailable(Conflict, code="state_unavailable"):
    """bash does not tell its state, or it is too large."""


class RunIdConflict(Conflict, code="run_id_conflict"):
    """The run id is taken by a different request."""


class RequestCancelled(Conflict, code="request_cancelled"):
    """The client has cancelled the request."""


class StdinGap(Conflict, code="stdin_gap"):
    """The offset lies behind what the run has accepted: bytes in between are missing."""


class StdinFull(Conflict, code="stdin_full"):
    """So much input waits for the command to read it that nothing more is taken; `accepted` is what was before."""


class UserNotAllowed(ShelldError, status=403, code="user_not_allowed"):
    """Shells run as one user: that of a daemon that is not root, or `shell.user`."""


class StdinClosed(Conflict, code="stdin_closed"):
    """The command's standard input is a pipe that was not left open, or has been closed."""


class IdempotencyMismatch(ShelldError, status=422, code="idempotency_mismatch"):
    """The Idempotency-Key was used for another request."""


class UpgradeRequired(ShelldError, status=426, code="upgrade_required"):
    """The path is that of a WebSocket, and the request does not begin one."""


class TooManySessions(ShelldError, status=429, code="too_many_sessions"):
    """`limits.max_sessions` are open."""


class TooManyRequests(ShelldError, status=429, code="too_many_requests"):
    """Too many requests of one client are waiting."""


class TooManyLinks(ShelldError, status=429, code="too_many_links"):
    """So many links to ports are good already."""


class PortNotOpen(ShelldError, status=502, code="port_not_open"):
    """No process of the shells listens on this port, on a loopback address."""


class BadGateway(ShelldError, status=502, code="bad_gateway"):
    """What listens on the port closed the connection, or answered with what is not HTTP."""


class PortTimeout(ShelldError, status=504, code="port_timeout"):
    """What listens on the port did not answer within `server.proxy_timeout`."""


class ShellStartFailed(ShelldError, code="shell_start_failed"):
    """bash could not be started, or did not come up."""


class Overloaded(ShelldError, status=503, code="overloaded"):
    """Too many connections are open, or too few descriptors are left, for anything but what must be possible."""


class TooFewDescriptors(Overloaded, code="too_few_descriptors"):
    """Too few descriptors are left for a shell."""


class ShuttingDown(ShelldError, status=503, code="shutting_down"):
    """The daemon is on its way out."""


class ConfigError(Exception):
    """A configuration that cannot be used. `str()` is the message for the operator, one problem a line."""


class PathNotAllowed(ShelldError, status=403, code="path_not_allowed"):
    """The path leads outside the allowed directories; `allowed_directories` lists them."""


class ExtensionRefused(ShelldError, status=403, code="extension_refused"):
    """The policy does not let files of this extension be read; `security_mode` and the rule are told."""


class PermissionDenied(ShelldError, status=403, code="permission_denied"):
    """The system refuses: a read-only file or file system, or missing rights."""


class FileNotFound(NotFound, code="file_not_found"):
    """No such file or directory; `nearest` lists existing names like it."""


class FileAlreadyExists(Conflict, code="file_exists"):
    """The file is there already and may not be replaced."""


class FileChanged(Conflict, code="file_changed"):
    """Something else changed the file in between; doing it all the same would lose that change."""


class NothingToUndo(Conflict, code="nothing_to_undo"):
    """No change of this file is kept (any more)."""


class PreconditionFailed(ShelldError, status=412, code="precondition_failed"):
    """`if_match` or `if_none_match` does not hold; `etag` is the present one, null when there is no file."""


class FileTooLarge(ShelldError, status=413, code="file_too_large"):
    """The file, or the part of it that is asked for, exceeds the limit; `size` and `limit` are bytes."""


class TooManyTokens(ShelldError, status=413, code="too_many_tokens"):
    """The part that is asked for exceeds `files.max_token_count`; `tokens` is the estimate."""


class NotText(ShelldError, status=415, code="not_text"):
    """The content is not text: not valid UTF-8, or with NUL."""


class NotAFile(ShelldError, status=415, code="not_a_file"):
    """The path leads to a directory, device, fifo or socket where a regular file is needed."""


class NotADirectory(ShelldError, status=415, code="not_a_directory"):
    """The path leads to a file where a directory is needed."""


class RangeNotSatisfiable(ShelldError, status=416, code="range_not_satisfiable"):
    """The range of bytes begins behind the end of the file; `size` is its size in bytes."""


class TextNotFound(ShelldError, status=422, code="text_not_found"):
    """The text to replace does not occur; `nearest` holds the text most like it with its line numbers."""


class ReplacementCountMismatch(ShelldError, status=422, code="replacement_count_mismatch"):
    """The text to replace occurs more or less often than expected; `lines` says where."""


class LineOutOfRange(ShelldError, status=422, code="line_out_of_range"):
    """The file does not have such a line; `total_lines` says how many it has."""


class BadArchive(ShelldError, status=422, code="bad_archive"):
    """The archive is damaged, or has an entry that may not be unpacked; `entries` and `bytes` were before that."""


class SearchTooSlow(ShelldError, status=422, code="search_too_slow"):
    """The search took longer than it may."""


class PatternTooSlow(ShelldError, status=422, code="pattern_too_slow"):
    """The regular expression of a condition took too long."""


class NoSpace(ShelldError, status=507, code="no_space"):
    """The disk, the quota or the limit on file sizes is exhausted; nothing was changed."""


class FileOperationFailed(ShelldError, code="file_operation_failed"):
    """The system failed in a way that has no name of its own here, such as an I/O error."""
