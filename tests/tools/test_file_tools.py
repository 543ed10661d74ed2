"""Tools for files, and the editor: they do what the endpoints do, and say it in text."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import Bench

EDITOR = "str_replace_based_edit_tool"
TEXT = "one\ntwo\nthree\n"

# Each change: what the file holds before (None: there is none), the arguments, and the last line of the text.
CHANGES: dict[str, tuple[str | None, dict[str, Any], str]] = {
    "create": (None, {"content": TEXT}, "create PATH, 14 bytes, undo takes back 1 change"),
    "update": (TEXT, {"content": "new"}, "update PATH, 3 bytes, undo takes back 1 change"),
    "insert": (TEXT, {"content": "x", "line": 1}, "insert PATH, 16 bytes, undo takes back 1 change"),
    "replace": (
        TEXT,
        {"old_string": "o", "new_string": "0", "expected_replacements": 2},
        "replace PATH, 2 replacements, 14 bytes, undo takes back 1 change",
    ),
    "delete": (TEXT, {}, "delete PATH, undo takes back 1 change"),
}
READS: dict[str, dict[str, Any]] = {
    "view": {"depth": 2, "hidden": True},
    "search": {"pattern": "T[wh]", "case_sensitive": False, "context": 1},
    "find": {"pattern": "*.txt", "limit": 2},
}
REFUSALS: dict[str, tuple[str, dict[str, Any], int, str]] = {
    "view a file": ("view", {"path": "a.txt"}, 415, "not_a_directory"),
    "read nothing": ("read", {"path": "none.txt"}, 404, "file_not_found"),
    "read lines that are not there": ("read", {"path": "a.txt", "view_range": [2, 9]}, 422, "line_out_of_range"),
    "create what exists": ("create", {"path": "a.txt", "content": ""}, 409, "file_exists"),
    "delete nothing": ("delete", {"path": "none.txt"}, 404, "file_not_found"),
    "move onto a file": ("move", {"source_path": "a.txt", "destination_path": "b.txt"}, 409, "file_exists"),
    "update another": ("update", {"path": "a.txt", "content": "", "if_match": "x"}, 412, "precondition_failed"),
    "insert beyond the end": ("insert", {"path": "a.txt", "content": "x", "line": 9}, 422, "line_out_of_range"),
    "replace nothing": ("replace", {"path": "a.txt", "old_string": "x", "new_string": ""}, 422, "text_not_found"),
    "undo nothing": ("undo", {"path": "a.txt"}, 409, "nothing_to_undo"),
    "search with a bad pattern": ("search", {"path": ".", "pattern": "("}, 400, "invalid_request"),
    "find outside": ("find", {"path": "/etc", "pattern": "*"}, 403, "path_not_allowed"),
    "edit outside": (EDITOR, {"path": "/etc/x", "command": "create", "file_text": ""}, 403, "path_not_allowed"),
    "view nothing": (EDITOR, {"path": "none", "command": "view"}, 404, "file_not_found"),
    "view lines of a directory": (EDITOR, {"path": ".", "command": "view", "view_range": [1, 2]}, 415, "not_a_file"),
    "insert into nothing": (
        EDITOR,
        {"path": "none", "command": "insert", "insert_line": 0, "insert_text": "x"},
        404,
        "file_not_found",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_the_one_of_the_endpoint(bench: Bench, name: str) -> None:
    before, arguments, footer = CHANGES[name]
    paths = [bench.directory / "by-tool.txt", bench.directory / "by-http.txt"]
    for path in paths:
        if before is not None:
            path.write_text(before)
    called = bench.call(name, path=str(paths[0]), **arguments)
    over_http = bench.daemon.json("POST", f"/files/{name}", json={"path": str(paths[1]), **arguments})
    assert repr(called.result) == repr(over_http).replace("by-http", "by-tool")
    assert called.footer == footer.replace("PATH", str(paths[0]))
    assert called.body == called.result["diff"]
    assert paths[0].exists() == paths[1].exists()
    undone = bench.call("undo", path=str(paths[0]))
    assert undone.result["undone"] == name
    assert undone.footer.startswith(f"undo of {name} {paths[0]}")
    assert (paths[0].read_text() if paths[0].exists() else None) == before


def test_a_move_is_the_one_of_the_endpoint(bench: Bench) -> None:
    source = bench.file("a.txt", TEXT)
    target = bench.directory / "sub" / "b.txt"
    called = bench.call("move", source_path=source, destination_path=str(target))
    assert called.result["source_path"] == source
    assert called.footer == f"move {source} to {target}, 14 bytes"
    assert target.read_text() == TEXT
    back = bench.daemon.json("POST", "/files/move", json={"source_path": str(target), "destination_path": source})
    assert list(back) == list(called.result)


@pytest.mark.parametrize("name", READS)
def test_a_look_is_the_one_of_the_endpoint(bench: Bench, name: str) -> None:
    for file in ("a.txt", "sub/b.txt", ".c.txt"):
        bench.file(file, TEXT)
    arguments = {"path": str(bench.directory), **READS[name]}
    assert bench.call(name, **arguments).result == bench.daemon.json("POST", f"/files/{name}", json=arguments)


def test_the_text_of_a_listing_and_of_finds(bench: Bench) -> None:
    bench.file("sub/b.txt", TEXT)
    bench.file("a.txt", TEXT)
    assert bench.call("view", path=str(bench.directory)).text == f"a.txt\nsub/\n[{bench.directory}, 2 entries]"
    found = bench.call("find", path=str(bench.directory), pattern="*.txt", limit=1)
    assert found.text == f"{bench.directory}/a.txt\n[the newest 1 of 2 files, {bench.directory}]"


def test_the_text_of_a_search(bench: Bench) -> None:
    path = bench.file("a.txt", "1\nhit\n3\n4\n5\nhit\n")
    called = bench.call("search", path=str(bench.directory), pattern="hit", context=1)
    assert called.text == (
        f"{path}-1-1\n{path}:2:hit\n{path}-3-3\n--\n{path}-5-5\n{path}:6:hit\n[2 matching lines, 1 file searched]"
    )
    first = bench.call("search", path=str(bench.directory), pattern="hit", limit=1)
    assert first.text == f"{path}:2:hit\n[the first 1 matching line, there are more, 1 file searched]"


def test_a_file_is_read_with_its_lines_and_etag(bench: Bench) -> None:
    path = bench.file("a.txt", TEXT)
    over_http = bench.daemon.json("POST", "/files/read", json={"path": path, "view_range": [2, -1]})
    called = bench.call("read", path=path, view_range=[2, -1])
    assert called.result == over_http
    assert called.text == f"two\nthree\n[{path}, lines 2 to 3 of 3, etag {over_http['etag']}]"
    empty = bench.file("empty.txt", "")
    assert bench.call("read", path=empty).text.startswith(f"[{empty}, an empty file, etag ")


@pytest.mark.parametrize("what", REFUSALS)
def test_a_refusal_is_the_one_of_the_endpoint(bench: Bench, what: str) -> None:
    tool, arguments, status, code = REFUSALS[what]
    bench.file("a.txt", TEXT)
    bench.file("b.txt", TEXT)
    given = dict(arguments)
    for name in ("path", "source_path", "destination_path"):
        if name in given and not given[name].startswith("/"):
            given[name] = str(bench.directory / given[name])
    refusal = bench.refused(tool, **given)
    assert (refusal["status"], refusal["code"]) == (status, code)
    if tool != EDITOR:
        assert refusal == bench.daemon.json("POST", f"/files/{tool}", json=given)


def test_the_editor_numbers_lines_as_cat_does(bench: Bench) -> None:
    path = bench.file("a.txt", TEXT)
    called = bench.call(EDITOR, command="view", path=path)
    assert called.text == f"     1\tone\n     2\ttwo\n     3\tthree\n[{path}, lines 1 to 3 of 3]"
    assert (called.result["output"], called.result["path"], called.result["diff"]) == (called.body, path, None)
    part = bench.call(EDITOR, command="view", path=path, view_range=[3, -1])
    assert part.text == f"     3\tthree\n[{path}, lines 3 to 3 of 3]"


def test_the_editor_lists_two_levels_of_a_directory(bench: Bench) -> None:
    bench.file("one/two/three.txt", "")
    bench.file(".hidden", "")
    called = bench.call(EDITOR, command="view", path=str(bench.directory))
    assert called.text == f"one/\none/two/\n[{bench.directory}, 2 entries]"


def test_the_editor_creates_and_overwrites(bench: Bench) -> None:
    path = bench.directory / "new" / "a.txt"
    made = bench.call(EDITOR, command="create", path=str(path), file_text="first\n")
    assert made.text == f"[create {path}, 6 bytes, undo takes back 1 change]"
    again = bench.call(EDITOR, command="create", path=str(path), file_text="second\n")
    assert again.text == f"[update {path}, 7 bytes, undo takes back 2 changes]"
    assert "-first\n+second" in again.result["diff"]
    bench.call("undo", path=str(path))
    assert path.read_text() == "first\n"


def test_the_editor_replaces_what_is_unique(bench: Bench) -> None:
    """Without `new_str` it deletes. What occurs twice, or not, is refused in the editor's own words."""
    path = bench.file("a.txt", "".join(f"line {number}\n" for number in range(1, 21)))
    called = bench.call(EDITOR, command="str_replace", path=path, old_str="line 10\n", new_str="ten\nTEN\n")
    assert called.body.startswith("     7\tline 7\n")
    assert "    10\tten\n    11\tTEN\n    12\tline 11\n" in called.body
    assert called.footer.startswith(f"replace {path}, 1 replacement, ")
    assert called.result["output"] == called.body
    bench.call(EDITOR, command="str_replace", path=path, old_str="TEN\n")
    assert "ten\nline 11\n" in Path(path).read_text()
    twice = bench.refused(EDITOR, command="str_replace", path=path, old_str="line 1", new_str="")
    assert (twice["status"], twice["code"], twice["lines"][0]) == (422, "replacement_count_mismatch", 1)
    assert twice["detail"].startswith("old_str occurs 10 times")
    assert "but it must be unique" in twice["detail"]
    never = bench.refused(EDITOR, command="str_replace", path=path, old_str="lime 2", new_str="")
    assert (never["status"], never["code"], never["nearest"]["first_line"]) == (422, "text_not_found", 2)
    assert never["detail"].startswith("old_str was not found")


def test_the_editor_inserts_after_a_line(bench: Bench) -> None:
    path = bench.file("a.txt", TEXT)
    called = bench.call(EDITOR, command="insert", path=path, insert_line=0, insert_text="zero")
    assert called.body == "     1\tzero\n     2\tone\n     3\ttwo\n     4\tthree\n"
    bench.call(EDITOR, command="insert", path=path, insert_line=4, insert_text="four\n")
    assert Path(path).read_text() == "zero\none\ntwo\nthree\nfour\n"


def test_a_change_that_leaves_nothing_shows_nothing(bench: Bench) -> None:
    path = bench.file("a.txt", "all\n")
    called = bench.call(EDITOR, command="str_replace", path=path, old_str="all\n")
    assert called.text == f"[replace {path}, 1 replacement, 0 bytes, undo takes back 1 change]"


@pytest.mark.parametrize(
    ("command", "needed"),
    [("create", "file_text"), ("str_replace", "old_str"), ("insert", "insert_line")],
)
def test_a_command_of_the_editor_names_what_it_needs(bench: Bench, command: str, needed: str) -> None:
    path = bench.file("a.txt", TEXT)
    refusal = bench.refused(EDITOR, command=command, path=path)
    assert (refusal["status"], refusal["argument"]) == (400, needed)
    assert refusal["detail"] == f"The command {command} needs the argument '{needed}'."
