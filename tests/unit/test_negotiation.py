"""What a request asks for: the form of its answer, its body, its parameters."""

import pytest
from starlette.requests import Request

from shelld_py.errors import InvalidRequest
from shelld_py.http.negotiation import (
    Form,
    convert_fields,
    decode_json,
    duration_field,
    header,
    integer_field,
    is_json,
    query_fields,
    requested_form,
)
from shelld_py.models import ResizeRequest, RunRequest, StdinRequest


def request(query: str = "", **headers: str) -> Request:
    """Return a request with a query string and headers."""
    return Request(
        {
            "type": "http",
            "method": "POST",
            "path": "/",
            "query_string": query.encode(),
            "headers": [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()],
            "server": ("localhost", 80),
            "scheme": "http",
        }
    )


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        (None, Form.TEXT),
        ("*/*", Form.TEXT),
        ("", Form.TEXT),
        ("image/png", Form.TEXT),
        ("application/json", Form.JSON),
        ("Application/JSON", Form.JSON),
        ("application/json; charset=utf-8", Form.JSON),
        ("application/problem+json", Form.JSON),
        ("text/plain", Form.TEXT),
        ("text/event-stream", Form.EVENTS),
        ("image/png, application/json", Form.JSON),
        ("text/plain, application/json", Form.TEXT),
        ("application/json;q=0, text/plain", Form.TEXT),
        ("application/json;q=0.000", Form.TEXT),
        ("application/json;q=0.5, */*;q=0.1", Form.JSON),
    ],
)
def test_the_form_of_an_answer(accept: str | None, expected: Form) -> None:
    """`Accept` names it, in any case and with parameters; what nobody knows leaves the default."""
    scope = request(**({} if accept is None else {"accept": accept})).scope
    assert requested_form(scope, Form.TEXT) is expected
    if expected is Form.TEXT and accept not in (
        "text/plain",
        "text/plain, application/json",
        "application/json;q=0, text/plain",
    ):
        assert requested_form(scope, Form.JSON) is Form.JSON


def test_a_header() -> None:
    """The first of that name, or none."""
    assert header(request(a="1").scope, b"a") == b"1"
    assert header(request(a="1").scope, b"b") is None


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("application/json", True),
        ("APPLICATION/JSON; charset=utf-8", True),
        ("application/x-www-form-urlencoded", False),
        ("text/json", False),
        ("", False),
    ],
)
def test_bodies_that_are_json(content_type: str, expected: bool) -> None:
    """curl's form type is not."""
    assert is_json(request(content_type=content_type)) is expected
    assert not is_json(request())


@pytest.mark.parametrize(
    ("body", "parts"),
    [
        (b"{", ["not valid JSON"]),
        (b"\xff", ["not valid JSON"]),
        (b'{"command": "\xff"}', ["not valid JSON"]),
        (b"[]", ["object"]),
        (b"5", ["object"]),
        (b"{}", ["command"]),
        (b'{"command": 5}', ["str", "command"]),
        (b'{"command": "ls", "comand": "x"}', ["'comand'", "command, run_id, timeout"]),
        (b'{"command": "ls", "streams": "both"}', ["both"]),
        (b'{"command": "ls", "max_output": -1}', ["max_output"]),
        (b'{"command": "ls", "run_id": "a/b"}', ["run_id"]),
        (b'{"command": "ls", "run_id": ".."}', ["run_id"]),
        (b'{"command": "ls", "run_id": "+spare"}', ["run_id"]),
        (b'{"command": "ls", "run_id": "."}', ["run_id"]),
    ],
)
@pytest.mark.parametrize("defaults", [None, {"description": "d"}])
def test_bodies_that_are_refused(body: bytes, parts: list[str], defaults: dict[str, object] | None) -> None:
    """The message says what is wrong and what there could be."""
    with pytest.raises(InvalidRequest) as error:
        decode_json(body, RunRequest, defaults)
    assert all(part in error.value.detail for part in parts), error.value.detail
    assert error.value.detail.endswith(".")


def test_bodies_and_their_defaults() -> None:
    """The body goes over the defaults."""
    assert decode_json(b'{"command": "ls"}', RunRequest) == RunRequest(command="ls")
    defaults = {"description": "d", "command": "x"}
    assert decode_json(b'{"command": "ls"}', RunRequest, defaults) == RunRequest(command="ls", description="d")


def test_fields_of_a_query() -> None:
    """Numbers and truth values are written as text there."""
    assert convert_fields({"rows": "5", "cols": "10"}, ResizeRequest) == ResizeRequest(rows=5, cols=10)
    assert convert_fields({"eof": "true", "offset": "3"}, StdinRequest) == StdinRequest(eof=True, offset=3)
    with pytest.raises(InvalidRequest, match="rows"):
        convert_fields({"rows": "0", "cols": "1"}, ResizeRequest)


def test_parameters() -> None:
    """Those that there are not are refused by name."""
    assert query_fields(request(), ("a",)) == {}
    assert query_fields(request("a=1&b=%20x"), ("a", "b")) == {"a": "1", "b": " x"}
    with pytest.raises(InvalidRequest, match=r"no parameter 'c' here\. There are: a, b"):
        query_fields(request("c=1"), ("a", "b"))


@pytest.mark.parametrize(("value", "expected"), [("0", 0), ("5", 5), ("0007", 7), ("9" * 18, 10**18 - 1)])
def test_whole_numbers(value: str, expected: int) -> None:
    """Digits and nothing else."""
    assert integer_field("cursor", value, 0) == expected


@pytest.mark.parametrize("value", ["", "-1", "+1", "1.0", "1e3", "0x10", " 1", "1_000", "9" * 19, "x"])
def test_what_is_no_whole_number(value: str) -> None:
    """The message names the parameter and what was written."""
    with pytest.raises(InvalidRequest, match="cursor must be a whole number of at least 0"):
        integer_field("cursor", value, 0)


def test_durations() -> None:
    """The message names the parameter and shows the right forms."""
    assert duration_field("wait", "1m30s") == 90
    with pytest.raises(InvalidRequest, match="wait must be a duration such as '500ms'"):
        duration_field("wait", "soon")
    with pytest.raises(InvalidRequest, match="timeout must be between 0 and ten years"):
        duration_field("timeout", 10**400)
