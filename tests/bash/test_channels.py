"""The pipes and memory files between the daemon and one bash."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from shelld_py.bash.channels import Channels, descriptor_path
from tests.bash.driven import driven


@pytest.fixture
def channels() -> Iterator[Channels]:
    """Channels that are closed at the end."""
    made = Channels()
    yield made
    made.close()


def text_path(channels: Channels) -> str:
    """Return where bash finds the texts."""
    return channels.paths(terminal="/dev/null", shell="/bin/bash").text


def read_text(file: int) -> bytes:
    """Read as bash does, up to a NUL, and leave the offset behind that."""
    place = os.lseek(file, 0, os.SEEK_CUR)
    text, _, _ = os.read(file, 1 << 20).partition(b"\0")
    os.lseek(file, place + len(text) + 1, os.SEEK_SET)
    return text


def test_texts_are_read_one_after_the_other(channels: Channels) -> None:
    """The memory of those that were read is given back, and the offsets stay."""
    file = os.open(text_path(channels), os.O_RDONLY)
    for number in range(20):
        text = b"%d" % number * 9_000
        channels.put_text(text)
        assert read_text(file) == text
        channels.forget_text()
        assert os.fstat(file).st_blocks * 512 < 150_000
    channels.rewind_text()
    channels.put_text(b"again")
    os.lseek(file, 0, os.SEEK_SET)
    assert read_text(file) == b"again"
    os.close(file)


def test_a_text_is_placed_where_a_process_reads(channels: Channels) -> None:
    """Whatever has moved its offset; where it has another file there, that is said."""
    file = os.open(text_path(channels), os.O_RDONLY)
    channels.put_text(b"one")
    os.lseek(file, 1000, os.SEEK_SET)
    assert channels.place_text(b"two", os.getpid(), file)
    assert read_text(file) == b"two"
    channels.put_text(b"three")
    assert read_text(file) == b"three"
    os.close(file)
    assert not channels.place_text(b"four", os.getpid(), file)
    assert not channels.place_text(b"four", os.getpid(), channels.bell_pipe)


def test_whether_the_bell_was_heard(channels: Channels) -> None:
    """Until somebody reads it, or it is taken back."""
    assert channels.bell_heard
    channels.ring()
    assert not channels.bell_heard
    assert os.read(channels.bell_pipe, 1) == b"\0"
    assert channels.bell_heard
    channels.ring()
    channels.take_back()
    assert channels.bell_heard


def test_who_holds_what(channels: Channels) -> None:
    """This process holds the bell, and reads from something else than the boot pipe."""
    assert channels.holds_bell(os.getpid())
    assert not channels.holds_bell(1 << 22)
    assert not channels.reads_boot_pipe(os.getpid())
    assert not channels.reads_boot_pipe(1 << 22)
    assert descriptor_path(channels.boot_pipe).startswith(f"/proc/{os.getpid()}/fd/")


def test_a_bash_takes_few_descriptors(tmp_path: Path) -> None:
    """Thirteen in the daemon, whatever it has done: a thousand shells fit into the usual 16,384."""

    async def test() -> None:
        async with driven(tmp_path):
            before = len(os.listdir("/proc/self/fd"))
            async with driven(tmp_path) as shell:
                await shell.output("true")
                assert len(os.listdir("/proc/self/fd")) - before <= 13
                await shell.run("echo $A; cat; exit 3", environment={"A": "1"}, stdin="x", directory="/")
                assert await shell.output("echo b") == "b\n"
                assert len(os.listdir("/proc/self/fd")) - before <= 13
            assert len(os.listdir("/proc/self/fd")) == before

    asyncio.run(test())
