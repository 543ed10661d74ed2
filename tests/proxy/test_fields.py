"""The header fields of what is passed on, whatever fields there are."""

import time

from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.proxy.fields import Field, Target, answer_fields, request_fields

KEY = b"the-key"
TARGET = Target(3000, b"/")
NAMES = st.sampled_from(
    b"host connection x-shell-key authorization cookie set-cookie upgrade te x-forwarded-for x-forwarded-prefix "
    b"content-length location sec-websocket-protocol proxy-authorization a b".split()
)
PARTS = b"Bearer |bearer |the-key|key.dGhlLWtleQ|shelld-port-3000=|; |, |Path=/|Domain=x|/|close|host|a|\xff|\t|="
VALUES = st.lists(st.sampled_from(PARTS.split(b"|")), max_size=8).map(b"".join)
FIELDS = st.lists(st.tuples(NAMES, VALUES), max_size=12)


@settings(max_examples=50)
@given(FIELDS, st.booleans())
def test_nothing_of_ours_goes_on(fields: list[Field], upgrade: bool) -> None:
    """Neither key nor cookie, in any combination; and what this hop is, is said once."""
    found = request_fields(fields, TARGET, b"127.0.0.1", lambda key: key == KEY, upgrade=upgrade)
    names = [name for name, _ in found]
    for name in (b"x-forwarded-for", b"x-forwarded-proto", b"x-forwarded-prefix", b"connection"):
        assert names.count(name) == 1, name
    assert b"host" in names
    assert not {b"x-shell-key", b"te", b"proxy-authorization", b"transfer-encoding"} & set(names)
    for name, value in found:
        if name == b"authorization":
            scheme, _, token = value.strip().partition(b" ")
            assert scheme.lower() != b"bearer" or token.strip() != KEY
        if name == b"cookie":
            assert not any(part.strip().startswith(b"shelld-port-") for part in value.split(b";"))
        if name == b"sec-websocket-protocol":
            assert not any(part.strip().startswith(b"key.") for part in value.split(b","))


@settings(max_examples=50)
@given(FIELDS)
def test_no_cookie_of_a_program_is_for_all_of_the_host(fields: list[Field]) -> None:
    """Where it names a path, that is below the port's; it names no domain, and none of ours."""
    for name, value in answer_fields(fields, 200, TARGET, b"localhost"):
        assert name != b"connection"
        if name == b"set-cookie":
            assert not value.lstrip().startswith(b"shelld-port-")
            attributes = [part.strip() for part in value.split(b";")[1:]]
            assert not any(attribute.lower().startswith(b"domain=") for attribute in attributes)
            paths = [attribute[5:] for attribute in attributes if attribute.lower().startswith(b"path=")]
            assert all(path.startswith(b"/ports/3000") or not path.startswith(b"/") for path in paths)


def test_an_empty_host_goes_on_as_it_is() -> None:
    """A request has one host (RFC 9112, 3.2): none is put beside an empty one."""
    found = request_fields([(b"host", b"")], TARGET, b"127.0.0.1", lambda _: False, upgrade=False)
    assert [value for name, value in found if name == b"host"] == [b""]


def test_long_fields_take_no_long_time() -> None:
    """Linear: a second is a thousand times what each takes."""
    started = time.perf_counter()
    for value in (
        b"; " * 30000,
        b";" + b" " * 60000,
        b"; path" + b" " * 60000,
        b"a; domain=" * 6000,
        b"http://" + b"a" * 60000,
    ):
        answer_fields([(b"set-cookie", value), (b"location", value)], 200, TARGET, b"localhost")
        request_fields([(b"cookie", value), (b"connection", value)], TARGET, b"", lambda _: False, upgrade=False)
    assert time.perf_counter() - started < 1
