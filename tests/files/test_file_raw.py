"""Raw bytes in and out: any file, in ranges, in pieces, atomic and undoable."""

import asyncio
import gc
import os
from collections.abc import AsyncIterator

import pytest

from shelld_py.errors import FileNotFound, FileTooLarge, InvalidRequest, PreconditionFailed, RangeNotSatisfiable
from shelld_py.files import ByteRange, ChangeRequest, ReadRequest, UndoRequest
from shelld_py.files.text_file import content_etag

from .conftest import Desk


async def _read(desk: Desk, path: str, byte_range: ByteRange | None = None) -> bytes:
    with await desk.service.read_raw(path, byte_range) as file:
        data = b"".join([piece async for piece in file.chunks()])
        assert len(data) == file.length
        return data


async def _pieces(*pieces: bytes) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


def test_any_bytes_go_in_and_come_out(desk: Desk) -> None:
    """Binary, larger than a piece, in a directory that did not exist."""
    data = os.urandom(1_000_000)
    result = desk.do(desk.service.write_raw("new/a.bin", _pieces(data[:300_000], b"", data[300_000:])))
    assert (result.operation, result.size, result.etag, result.diff) == ("write", len(data), content_etag(data), "")
    assert desk.do(_read(desk, "new/a.bin")) == data


@pytest.mark.parametrize(
    ("byte_range", "expected"),
    [
        (ByteRange(2), b"23456789"),
        (ByteRange(2, 4), b"234"),
        (ByteRange(8, 100), b"89"),
        (ByteRange(None, 3), b"789"),
        (ByteRange(None, 100), b"0123456789"),
    ],
)
def test_ranges(desk: Desk, byte_range: ByteRange, expected: bytes) -> None:
    """As RFC 9110 has them."""
    (desk.root / "a.bin").write_bytes(b"0123456789")
    assert desk.do(_read(desk, "a.bin", byte_range)) == expected


@pytest.mark.parametrize(
    ("byte_range", "kind"),
    [
        (ByteRange(10), RangeNotSatisfiable),
        (ByteRange(None, 0), RangeNotSatisfiable),
        (ByteRange(4, 2), InvalidRequest),
        (ByteRange(-1), InvalidRequest),
        (ByteRange(), InvalidRequest),
    ],
)
def test_impossible_ranges_are_refused(desk: Desk, byte_range: ByteRange, kind: type[Exception]) -> None:
    """And no descriptor stays open for them."""
    (desk.root / "a.bin").write_bytes(b"0123456789")
    desk.do(_read(desk, "a.bin"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(kind):
        desk.do(desk.service.read_raw("a.bin", byte_range))
    assert len(os.listdir("/proc/self/fd")) == before


def test_empty_file_has_no_bytes(desk: Desk) -> None:
    """That is no error without a range."""
    (desk.root / "a.bin").write_bytes(b"")
    assert desk.do(_read(desk, "a.bin")) == b""


def test_a_cancelled_opening_leaves_nothing_open(desk: Desk) -> None:
    """The thread that opens the file ends first, and nobody takes what it has opened."""
    (desk.root / "input").write_bytes(b"content")

    async def cancelled() -> None:
        async with desk.service.descriptor("input"):
            pass
        before = len(os.listdir("/proc/self/fd"))
        opening = asyncio.create_task(desk.service.descriptor("input").__aenter__())
        await asyncio.sleep(0)  # it waits for its thread now
        opening.cancel()
        await asyncio.wait({opening})
        assert opening.cancelled()
        del opening
        gc.collect()
        assert len(os.listdir("/proc/self/fd")) == before

    desk.do(cancelled())


def test_missing_file_is_told(desk: Desk) -> None:
    """As for texts."""
    with pytest.raises(FileNotFound):
        desk.do(desk.service.read_raw("a.bin"))


def test_write_replaces_and_undo_brings_back(desk: Desk) -> None:
    """A write is a step like any other; of texts it has a diff."""
    file = desk.root / "a.txt"
    file.write_bytes(b"old\n")
    file.chmod(0o755)
    result = desk.do(desk.service.write_raw("a.txt", _pieces(b"new\n")))
    assert "-old\n+new\n" in result.diff
    assert file.stat().st_mode & 0o777 == 0o755
    desk.do(desk.service.perform(UndoRequest(path="a.txt")))
    assert file.read_bytes() == b"old\n"


def test_write_over_the_limit_changes_nothing(desk: Desk) -> None:
    """It stops at the limit, not at the end."""
    (desk.root / "a.txt").write_bytes(b"old")
    with pytest.raises(FileTooLarge):
        desk.do(desk.service.write_raw("a.txt", _pieces(b"12345", b"67890", b"1"), max_size=10))
    assert (desk.root / "a.txt").read_bytes() == b"old"


def test_write_heeds_preconditions(desk: Desk) -> None:
    """By the etag of a read, or for new files only."""
    (desk.root / "a.txt").write_bytes(b"old")
    etag = desk.do(desk.service.perform(ReadRequest(path="a.txt"))).etag
    for wanted in (ChangeRequest(if_none_match="*"), ChangeRequest(if_match="0" * 64)):
        with pytest.raises(PreconditionFailed):
            desk.do(desk.service.write_raw("a.txt", _pieces(b"new"), wanted))
    desk.do(desk.service.write_raw("a.txt", _pieces(b"new"), ChangeRequest(if_match=etag)))
    assert (desk.root / "a.txt").read_bytes() == b"new"


def test_reader_sees_the_file_as_it_was_when_opened(desk: Desk) -> None:
    """A write in the middle of a read does not mix contents."""
    (desk.root / "a.bin").write_bytes(b"a" * 600_000)

    async def work() -> bytes:
        with await desk.service.read_raw("a.bin") as file:
            pieces: list[bytes] = []
            async for piece in file.chunks():
                if not pieces:
                    await desk.service.write_raw("a.bin", _pieces(b"b" * 600_000))
                pieces.append(piece)
            return b"".join(pieces)

    assert desk.do(work()) == b"a" * 600_000
