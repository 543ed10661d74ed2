"""File operations over HTTP: every operation, field, status, error code and header, against one daemon."""

import hashlib
import os
import socket
import subprocess
from typing import Any

import pytest

from tests.files.places import Place

_CHANGE = {"path", "operation", "size", "etag", "undo_depth", "diff"}


@pytest.mark.parametrize(
    ("operation", "fields", "expected", "file", "content"),
    [
        (
            "read",
            {"path": "@/a.txt"},
            {"content": "one\ntwo\nthree\n", "total_lines": 3, "view_range": [1, 3]},
            "",
            b"",
        ),
        ("read", {"path": "@/a.txt", "view_range": [2, 2]}, {"content": "two\n", "size": 14}, "", b""),
        (
            "read",
            {"path": "@/a.txt", "view_range": [2, -1]},
            {"content": "two\nthree\n", "view_range": [2, 3]},
            "",
            b"",
        ),
        ("read", {"path": "@/crlf.txt"}, {"content": "one\r\ntwo\r\n", "size": 13}, "", b""),
        ("read", {"path": "@/empty.txt"}, {"content": "", "total_lines": 0, "size": 0}, "", b""),
        ("read", {"path": "@/inside"}, {"path": "@/a.txt"}, "", b""),
        ("read", {"path": "@/sub/../a.txt"}, {"path": "@/a.txt"}, "", b""),
        ("read", {"path": "@/large.txt", "view_range": [4000, 4001]}, {"total_lines": 5000, "size": 75000}, "", b""),
        (
            "create",
            {"path": "@/n/e/w.txt", "content": "é\n"},
            {"operation": "create", "size": 3},
            "n/e/w.txt",
            b"\xc3\xa9\n",
        ),
        ("create", {"path": "@/new.txt", "content": "", "if_none_match": "*"}, {"size": 0, "diff": ""}, "new.txt", b""),
        ("update", {"path": "@/a.txt", "content": "new"}, {"operation": "update", "size": 3}, "a.txt", b"new"),
        ("update", {"path": "@/inside", "content": "new"}, {"path": "@/a.txt"}, "a.txt", b"new"),
        ("update", {"path": "@/crlf.txt", "content": "1\n2\n"}, {"size": 9}, "crlf.txt", b"\xef\xbb\xbf1\r\n2\r\n"),
        ("insert", {"path": "@/a.txt", "content": "zero", "line": 0}, {}, "a.txt", b"zero\none\ntwo\nthree\n"),
        ("insert", {"path": "@/a.txt", "content": "2b\n", "line": 2}, {}, "a.txt", b"one\ntwo\n2b\nthree\n"),
        ("insert", {"path": "@/a.txt", "content": "four", "line": 3}, {}, "a.txt", b"one\ntwo\nthree\nfour\n"),
        ("insert", {"path": "@/open.txt", "content": "three", "line": 2}, {}, "open.txt", b"one\ntwo\nthree"),
        ("insert", {"path": "@/open.txt", "content": "three\n", "line": 2}, {}, "open.txt", b"one\ntwo\nthree\n"),
        ("insert", {"path": "@/empty.txt", "content": "x", "line": 0}, {}, "empty.txt", b"x"),
        (
            "insert",
            {"path": "@/crlf.txt", "content": "x", "line": 1},
            {},
            "crlf.txt",
            b"\xef\xbb\xbfone\r\nx\r\ntwo\r\n",
        ),
        (
            "replace",
            {"path": "@/a.txt", "old_string": "o", "new_string": "0", "expected_replacements": 2},
            {"replacements": 2, "undo_depth": 1},
            "a.txt",
            b"0ne\ntw0\nthree\n",
        ),
        (
            "replace",
            {"path": "@/crlf.txt", "old_string": "one\ntwo", "new_string": "1\n2"},
            {"replacements": 1},
            "crlf.txt",
            b"\xef\xbb\xbf1\r\n2\r\n",
        ),
        ("replace", {"path": "@/a.txt", "old_string": "two\n", "new_string": ""}, {}, "a.txt", b"one\nthree\n"),
        ("delete", {"path": "@/a.txt"}, {"operation": "delete", "size": 0, "etag": None}, "a.txt", None),
        ("delete", {"path": "@/data.dat"}, {"diff": ""}, "data.dat", None),
        ("delete", {"path": "@/inside"}, {}, "inside", None),
        (
            "move",
            {"source_path": "@/a.txt", "destination_path": "@/m/b.txt"},
            {"path": "@/m/b.txt", "source_path": "@/a.txt", "destination_path": "@/m/b.txt", "undo_depth": 0},
            "m/b.txt",
            b"one\ntwo\nthree\n",
        ),
        (
            "move",
            {"source_path": "@/a.txt", "destination_path": "@/open.txt", "overwrite": True},
            {"operation": "move", "size": 14},
            "open.txt",
            b"one\ntwo\nthree\n",
        ),
    ],
)
def test_operations_do_what_they_say(
    place: Place, operation: str, fields: dict[str, Any], expected: dict[str, Any], file: str, content: bytes | None
) -> None:
    """The answer has the members that it should, and the file the bytes."""
    answer = place.done(operation, **place.at(fields))
    assert answer | place.at(expected) == answer
    if operation != "read":
        assert answer.keys() >= _CHANGE
        path = place.directory / file
        assert (path.read_bytes() if path.exists() else None) == content
        if content is not None:
            assert answer["etag"] == hashlib.sha256(content).hexdigest()


@pytest.mark.parametrize(
    ("operation", "fields", "status", "code", "words"),
    [
        ("view", {"path": "@/a.txt"}, 415, "not_a_directory", "not a directory"),
        ("view", {"path": "@/sbu"}, 404, "file_not_found", "sub"),
        ("view", {"path": "/etc"}, 403, "path_not_allowed", "allowed directories: "),
        ("view", {"path": "@", "depth": 0}, 400, "invalid_request", "depth"),
        ("read", {"path": "@/b.txt"}, 404, "file_not_found", "a.txt"),
        ("read", {"path": "@/a.txt/b"}, 404, "file_not_found", "no directory"),
        ("read", {"path": "@/sub"}, 415, "not_a_file", "is a directory"),
        ("read", {"path": "@/fifo"}, 415, "not_a_file", "is a fifo"),
        ("read", {"path": "@/prog.EXE"}, 403, "extension_refused", "blocked_extensions (bin, dll, exe)"),
        ("read", {"path": "@/data.dat"}, 415, "not_text", "NUL byte at byte 22000"),
        ("read", {"path": "@/latin.txt"}, 415, "not_text", "UTF-8 at byte 3"),
        ("read", {"path": "@/large.txt"}, 413, "file_too_large", "75000 bytes; files.max_file_size is 64KiB"),
        (
            "read",
            {"path": "@/large.txt", "view_range": [1, -1]},
            413,
            "file_too_large",
            "more than 64KiB, which is files.max_file_size",
        ),
        ("read", {"path": "@/tokens.txt"}, 413, "too_many_tokens", "Lines 1 to 266 would fit"),
        ("read", {"path": "@/a.txt", "view_range": [2, 9]}, 422, "line_out_of_range", "has 3 lines"),
        ("read", {"path": "@/a.txt", "view_range": [0, 2]}, 422, "line_out_of_range", "1 <= first"),
        ("read", {"path": "@/a.txt", "view_range": [3, 2]}, 422, "line_out_of_range", "first <= last"),
        ("read", {"path": "@/outside"}, 403, "path_not_allowed", "/etc/passwd is outside"),
        ("read", {"path": "@/up/../../etc/passwd"}, 403, "path_not_allowed", "allowed directories"),
        ("read", {"path": "/proc/self/root/etc/passwd"}, 403, "path_not_allowed", "allowed directories"),
        ("read", {"path": "../../../../etc/passwd"}, 403, "path_not_allowed", "allowed directories"),
        ("read", {"path": "/dev/zero"}, 403, "path_not_allowed", "allowed directories"),
        ("read", {"path": ""}, 400, "invalid_request", "not empty"),
        ("read", {"path": "@/a\0"}, 400, "invalid_request", "NUL"),
        ("read", {"path": "@/" + "n" * 300}, 400, "invalid_request", "too long"),
        ("read", {"path": "~/a.txt"}, 400, "invalid_request", "~ is not expanded"),
        ("create", {"path": "@/a.txt", "content": ""}, 409, "file_exists", "use update"),
        ("create", {"path": "@/sub", "content": ""}, 409, "file_exists", "exists"),
        ("create", {"path": "@/a.txt/b", "content": ""}, 404, "file_not_found", "no directory"),
        ("create", {"path": "@/c.txt", "content": "a\0b"}, 415, "not_text", "NUL"),
        ("create", {"path": "@/c.txt", "content": "x" * 65537}, 413, "file_too_large", "65537 bytes"),
        ("create", {"path": "/etc/shelld", "content": ""}, 403, "path_not_allowed", "allowed directories"),
        ("create", {"path": "@/c/", "content": ""}, 400, "invalid_request", "name of a file"),
        ("create", {"path": "@/a.txt", "content": "", "if_none_match": "*"}, 412, "precondition_failed", "exists"),
        ("create", {"path": "@/c.txt", "content": "", "if_match": "*"}, 412, "precondition_failed", "no file"),
        ("update", {"path": "@/b.txt", "content": ""}, 404, "file_not_found", "a.txt"),
        ("update", {"path": "@/prog.EXE", "content": ""}, 403, "extension_refused", "permissive"),
        ("update", {"path": "@/data.dat", "content": ""}, 415, "not_text", "NUL"),
        ("update", {"path": "@/locked.txt", "content": ""}, 403, "permission_denied", "read-only (mode 0444)"),
        ("update", {"path": "@/outside", "content": ""}, 403, "path_not_allowed", "allowed directories"),
        ("insert", {"path": "@/a.txt", "content": "x", "line": 4}, 422, "line_out_of_range", "from 0 to 3"),
        ("insert", {"path": "@/a.txt", "content": "x", "line": -1}, 422, "line_out_of_range", "from 0 to 3"),
        ("insert", {"path": "@/b.txt", "content": "x", "line": 0}, 404, "file_not_found", "a.txt"),
        ("replace", {"path": "@/a.txt", "old_string": "tow", "new_string": ""}, 422, "text_not_found", "2: two"),
        ("replace", {"path": "@/a.txt", "old_string": "TWO", "new_string": ""}, 422, "text_not_found", "'t'"),
        ("replace", {"path": "@/a.txt", "old_string": "", "new_string": "x"}, 400, "invalid_request", "use insert"),
        ("replace", {"path": "@/a.txt", "old_string": "x", "new_string": "x"}, 400, "invalid_request", "the same"),
        (
            "replace",
            {"path": "@/a.txt", "old_string": "o", "new_string": "0", "expected_replacements": 1},
            422,
            "replacement_count_mismatch",
            "(in lines 1, 2)",
        ),
        (
            "replace",
            {"path": "@/large.txt", "old_string": "x", "new_string": "y"},
            413,
            "file_too_large",
            "by a command",
        ),
        ("delete", {"path": "@/b.txt"}, 404, "file_not_found", "a.txt"),
        ("delete", {"path": "@/sub"}, 415, "not_a_file", "is a directory"),
        ("delete", {"path": "@/fifo"}, 415, "not_a_file", "is a fifo"),
        ("delete", {"path": "@/outside"}, 403, "path_not_allowed", "allowed directories"),
        ("move", {"source_path": "@/x", "destination_path": "@/y"}, 404, "file_not_found", "does not exist"),
        ("move", {"source_path": "@/a.txt", "destination_path": "@/open.txt"}, 409, "file_exists", "overwrite"),
        ("move", {"source_path": "@/a.txt", "destination_path": "@/a.txt"}, 400, "invalid_request", "the same"),
        ("move", {"source_path": "@/a.txt", "destination_path": "@/m/"}, 400, "invalid_request", "name of a file"),
        ("move", {"source_path": "@/sub", "destination_path": "@/m"}, 415, "not_a_file", "is a directory"),
        ("move", {"source_path": "@/a.txt", "destination_path": "/tmp/m"}, 403, "path_not_allowed", "allowed"),
        (
            "move",
            {"source_path": "@/a.txt", "destination_path": "@/locked.txt", "overwrite": True},
            403,
            "permission_denied",
            "read-only",
        ),
        ("undo", {"path": "@/a.txt"}, 409, "nothing_to_undo", "No change"),
        ("undo", {"path": "@/n/e/w"}, 409, "nothing_to_undo", "No change"),
        ("search", {"pattern": "(", "path": "@"}, 400, "invalid_request", "not a regular expression"),
        ("search", {"pattern": "x", "path": "/etc"}, 403, "path_not_allowed", "allowed directories"),
        ("search", {"pattern": "x", "path": "@/sbu"}, 404, "file_not_found", "sub"),
        ("search", {"pattern": "x", "path": "@/fifo"}, 415, "not_a_file", "is a fifo"),
        ("search", {"pattern": "", "path": "@"}, 400, "invalid_request", "pattern"),
        ("search", {"pattern": "x", "path": "@", "limit": 0}, 400, "invalid_request", "limit"),
        ("find", {"pattern": "/", "path": "@"}, 400, "invalid_request", "not a glob"),
        ("history", {"limit": 101}, 400, "invalid_request", "limit"),
        ("history", {"path": "/"}, 403, "path_not_allowed", "allowed directories"),
        ("find", {"pattern": "*", "path": "/"}, 403, "path_not_allowed", "allowed directories"),
    ],
)
def test_refusals_help(
    place: Place, operation: str, fields: dict[str, Any], status: int, code: str, words: str
) -> None:
    """Each with its status, its code and what would be right; nothing is changed."""
    before = {path: path.lstat() for path in place.directory.rglob("*")}
    answer = place.post(operation, **place.at(fields))
    problem = answer.json()
    assert (answer.status_code, problem["status"], problem["code"]) == (status, status, code), problem
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in problem["detail"]
    after = {path: path.lstat() for path in place.directory.rglob("*")}
    assert {path: (item.st_ino, item.st_ctime_ns) for path, item in after.items()} == {
        path: (item.st_ino, item.st_ctime_ns) for path, item in before.items()
    }


_FIELDS: dict[str, dict[str, Any]] = {
    "view": {"path": "@"},
    "read": {"path": "@/a.txt"},
    "create": {"path": "@/new.txt", "content": "x"},
    "update": {"path": "@/a.txt", "content": "x"},
    "insert": {"path": "@/a.txt", "content": "x", "line": 0},
    "replace": {"path": "@/a.txt", "old_string": "o", "new_string": "x"},
    "delete": {"path": "@/a.txt"},
    "move": {"source_path": "@/a.txt", "destination_path": "@/b.txt"},
    "undo": {"path": "@/a.txt"},
    "search": {"pattern": "x"},
    "find": {"pattern": "*"},
}
_OPTIONAL: dict[str, dict[str, Any]] = {
    "view": {"depth": "1", "hidden": 1},
    "read": {"view_range": [1, "2"]},
    "move": {"overwrite": "yes"},
    "replace": {"expected_replacements": 0},
    "undo": {"force": "true"},
    "search": {"literal": 1, "case_sensitive": 0, "include": "*.py", "exclude": [1], "context": -1, "limit": 1.5},
    "find": {"path": 5, "limit": 0},
}


@pytest.mark.parametrize("operation", _FIELDS)
def test_requests_are_taken_at_their_word(place: Place, operation: str) -> None:
    """Unknown fields, missing ones and wrong types are told by name, in JSON of whatever declared type."""
    fields = place.at(_FIELDS[operation])
    wrong = [fields | {"colour": 1}, dict.fromkeys(fields, 5)]
    wrong += [{name: value for name, value in fields.items() if name != missing} for missing in fields]
    wrong += [fields | {name: value} for name, value in _OPTIONAL.get(operation, {}).items()]
    if operation not in ("view", "read", "search", "find"):
        wrong += [fields | {"if_match": 1}, fields | {"if_none_match": "abc"}]
    for body in wrong:
        answer = place.post(operation, **body)
        named = {
            "colour",
            *(name for name in body if fields.get(name, ...) != body[name]),
            *(fields.keys() - body.keys()),
        }
        assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request"), body
        assert any(name in answer.json()["detail"] for name in named), answer.text
    for content in (b"[]", b"{", b'{"path": "\xff"}', b'"x"', b""):
        assert place.daemon.client.post(f"/files/{operation}", content=content).status_code == 400
    assert place.daemon.client.post(f"/files/{operation}?path=x", json=fields).status_code == 400
    refused = place.daemon.client.get(f"/files/{operation}")
    assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
    assert (place.directory / "a.txt").read_bytes() == b"one\ntwo\nthree\n"


def test_body_is_json_whatever_its_declared_type(place: Place) -> None:
    """As curl sends it."""
    content = f'{{"path": "{place.directory}/a.txt"}}'
    headers = {"Content-Type": "application/x-www-form-urlencoded"}
    assert place.daemon.client.post("/files/read", content=content, headers=headers).json()["total_lines"] == 3


def test_relative_paths_start_at_the_base_directory(place: Place) -> None:
    """And answers have the real, absolute path."""
    answer = place.done("read", path=f"./{place.directory.name}/inside")
    assert answer["path"] == str(place.directory / "a.txt")


def test_view(place: Place) -> None:
    """Names sorted, what has a dot only when asked for, links for what they are."""
    view = place.done("view", path=str(place.directory))
    assert view["directories"] == ["sub"]
    assert view["files"] == sorted(set(os.listdir(place.directory)) - {"sub", ".hidden"})
    assert (view["truncated"], view["total_entries"]) == (False, len(view["entries"]))
    entries = {entry["name"]: entry for entry in view["entries"]}
    assert [entries[name]["type"] for name in ("a.txt", "sub", "up", "fifo")] == [
        "file",
        "directory",
        "symlink",
        "other",
    ]
    assert entries["a.txt"]["size"] == 14
    assert entries["a.txt"]["modified_at"].endswith("Z")
    (place.directory / "sub/deep.txt").write_text("")
    deep = place.done("view", path=str(place.directory), depth=2, hidden=True)
    assert {"sub/deep.txt", ".hidden"} <= set(deep["files"])


def test_preconditions(place: Place) -> None:
    """An etag goes from a read to a change; a refusal tells the present one."""
    path = str(place.directory / "a.txt")
    etag = place.done("read", path=path)["etag"]
    (place.directory / "a.txt").write_text("other\n")
    changes: dict[str, dict[str, Any]] = {
        "update": {"content": "x"},
        "insert": {"content": "x", "line": 0},
        "replace": {"old_string": "other", "new_string": "x"},
        "delete": {},
    }
    for operation, fields in changes.items():
        for condition in ({"if_match": etag}, {"if_none_match": "*"}):
            answer = place.post(operation, path=path, **fields, **condition)
            present = hashlib.sha256(b"other\n").hexdigest()
            assert (answer.status_code, answer.json()["etag"]) == (412, present)
    moved = place.post("move", source_path=path, destination_path=path + "2", if_match=etag)
    assert moved.status_code == 412
    etag = place.done("read", path=path)["etag"]
    etag = place.done("update", path=path, content="1\n", if_match=etag)["etag"]
    etag = place.done("insert", path=path, content="0", line=0, if_match=f'"{etag}"')["etag"]
    assert place.post("undo", path=path, if_match="0" * 64).status_code == 412
    assert place.done("undo", path=path, if_match=etag)["size"] == 2
    place.done("delete", path=path, if_match="*")


def test_undo_walks_back_and_says_what_it_undid(place: Place) -> None:
    """With a diff that shows the way back, until there is nothing left."""
    path = str(place.directory / "new/a.txt")
    place.done("create", path=path, content="1\n")
    place.done("update", path=path, content="2\n")
    place.done("delete", path=path)
    answers = [place.done("undo", path=path) for _ in range(3)]
    assert [answer["undone"] for answer in answers] == ["delete", "update", "create"]
    assert [answer["undo_depth"] for answer in answers] == [2, 1, 0]
    assert "-2\n+1\n" in answers[1]["diff"]
    assert not (place.directory / "new").exists()
    assert place.post("undo", path=path).json()["code"] == "nothing_to_undo"


def test_repeat_with_an_idempotency_key_is_not_done_again(place: Place) -> None:
    """So an insertion can be sent again after a broken connection."""
    for _ in range(2):
        body = {"path": str(place.directory / "a.txt"), "content": "zero", "line": 0}
        headers = {"Idempotency-Key": place.directory.name}
        answer = place.daemon.client.post("/files/insert", json=body, headers=headers)
        assert (answer.status_code, answer.json()["undo_depth"]) == (200, 1)
    assert (place.directory / "a.txt").read_bytes() == b"zero\none\ntwo\nthree\n"


def test_search_and_find(place: Place) -> None:
    """All options of both, over files that may be read."""
    (place.directory / ".gitignore").write_text("*.log\n")
    (place.directory / "sub/a.log").write_text("two\n")
    (place.directory / "sub/b.md").write_text("Two (2)\n")
    path = str(place.directory)
    found = place.done("search", pattern="two", path=path, include=["a*", "*.md"], exclude=["large*"])
    assert [(match["path"], match["line"], match["column"]) for match in found["matches"]] == [(f"{path}/a.txt", 2, 1)]
    found = place.done("search", pattern="TWO (2)", path=path, literal=True, case_sensitive=False)
    assert [match["path"] for match in found["matches"]] == [f"{path}/sub/b.md"]
    found = place.done("search", pattern="t[w]o$", path=f"{path}/a.txt", context=1)
    assert (found["matches"][0]["before"], found["matches"][0]["after"]) == (["one"], ["three"])
    found = place.done("search", pattern="line", path=path, limit=3)
    assert (len(found["matches"]), found["truncated"]) == (3, True)
    assert found["files_skipped"] == 2  # prog.EXE by its extension, large.txt by its size
    os.utime(place.directory / "open.txt", (2_000_000_000, 2_000_000_000))
    files = place.done("find", pattern="*.txt", path=path, limit=2)
    assert files["files"][0] == {"path": f"{path}/open.txt", "size": 7, "modified_at": "2033-05-18T03:33:20.000Z"}
    assert (len(files["files"]), files["truncated"], files["total"] > 2) == (2, True, True)
    assert place.done("find", pattern="*.log", path=path)["files"] == []


def test_body_over_the_limit_changes_nothing(place: Place) -> None:
    """Whether its length is declared or not."""
    pieces = (b"x" * 65536 for _ in range(32))
    declared = place.raw("PUT", "a.txt", b"x" * 1_048_577)
    chunked = place.daemon.ask("PUT", f"/files/raw?path={place.directory}/new.dat", body=pieces, key="test-key")
    assert (declared.status_code, declared.json()["code"], chunked.status) == (413, "body_too_large", 413)
    assert (place.directory / "a.txt").read_bytes() == b"one\ntwo\nthree\n"
    assert not (place.directory / "new.dat").exists()


def test_a_part_of_a_file_is_not_taken_for_the_whole(place: Place) -> None:
    """A body that says that it is a range would cost the rest of the file."""
    refused = place.daemon.ask(
        "PUT", f"/files/raw?path={place.directory}/a.txt", body=b"o", key="test-key",
        headers={"Content-Range": "bytes 0-0/14"},
    )  # fmt: skip
    assert refused.status == 400
    assert (place.directory / "a.txt").read_bytes() == b"one\ntwo\nthree\n"


def test_socket_is_refused_at_once(place: Place) -> None:
    """It cannot be opened, and nobody waits for it."""
    with socket.socket(socket.AF_UNIX) as listener:
        directory = os.open(place.directory, os.O_PATH)
        listener.bind(f"/proc/self/fd/{directory}/s")  # the path itself may be too long for a socket
        os.close(directory)
        answer = place.post("read", path=str(place.directory / "s"))
    assert (answer.status_code, answer.json()["code"]) == (415, "not_a_file")


def test_lines_of_any_number_are_out_of_range(place: Place) -> None:
    """Also of one that no machine could count to."""
    answer = place.post("read", path=str(place.directory / "a.txt"), view_range=[1, 2**70])
    assert (answer.status_code, answer.json()["code"]) == (422, "line_out_of_range")


@pytest.mark.parametrize(
    ("seconds", "shown", "header"),
    [
        (10**18, "9999-12-31T23:59:59.000Z", "Fri, 31 Dec 9999 23:59:59 GMT"),
        (-(10**18), "0001-01-01T00:00:00.000Z", "Mon, 01 Jan 0001 00:00:00 GMT"),
    ],
)
def test_files_of_other_times_are_shown(place: Place, seconds: int, shown: str, header: str) -> None:
    """Whoever owns a file can set its time; dates have years from 1 to 9999."""
    disk = place.directory / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(disk)], check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        (disk / "a.txt").write_text("x")
        os.utime(disk / "a.txt", (seconds, seconds))
        assert place.done("view", path=str(disk))["entries"][0]["modified_at"] == shown
        assert place.done("find", path=str(disk), pattern="*")["files"][0]["modified_at"] == shown
        assert place.raw("GET", "disk/a.txt").headers["last-modified"] == header
    finally:
        subprocess.run(["umount", str(disk)], check=True)
