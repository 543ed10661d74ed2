"""The journal: what was appended is found again, whatever the disk holds besides."""

import logging
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.shells.journal import FrameLocation, Journal

LOGGER = logging.getLogger("tests.shells.journal")


@contextmanager
def opened(directory: Path) -> Iterator[tuple[Journal, dict[bytes, FrameLocation]]]:
    """Open a journal; give it with what is in it, and close it in the end."""
    journal = Journal(directory / "journal", LOGGER)
    found = {record: place for place, record in journal.open()}
    try:
        yield journal, found
    finally:
        journal.close()


def output(journal: Journal, place: FrameLocation) -> bytes:
    """Return the output that lies beside a record."""
    return journal.read(place).output


def segments(directory: Path) -> list[str]:
    """Return the names of the files of a journal."""
    return sorted(path.name for path in (directory / "journal").iterdir())


def test_what_is_appended_is_found(tmp_path: Path) -> None:
    """Records and outputs are read back at once, by the next daemon, and by the one after that."""
    with opened(tmp_path) as (journal, found):
        assert found == {}
        places = [journal.append(b"record %d" % number, b"output %d" % number) for number in range(3)]
        assert [journal.read(place).record for place in places] == [b"record 0", b"record 1", b"record 2"]
        assert output(journal, places[1]) == b"output 1"
    with opened(tmp_path) as (journal, found):
        assert [output(journal, found[b"record %d" % number]) for number in range(3)] == [
            b"output 0",
            b"output 1",
            b"output 2",
        ]
        journal.append(b"another")
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"record 0", b"record 1", b"record 2", b"another"]
    assert len(segments(tmp_path)) == 1


def test_a_segment_goes_when_all_in_it_is_forgotten(tmp_path: Path) -> None:
    """Forgetting the oldest removes their segment; one record that is wanted keeps it."""
    with opened(tmp_path) as (journal, _):
        places = [journal.append(b"%d" % number, bytes(900_000)) for number in range(12)]
        assert len(segments(tmp_path)) == 3
        for place in places[1:5]:
            journal.forget(place)
        assert len(segments(tmp_path)) == 3
        journal.forget(places[0])
        assert len(segments(tmp_path)) == 2
        assert journal.read(places[5]).record == b"5"
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"%d" % number for number in range(5, 12)]


def test_erased_records_are_overwritten(tmp_path: Path) -> None:
    """Nothing of them is on the disk any more, nobody finds them again, and their neighbours are as they were."""
    with opened(tmp_path) as (journal, _):
        places = [journal.append(b"secret record %d" % number, b"secret output %d" % number) for number in range(3)]
        journal.erase(places[1])
        content = (tmp_path / "journal" / segments(tmp_path)[0]).read_bytes()
        assert b"record 1" not in content
        assert b"output 1" not in content
        with pytest.raises(OSError, match="no record"):
            journal.read(places[1])
        assert output(journal, places[2]) == b"secret output 2"
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"secret record 0", b"secret record 2"]


def test_a_fifo_in_the_place_of_a_segment(tmp_path: Path) -> None:
    """What a command has put there is not waited for."""
    with opened(tmp_path) as (journal, _):
        place = journal.append(b"record", b"output")
        path = Path(place.segment.path)
        path.unlink()
        os.mkfifo(path)
        with pytest.raises(OSError, match="seek"):
            journal.read(place)


def test_clearing_leaves_nothing(tmp_path: Path) -> None:
    """All segments go; the journal can be used on."""
    with opened(tmp_path) as (journal, _):
        journal.append(b"old")
        journal.clear()
        assert segments(tmp_path) == []
        journal.append(b"new")
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"new"]


@pytest.mark.parametrize("cut", range(1, 40, 3))
def test_a_frame_that_was_cut_short(cut: int, tmp_path: Path) -> None:
    """It is cut off, and the next record follows on the last whole one."""
    with opened(tmp_path) as (journal, _):
        journal.append(b"first")
        journal.append(b"second", b"0123456789")
    (name,) = segments(tmp_path)
    path = tmp_path / "journal" / name
    os.truncate(path, path.stat().st_size - cut)
    with opened(tmp_path) as (journal, found):
        assert list(found) == [b"first"]
        journal.append(b"third")
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"first", b"third"]
    assert segments(tmp_path) == [name]


def test_a_damaged_segment_is_kept(tmp_path: Path) -> None:
    """What can be read of it is found, new records go elsewhere, and it is not removed."""
    with opened(tmp_path) as (journal, _):
        for number in range(3):
            journal.append(b"record %d" % number)
    (name,) = segments(tmp_path)
    path = tmp_path / "journal" / name
    content = path.read_bytes()
    path.write_bytes(content.replace(b"record 1", b"RECORD 1"))
    with opened(tmp_path) as (journal, found):
        assert list(found) == [b"record 0", b"record 2"]
        journal.append(b"new")
        for place in found.values():
            journal.forget(place)
    assert segments(tmp_path) == [f"{name}.damaged", "00000002.journal"]
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"new"]


@pytest.mark.parametrize("fault", ["cut", "lengthened", "removed", "removed with its directory"])
def test_what_follows_a_change_by_others_is_found(fault: str, tmp_path: Path) -> None:
    """A command may do anything to the files: what is appended after that is read all the same."""
    with opened(tmp_path) as (journal, _):
        before = journal.append(b"before")
        path = tmp_path / "journal" / segments(tmp_path)[0]
        if fault == "cut":
            os.truncate(path, 0)
        elif fault == "lengthened":
            os.truncate(path, path.stat().st_size + 5)
        else:
            path.unlink()
        if fault == "removed with its directory":
            path.parent.rmdir()
        places = [journal.append(b"after %d" % number, b"output") for number in range(2)]
        assert [journal.read(place).record for place in places] == [b"after 0", b"after 1"]
        assert output(journal, places[1]) == b"output"
        journal.forget(before)
    with opened(tmp_path) as (_, found):
        assert set(found) >= {b"after 0", b"after 1"}


def test_a_disk_that_refuses(tmp_path: Path) -> None:
    """A frame that the disk takes in part is taken back; when there is room again, appending goes on."""
    with opened(tmp_path) as (journal, _):
        journal.append(b"first")
        before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
        try:
            for _ in range(3):
                with pytest.raises(OSError, match=r"took|large"):
                    journal.append(b"second", bytes(2000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        place = journal.append(b"third", b"text")
        assert output(journal, place) == b"text"
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"first", b"third"]


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_damage_costs_no_more_than_what_it_hits(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Whatever bytes are overwritten, all records before and behind them are found, and new ones can be appended."""
    directory = tmp_path_factory.mktemp("journal")
    with opened(directory) as (journal, _):
        records = [b"record %03d" % number for number in range(20)]
        places = {record: journal.append(record, bytes([number]) * number) for number, record in enumerate(records)}
    path = directory / "journal" / segments(directory)[0]
    content = bytearray(path.read_bytes())
    at = data.draw(st.integers(0, len(content) - 1))
    damage = data.draw(st.binary(min_size=1, max_size=30))[: len(content) - at]
    content[at : at + len(damage)] = damage
    path.write_bytes(content)
    ends = [places[record].offset for record in records[1:]] + [len(content)]
    untouched = [
        record
        for record, end in zip(records, ends, strict=True)
        if end <= at or places[record].offset >= at + len(damage)
    ]
    with opened(directory) as (journal, found):
        assert set(untouched) <= set(found)
        journal.append(b"new")
    with opened(directory) as (_, found):
        assert {*untouched, b"new"} <= set(found)


@pytest.mark.parametrize("digits", [17, 18, 19, 200])
def test_a_segment_with_an_absurd_number(tmp_path: Path, digits: int) -> None:
    """Whatever somebody has called a file there, what is appended is found by the next daemon."""
    with opened(tmp_path) as (journal, _):
        journal.append(b"before")
    (tmp_path / "journal" / f"{'9' * digits}.journal").write_bytes(b"")
    with opened(tmp_path) as (journal, found):
        assert list(found) == [b"before"]
        journal.append(b"after", b"x" * 5_000_000)
        journal.append(b"in another segment")
    with opened(tmp_path) as (_, found):
        assert list(found) == [b"before", b"after", b"in another segment"]
