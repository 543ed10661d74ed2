"""Recordings: when output came, kept in few bytes, read whatever lies there; and what a player is given of it."""

import json
import os
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from shelld_py.output.log import OutputLog
from shelld_py.output.recording import recording
from shelld_py.output.timing import TIMING, Moment, Timing

SIZES = ((0, 24, 80),)


def _events(
    logs: Sequence[OutputLog],
    moments: Iterable[Moment] = (),
    until: float = 9.0,
    *,
    sizes: Sequence[tuple[int, int, int]] = SIZES,
    ended: bool = True,
) -> list[list[Any]]:
    """Return the events of a recording."""
    pieces = list(recording({"title": "a test"}, logs, sizes, moments, until, ended=ended))
    assert max(map(len, pieces)) < 200_000
    header, *events = map(json.loads, b"".join(pieces).splitlines())
    assert header == {"version": 2, "width": sizes[0][2], "height": sizes[0][1], "title": "a test"}
    return events


def _output(events: list[list[Any]]) -> str:
    return "".join(data for _, kind, data in events if kind == "o")


def _noted(directory: Path, pieces: Iterable[tuple[int, float]], logs: int = 1) -> Timing:
    """Return the timing of a run that wrote so many bytes at these seconds, and ended a second later."""
    timing, at = Timing(str(directory), logs), 0.0
    for size, at in pieces:
        timing.note(0, size, at)
    timing.finish(at + 1)
    return timing


# --- when output came -------------------------------------------------------------------------------------


def test_pieces_are_kept_with_their_times(tmp_path: Path) -> None:
    timing = _noted(tmp_path, [(5, 0.0), (7, 0.2), (300, 1.5), (1, 3600.25)])
    assert list(timing.moments()) == [(0, (5,)), (200, (12,)), (1500, (312,)), (3_600_250, (313,))]
    assert (tmp_path / TIMING).stat().st_size <= 14


def test_what_comes_within_a_moment_is_one_piece(tmp_path: Path) -> None:
    """So however the output comes, the file grows by less than 64 KiB a minute."""
    timing = _noted(tmp_path, [(100_000, number / 10_000) for number in range(600_000)])
    assert (tmp_path / TIMING).stat().st_size < 64 * 1024
    moments = list(timing.moments())
    assert (len(moments), moments[0], moments[-1][1]) == (6000, (0, (10_000_000,)), (60_000_000_000,))
    assert [at for at, _ in moments] == [10 * number for number in range(6000)]


def test_a_quick_run_has_no_file(tmp_path: Path) -> None:
    timing = Timing(str(tmp_path), 1)
    timing.note(0, 5, 0.001)
    timing.note(0, 5, 0.02)
    timing.finish(0.049)
    assert list(tmp_path.iterdir()) == []
    assert list(timing.moments()) == []


def test_two_logs_keep_their_order(tmp_path: Path) -> None:
    timing = Timing(str(tmp_path), 2)
    for log, at in ((1, 0.1), (0, 0.3), (1, 0.301), (0, 0.5)):
        timing.note(log, 1, at)
    timing.flush(0.505)  # what is coming may still grow
    assert list(timing.moments()) == [(100, (0, 1)), (300, (1, 2))]
    timing.finish(0.6)
    assert list(timing.moments()) == [(100, (0, 1)), (300, (1, 2)), (500, (2, 2))]


@pytest.mark.parametrize("there", ["a directory", "a FIFO", "a link", "a file"])
def test_what_lies_in_its_place_is_left_alone(tmp_path: Path, there: str) -> None:
    """A command may have put it there: it is neither written to, nor waited for, nor removed."""
    (tmp_path / "kept").write_bytes(b"kept")
    place = tmp_path / TIMING
    {
        "a directory": place.mkdir,
        "a FIFO": lambda: os.mkfifo(place),
        "a link": lambda: place.symlink_to("kept"),
        "a file": lambda: place.write_bytes(b"\0\1"),
    }[there]()
    timing = _noted(tmp_path, [(5, 0.0), (7, 0.2), (300, 1.5)])
    assert list(timing.moments()) == ([(0, (1,))] if there == "a file" else [])
    assert (tmp_path / "kept").read_bytes() == b"kept"


def test_a_directory_that_is_gone_loses_the_times_alone(tmp_path: Path) -> None:
    assert list(_noted(tmp_path / "gone", [(5, 0.0), (7, 0.2)]).moments()) == []


@given(st.binary(max_size=200), st.integers(1, 2), st.binary(max_size=300))
@example(b"\0\1", 1, b"\r\n")
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes, logs: int, output: bytes) -> None:
    """Times grow, sizes grow, all of the output is there, and nothing comes after the end."""
    directory = tmp_path_factory.getbasetemp()
    (directory / TIMING).write_bytes(content)
    moments = list(Timing(str(directory), logs).moments())
    assert len(moments) <= len(content) / 2
    assert moments == sorted(moments)
    assert all(sum(before) < sum(after) for (_, before), (_, after) in pairwise(moments))
    events = _events([OutputLog.of(output)] * logs, moments)
    times = [at for at, _, _ in events]
    assert times == sorted(times)
    assert all(0 <= at <= 9.0 for at in times)
    if logs == 1:
        assert _output(events) == output.decode(errors="replace").replace("\n", "\r\n")


@given(st.integers(0, 40), st.integers(0, 7))
def test_a_damaged_file_is_true_up_to_the_damage(tmp_path_factory: pytest.TempPathFactory, at: int, bit: int) -> None:
    """Cut anywhere, it tells what came before; with a bit that is wrong, the output is complete all the same."""
    directory = tmp_path_factory.mktemp("damaged")
    timing = _noted(directory, [(number * 100, number / 5) for number in range(1, 12)])
    whole, content = list(timing.moments()), (directory / TIMING).read_bytes()
    at = min(at, len(content) - 1)
    (directory / TIMING).write_bytes(content[:at])
    cut = list(timing.moments())
    assert cut == whole[: len(cut)]
    (directory / TIMING).write_bytes(content[:at] + bytes([content[at] ^ 1 << bit]) + content[at + 1 :])
    assert _output(_events([OutputLog.of(b"x" * 6600)], timing.moments())) == "x" * 6600


# --- what a player is given -------------------------------------------------------------------------------


def test_characters_are_never_cut() -> None:
    """What is written in two pieces comes with the second; what is no UTF-8 is U+FFFD."""
    log = OutputLog.of(b"a\xc3\xa4\xff\x1b[1m\x00\n" + "漢".encode())
    moments = [(100, (2,)), (200, (3,)), (300, (10,)), (400, (11,)), (500, (12,)), (600, (13,))]
    assert _events([log], moments) == [
        [0.1, "o", "a"],
        [0.2, "o", "ä"],
        [0.3, "o", "\ufffd\x1b[1m\x00\r\n"],
        [0.6, "o", "漢"],
    ]
    assert _output(_events([OutputLog.of(b"a\xc3")], ended=False)) == "a"
    assert _output(_events([OutputLog.of(b"a\xc3")], ended=True)) == "a\ufffd"


def test_output_that_is_not_kept_is_told_where_it_is_missing(tmp_path: Path) -> None:
    """The middle of a long output is gone: a marker says how much, and what comes after it has its own time."""
    log = OutputLog(str(tmp_path / "output.log"), 800).create()
    moments = []
    for number in range(100):
        log.append(b"%09d\n" % number)
        moments.append((number * 100, (log.size,)))
    log.join()
    log.discard_segments()
    (_, begin), (start, _) = log.extents
    events = _events([log], moments, 20.0)
    marker = next(event for event in events if event[1] == "m")
    assert marker == [begin / 100, "m", f"{start - begin} bytes of the output are not kept"]
    kept = [int(data) for _, kind, data in events if kind == "o"]
    assert kept == [*range(begin // 10), *range(start // 10, 100)]
    assert [at for at, kind, data in events if kind == "o"] == [number / 10 for number in kept]


def test_a_log_that_is_taken_away_meanwhile(tmp_path: Path) -> None:
    """What was removed while it was read counts as not kept."""
    log = OutputLog(str(tmp_path / "output.log"), 1 << 20).create()
    log.append(b"x" * 200_000)
    pieces = recording({}, [log], SIZES, (), 1.0, ended=True)
    assert [next(pieces)[:12], next(pieces)[:8]] == [b'{"version":2', b'[1.0,"o"']
    (tmp_path / "output.log").unlink()
    log.close()
    assert b"bytes of the output are not kept" in b"".join(pieces)


def test_sizes_of_the_terminal() -> None:
    """The first is in the header, the others come before what was written in them."""
    sizes = ((0, 30, 100), (3, 40, 120), (6, 50, 140))
    assert _events([OutputLog.of(b"abcdef")], [(100, (4,))], sizes=sizes) == [
        [0.1, "o", "abc"],
        [0.1, "r", "120x40"],
        [0.1, "o", "d"],
        [9.0, "o", "ef"],
        [9.0, "r", "140x50"],
    ]


def test_streams_that_were_apart_come_as_they_were_written() -> None:
    logs = [OutputLog.of(b"o1o2o3"), OutputLog.of(b"e1e2")]
    moments = [(100, (2, 0)), (200, (2, 2)), (300, (4, 4))]
    assert _events(logs, moments) == [
        [0.1, "o", "o1"],
        [0.2, "o", "e1"],
        [0.3, "o", "o2"],
        [0.3, "o", "e2"],
        [9.0, "o", "o3"],
    ]


def test_moments_without_output_do_not_hold_up_others() -> None:
    """However many a file tells of, each piece is made of a bounded number."""
    log = OutputLog.of(b"x", 1_000_000)
    looked_at = 0

    def moments() -> Iterable[Moment]:
        nonlocal looked_at
        for looked_at in range(1, 100_000):
            yield looked_at, (looked_at,)

    pieces = recording({}, [log], SIZES, moments(), 1.0, ended=True)
    for _ in range(4):
        next(pieces)
    assert looked_at < 2000
