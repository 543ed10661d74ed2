"""Raw transfer of files over HTTP: every header, range, status and refusal."""

import hashlib

import pytest

from tests.files.places import Place


@pytest.mark.parametrize(
    ("asked", "status", "content_range", "content"),
    [
        ("bytes=0-3", 206, "bytes 0-3/14", b"one\n"),
        ("bytes=8-", 206, "bytes 8-13/14", b"three\n"),
        ("bytes=-6", 206, "bytes 8-13/14", b"three\n"),
        ("bytes=8-99", 206, "bytes 8-13/14", b"three\n"),
        ("bytes=14-", 416, "bytes */14", None),
        ("bytes=-0", 416, "bytes */14", None),
        ("bytes=3-2", 400, None, None),
        ("bytes=0-1,3-4", 400, None, None),
        ("bytes=a-b", 400, None, None),
        ("bytes=" + "9" * 30 + "-", 400, None, None),
        ("lines=1-2", 200, None, b"one\ntwo\nthree\n"),
    ],
)
def test_ranges(place: Place, asked: str, status: int, content_range: str | None, content: bytes | None) -> None:
    """One range of bytes; a unit that nobody knows counts for nothing."""
    answer = place.raw("GET", "a.txt", Range=asked)
    assert (answer.status_code, answer.headers.get("content-range")) == (status, content_range)
    if content is not None:
        assert answer.content == content
        assert answer.headers["content-length"] == str(len(content))


def test_raw_headers_and_conditions(place: Place) -> None:
    """Unchanged files are not sent again; a range of a file that has changed is all of it."""
    answer = place.raw("GET", "data.dat")
    etag = answer.headers["etag"]
    assert etag == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert (answer.headers["accept-ranges"], answer.headers["content-type"]) == ("bytes", "application/octet-stream")
    head = place.raw("HEAD", "data.dat", Range="bytes=0-1")
    assert (head.status_code, head.content, head.headers["content-length"]) == (200, b"", "22001")
    for known in (etag, f"W/{etag}", f'"x", {etag}', "*"):
        unchanged = place.raw("GET", "data.dat", If_None_Match=known)
        assert (unchanged.status_code, unchanged.content, unchanged.headers["etag"]) == (304, b"", etag)
    assert place.raw("GET", "data.dat", If_None_Match='"x"').status_code == 200
    for validator in (etag, answer.headers["last-modified"]):
        assert place.raw("GET", "data.dat", Range="bytes=0-1", If_Range=validator).status_code == 206
    assert place.raw("GET", "data.dat", Range="bytes=0-1", If_Range='"x"').status_code == 200
    assert place.raw("GET", "a.txt", Range="bytes=99-", If_Range='"x"').content == b"one\ntwo\nthree\n"
    assert "etag" not in place.raw("GET", "large.txt").headers


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "code"),
    [
        ("GET", "b.txt", {}, 404, "file_not_found"),
        ("GET", "sub", {}, 415, "not_a_file"),
        ("GET", "fifo", {}, 415, "not_a_file"),
        ("GET", "outside", {}, 403, "path_not_allowed"),
        ("GET", "up/../../etc/passwd", {}, 403, "path_not_allowed"),
        ("PUT", "sub", {}, 415, "not_a_file"),
        ("PUT", "fifo", {}, 415, "not_a_file"),
        ("PUT", "outside", {}, 403, "path_not_allowed"),
        ("PUT", "locked.txt", {}, 403, "permission_denied"),
        ("PUT", "a.txt", {"If_Match": '"x"'}, 412, "precondition_failed"),
        ("PUT", "a.txt", {"If_None_Match": "*"}, 412, "precondition_failed"),
        ("PUT", "a.txt", {"If_None_Match": '"x"'}, 400, "invalid_request"),
        ("PUT", "n/e/w", {"If_Match": "*"}, 412, "precondition_failed"),
        ("POST", "a.txt", {}, 405, "method_not_allowed"),
        ("DELETE", "a.txt", {}, 405, "method_not_allowed"),
    ],
)
def test_raw_refusals(place: Place, method: str, path: str, headers: dict[str, str], status: int, code: str) -> None:
    """The same containment as for texts, and nothing left behind."""
    before = sorted(place.directory.rglob("*"))
    answer = place.raw(method, path, b"new" if method == "PUT" else None, **headers)
    assert (answer.status_code, answer.json()["code"]) == (status, code)
    assert sorted(place.directory.rglob("*")) == before
    assert (place.directory / "a.txt").read_bytes() == b"one\ntwo\nthree\n"


def test_raw_write(place: Place) -> None:
    """Any bytes to any name, as a change that can be undone; text has a diff."""
    answer = place.raw("PUT", "n/e/w.exe", b"\0\xff").json()
    assert answer == {
        "path": str(place.directory / "n/e/w.exe"),
        "operation": "write",
        "size": 2,
        "etag": hashlib.sha256(b"\0\xff").hexdigest(),
        "undo_depth": 1,
        "diff": "",
    }
    etag = place.raw("GET", "a.txt").headers["etag"]
    assert "-one\n+1\n" in place.raw("PUT", "a.txt", b"1\ntwo\nthree\n", If_Match=etag).json()["diff"]
    assert place.done("undo", path=str(place.directory / "a.txt"))["etag"] == etag.strip('"')
    assert place.daemon.client.put("/files/raw", content=b"x").status_code == 400
    assert place.daemon.client.get("/files/raw?path=a&colour=1").status_code == 400
