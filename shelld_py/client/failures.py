"""Failures as exceptions: refusals of the daemon by their `code`, and requests that got no answer.

Every exception that a client raises for a request is a `ShelldError`; those of httpx do not come through.
"""

import contextlib
import errno
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from shelld_py import errors
from shelld_py.errors import ShelldError

_COMMON_MEMBERS: Final = frozenset({"type", "title", "status", "code", "detail"})
_LONGEST_QUOTE: Final = 200
_NUMBERS: Final = {
    "file_not_found": errno.ENOENT,
    "file_exists": errno.EEXIST,
    "not_a_file": errno.EISDIR,
    "not_a_directory": errno.ENOTDIR,
    "permission_denied": errno.EACCES,
    "path_not_allowed": errno.EACCES,
    "extension_refused": errno.EACCES,
    "file_too_large": errno.EFBIG,
    "no_space": errno.ENOSPC,
}


class TransportError(ShelldError):
    """No answer: nobody listens, the connection broke, or it took too long. `status` is 0.

    `method` and `url` say which request it was. `maybe_done` is false where the daemon cannot have got it, and
    true where it may have done what was asked without its answer having arrived.
    """

    status = 0
    code = "transport_error"

    def __init__(self, detail: str, *, method: str, url: str, maybe_done: bool) -> None:
        super().__init__(detail, method=method, url=url, maybe_done=maybe_done)
        self.method = method
        self.url = url
        self.maybe_done = maybe_done


class UnknownAnswer(ShelldError):
    """An answer that is not one of the daemon's: from something else, or from another version."""

    status = 0
    code = "unknown_answer"

    @classmethod
    def with_status(cls, status: int, detail: str) -> "UnknownAnswer":
        """Return the exception for an answer that had this `status`."""
        kind: type[UnknownAnswer] = type(cls.__name__, (cls,), {"status": status})
        return kind(detail)


_KINDS: Final[dict[str, type[ShelldError]]] = {}
for _kind in vars(errors).values():
    if isinstance(_kind, type) and issubclass(_kind, ShelldError):
        _KINDS.setdefault(_kind.code, _kind)


def refusal(status: int, content: bytes) -> ShelldError:
    """Return the exception for an answer that is a problem document (RFC 9457).

    It is of the class that has the document's `code`. A code that this version does not know makes a class of
    its own, with that `status` and `code`; what is no problem document at all is an `UnknownAnswer`.
    """
    try:
        document = msgspec.json.decode(content, type=dict[str, Any])
        code, detail = str(document["code"]), str(document["detail"])
    except (msgspec.DecodeError, UnicodeDecodeError, KeyError):
        said = " ".join(content[:_LONGEST_QUOTE].decode("utf-8", "replace").split())
        return UnknownAnswer.with_status(status, f"Status {status} from something that is no shelld-py: {said}")
    kind: type[ShelldError] = _KINDS.get(code) or type(
        "UnknownRefusal", (ShelldError,), {"status": status, "code": code}
    )
    return kind(detail, **{name: value for name, value in document.items() if name not in _COMMON_MEMBERS})


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[None]:
    """Have a file that the daemon refuses raise what one of this machine would: `FileNotFoundError` and the like.

    Refusals that no file of this machine would meet stay what they are.
    """
    try:
        yield
    except ShelldError as error:
        if error.code not in _NUMBERS:
            raise
        raise OSError(_NUMBERS[error.code], error.detail.rstrip("."), path) from error
