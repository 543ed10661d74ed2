"""Data directories that somebody or something has changed: whatever lies there, the store opens and works."""

import asyncio
import logging
import os
import re
import shutil
import socket
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shelld_py.config import OutputSettings
from shelld_py.models import Cause, RunStatus, ShellState, Stream, Streams
from shelld_py.request_data import Command
from shelld_py.shells.data_directory import claim
from shelld_py.shells.run import Ending
from shelld_py.shells.store import RunStore
from tests.daemons import running_daemon

LOGGER = logging.getLogger("tests.shells.damaged_data")
SETTINGS = OutputSettings(log_max=4000, retain_runs=6)


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data directory with runs of all kinds: short, long, with both streams, cut, and going on at a crash."""
    data = tmp_path_factory.mktemp("original") / "data"

    async def fill() -> None:
        store = RunStore(claim(data, LOGGER), SETTINGS, LOGGER)
        store.open()
        for number, size in enumerate((0, 10, 200, 9000)):
            command = Command(text=f"command {number}", streams=Streams.SEPARATE if number == 2 else Streams.MERGED)
            run = store.create("main", command, f"run-{number}", lambda: ShellState.READY)
            if number:
                run.promote()
                store.save(run)
                run.append(memoryview(b"output\n" * size))
            run.finish(Ending(RunStatus.COMPLETED, Cause.EXIT, number))
            if number:
                await store.seal(run)
                store.release(run)
            else:
                store.keep(run)
        going_on = store.create("main", Command(text="going on"), "going-on", lambda: ShellState.BUSY)
        going_on.promote()
        store.save(going_on)
        going_on.append(memoryview(b"more output\n" * 2000))
        store.close()

    asyncio.run(fill())
    return data


def mutate(data: st.DataObject, directory: Path) -> None:
    """Change one thing below a directory."""
    places = sorted(path for path in directory.rglob("*"))
    kind = data.draw(st.sampled_from(["truncate", "flip", "delete", "add", "retype"]))
    if kind == "add" or not places:
        parent = data.draw(st.sampled_from([directory, *(path for path in places if path.is_dir())]))
        names = [
            "lock",
            "runs",
            "x",
            "..x",
            "a b",
            "snapshot.json",
            "output.log",
            "output.log.5.5",
            "timing",
            "00000009.journal",
            "1",
        ]
        path = parent / data.draw(st.sampled_from(names))
        if not os.path.lexists(path):
            path.write_bytes(data.draw(st.binary(max_size=100)))
        return
    path = data.draw(st.sampled_from(places))
    if kind in ("truncate", "flip") and path.is_file() and not path.is_symlink() and path.stat().st_size:
        at = data.draw(st.integers(0, path.stat().st_size - 1))
        if kind == "truncate":
            os.truncate(path, at)
            return
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data.draw(st.binary(min_size=1, max_size=20)))
        return
    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    if kind == "retype":
        match data.draw(st.sampled_from(["directory", "file", "link", "fifo", "sparse"])):
            case "directory":
                path.mkdir()
            case "file":
                path.write_bytes(b"{}")
            case "link":
                path.symlink_to("/dev/zero")
            case "fifo":
                os.mkfifo(path)
            case _:
                path.touch()
                os.truncate(path, 1 << 40)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_a_store_opens_whatever_lies_there(data: st.DataObject, original: Path, tmp_path: Path) -> None:
    """What it finds can be listed, read and deleted, and new runs are kept."""
    directory = tmp_path / "data"
    shutil.rmtree(directory, ignore_errors=True)
    shutil.copytree(original, directory)
    for _ in range(data.draw(st.integers(1, 4))):
        mutate(data, directory)

    async def work() -> None:
        for _ in range(2):
            store = RunStore(claim(directory, LOGGER), SETTINGS, LOGGER)
            store.open()
            results, _ = await store.results()
            for result in results:
                run = await store.get(result.run_id)
                assert not run.running
                for stream in Stream:
                    if log := run.log(stream):
                        log.read(0, 100)
            new = store.create("main", Command(text="new"), None, lambda: ShellState.READY)
            new.finish(Ending(RunStatus.COMPLETED, Cause.EXIT, 0))
            store.keep(new)
            assert (await store.get(new.run_id)).result().command == "new"
            if results:
                store.delete(results[0].run_id)
                assert await store.find(results[0].run_id) is None
            await asyncio.sleep(0)
            store.close()

    asyncio.run(asyncio.wait_for(work(), 60))


@pytest.mark.parametrize("far", ["duration", "last written", "start"])
def test_times_that_no_daemon_has_written(original: Path, far: str) -> None:
    """However far from now they are, the store opens, and lists the run. On a tmpfs, which keeps any time of a file."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as shm:
        directory = Path(shm) / "data"
        shutil.copytree(original, directory)
        run = directory / "runs/going-on"
        snapshot = run / "snapshot.json"
        if far == "duration":
            snapshot.write_text(re.sub(r'"duration":[^,]*', '"duration":1e300', snapshot.read_text()))
        elif far == "start":
            snapshot.write_text("{")
        os.utime(run if far == "start" else run / "output.log", (0, 9e15))

        async def work() -> None:
            for _ in range(2):
                store = RunStore(claim(directory, LOGGER), SETTINGS, LOGGER)
                store.open()
                results, _ = await store.results()
                (found,) = (result for result in results if result.run_id == "going-on")
                assert found.status is RunStatus.LOST
                assert found.started_at < "9999-12-31T23:59:59.999Z~"
                store.close()

        asyncio.run(work())


@pytest.mark.parametrize("seed", range(3))
def test_a_daemon_starts_whatever_lies_there(seed: int, original: Path, tmp_path: Path) -> None:
    """Everything in the data directory is of another type than it was: it serves, and runs commands."""
    data = tmp_path / "data"
    shutil.copytree(original, data)
    for number, path in enumerate(sorted(data.iterdir())):
        if path.name == ".shelld-py" and seed != 2:
            continue
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        match (number + seed) % 3:
            case 0:
                path.mkdir()
                (path / "inner").write_text("x")
            case 1:
                path.write_bytes(b"\0" * 5000)
            case _:
                with socket.socket(socket.AF_UNIX) as server:
                    server.bind(str(path))
    with running_daemon(tmp_path, files__max_events_per_file="3") as daemon:
        daemon.fresh()
        assert daemon.run("echo works", run_id="new")["stdout"] == "works\n"
        assert "new" in {run["run_id"] for run in daemon.json("GET", "/runs")}
