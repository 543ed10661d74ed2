"""`changes`: what a run did to files is in its result, by a look before it and one after it."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shelld_py.files import Looks
from tests.daemons import RunningDaemon, wait_for


@pytest.fixture
def place(daemon: RunningDaemon) -> Iterator[Path]:
    """An empty directory below the allowed ones, for this test alone."""
    path = Path(daemon.run('cd "$(mktemp -d -p .)"; cd -P .')["working_directory"])
    yield path
    daemon.client.post("/recycle")
    daemon.run(f"rm -rf {path}")


def told(result: dict[str, Any], place: Path) -> list[tuple[str, str, int]]:
    """The changes below PLACE, as tuples."""
    assert "changes" in result, result.get("changes_error")
    found = [(change["path"], change["kind"], change["size"]) for change in result["changes"]]
    return [(path.removeprefix(f"{place}/"), kind, size) for path, kind, size in found if path.startswith(f"{place}/")]


@pytest.mark.parametrize("path", ["/run", "/sessions/{}/run", "/exec"])
def test_what_a_run_did_to_files_is_in_its_result(daemon: RunningDaemon, place: Path, path: str) -> None:
    """In every shell, in the order of the paths, with sizes: of a deleted file the one that it had."""
    session = daemon.json("POST", "/sessions")["session_id"]
    (place / "deep" / "er").mkdir(parents=True)
    (place / "changed").write_text("before")
    (place / "deep" / "er" / "gone").write_text("four")
    command = "echo now >changed; rm -r deep; mkdir new; ln -s nowhere new/link; : >new/empty; exit 3"
    fields = {"command": command, "directory": str(place), "changes": True}
    result = daemon.json("POST", path.format(session), json=fields)
    assert result["exit_code"] == 3
    assert result["changes_truncated"] is False
    expected = [("changed", "modified", 4), ("deep/er/gone", "deleted", 4), ("new/empty", "created", 0)]
    assert told(result, place) == [*expected, ("new/link", "created", 7)]
    daemon.client.delete(f"/sessions/{session}")


def test_changes_are_kept_with_the_run(daemon: RunningDaemon, place: Path) -> None:
    """In its result for as long as that is kept; listings leave them out, as they do the output."""
    run_id = daemon.run("echo new >file", changes=True)["run_id"]
    assert told(daemon.json("GET", f"/runs/{run_id}"), place) == [("file", "created", 4)]
    assert "changes" not in next(run for run in daemon.json("GET", "/runs") if run["run_id"] == run_id)
    assert told(daemon.run("sleep 0.05; rm file", changes=True), place) == [("file", "deleted", 4)]
    assert "changes" not in daemon.run("echo new >file")


def test_files_of_any_time_are_looked_at(daemon: RunningDaemon, place: Path) -> None:
    """There are file systems that know years by the billion."""
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)], check=False).returncode:
        pytest.skip("cannot mount a file system here")
    try:
        result = daemon.run(f"touch -d @{2**63 - 1} {place}/far; touch -d @-{2**62} {place}/near", changes=True)
        assert told(result, place) == [("far", "created", 0), ("near", "created", 0)]
        assert told(daemon.run(f"touch -d @-1 {place}/far", changes=True), place) == [("far", "modified", 0)]
    finally:
        subprocess.run(["umount", str(place)], check=True)


def test_a_run_that_goes_on_tells_at_its_end(daemon: RunningDaemon, place: Path) -> None:
    """While it runs there is nothing to be told; a file of a moment between the looks is none."""
    run_id = daemon.start("echo x >early; : >brief; while [ ! -e go ]; do sleep 0.01; done; rm brief", changes=True)
    assert "changes" not in daemon.json("GET", f"/runs/{run_id}")
    (place / "go").touch()
    assert told(daemon.finished(run_id), place) == [("early", "created", 2), ("go", "created", 0)]


def test_a_change_of_the_same_size_at_once_is_seen(daemon: RunningDaemon, place: Path) -> None:
    """Though the clock that files are dated by stands still for milliseconds."""
    for _ in range(3):
        daemon.run("printf a >file")
        assert told(daemon.run("printf b >file", changes=True), place) == [("file", "modified", 1)]


def test_what_git_ignores_is_left_out_unless_asked_for(daemon: RunningDaemon, place: Path) -> None:
    """As is `.git` itself. A file that is ignored from now on has not been deleted."""
    daemon.run("git init -q .; mkdir build; echo x >old.log; echo build/ >.gitignore")
    command = "echo '*.log' >>.gitignore; date >build/out; date >new.log; date >.git/mine; date >kept"
    result = daemon.run(command, changes=True)
    assert [path for path, *_ in told(result, place)] == [".gitignore", "kept"]
    everything = told(daemon.run("rm .git/mine build/out new.log", changes="all"), place)
    assert [path for path, *_ in everything] == [".git/mine", "build/out", "new.log"]


def test_more_than_a_thousand_changes_are_cut(daemon: RunningDaemon, place: Path) -> None:
    """Those that come first by their paths are told."""
    result = daemon.run("touch {1000..2000}", changes=True)
    assert result["changes_truncated"] is True
    found = told(result, place)
    assert (len(found), found[0][0]) == (1000, "1000")


def test_links_are_not_followed(daemon: RunningDaemon, place: Path, tmp_path: Path) -> None:
    """What lies behind one is no change here; a directory that a link replaces is gone with all that it held."""
    (place / "inside").mkdir()
    (place / "inside" / "file").touch()
    command = f"ln -s {tmp_path} out; touch out/file; mv inside moved; ln -s moved inside"
    found = told(daemon.run(command, changes=True), place)
    assert found == [
        ("inside", "created", 5),
        ("inside/file", "deleted", 0),
        ("moved/file", "created", 0),
        ("out", "created", len(str(tmp_path))),
    ]


def test_names_of_any_bytes_and_depth_are_told(daemon: RunningDaemon, place: Path) -> None:
    """As far as they are text; directories that are too deep for a path are passed over."""
    deep = "for i in {1..40}; do mkdir $(printf %0200d 0) && cd $_; done; touch end"
    result = daemon.run(f"touch $'a\\xff' $'b\\nc'; ( {deep} )", changes=True)
    assert [path for path, *_ in told(result, place)][-2:] == ["a\ufffd", "b\nc"]


def test_a_run_that_is_killed_tells_its_changes(daemon: RunningDaemon, place: Path) -> None:
    """At a deadline of `/exec`, too, where nothing is left of the shell."""
    fields = {"command": "echo x >file; sleep 987", "directory": str(place), "deadline": "300ms", "changes": True}
    result = daemon.json("POST", "/exec", json=fields)
    assert (result["cause"], told(result, place)) == ("deadline", [("file", "created", 2)])


def test_a_busy_shell_refuses_before_it_looks(daemon: RunningDaemon) -> None:
    run_id = daemon.start("sleep 987")
    assert daemon.run("true", changes=True)["code"] == "shell_busy"
    daemon.client.post(f"/runs/{run_id}/kill")


def test_a_look_that_fails_is_told_and_the_run_is_not_concerned(daemon: RunningDaemon, place: Path) -> None:
    """Here the command kills the process that looks; the next run has another."""
    assert "changes" in daemon.run("true", changes=True)
    helpers = [pid for pid in daemon.children() if b"changes" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert helpers, "the process is kept for the next run"
    result = daemon.run(f"kill -9 {helpers[0]}; echo done", changes=True)
    assert (result["stdout"], result["exit_code"]) == ("done\n", 0)
    assert "changes" not in result
    assert "has ended" in result["changes_error"]
    assert daemon.json("GET", f"/runs/{result['run_id']}")["changes_error"] == result["changes_error"]
    wait_for(lambda: not Path(f"/proc/{helpers[0]}").exists())
    assert told(daemon.run("touch file", changes=True), place) == [("file", "created", 0)]


def test_the_form_of_a_query_string(daemon: RunningDaemon, place: Path) -> None:
    answer = daemon.client.post("/run?changes=true", content="touch file", headers={"Accept": "application/json"})
    assert told(answer.json(), place) == [("file", "created", 0)]
    assert daemon.json("POST", "/run?changes=some", content="true")["code"] == "invalid_request"


def test_models_are_told_in_words(daemon: RunningDaemon, place: Path) -> None:
    """`bash` and `shell_exec` take it, and their text has a line for each file."""
    answer = daemon.json("POST", "/tools/bash?full=true", json={"command": f"touch {place}/file", "changes": True})
    assert f"[files changed]\ncreated {place}/file\n" in answer["text"]
    assert told(answer["result"], place) == [("file", "created", 0)]
    fields = {"command": "printf x", "changes": True}
    assert daemon.json("POST", "/tools/shell_exec?full=true", json=fields)["text"].startswith("x\n[no file changed]\n[")


def looked(looks: Looks, *between: Path) -> Any:
    """What is told where BETWEEN are written between the looks."""

    async def both() -> Any:
        comparison = await looks.compare(everything=False)
        for path in between:
            path.write_text("new")
        comparison.end()
        found = await comparison.changes()
        await looks.aclose()
        return found

    return asyncio.run(both())


def test_too_many_files_are_told(tmp_path: Path) -> None:
    """Memory is bounded by their number; then there is no look at all."""
    for number in range(4):
        (tmp_path / str(number)).touch()
    found = looked(Looks([str(tmp_path)], [], most_files=3))
    assert found.changes is None
    assert "more than 3 files" in found.error


def test_a_look_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    found = looked(Looks([str(tmp_path)], [], longest=0.001))
    assert found.changes is None
    assert "before the command took longer than" in found.error


def test_the_daemons_own_files_are_none_of_the_commands(tmp_path: Path) -> None:
    """Nor is a directory told of twice that is below another one."""
    for name in ("data", "work"):
        (tmp_path / name).mkdir()
    looks = Looks([str(tmp_path), str(tmp_path / "work"), str(tmp_path / "gone")], [str(tmp_path / "data")])
    found = looked(looks, tmp_path / "data" / "log", tmp_path / "work" / "file")
    assert [change.path for change in found.changes] == [str(tmp_path / "work" / "file")]
