"""The words that an endpoint is declared with: what it takes, what it answers, how it can refuse.

Data alone. The declarations are in `operations.py`, and `openapi.py` makes the document from them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from shelld_py.errors import ShelldError
from shelld_py.http.parameters import Query

TEXT: Final = "text/plain"
JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
BYTES: Final = "application/octet-stream"


class Tag(StrEnum):
    """What an operation is about."""

    MAIN = "main shell"
    SESSIONS = "sessions"
    RUNS = "runs"
    FILES = "files"
    TOOLS = "tools"
    DAEMON = "daemon"


@dataclass(frozen=True, kw_only=True)
class Header:
    """A header of a request or an answer; `type` is what msgspec makes a schema from."""

    name: str
    meaning: str
    type: Any = str
    always: bool = False


@dataclass(frozen=True, kw_only=True)
class Body:
    """What a request carries: a JSON object of the type `model`, raw bytes of a `raw` meaning, or either."""

    model: Any = None
    raw: str | None = None
    required: bool = False
    example: Mapping[str, object] | None = None


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a success carries: for each media type, the type that msgspec makes a schema from."""

    meaning: str
    content: Mapping[str, Any]
    headers: tuple[Header, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Operation:
    """An endpoint. `errors` are those of its own: what any request can meet is added by who reads this."""

    tag: Tag
    summary: str
    answers: Mapping[int, Answer]
    description: str = ""
    query: type[Query] | None = None
    headers: tuple[Header, ...] = ()
    body: Body | None = None
    errors: tuple[type[ShelldError], ...] = ()
    failure: Any = None
    """The type of what tells an error in place of a problem, once the request is understood."""
    public: bool = False
    """Whether it needs no key."""


def json_answer(meaning: str, model: Any) -> Answer:
    """Return an answer that is JSON whatever is asked for."""
    return Answer(meaning=meaning, content={JSON: model})
