"""The output log on a real disk: cursors, segments, joining, crashes in between, and disks that are full."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.output.log import Chunk, OutputLog

LARGE = 1024 * 1024


def log_at(directory: Path, maximum: int = LARGE) -> OutputLog:
    """Make a new log in `directory`."""
    return OutputLog(f"{directory}/output.log", maximum).create()


def kept_parts(log: OutputLog, limit: int = 1 << 20) -> list[tuple[int, bytes]]:
    """Read all of `log`; return the stretches that are kept, with their offsets."""
    parts: list[tuple[int, bytes]] = []
    offset = 0
    while (chunk := log.read(offset, limit)).data:
        if parts and not chunk.dropped:
            parts[-1] = (parts[-1][0], parts[-1][1] + chunk.data)
        else:
            parts.append((chunk.start, chunk.data))
        offset = chunk.end
    return parts


def numbered(size: int) -> bytes:
    """Return `size` bytes of which each place can be told from the others."""
    return b"".join(b"%07d\n" % number for number in range(size // 8 + 1))[:size]


def disk_usage(directory: Path) -> int:
    """Return the bytes of all files in `directory`."""
    return sum(path.stat().st_size for path in directory.iterdir())


def test_an_empty_log(tmp_path: Path) -> None:
    """There is a file, with nothing in it; a read gives nothing."""
    log = log_at(tmp_path)
    assert (tmp_path / "output.log").read_bytes() == b""
    assert log.read(0, 100) == Chunk(0, b"", 0)
    assert (log.size, log.kept, log.whole, log.extents, log.segmented) == (0, 0, True, (), False)
    log.close()


def test_the_file_is_private(tmp_path: Path) -> None:
    """Output can hold secrets: nobody else may read it."""
    log_at(tmp_path).close()
    assert (tmp_path / "output.log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("other", ["FIFO", "directory", "link"])
def test_something_else_in_the_place_of_a_log(tmp_path: Path, other: str) -> None:
    """What a command has put there is not waited for, and not followed: the bytes are gone, and reading gets on."""
    log = log_at(tmp_path)
    log.append(memoryview(b"abc"))
    log.close()
    place = tmp_path / "output.log"
    place.unlink()
    {"FIFO": os.mkfifo, "directory": os.mkdir, "link": lambda path: os.symlink("/etc/passwd", path)}[other](place)
    assert log.read(0, 10) == Chunk(3, b"", 3)
    log.append(memoryview(b"x" * 100_000))
    assert log.size == 100_003
    log.close()


@pytest.mark.parametrize(
    ("offset", "limit", "expected"),
    [
        (0, 100, Chunk(0, b"0123456789", 0)),
        (0, 3, Chunk(0, b"012", 0)),
        (4, 3, Chunk(4, b"456", 0)),
        (9, 3, Chunk(9, b"9", 0)),
        (10, 3, Chunk(10, b"", 0)),
        (25, 3, Chunk(25, b"", 0)),
    ],
)
def test_reads_by_cursor(tmp_path: Path, offset: int, limit: int, expected: Chunk) -> None:
    """Any offset is valid; behind the end there is nothing yet."""
    log = log_at(tmp_path)
    log.append(b"01234")
    log.append(memoryview(b"56789"))
    assert log.read(offset, limit) == expected
    assert expected.end == expected.start + len(expected.data)
    log.close()
    assert log.read(offset, limit) == expected


def test_what_is_appended_is_on_disk_at_once(tmp_path: Path) -> None:
    """A crash loses nothing: the file has every byte when `append` returns."""
    log = log_at(tmp_path)
    for part in (b"one\n", b"two\n"):
        log.append(part)
        assert (tmp_path / "output.log").read_bytes().endswith(part)
    log.close()


def test_appending_after_close(tmp_path: Path) -> None:
    """Background output that comes late finds the log as it was."""
    log = log_at(tmp_path)
    log.append(b"early ")
    log.close()
    log.append(b"late")
    assert log.read(0, 100).data == b"early late"
    log.close()


def test_the_beginning_and_the_end_are_kept(tmp_path: Path) -> None:
    """A log of 800 bytes at the most keeps its first 400 and its last 300 at least, and tells what was dropped."""
    data = numbered(5000)
    log = log_at(tmp_path, 800)
    for at in range(0, 5000, 70):
        log.append(data[at : at + 70])
        assert disk_usage(tmp_path) <= 800
    (_, head), (start, tail) = kept_parts(log)
    assert head == data[:400]
    assert tail == data[start:]
    assert len(tail) >= 300
    assert log.read(1000, 10) == Chunk(start, data[start : start + 10], start - 1000)
    assert log.extents == ((0, 400), (start, len(tail)))
    assert (log.size, log.kept, log.lost, log.whole, log.segmented) == (5000, 400 + len(tail), 0, False, True)
    log.close()


def test_a_log_that_fits_its_segments_is_whole(tmp_path: Path) -> None:
    """Up to the maximum nothing is dropped, be it in one file or more."""
    data = numbered(800)
    log = log_at(tmp_path, 800)
    log.append(data)
    assert kept_parts(log, 100) == [(0, data)]
    assert log.whole
    assert log.extents == ((0, 800),)
    log.close()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.binary(min_size=1, max_size=60), max_size=30),
    st.integers(1, 400),
    st.sampled_from(["as it is", "crash", "join", "join, crash", "join, discard", "join, discard, load"]),
)
def test_every_way_to_the_end_keeps_the_same(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], maximum: int, way: str
) -> None:
    """Whatever is kept is right, and stays so after a join, and after a crash before, within and behind it."""
    directory = tmp_path_factory.mktemp("log")
    log = log_at(directory, maximum)
    data = b"".join(parts)
    for part in parts:
        log.append(part)
    before = kept_parts(log)
    assert all(data[start : start + len(kept)] == kept for start, kept in before)
    assert data[: min(len(data), maximum // 2)] == (before[0][1][: maximum // 2] if before else b"")
    if "join" in way:
        log.join()
        assert not log.segmented
    extents = None if log.whole else log.extents
    if "discard" in way:
        log.discard_segments()
        assert os.listdir(directory) == ["output.log"]
    log.close()
    if way.endswith(("crash", "load")):
        log = OutputLog.load(f"{directory}/output.log", maximum, extents)
    assert kept_parts(log) == before
    assert log.size == len(data)
    log.close()


def test_a_crash_in_the_middle_of_a_join(tmp_path: Path) -> None:
    """What an interrupted join has appended to the head is cut off by the next one."""
    data = numbered(1500)
    log = log_at(tmp_path, 800)
    log.append(data)
    before = kept_parts(log)
    log.close()
    with (tmp_path / "output.log").open("ab") as head:
        head.write(data[1200:1250])
    log = OutputLog.load(f"{tmp_path}/output.log", 800)
    assert kept_parts(log) == before
    log.join()
    log.discard_segments()
    assert kept_parts(log) == before
    log.close()


def test_joining_twice_changes_nothing(tmp_path: Path) -> None:
    """Nor does joining a log of one file."""
    log = log_at(tmp_path, 800)
    log.append(numbered(100))
    log.join()
    assert kept_parts(log) == [(0, numbered(100))]
    log.append(numbered(2000)[100:])
    before = kept_parts(log)
    log.join()
    log.join()
    assert kept_parts(log) == before
    log.close()


@pytest.mark.parametrize("late", [50, 100, 101, 350, 1000])
def test_output_that_comes_after_the_join_does_not_lose_what_was_kept(tmp_path: Path, late: int) -> None:
    """A background process that goes on writing leaves a log that reads the same when it is loaded again."""
    data = numbered(2000 + late)
    log = log_at(tmp_path, 800)
    log.append(data[:2000])
    log.join()
    log.discard_segments()
    log.append(data[2000:])
    log.close()
    before = kept_parts(log)
    assert all(data[start : start + len(kept)] == kept for start, kept in before)
    loaded = OutputLog.load(f"{tmp_path}/output.log", 800, log.extents)
    assert loaded.size == log.size
    assert kept_parts(loaded) == before


def test_reading_in_a_thread_while_the_writer_goes_on(tmp_path: Path) -> None:
    """Segments come and go and the writer lets go of its file: a reader gets the right bytes, and never too few."""
    data = numbered(400_000)
    log = log_at(tmp_path, 800)
    faults: list[str] = []
    over = threading.Event()

    def read_on() -> None:
        while not over.is_set():
            for offset in (0, 390, max(0, log.size - 390), max(0, log.size - 90)):
                size = log.size
                chunk = log.read(offset, 64)
                if chunk.data != data[chunk.start : chunk.end] or (offset < size and not chunk.data):
                    faults.append(f"{offset} of {size}: {chunk}")

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    readers = ThreadPoolExecutor(2)
    try:
        reading = [readers.submit(read_on) for _ in range(2)]
        for start in range(0, len(data), 40):
            log.append(data[start : start + 40])
            if start % 3 == 0:
                log.close()
    finally:
        over.set()
        readers.shutdown()
        sys.setswitchinterval(interval)
    for each in reading:
        each.result()
    assert not faults
    log.close()


def test_other_files_are_no_segments(tmp_path: Path) -> None:
    """A log beside another, with a name that begins alike, is left alone."""
    for name in ("output.log.x.1", "output.logs.1.2", "aoutput.log.1.2", "output.log.1"):
        (tmp_path / name).write_bytes(b"other")
    (tmp_path / "output.log").write_bytes(b"mine")
    log = OutputLog.load(f"{tmp_path}/output.log", 800)
    assert kept_parts(log) == [(0, b"mine")]


def test_a_log_that_is_not_there_cannot_be_loaded(tmp_path: Path) -> None:
    """The caller hears of it."""
    with pytest.raises(FileNotFoundError):
        OutputLog.load(f"{tmp_path}/output.log", 800)


def test_files_that_vanish_give_nothing(tmp_path: Path) -> None:
    """A run that is deleted while it is read ends the read, without an error."""
    log = log_at(tmp_path)
    log.append(b"text")
    log.close()
    (tmp_path / "output.log").unlink()
    assert log.read(0, 10).data == b""


FULL = """
import os, resource, sys
from shelld_py.output.log import OutputLog

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

log = OutputLog(sys.argv[1], 64 << 20).create()
data = bytes(range(256)) * 20
limit(1000)
log.append(data)
print(log.size, log.lost, log.extents, log.read(0, 5000).data + log.read(1000, 5000).data == data)
log.append(b"x" * (1 << 19))
print(log.size, log.lost == log.size - 1000, log.extents)
limit(resource.RLIM_INFINITY)
while log.size < (1 << 20) + 10000:
    log.append(b"y" * 8192)
log.append(b"the end")
held = 64 << 10
print(log.read(1000, 1 << 20).data == data[1000:] + b"x" * (held - len(data) + 1000))
chunk = log.read(1000 + held, 100)
print(log.lost - held + log.kept == log.size, chunk.dropped == log.lost - held, chunk.data == b"y" * 100, log.whole)
print(log.read(log.size - 7, 100).data.decode(), len(log.extents))
"""


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    """Beyond RLIMIT_FSIZE bytes are refused and counted, and 64 KiB of them are held in memory.

    When there is room again the log goes on behind the gap.
    """
    output = subprocess.check_output([sys.executable, "-c", FULL, f"{tmp_path}/output.log"], text=True)
    lines = output.splitlines()
    assert lines[0] == "5120 4120 ((0, 1000),) True"
    assert lines[1] == f"{5120 + (1 << 19)} True ((0, 1000),)"
    assert lines[2:4] == ["True", "True True True False"]
    assert lines[4] == "the end 2"


NO_ROOM_TO_JOIN = """
import os, resource, sys
from shelld_py.output.log import OutputLog

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

def content(log):
    return [log.read(offset, 100) for offset in range(0, 2100, 50)]

log = OutputLog(sys.argv[1], 800).create()
log.append(b"".join(b"%07d" % number for number in range(300)))
before = content(log)
limit(450)
try:
    log.join()
except OSError:
    print("refused", log.segmented, os.stat(sys.argv[1]).st_size)
log.close()
print(content(log) == before)
print(content(OutputLog.load(sys.argv[1], 800, log.extents)) == before)
limit(resource.RLIM_INFINITY)
log.join()
log.discard_segments()
print(log.segmented, content(log)[-1] == before[-1], os.stat(sys.argv[1]).st_size == log.kept)
"""


def test_a_disk_without_room_to_join(tmp_path: Path) -> None:
    """A log that cannot be joined stays as it was, also for those who load it; it can be joined later."""
    output = subprocess.check_output([sys.executable, "-c", NO_ROOM_TO_JOIN, f"{tmp_path}/output.log"], text=True)
    assert output.splitlines() == ["refused True 400", "True", "True", "False True True"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    directory = tmp_path / "disk"
    directory.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "none", directory], check=False).returncode
    ):
        pytest.skip("needs the right to mount a file system")
    yield directory
    subprocess.run(["umount", "-l", directory], check=True)


@pytest.mark.root
def test_a_full_disk(small_disk: Path) -> None:
    """A log on a full disk keeps what fitted, counts the rest, and goes on when there is room again.

    What was refused can be read meanwhile, some of it, also after the log is joined.
    """
    (small_disk / "ballast").write_bytes(b"b" * 32768)
    log = log_at(small_disk, 16 * LARGE)
    data = numbered(100_000)
    log.append(data)
    kept = log.extents[0][1]
    assert 0 < kept <= 32768
    assert log.lost == 100_000 - kept
    assert b"".join(part for _, part in kept_parts(log)) == data[: kept + 65536]
    (small_disk / "ballast").unlink()
    log.append(b"x" * (2 * LARGE))
    log.append(b"room again")
    assert log.read(log.size - 10, 10).data == b"room again"
    assert log.lost - 65536 + log.kept == log.size
    before = kept_parts(log)
    log.join()
    assert kept_parts(log) == before
    log.close()


@pytest.mark.root
def test_a_log_that_cannot_even_be_created(small_disk: Path) -> None:
    """The writer sees no error: all is counted as lost until there is room, and the beginning can be read."""
    (small_disk / "ballast").write_bytes(b"b" * 65536)
    log = OutputLog(f"{small_disk}/none/output.log", LARGE).create()
    log.append(b"text")
    assert (log.size, log.lost, log.read(0, 10).data, log.extents, log.whole) == (4, 4, b"text", (), False)
    log.close()
