"""What a request asks for: the form of its answer, its body, its parameters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from shelld_py.api.output import OutputQuery
from shelld_py.api.runs import WaitQuery
from shelld_py.errors import InvalidRequest
from shelld_py.http.requests import (
    Form,
    decode_json,
    duration_field,
    header,
    is_json,
    query_of,
    requested_form,
    signal_number,
)
from shelld_py.http.run_requests import RunQuery, StdinQuery, text_of
from shelld_py.request_data import RunRequest
from shelld_py.validation import nearest


def test_no_name_is_near_to_a_long_one() -> None:
    """To look for one takes time that is quadratic in its length."""
    assert nearest("a" * 59 + "b", ["a" * 60]) == "a" * 60
    assert nearest("a" * 60 + "b", ["a" * 60]) is None


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
        (b'{"command": 5}', ["command must be a string, not 5"]),
        (b'{"command": "ls", "comand": "x"}', ["'comand'", "command, argv, run_id, timeout"]),
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
    """Numbers and truth values are written as text there; what may come several times is a list."""
    assert query_of(request("eof=true&offset=3"), StdinQuery) == StdinQuery(eof=True, offset=3)
    assert query_of(request("until=exit&cursor=07&until=input"), WaitQuery) == WaitQuery(
        until=("exit", "input"), cursor=7
    )
    assert query_of(request("max_output=" + "9" * 18), RunQuery) == RunQuery(max_output=10**18 - 1)
    assert query_of(request(), OutputQuery) == OutputQuery()


@pytest.mark.parametrize(
    ("query", "told"),
    [
        *(
            (f"cursor={value}", f"cursor must be a whole number of at least 0, not {value!r}.")
            for value in ["", "-1", "1.0", "1e3", "0x10", "1_000", "9" * 19, "x"]
        ),
        ("limit=0", "limit must be a whole number of at least 1, not 0."),
        ("stream=both", "stream must be one of stdout, stderr, not 'both'."),
        ("c=1", "There is no parameter 'c' here. There are: cursor, stream, limit, "),
        ("strem=1", "There is no parameter 'strem' here. Do you mean stream? There are: cursor, "),
    ],
)
def test_parameters_that_are_refused(query: str, told: str) -> None:
    """The message says what is wrong and what would be right."""
    with pytest.raises(InvalidRequest) as error:
        query_of(request(query), OutputQuery)
    assert error.value.detail.startswith(told)


@pytest.mark.parametrize("value", ["1", "True", "yes", ""])
def test_what_is_no_truth_value(value: str) -> None:
    """Only true and false are."""
    with pytest.raises(InvalidRequest, match="eof must be true or false, not "):
        query_of(request(f"eof={value}"), StdinQuery)


@pytest.mark.parametrize("name", ["_IGN", "SIG_SETMASK", "_DFL", "SIG", "", "0", "65", "HUPP", "9" * 19, "-1"])
def test_what_is_no_signal(name: str) -> None:
    """Python's names of handlers and masks are none."""
    with pytest.raises(InvalidRequest, match="signal must be the name or number of a signal"):
        signal_number(name)


@pytest.mark.parametrize(("name", "number"), [("TERM", 15), ("sigterm", 15), ("15", 15), ("RTMIN", 34), ("CLD", 17)])
def test_signals(name: str, number: int) -> None:
    """By name, with SIG or without, or by number."""
    assert signal_number(name) == number


def test_durations() -> None:
    """The message names the parameter and shows the right forms."""
    assert duration_field("wait", "1m30s") == 90
    with pytest.raises(InvalidRequest, match="wait must be a duration such as '500ms'"):
        duration_field("wait", "soon")
    with pytest.raises(InvalidRequest, match="timeout must be between 0 and ten years"):
        duration_field("timeout", 10**400)


@given(
    st.lists(st.sampled_from(["é".encode(), "😀".encode(), b"\xff", b"\xf0\x9f", b"a"]), max_size=6), st.integers(0, 4)
)
def test_a_large_raw_body_is_the_same_text_as_a_small_one(tail: list[bytes], shift: int) -> None:
    """It is decoded in pieces, whose ends can lie within a character."""
    body = b"x" * (65_536 - shift) + b"".join(tail) * 3
    assert text_of(body) == body.decode("utf-8", "surrogateescape")
