"""The header fields of what is passed on: what is left out, what is set, what is rewritten. Functions of bytes alone.

A browser takes what stands below `/ports/PORT` for a part of this host, the program on the port takes itself for the
whole. So fields of its answers that speak of the host as a whole are rewritten, or left out.
"""

import re
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

from shelld_py.errors import BadGateway, InvalidRequest

Field = tuple[bytes, bytes]

COOKIE_PREFIX: Final = b"shelld-port-"
"""How the names of the cookies begin that let a browser in: they are nobody else's."""

_OWN_AMONG: Final = {b"cookie": (b";", COOKIE_PREFIX), b"sec-websocket-protocol": (b",", b"key.")}
"""Lists in which something may be for us: what is between its parts, and how ours begin."""
_HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection", b"te",
     b"trailer", b"transfer-encoding", b"upgrade")
)  # fmt: skip
"""RFC 9110, 7.6.1, and the older ones of RFC 2616, 13.5.1."""
_OF_THE_HOST: Final = frozenset(
    (b"alt-svc", b"clear-site-data", b"nel", b"report-to", b"service-worker-allowed", b"strict-transport-security")
)
"""What would hold for all ports, and for the host beyond them."""
_MOST_FIELDS: Final = 512
"""Of a request that goes on. h11 needs some 10 µs for each."""
_FORBIDDEN: Final = re.compile(rb"[\x00-\x08\x0a-\x1f\x7f]")
_COOKIE_PATH: Final = re.compile(rb";\s*path\s*=\s*([^;]*)", re.IGNORECASE)
_COOKIE_DOMAIN: Final = re.compile(rb";\s*domain\s*=[^;]*", re.IGNORECASE)
_ABSOLUTE: Final = re.compile(rb"https?://([^/?#]+)(.*)", re.IGNORECASE | re.DOTALL)


class Target(NamedTuple):
    """Where a request is to go: the port, and the path and query string as they were sent."""

    port: int
    path: bytes
    """Below the prefix."""
    stripped: bool = True
    """Whether the port sees it so, or as the browser does."""

    @property
    def prefix(self) -> bytes:
        """Below which path the browser sees the port."""
        return b"/ports/%d" % self.port

    @property
    def seen(self) -> bytes:
        """The path as the port sees it."""
        return self.path if self.stripped else self.prefix + self.path


def request_fields(
    fields: Iterable[Field], target: Target, client: bytes, is_key: Callable[[bytes], bool], *, upgrade: bool
) -> list[Field]:
    """Return the fields with which a request goes on. `is_key` tells our own key, which does not.

    Raises `InvalidRequest` where the body is coded in a way that cannot be passed on, or where there are too many.
    """
    given = list(fields)
    if len(given) > _MOST_FIELDS:
        raise InvalidRequest(f"A request with more than {_MOST_FIELDS} header fields cannot be passed on.")
    dropped = (_HOP_BY_HOP | _named(given) | {b"x-shell-key", b"expect"}) - {b"host", b"content-length"}
    found: list[Field] = []
    forwarded = {
        b"x-forwarded-for": b"",
        b"x-forwarded-host": b"",
        b"x-forwarded-proto": b"",
        b"x-forwarded-prefix": b"",
    }
    chunked = False
    for name, value in given:
        if name == b"transfer-encoding":
            if value.strip().lower() != b"chunked":
                raise InvalidRequest("Of the transfer codings chunked alone can be passed on.")
            chunked = True
        elif name in dropped:
            continue
        elif name in forwarded:
            forwarded[name] = value if not forwarded[name] else forwarded[name] + b", " + value
        elif name in _OWN_AMONG:
            if kept := _without_own(value, *_OWN_AMONG[name]):
                found.append((name, kept))
        elif name != b"authorization" or not _is_bearer_of(value, is_key):
            found.append((name, value))
    host = next((value for name, value in found if name == b"host"), None)
    forwarded[b"x-forwarded-host"] = forwarded[b"x-forwarded-host"] or host or b""
    if host is None:  # HTTP/1.0 need not have one; one that is empty goes on
        found.append((b"host", b"127.0.0.1:%d" % target.port))
    forwarded[b"x-forwarded-for"] += (b", " if forwarded[b"x-forwarded-for"] else b"") + client
    forwarded[b"x-forwarded-proto"] = forwarded[b"x-forwarded-proto"] or b"http"
    forwarded[b"x-forwarded-prefix"] += target.prefix if target.stripped else b""
    found += [field for field in forwarded.items() if field[1]]
    if chunked:
        found.append((b"transfer-encoding", b"chunked"))
    if upgrade:
        return [*found, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
    return [*found, (b"connection", b"close")]


def answer_fields(fields: Iterable[Field], status: int, target: Target, host: bytes) -> list[Field]:
    """Return the fields with which an answer goes back; `host` is what the request called us.

    Raises `BadGateway` where one has characters that no field can have.
    """
    given = list(fields)
    if any(_FORBIDDEN.search(value) for _, value in given):
        raise BadGateway(f"What listens on port {target.port} answered with a header that none can be.")
    dropped = _HOP_BY_HOP | _named(given) | _OF_THE_HOST | {b"x-request-id", b"date"}
    if status in (204, 304) or any(name == b"transfer-encoding" for name, _ in given):
        dropped |= {b"content-length"}
    found: list[Field] = []
    for name, value in given:
        if name in dropped:
            continue
        if name == b"set-cookie":
            if not value.lstrip().startswith(COOKIE_PREFIX):
                found.append((name, _own_cookie(value, target.prefix)))
        elif name in (b"location", b"content-location"):
            found.append((name, _own_location(value, target, host)))
        else:
            found.append((name, value))
    return found


def cookies(value: bytes, name: bytes) -> list[bytes]:
    """Return the values of all cookies called `name` in a header `Cookie`."""
    pairs = (part.strip().partition(b"=") for part in value.split(b";"))
    return [content for given, _, content in pairs if given == name]


def _named(fields: Iterable[Field]) -> set[bytes]:
    """Return the names of the fields that `Connection` says are for this hop alone."""
    return {token.strip().lower() for name, value in fields if name == b"connection" for token in value.split(b",")}


def _without_own(value: bytes, separator: bytes, own: bytes) -> bytes:
    return separator.join(part for part in value.split(separator) if not part.strip().startswith(own)).strip()


def _is_bearer_of(value: bytes, is_key: Callable[[bytes], bool]) -> bool:
    scheme, _, token = value.strip().partition(b" ")
    return scheme.lower() == b"bearer" and is_key(token.strip())


def _own_cookie(value: bytes, prefix: bytes) -> bytes:
    """Return a cookie that is sent to this port alone: its path below ours, no domain."""
    value = _COOKIE_DOMAIN.sub(b"", value)
    return _COOKIE_PATH.sub(lambda found: b"; Path=" + _below(prefix, found[1].strip() or b"/"), value)


def _own_location(value: bytes, target: Target, host: bytes) -> bytes:
    """Return where a redirection within the port leads for the browser; others stay as they are."""
    absolute = _ABSOLUTE.fullmatch(value)
    if absolute:
        own = {host.lower(), *(b"%b:%d" % (name, target.port) for name in (b"127.0.0.1", b"localhost", b"[::1]"))}
        if absolute[1].lower() not in own:
            return value
        value = absolute[2] if absolute[2].startswith(b"/") else b"/" + absolute[2]
    return _below(target.prefix, value) if value.startswith(b"/") and not value.startswith(b"//") else value


def _below(prefix: bytes, path: bytes) -> bytes:
    """Return a path below the prefix; a program that heeds X-Forwarded-Prefix has put it there already."""
    if path == prefix or path.startswith(prefix + b"/") or not path.startswith(b"/"):
        return path
    return prefix + path
