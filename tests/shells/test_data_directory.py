"""Whose the data directory is: what the daemon takes for its own, and what it leaves alone."""

import logging
import multiprocessing
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from shelld_py.config import OutputSettings
from shelld_py.errors import ConfigError
from shelld_py.shells.data_directory import MARK, claim
from shelld_py.shells.store import RunStore
from tests.daemons import RunningDaemon

LOGGER = logging.getLogger("tests.shells.data_directory")
NEEDS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="changing owners needs root")
STRANGER = 54321


def mode(path: Path) -> int:
    """Return the permission bits of a file, without the set-group-id that it has from a shared directory."""
    return stat.S_IMODE(path.stat().st_mode) & 0o1777


def all_of(directory: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, owner and content of all that lies in a directory."""
    return {
        str(path.relative_to(directory)): (
            path.lstat().st_mode,
            path.lstat().st_uid,
            path.read_bytes() if path.is_file() else b"",
        )
        for path in directory.rglob("*")
    }


def project(directory: Path) -> None:
    """Make what a project of machine learning may look like: it has directories of the names that we use."""
    for name in ("runs/exp1/model.pt", "unpublished/paper/draft.tex", "lock", "notes.txt"):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"content of {name}")
    directory.chmod(0o755)


def test_a_directory_that_is_not_there_is_made(tmp_path: Path) -> None:
    """It is private, bears the mark, and is known again."""
    data = tmp_path / "a" / "data"
    assert claim(data, LOGGER) == data
    assert (mode(data), (data / MARK).is_file()) == (0o700, True)
    (data / "something").write_text("else")
    assert claim(data, LOGGER) == data


def test_an_empty_directory_of_our_own_is_taken(tmp_path: Path) -> None:
    """It becomes private and bears the mark."""
    data = tmp_path / "data"
    data.mkdir()
    data.chmod(0o755)
    assert claim(data, LOGGER) == data
    assert (mode(data), (data / MARK).is_file()) == (0o700, True)


def test_the_directory_of_a_project_is_left_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The daemon works in a private subdirectory, says so once, and finds it again."""
    project(tmp_path)
    before = all_of(tmp_path)
    for _ in range(2):
        caplog.clear()
        with caplog.at_level("WARNING", LOGGER.name):
            data = claim(tmp_path, LOGGER)
        assert data == tmp_path / "shelld-py"
        assert len(caplog.records) == 1
        assert str(data) in caplog.text
        store = RunStore(data, OutputSettings(), LOGGER)
        store.open()
        store.close()
    assert (mode(tmp_path), mode(data)) == (0o755, 0o700)
    assert before.items() <= all_of(tmp_path).items()
    assert {path.name for path in tmp_path.iterdir()} == {"runs", "unpublished", "lock", "notes.txt", "shelld-py"}


@pytest.mark.parametrize("shape", ["tmpfs", "lost+found", "shared group"])
def test_a_volume_is_left_alone(shape: str, tmp_path: Path) -> None:
    """Neither the mode nor the content of a volume's root is changed."""
    volume = tmp_path / "volume"
    volume.mkdir()
    if shape == "tmpfs":
        volume.chmod(0o1777)
    elif shape == "lost+found":
        (volume / "lost+found").mkdir(mode=0o700)
    elif os.geteuid() == 0:
        os.chown(volume, 0, STRANGER)
        volume.chmod(0o2775)
    else:
        pytest.skip("changing the group needs root")
    before = volume.stat()
    data = claim(volume, LOGGER)
    assert (data, mode(data)) == (volume / "shelld-py", 0o700)
    after = volume.stat()
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert claim(volume, LOGGER) == data


def open_to_all(directory: Path) -> None:
    """Let every user reach a directory of a test."""
    for parent in (directory, *directory.parents):
        if parent.name.startswith(("pytest-", "popen-", "test_")):
            parent.chmod(0o755)


def as_user(uid: int, gid: int, action: Callable[[], None]) -> int:
    """Do something in a process of another user; return its exit status."""

    def change_and_act() -> None:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        action()

    process = multiprocessing.get_context("fork").Process(target=change_and_act)
    process.start()
    process.join()
    return process.exitcode or 0


@NEEDS_ROOT
def test_an_arbitrary_user_of_group_0(tmp_path: Path) -> None:
    """A user without a name works in a directory that its group may write in; another one beside it."""
    open_to_all(tmp_path)
    volume = tmp_path / "volume"
    volume.mkdir()
    volume.chmod(0o775)

    def work(expected: str) -> None:
        data = claim(volume, LOGGER)
        assert data == volume / expected
        store = RunStore(data, OutputSettings(), LOGGER)
        store.open()
        store.close()

    assert as_user(STRANGER, 0, lambda: work("shelld-py")) == 0
    assert as_user(STRANGER, 0, lambda: work("shelld-py")) == 0
    assert as_user(STRANGER + 1, 0, lambda: work(f"shelld-py-{STRANGER + 1}")) == 0
    assert (mode(volume), mode(volume / "shelld-py")) == (0o775, 0o700)


@NEEDS_ROOT
def test_an_error_names_the_call(tmp_path: Path) -> None:
    """A directory in which nothing can be made is told with the call that failed."""
    open_to_all(tmp_path)

    def fail() -> None:
        with pytest.raises(ConfigError, match=r"server\.data_directory: mkdir '.*data': Permission denied"):
            claim(tmp_path / "data", LOGGER)

    assert as_user(STRANGER, STRANGER, fail) == 0


def test_no_directory_at_all(tmp_path: Path) -> None:
    """A file in its place is refused, and left as it is."""
    (tmp_path / "data").write_text("mine")
    with pytest.raises(ConfigError, match="is not a directory"):
        claim(tmp_path / "data", LOGGER)
    assert (tmp_path / "data").read_text() == "mine"


def test_a_data_directory_without_mark_is_known(tmp_path: Path) -> None:
    """One that was made before there was a mark holds a lock and runs; with the files of others in them it is not."""
    data = tmp_path / "data"
    store = RunStore(data, OutputSettings(), LOGGER)
    store.open()
    store.close()
    (data / "runs" / "r1").mkdir()
    (data / "runs" / "r1" / "snapshot.json").write_text("{}")
    (data / "runs" / "r1" / "output.log").write_text("")
    assert not (data / MARK).exists()
    assert claim(data, LOGGER) == data
    assert (data / MARK).is_file()
    (data / MARK).unlink()
    (data / "runs" / "r1" / "model.pt").write_text("")
    assert claim(data, LOGGER) == data / "shelld-py"


def test_a_daemon_in_the_directory_of_a_project(start_daemon: Callable[..., RunningDaemon], tmp_path: Path) -> None:
    """It serves, keeps its runs below it, and leaves all else as it was."""
    directory = tmp_path / "daemon"
    project(directory / "data")
    before = all_of(directory / "data")
    daemon = start_daemon(directory)
    daemon.fresh()
    daemon.run("echo hello", run_id="r1")
    daemon.stop()
    assert before.items() <= all_of(directory / "data").items()
    assert f"it works in {directory / 'data' / 'shelld-py'}" in daemon.log.read_text()
    daemon = start_daemon(directory)
    assert daemon.json("GET", "/runs/r1")["stdout"] == "hello\n"
