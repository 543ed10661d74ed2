"""The console as files: who gets them, with which headers, and what is said where there are none."""

import gzip
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shelld_py
from tests.daemons import RunningDaemon

BUILT = Path(shelld_py.__file__).parent / "console"
FILES = {
    "index.html": b"<!doctype html><title>a page</title>",
    "app.js": b"'use strict';",
    "app.css": b"",
    "icon.svg": b"<svg/>",
}


@contextmanager
def _built() -> Iterator[None]:
    """Files as they are built, or some in their place."""
    if BUILT.exists():
        yield
        return
    BUILT.mkdir()
    try:
        for name, content in FILES.items():
            (BUILT / name).write_bytes(content)
            (BUILT / f"{name}.gz").write_bytes(gzip.compress(content))
        yield
    finally:
        for path in BUILT.iterdir():
            path.unlink()
        BUILT.rmdir()


def test_the_console_is_files_that_need_no_key(start_daemon: Callable[..., RunningDaemon]) -> None:
    """They lock nothing, may ask no other host and run no inline script, and are sent once and compressed."""
    daemon = start_daemon(key=None)
    if not BUILT.exists():
        missing = daemon.ask("GET", "/console")
        assert (missing.status, missing.headers["content-type"]) == (404, "text/plain; charset=utf-8")
        assert b"scripts/build-console" in missing.body
    with _built():
        for path, name in (("/console", "index.html"), ("/console/app.js", "app.js"), ("/console/app.css", "app.css")):
            plain = daemon.ask("GET", path)
            assert (plain.status, plain.body) == (200, (BUILT / name).read_bytes())
            policy = plain.headers["content-security-policy"]
            assert policy.startswith("default-src 'self';")
            assert "unsafe" not in policy
            assert "frame-ancestors 'none'" in policy
            assert plain.headers["x-content-type-options"] == "nosniff"
            assert plain.headers["referrer-policy"] == "no-referrer"
            small = daemon.ask("GET", path, headers={"Accept-Encoding": "gzip, br"})
            assert small.headers["content-encoding"] == "gzip"
            assert gzip.decompress(small.body) == plain.body
            for known in (plain, small):
                encoding = known.headers.get("content-encoding", "identity")
                asked = {"If-None-Match": known.headers["etag"], "Accept-Encoding": encoding}
                again = daemon.ask("GET", path, headers=asked)
                assert (again.status, again.body) == (304, b"")
            assert daemon.ask("HEAD", path, headers={"Accept-Encoding": "gzip"}).status == 200
        for path in ("/console/none.js", "/console/index.html", "/console/..%2fconfig.py", "/console/app.js.gz"):
            assert daemon.ask("GET", path).status == 404
        assert daemon.ask("POST", "/console", key="stranger").status == 405
    assert daemon.ask("GET", "/status", key="first").status == 200


@pytest.mark.parametrize("path", ["/console", "/console/app.js"])
def test_the_console_can_be_turned_off(start_daemon: Callable[..., RunningDaemon], path: str) -> None:
    answer = start_daemon(console__enabled="false").ask("GET", path)
    assert answer.status == 404
    assert b"console.enabled = true" in answer.body
