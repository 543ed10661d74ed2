"""Runs on disk: snapshots, retention, what is found after a crash, and whose directory it is."""

import asyncio
import json
import logging
import multiprocessing
import os
import resource
import shutil
import stat
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from shelld_py.config import OutputSettings
from shelld_py.errors import ConfigError, Overloaded, RunIdConflict, RunNotFound
from shelld_py.models import Cause, RunResult, RunStatus, ShellState, Stream, Streams
from shelld_py.output.excerpt import text_size
from shelld_py.output.log import OutputLog
from shelld_py.request_data import Command
from shelld_py.shells.data_directory import MARK, claim
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.record import fingerprint
from shelld_py.shells.run import Ending, Run, StoredRun
from shelld_py.shells.store import RunStore
from tests.daemons import wait_for

READY, BUSY = ShellState.READY, ShellState.BUSY
DONE = Ending(RunStatus.COMPLETED, Cause.EXIT, 0)
LOGGER = logging.getLogger("tests.shells.store")
LS = Command(text="ls")


@contextmanager
def open_store(directory: Path, **settings: int) -> Iterator[RunStore]:
    """Open a store and give its directory free in the end."""
    store = RunStore(directory, OutputSettings(**settings), LOGGER)
    store.open()
    try:
        yield store
    finally:
        store.close()


@contextmanager
def no_descriptors() -> Iterator[None]:
    """Have this process find no descriptor for anything that it would open."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def finished(store: RunStore, data: bytes = b"", run_id: str | None = None, command: Command = LS) -> LiveRun:
    """Make a run that has written `data` and ended."""
    run = new(store, command, run_id)
    run.promote()
    store.save(run)
    run.append(memoryview(data))
    run.finish(DONE)
    await store.seal(run)
    store.release(run)
    await asyncio.sleep(0)
    return run


def new(store: RunStore, command: Command, run_id: str | None = None) -> LiveRun:
    """Begin a run in a shell that is busy as long as it goes on."""
    run = store.create("main", command, run_id, lambda: BUSY if run.running else READY)
    return run


async def ids(store: RunStore) -> list[str]:
    """Return the ids of all runs, newest first."""
    return [result.run_id for result in (await store.results())[0]]


def stored_results(store: RunStore) -> dict[str, RunResult]:
    """Return the results of all runs, where no loop runs."""
    return {result.run_id: result for result in asyncio.run(store.results())[0]}


def stored(store: RunStore, run_id: str) -> Run:
    """Return a run, where no loop runs."""
    return asyncio.run(store.get(run_id))


def in_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `test` in an event loop."""
    asyncio.run(test())


def snapshot_of(directory: Path, run_id: str) -> dict[str, Any]:
    """Return the snapshot of a run as it lies on the disk."""
    return json.loads((directory / "runs" / run_id / "snapshot.json").read_text())


def run_directories(directory: Path) -> set[str]:
    """Return the names of the directories of runs; what is kept ready has a name that no run has."""
    return {path.name for path in (directory / "runs").iterdir()}


def test_what_ends_with_the_store_or_after_it_writes_nothing(tmp_path: Path) -> None:
    """Its directory, removed by whoever had it made, does not come back, and no descriptor stays open."""

    async def test() -> None:
        with open_store(tmp_path / "data") as store:
            runs = [new(store, LS, f"r{number}") for number in range(4)]
            runs[1].promote()
            runs[2].promote()
            descriptors = set(os.listdir("/proc/self/fd"))
            runs[0].finish(DONE)
            store.keep(runs[0])
        shutil.rmtree(tmp_path / "data")
        runs[1].finish(DONE)
        await store.seal(runs[1])
        store.release(runs[1])
        store.save(runs[2])
        runs[3].promote()
        await asyncio.sleep(0)
        assert set(os.listdir("/proc/self/fd")) < descriptors

    in_loop(test)
    assert not (tmp_path / "data").exists()


def test_files_of_a_run(tmp_path: Path) -> None:
    """While a run goes on there is a snapshot that says so, and its output; at its end a snapshot with the result."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, Command(text="ls", streams=Streams.SEPARATE), "r1")
            run.promote()
            store.save(run)
            assert snapshot_of(tmp_path, "r1") | {
                "status": "running",
                "state": "busy",
                "exit_code": None,
            } == snapshot_of(tmp_path, "r1")
            run.append(memoryview(b"out\r\n"))
            run.append_stderr(memoryview(b"err\n"))
            assert (tmp_path / "runs/r1/output.log").read_bytes() == b"out\r\n"
            assert (tmp_path / "runs/r1/stderr.log").read_bytes() == b"err\n"
            run.finish(Ending(RunStatus.COMPLETED, Cause.EXIT, 7))
            await store.seal(run)
            store.release(run)
            found = snapshot_of(tmp_path, "r1")
            expected = {
                "status": "completed",
                "cause": "exit",
                "exit_code": 7,
                "cursor": 5,
                "stdout": None,
                "stderr": None,
            }
            assert found | expected == found
            assert (found["original_stdout_size"], found["original_stderr_size"]) == (4, 4)

    in_loop(test)


def test_nobody_else_can_read_the_files(tmp_path: Path) -> None:
    """Directories are 0700, files 0600."""

    async def test() -> None:
        with open_store(tmp_path / "data") as store:
            await finished(store, b"secret", "r1")
        for path in (tmp_path / "data").rglob("*"):
            assert path.stat().st_mode & 0o077 == 0, path
        assert (tmp_path / "data").stat().st_mode & 0o077 == 0

    in_loop(test)


def test_an_ended_run_is_read_from_its_files(tmp_path: Path) -> None:
    """Result and output are the same before and after memory lets go of the run."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "r1")
            run.promote()
            run.append(memoryview(b"text\n"))
            run.finish(DONE)
            await store.seal(run)
            before = (await store.get("r1")).result()
            store.release(run)
            stored = await store.get("r1")
            assert isinstance(stored, StoredRun)
            assert (stored.running, stored.result()) == (False, before)
            log = stored.log(Stream.STDOUT)
            assert log is not None
            assert log.read(0, 100).data == b"text\n"
            assert stored.log(Stream.STDERR) is None

    in_loop(test)


def test_a_run_id_is_taken_once(tmp_path: Path) -> None:
    """A second run with the id is refused, whether the first goes on or has ended; ids of their own are unique."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "mine")
            with pytest.raises(RunIdConflict, match="mine"):
                new(store, LS, "mine")
            run.finish(DONE)
            await store.seal(run)
            store.release(run)
            with pytest.raises(RunIdConflict):
                new(store, LS, "mine")
            assert len({new(store, LS).run_id for _ in range(20)}) == 20

    in_loop(test)


def test_runs_that_are_not_there(tmp_path: Path) -> None:
    """A run that never was, or whose files are gone, is not found."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            with pytest.raises(RunNotFound, match="nothing"):
                await store.get("nothing")
            assert await store.find("nothing") is None
            await finished(store, run_id="r1")
            shutil.rmtree(tmp_path / "journal")
            with pytest.raises(RunNotFound, match="r1"):
                await store.get("r1")

    in_loop(test)


def test_the_newest_ended_runs_are_kept(tmp_path: Path) -> None:
    """Older ones are forgotten with their files; runs that go on do not count and do not go."""

    async def test() -> None:
        with open_store(tmp_path, retain_runs=3) as store:
            going_on = new(store, LS, "going-on")
            going_on.promote()
            store.save(going_on)
            for number in range(8):
                await finished(store, b"output %d\n" % number, f"r{number}")
            assert await ids(store) == ["r7", "r6", "r5", "going-on"]
            assert run_directories(tmp_path) == {"r7", "r6", "r5", "going-on"}
            for number in (5, 6, 7):
                log = (await store.get(f"r{number}")).log(Stream.STDOUT)
                assert log is not None
                assert log.read(0, 100).data == b"output %d\n" % number
            going_on.append(memoryview(b"still there"))
            assert (tmp_path / "runs/going-on/output.log").read_bytes() == b"still there"

    in_loop(test)


def test_no_ended_runs_are_kept_where_none_are_wanted(tmp_path: Path) -> None:
    """`retain_runs = 0` keeps nothing of a run that has been released."""

    async def test() -> None:
        with open_store(tmp_path, retain_runs=0) as store:
            await finished(store, b"text", "r1")
            assert await ids(store) == []
            assert run_directories(tmp_path) == set()

    in_loop(test)


def test_a_run_does_not_inherit_the_files_of_one_that_is_gone(tmp_path: Path) -> None:
    """Whatever is used again on the disk, a new run begins with an empty log and its own snapshot."""

    async def test() -> None:
        with open_store(tmp_path, retain_runs=1, log_max=800) as store:
            separate = Command(text="old", streams=Streams.SEPARATE)
            for number in range(4):
                run = new(store, separate, f"old{number}")
                run.promote()
                run.append(memoryview(b"o" * 2000))
                run.append_stderr(memoryview(b"e" * 2000))
                run.finish(DONE)
                await store.seal(run)
                store.release(run)
                await asyncio.sleep(0)
            run = await finished(store, b"new", "new")
            log = (await store.get("new")).log(Stream.STDOUT)
            assert log is not None
            assert (log.size, log.read(0, 100).data) == (3, b"new")
            assert (await store.get("new")).log(Stream.STDERR) is None
            assert snapshot_of(tmp_path, "new")["command"] == "ls"

    in_loop(test)


def test_deleting_and_clearing(tmp_path: Path) -> None:
    """A deleted run is gone from memory and disk; clearing leaves what goes on."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            for name in ("a", "b", "c"):
                await finished(store, run_id=name)
            going_on = new(store, LS, "going-on")
            going_on.promote()
            store.save(going_on)
            store.delete("a")
            store.delete("not there")
            assert run_directories(tmp_path) == {"b", "c", "going-on"}
            store.clear()
            assert await ids(store) == ["going-on"]
            assert run_directories(tmp_path) == {"going-on"}
            assert going_on.running
            await finished(store, b"again", "a")
            assert (await store.get("a")).status is RunStatus.COMPLETED

    in_loop(test)


def test_a_restarted_daemon_finds_the_runs(tmp_path: Path) -> None:
    """Ended runs are as they were, in the order of their start; retention holds for them too."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            for number in range(4):
                await finished(store, b"text %d" % number, f"r{number}")
            before = [(await store.get(f"r{number}")).result() for number in range(4)]
        with open_store(tmp_path) as store:
            assert set(await ids(store)) == {"r0", "r1", "r2", "r3"}
            assert [(await store.get(f"r{number}")).result() for number in range(4)] == before
            with pytest.raises(RunIdConflict):
                new(store, LS, "r2")
        with open_store(tmp_path, retain_runs=2) as store:
            assert len(await ids(store)) == 2
            assert run_directories(tmp_path) == set(await ids(store))

    in_loop(test)


def daemon_that_crashes(directory: str, log_max: int, output: bytes, pipe: Connection) -> None:
    """Begin a run, write `output`, and die without any clean-up."""
    store = RunStore(Path(directory), OutputSettings(log_max=log_max), LOGGER)
    store.open()
    run = new(store, Command(text="make", streams=Streams.SEPARATE), "r1")
    run.promote()
    store.save(run)
    run.append(memoryview(output))
    run.append_stderr(memoryview("ä\n".encode()))
    pipe.send("ready")
    os._exit(1)


def crash(directory: Path, log_max: int, output: bytes) -> None:
    """Have another process begin a run and crash."""
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    process = context.Process(target=daemon_that_crashes, args=(str(directory), log_max, output, there))
    process.start()
    assert here.recv() == "ready"
    process.join()
    here.close()
    there.close()


@pytest.mark.parametrize("size", [0, 100, 5000])
def test_a_run_that_was_going_on_when_its_daemon_crashed(tmp_path: Path, size: int) -> None:
    """The next daemon shows it as lost, with all of its output that a log of that size keeps."""
    output = b"".join(b"%06d\n" % number for number in range(size))[:size]
    crash(tmp_path, 800, output)
    with open_store(tmp_path, log_max=800) as store:
        result = stored(store, "r1").result()
        assert (result.status, result.cause) == (RunStatus.LOST, Cause.DAEMON_RESTARTED)
        assert result.error == "The daemon ended while the command was running."
        assert (result.command, result.exit_code, result.cursor) == ("make", None, size)
        assert result.original_stderr_size == 2
        assert not result.awaiting_input
        log = stored(store, "r1").log(Stream.STDOUT)
        assert log is not None
        assert log.size == size
        assert log.read(0, 400).data == output[:400]
        assert log.read(max(0, size - 200), 1000).data == output[max(0, size - 200) :]
    assert snapshot_of(tmp_path, "r1")["status"] == "lost"
    assert not list((tmp_path / "runs/r1").glob("output.log.*"))
    with open_store(tmp_path, log_max=800) as store:
        assert stored(store, "r1").result() == result


def test_a_second_daemon_is_refused(tmp_path: Path) -> None:
    """The directory belongs to one daemon as long as it lives, and to the next one after."""
    with open_store(tmp_path):
        second = RunStore(tmp_path, OutputSettings(), LOGGER)
        with pytest.raises(ConfigError, match="is in use by another daemon"):
            second.open()
        second.close()
        with pytest.raises(ConfigError, match=r"server\.data_directory"):
            RunStore(tmp_path, OutputSettings(), LOGGER).open()
    with open_store(tmp_path) as store:
        assert stored_results(store) == {}


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"{}", b'{"run_id": "bad"}', b"\xff\xfe", None],
    ids=["empty", "torn", "list", "no members", "few members", "bytes", "none"],
)
def test_a_snapshot_that_cannot_be_read(
    tmp_path: Path, content: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, its files stay, it is lost with its output kept, and the other runs are there."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            await finished(store, run_id="good")
            await finished(store, b"text", "bad")

    in_loop(test)
    shutil.rmtree(tmp_path / "journal")
    (tmp_path / "runs/bad/snapshot.json").unlink()
    if content is not None:
        (tmp_path / "runs/bad/snapshot.json").write_bytes(content)
    with caplog.at_level("WARNING", LOGGER.name), open_store(tmp_path) as store:
        assert {run_id: result.status for run_id, result in stored_results(store).items()} == {
            "good": RunStatus.COMPLETED,
            "bad": RunStatus.LOST,
        }
        result = stored_results(store)["bad"]
        assert (result.status, result.cause) == (RunStatus.LOST, Cause.UNKNOWN)
        assert "cannot be read" in (result.error or "")
        log = stored(store, "bad").log(Stream.STDOUT)
        assert log is not None
        assert log.read(0, 10).data == b"text"
    assert caplog.text.count("WARNING") == 1
    assert "bad" in caplog.text
    assert run_directories(tmp_path) == {"good", "bad"}


def test_the_snapshot_of_another_run(tmp_path: Path) -> None:
    """A directory that was copied holds no run of its own that could be read."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            await finished(store, run_id="r1")

    in_loop(test)
    (tmp_path / "runs/r2").mkdir()
    (tmp_path / "runs/r2/snapshot.json").write_bytes((tmp_path / "runs/r1/snapshot.json").read_bytes())
    with open_store(tmp_path) as store:
        assert {run_id: result.status for run_id, result in stored_results(store).items()} == {
            "r1": RunStatus.COMPLETED,
            "r2": RunStatus.LOST,
        }
    assert run_directories(tmp_path) == {"r1", "r2"}


@pytest.mark.parametrize("saved_before", [True, False])
def test_a_disk_that_refuses_the_snapshot(saved_before: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The result is still known as long as the daemon lives, and the fault is logged."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "r1")
            run.promote()
            if saved_before:
                store.save(run)
            for directory in (*tmp_path.glob("*/*/"), tmp_path / "journal"):
                shutil.rmtree(directory)
            (tmp_path / "journal").write_text("no directory can be made here")
            run.finish(DONE)
            await store.seal(run)
            store.release(run)
            assert (await store.get("r1")).result().status is RunStatus.COMPLETED

    with caplog.at_level("ERROR", LOGGER.name):
        in_loop(test)
    assert "r1" in caplog.text


@pytest.mark.parametrize("light", [True, False])
def test_a_data_directory_that_was_removed_is_made_anew(
    light: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The next runs are kept, it is private, marked and locked as ever, and one line says so."""
    data = tmp_path / "data"

    async def ended(store: RunStore, run_id: str, *, light: bool) -> None:
        run = new(store, LS, run_id)
        if not light:
            run.promote()
        run.append(memoryview(run_id.encode()))
        run.finish(DONE)
        if light:
            store.keep(run)
        else:
            await store.seal(run)
            store.release(run)
        await asyncio.sleep(0)

    async def test() -> None:
        claim(data, LOGGER)
        with open_store(data) as store:
            await ended(store, "r1", light=True)
            shutil.rmtree(data)
            for number in range(2, 5):
                await ended(store, f"r{number}", light=light)
            published = new(store, LS, "r5")
            store.publish(published)
            assert snapshot_of(data, "r5")["status"] == "running"
            with pytest.raises(ConfigError, match="in use by another daemon"), open_store(data):
                pass
            published.finish(DONE)
            await store.seal(published)
            store.release(published)

    with caplog.at_level("WARNING", LOGGER.name):
        in_loop(test)
    assert [record.getMessage() for record in caplog.records] == [
        f"{data} was removed by somebody else, and is made anew: the runs that had ended are lost"
    ]
    assert stat.S_IMODE(data.stat().st_mode) == 0o700
    assert (data / MARK).is_file()
    with open_store(data) as store:
        assert set(asyncio.run(ids(store))) == {"r2", "r3", "r4", "r5"}
        log = stored(store, "r3").log(Stream.STDOUT)
        assert log
        assert log.read(0, 10).data == b"r3"


def test_want_of_descriptors_says_nothing_of_a_run(tmp_path: Path) -> None:
    """It is neither unknown nor without output: the daemon cannot read just now, and says so."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            new(store, LS, "light").finish(DONE)
            store.keep(store.live()[0])
            await finished(store, b"x" * 100_000, "full")
            full = await store.get("full")
            with no_descriptors():
                for run_id in ("light", "full"):
                    with pytest.raises(Overloaded):
                        await store.find(run_id)
                with pytest.raises(Overloaded):
                    await store.results()
                with pytest.raises(Overloaded):
                    full.log(Stream.STDOUT)
            assert set(await ids(store)) == {"light", "full"}
            assert full.logs[Stream.STDOUT].size == 100_000

    in_loop(test)


def test_the_end_of_a_run_whose_output_cannot_be_counted_is_kept(tmp_path: Path) -> None:
    """It is counted when it is asked for later."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "r1")
            run.promote()
            store.save(run)
            drawn = b"\x1b[1mx\x1b[0m\r" * 10_000
            run.append(memoryview(drawn))
            run.logs[Stream.STDOUT].close()
            run.finish(DONE)
            with no_descriptors():
                await store.seal(run)
            store.release(run)
            kept = await store.get("r1")
            await kept.measure()
            assert kept.result().status is RunStatus.COMPLETED
            assert kept.result().original_stdout_size == text_size(OutputLog.of(drawn)) < 10

    in_loop(test)


def test_output_that_cannot_be_read_for_the_journal_lies_in_its_directory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Where no descriptor is left (EMFILE) a run that has ended is kept all the same, and the fault is logged."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "r1")
            run.promote()
            run.append(memoryview(b"output"))
            run.logs[Stream.STDOUT].close()  # reading takes a descriptor then
            run.finish(DONE)
            with no_descriptors():
                await store.seal(run)
            store.release(run)
            assert (await store.get("r1")).result().status is RunStatus.COMPLETED
            assert (tmp_path / "unpublished").is_dir()

    with caplog.at_level("ERROR", LOGGER.name):
        in_loop(test)
    assert "r1: its output cannot be read" in caplog.text


def test_only_runs_are_shown(tmp_path: Path) -> None:
    """What lies ready for the next run, or has no snapshot yet, is not among the runs, and is gone after a crash."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            await finished(store, run_id="r1")
            new(store, LS, "r2")
            assert [path.name for path in (tmp_path / "runs").iterdir()] == ["r1"]
        with open_store(tmp_path) as store:
            assert await ids(store) == ["r1"]
        wait_for(lambda: not list((tmp_path / "unpublished").iterdir()))

    in_loop(test)


def test_a_log_that_was_cut_is_whole_again_on_disk(tmp_path: Path) -> None:
    """At the end a run has one file for its output, and its snapshot says which offsets it holds."""

    async def test() -> None:
        with open_store(tmp_path, log_max=800) as store:
            await finished(store, b"0123456789" * 300, "r1")
            found = snapshot_of(tmp_path, "r1")
            (first, last) = found["stdout_extents"]
            assert first == [0, 400]
            assert sum(last) == 3000
            assert (tmp_path / "runs/r1/output.log").stat().st_size == 400 + last[1]
            log = (await store.get("r1")).log(Stream.STDOUT)
            assert log is not None
            assert log.read(2990, 100).data == b"0123456789"
            assert not list((tmp_path / "runs/r1").glob("output.log.*"))

    in_loop(test)


@contextmanager
def files_limited_to(size: int) -> Iterator[None]:
    """Have the kernel refuse to let any file grow beyond `size` bytes for a while."""
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))


def test_a_disk_without_room_to_make_a_log_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The run is sealed all the same, its output can be read, also by the next daemon, and the fault is logged."""
    output = b"%07d\n" * 30000 % tuple(range(30000))

    async def test() -> None:
        with open_store(tmp_path, log_max=80000) as store, files_limited_to(41000):
            await finished(store, output, "r1")
            assert (await store.get("r1")).result().status is RunStatus.COMPLETED
        with open_store(tmp_path, log_max=80000) as store:
            log = (await store.get("r1")).log(Stream.STDOUT)
            assert log is not None
            assert log.size == len(output)
            assert log.read(0, 100).data == output[:100]
            assert log.read(len(output) - 100, 1000).data == output[-100:]

    with caplog.at_level("ERROR", LOGGER.name):
        in_loop(test)
    assert "r1" in caplog.text


def test_a_crash_and_a_disk_without_room(tmp_path: Path) -> None:
    """A daemon that finds a run of a crashed one starts all the same, and shows it as lost with all its output."""
    output = b"%07d\n" * 30000 % tuple(range(30000))
    crash(tmp_path, 80000, output)
    for snapshot in tmp_path.glob("runs/*/snapshot.json"):
        (snapshot.parent / "snapshot.json.new").mkdir()
    with files_limited_to(41000), open_store(tmp_path, log_max=80000) as store:
        run = stored(store, "r1")
        assert (run.status, run.result().status) == (RunStatus.LOST, RunStatus.LOST)
        log = run.log(Stream.STDOUT)
        assert log is not None
        assert log.read(len(output) - 100, 1000).data == output[-100:]


def test_background_output_after_the_end(tmp_path: Path) -> None:
    """What a lingering process writes is kept with its run, and none of what was there before is lost."""

    async def test() -> None:
        with open_store(tmp_path, log_max=800) as store:
            run = new(store, LS, "r1")
            run.promote()
            run.append(memoryview(b"0123456789" * 300))
            run.finish(DONE)
            await store.seal(run)
            run.append(memoryview(b"late" * 75))
            kept = run.log(Stream.STDOUT).kept  # type: ignore[union-attr]
            store.save(run)
            store.release(run)
            log = (await store.get("r1")).log(Stream.STDOUT)
            assert log is not None
            assert log.size == 3300
            assert log.read(3000, 1000).data[:4] == b"late"
            assert log.kept == kept

    in_loop(test)


@pytest.mark.parametrize(
    ("other", "same"),
    [
        (Command(text="ls"), True),
        (Command(text="ls "), False),
        (Command(text="ls", directory="/"), False),
        (Command(text="ls", stdin=""), False),
        (Command(text="ls", environment={"A": "1"}), False),
        (Command(text="ls", streams=Streams.SEPARATE), False),
    ],
)
def test_fingerprints(other: Command, same: bool) -> None:
    """Two requests are the same when all that they ask for is; the session counts as well."""
    assert (fingerprint("main", LS) == fingerprint("main", other)) is same
    assert fingerprint("main", LS) != fingerprint("s1", LS)


def test_what_was_asked_for_before_a_deletion_is_read_whole(tmp_path: Path) -> None:
    """A short output is overwritten in the journal by a DELETE, and who reads it then gets it as it was."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            kept = new(store, LS, "kept")
            kept.append(memoryview(b"short\n"))
            kept.finish(DONE)
            store.keep(kept)
            sealed = new(store, LS, "sealed")
            sealed.promote()
            sealed.append(memoryview(b"short\n"))
            sealed.finish(DONE)
            await store.seal(sealed)
            readers = [await store.get("kept"), await store.get("sealed")]
            logs = [reader.log(Stream.STDOUT) for reader in readers]
            for run_id in ("kept", "sealed"):
                store.delete(run_id)
            assert b"short" not in b"".join(path.read_bytes() for path in (tmp_path / "journal").iterdir())
            logs += [reader.log(Stream.STDOUT) for reader in readers]
            assert [log.read(0, 100).data for log in logs if log] == [b"short\n"] * 4
            store.release(sealed)

    in_loop(test)


def test_nothing_comes_back_of_a_run_that_is_deleted_while_it_is_sealed(tmp_path: Path) -> None:
    """A DELETE in the time in which its output is counted: no record of it follows."""

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "r1")
            run.promote()
            run.append(memoryview(b"\x1b[31mred\x1b[0m\n" * 1000))
            run.finish(DONE)
            sealing = asyncio.create_task(store.seal(run))
            await asyncio.sleep(0)
            store.delete("r1")
            await sealing
            store.release(run)

    in_loop(test)
    with open_store(tmp_path) as store:
        assert stored_results(store) == {}


def test_a_size_that_was_left_uncounted_is_counted_when_it_is_asked_for(tmp_path: Path) -> None:
    """A run that is hurried is kept with its size in bytes; the daemon after this one still knows what is missing."""
    lines = 400_000

    async def test() -> None:
        with open_store(tmp_path) as store:
            run = new(store, LS, "r1")
            run.promote()
            store.save(run)
            run.append(memoryview(b"\x1b[31mred\x1b[0m\n" * lines))
            run.finish(DONE)
            sealing = asyncio.create_task(store.seal(run))
            await asyncio.sleep(0)
            run.hurry()
            await sealing
            store.release(run)
            assert (await store.get("r1")).result().original_stdout_size > 4 * lines

    async def later() -> None:
        with open_store(tmp_path) as store:
            run = await store.get("r1")
            await run.measure()
            assert run.result().original_stdout_size == 4 * lines

    in_loop(test)
    in_loop(later)
    assert snapshot_of(tmp_path, "r1")["uncounted"] is True
