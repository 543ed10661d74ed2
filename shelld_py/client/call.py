"""A request to the daemon as data, and how its answer is read: no I/O, nothing of sync or async.

A `Call` says what to send, how long the daemon may take for it, whether it may be sent again, and how to read the
answer. What calls there are is in requests.py, run_requests.py and file_requests.py. Knows nothing of shells, runs or
files.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec
from msgspec import Struct, field

from shelld_py.client.failures import UnknownAnswer
from shelld_py.client.uploads import Upload
from shelld_py.units import parse_duration

T = TypeVar("T")
Duration = float | str
"""Seconds, or text such as `500ms`, `30s`, `1h30m`."""

JSON_TYPE: Final = "application/json"
JSON_CONTENT: Final = {"Content-Type": JSON_TYPE}
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


class Answer(Struct, frozen=True):
    """What the daemon has answered; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


class Call(Struct, Generic[T], frozen=True, kw_only=True):
    """One request, and what its answer means.

    `wait` is how many seconds the daemon may take on purpose, None where nobody can say: no time-out cuts that.
    `key` is the Idempotency-Key. Only what is safe, or has a key, may be sent again.
    """

    method: str
    path: str
    parse: Callable[[Answer], T]
    params: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | Upload | None = None
    wait: float | None = 0.0
    key: str | None = None
    parsed: Sequence[int] = ()
    """Statuses of refusals that `parse` takes, too."""
    following: "Callable[[T], Call[T] | None] | None" = None
    """What is to be asked next, given the result; None where that is the one which is wanted."""

    @property
    def repeatable(self) -> bool:
        """Whether sending it again does nothing twice."""
        if isinstance(self.content, Upload) and not self.content.repeatable:
            return False
        return self.method in _SAFE_METHODS or self.key is not None


def post(
    path: str,
    parse: Callable[[Answer], T],
    content: bytes = b"",
    params: Sequence[tuple[str, str]] = (),
    wait: float | None = None,
) -> Call[T]:
    """Return the call that posts `content`, JSON where there is any."""
    headers = JSON_CONTENT if content else {}
    return Call(method="POST", path=path, parse=parse, headers=headers, content=content, params=params, wait=wait)


def decode(answer: Answer, kind: type[T]) -> T:
    """Return the JSON of `answer` as a `kind`. Raises `UnknownAnswer` for what the daemon does not answer.

    Output in raw form can hold lone surrogates (PEP 383), which only the lenient reader takes.
    """
    try:
        try:
            return msgspec.json.decode(answer.content, type=kind)
        except msgspec.ValidationError:
            raise
        except (msgspec.DecodeError, UnicodeDecodeError):
            return msgspec.convert(json.loads(answer.content), kind)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UnknownAnswer.with_status(answer.status, f"This is not what a daemon answers: {error}.") from None


def decoded(kind: type[T]) -> Callable[[Answer], T]:
    """Return a reader of answers that are the JSON of a `kind`."""
    return lambda answer: decode(answer, kind)


def member(name: str, kind: type[T]) -> Callable[[Answer], T]:
    """Return a reader of answers that are a JSON object, of which the member `name` matters."""

    def parse(answer: Answer) -> T:
        document = decode(answer, dict[str, Any])
        try:
            return msgspec.convert(document.get(name), kind)
        except msgspec.ValidationError as error:
            detail = f"The answer's {name} is not what a daemon answers: {error}."
            raise UnknownAnswer.with_status(answer.status, detail) from None

    return parse


def nothing(answer: Answer) -> None:
    """Read an answer that says no more than that it was done."""
    decode(answer, dict[str, Any])


def json_content(fields: Mapping[str, object]) -> bytes:
    """Return `fields` as a JSON object, without those that are None: the daemon has defaults for them.

    Bytes that were not UTF-8 are lone surrogates there, escaped (PEP 383).
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        return msgspec.json.encode(given)
    except UnicodeEncodeError:
        return json.dumps(msgspec.to_builtins(given)).encode()


def parameters(**fields: object) -> list[tuple[str, str]]:
    """Return `fields` for a query string, without those that are None."""
    return [(name, _written(value)) for name, value in fields.items() if value is not None]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def segment(name: str) -> str:
    """Return `name` as one segment of a path."""
    return quote(name, safe="")


def seconds(duration: Duration | None) -> float | None:
    """Return how long the daemon may wait for `duration`; None where it is the daemon that decides or refuses."""
    if duration is None:
        return None
    try:
        return parse_duration(duration)
    except ValueError:
        return None


def new_key() -> str:
    """Return an id that nobody has used: for an Idempotency-Key, or a run."""
    return uuid.uuid4().hex
