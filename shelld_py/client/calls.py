"""A request to the daemon as data, and what its answer means: no I/O, nothing of sync or async.

A `Call` says what to send, how long the daemon may take for it, whether it may be sent again, and how to read
the answer. The builders in shell_calls.py, run_calls.py and file_calls.py make calls; the drivers sync.py and
asynchronous.py send them. Knows the contract's words, nothing of the daemon's code.
"""

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar
from urllib.parse import quote

import msgspec

from shelld_py.client.failures import UnknownAnswer
from shelld_py.units import parse_duration

T = TypeVar("T")
Duration = float | str
"""Seconds, or text such as `500ms`, `30s`, `1h30m`."""

JSON_TYPE: Final = "application/json"
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})


@dataclass(frozen=True, slots=True)
class Answer:
    """What the daemon has answered; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T]):
    """One request, and what its answer means.

    `wait` is how many seconds the daemon may take on purpose, None where nobody can say: no time-out cuts that.
    `key` is the Idempotency-Key. Only what is safe, or has a key, may be sent again.
    """

    method: str
    path: str
    parse: Callable[[Answer], T]
    params: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    content: bytes | None = None
    wait: float | None = 0.0
    key: str | None = None

    @property
    def repeatable(self) -> bool:
        """Whether sending it again does nothing twice."""
        return self.method in _SAFE_METHODS or self.key is not None


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


def json_content(fields: Mapping[str, object]) -> bytes:
    """Return `fields` as a JSON object, without those that are None: the daemon has defaults for them."""
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


JSON_CONTENT: Final = {"Content-Type": JSON_TYPE}


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
