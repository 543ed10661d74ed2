"""What a connection to a daemon needs, and what to make of its failures: everything but the sending itself.

The address and key, the arguments for httpx, what an answer or a broken connection means, and when to try
again. sending.py adds the I/O. The client's one reader of the environment: `SHELLD_URL` and `SHELLD_KEY`.
"""

import os
import re
import socket
import ssl
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

import httpx
from msgspec import Struct

from shelld_py.client.call import JSON_TYPE, Answer, Call, T
from shelld_py.client.failures import TransportError, refusal

DEFAULT_URL: Final = "http://127.0.0.1:8080"
KEY_PATTERN: Final = re.compile(r"[\x21-\x7e]{1,256}")

_NOT_SENT: Final = (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.UnsupportedProtocol)
_LONGEST_PAUSE: Final = 30.0
SOCKET_OPTIONS: Final = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
)
"""Long waits have no time-out, so it is the kernel that notices a peer which is gone without a word (tcp(7))."""


class Retries(Struct, frozen=True):
    """How often and when to send again what may be sent again; seconds.

    The pauses double from `first` to `longest`; a daemon that asks for more (Retry-After) gets more.
    """

    most: int = 4
    first: float = 0.1
    longest: float = 5.0

    def pause(self, attempt: int, answer: Answer | None = None) -> float | None:
        """Return how long to wait before another try after `attempt` others, None for no other try."""
        if attempt >= self.most or (answer is not None and answer.status != HTTPStatus.SERVICE_UNAVAILABLE):
            return None
        pause = min(self.first * 2.0**attempt, self.longest)
        asked = answer.headers.get("retry-after", "") if answer else ""
        return min(max(pause, float(asked)), _LONGEST_PAUSE) if asked.isdecimal() else pause


class Connection:
    """The address of a daemon and the key for it, as the two clients need them."""

    def __init__(self, url: str | None, key: str | None, timeout: float, retries: Retries) -> None:
        """What is None comes from the environment. Raises `ValueError` for what cannot be a URL or a key.

        `timeout` is how many seconds the daemon may take to answer, beyond what a call waits for on purpose.
        """
        self.url = (url or os.environ.get("SHELLD_URL") or DEFAULT_URL).rstrip("/")
        self._key = key if key is not None else os.environ.get("SHELLD_KEY")
        self.timeout = timeout
        self.encrypted = self.url.startswith("https:")
        """Where it is not, no certificates are loaded: that would take longer than everything else."""
        self.retries = retries
        try:
            parsed = httpx.URL(self.url)
        except httpx.InvalidURL:
            parsed = httpx.URL()
        if parsed.scheme not in ("http", "https") or not parsed.host:
            raise ValueError(f"The URL of a daemon looks like {DEFAULT_URL}, not {self.url!r}.")
        if self._key is not None and not KEY_PATTERN.fullmatch(self._key):
            raise ValueError("A key is 1 to 256 visible ASCII characters.")

    def headers(self) -> dict[str, str]:
        """Return the headers that say who asks."""
        return {} if self._key is None else {"X-Shell-Key": self._key}

    def arguments(self, call: Call[T], accept: str = JSON_TYPE) -> dict[str, Any]:
        """Return `call` as httpx takes it."""
        headers: dict[str, str] = {"Accept": accept, **call.headers, **self.headers()}
        if call.key is not None:
            headers["Idempotency-Key"] = call.key
        read = None if call.wait is None else call.wait + self.timeout
        return {
            "method": call.method,
            "url": self.url + call.path,
            "params": list(call.params),
            "headers": headers,
            "content": call.content,
            "timeout": httpx.Timeout(self.timeout, read=read),
        }


class Attempts:
    """The attempts at one thing: how many have failed in a row, and whether one of them may have arrived."""

    def __init__(self, connection: Connection) -> None:
        self.failed = 0
        self._connection = connection
        self._maybe_done = False

    def after_answer(self, call: Call[T], answer: Answer) -> float | None:
        """Return how long to wait before `call` is sent again, None where the answer is to be taken."""
        return self._connection.retries.pause(self._next(), answer) if call.repeatable else None

    def after_failure(self, call: Call[T], error: httpx.RequestError) -> float:
        """Return how long to wait before `call` is sent again. Raises `TransportError` where it is not."""
        self._maybe_done = self._maybe_done or not isinstance(error, _NOT_SENT)
        pause = self._connection.retries.pause(self._next()) if call.repeatable else None
        if pause is None:
            raise self._failure(call, error) from error
        return pause

    def _next(self) -> int:
        self.failed += 1
        return self.failed - 1

    def _failure(self, call: Call[T], error: httpx.RequestError) -> TransportError:
        url = self._connection.url + call.path
        what, reason = f"{call.method} {url}", _reason(error)
        if not self._maybe_done:
            detail = f"{what}: not sent: {reason}."
        elif call.method in ("GET", "HEAD"):
            detail = f"{what}: no answer: {reason}."
        else:
            detail = f"{what}: no answer, so it may have been done or not: {reason}."
        return TransportError(detail, method=call.method, url=url, maybe_done=self._maybe_done)


def _reason(error: BaseException) -> str:
    """Return what lies at the root of `error`, as the system says it where it is the system that refused."""
    reason = str(error) or type(error).__name__
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError) and not isinstance(cause, ssl.SSLCertVerificationError):
            return "no TLS is spoken there: try http:// in place of https://"
        if isinstance(cause, socket.gaierror):
            reason = cause.strerror or reason
        elif isinstance(cause, OSError) and cause.errno:
            reason = os.strerror(cause.errno)
        below = cause.__cause__ or cause.__context__
        cause = below.exceptions[0] if isinstance(below, BaseExceptionGroup) else below
    return reason


def answer_of(response: httpx.Response) -> Answer:
    """Return a response that has been read."""
    return Answer(response.status_code, headers_of(response), response.content)


def headers_of(response: httpx.Response) -> Mapping[str, str]:
    """Return the headers by their names in lower case."""
    return {name.lower(): value for name, value in response.headers.items()}


def result_of(call: Call[T], answer: Answer) -> T:
    """Return what `answer` means. Raises the `ShelldError` that it stands for."""
    if HTTPStatus.OK <= answer.status < HTTPStatus.MULTIPLE_CHOICES or answer.status in call.parsed:
        return call.parse(answer)
    raise refusal(answer.status, answer.content)
