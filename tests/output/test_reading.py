"""Reading by cursor: pieces that join to the whole, prompts, limits, characters."""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.models import OutputFormat, RunStatus, Stream
from shelld_py.output.log import OutputLog
from shelld_py.output.reading import Reading, Unfinished, read_output
from shelld_py.output.text import LINE_LIMIT, render
from shelld_py.shells.record import Record
from shelld_py.shells.run import StoredRun
from tests.output.test_text import OUTPUTS

TEXT, RAW = OutputFormat.TEXT, OutputFormat.RAW
HOLD, SHOW, TAKE, END = Unfinished.HOLD, Unfinished.SHOW, Unfinished.TAKE, Unfinished.END
PLAIN = st.text("ab ä😀\n", max_size=60).map(str.encode)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all the logs of this file."""
    return tmp_path_factory.mktemp("reading")


def new_log(directory: Path, data: bytes = b"", maximum: int = 1 << 24) -> OutputLog:
    """Return an empty log, or one that holds `data`."""
    (directory / "log").unlink(missing_ok=True)
    for segment in directory.glob("log.*"):
        segment.unlink()
    log = OutputLog(f"{directory}/log", maximum).create()
    log.append(data)
    return log


def read_on(log: OutputLog, cursor: int, limit: int, form: OutputFormat, unfinished: Unfinished) -> list[Reading]:
    """Read until a read gives nothing more."""
    readings: list[Reading] = []
    while True:
        reading = read_output(log, cursor, limit, form, unfinished)
        assert reading.cursor == cursor
        assert reading.next_cursor >= cursor
        if reading.next_cursor == cursor:
            assert not reading.data
            return readings
        readings.append(reading)
        cursor = reading.next_cursor


def position(readings: list[Reading]) -> int:
    """Return the cursor behind `readings`."""
    return readings[-1].next_cursor if readings else 0


@settings(max_examples=250, deadline=None)
@given(data=OUTPUTS, limit=st.integers(1, 40))
def test_successive_reads_join_to_one_render(directory: Path, data: bytes, limit: int) -> None:
    """After the end, reads of any size give, joined, the text of all, and reach the end."""
    log = new_log(directory, data)
    readings = read_on(log, 0, limit, TEXT, END)
    assert "".join(str(reading.data) for reading in readings) == render(data)
    assert position(readings) == len(data)
    log.close()


@settings(max_examples=250, deadline=None)
@given(parts=st.lists(OUTPUTS, max_size=4), limit=st.integers(1, 60))
def test_following_a_run_joins_to_one_render(directory: Path, parts: list[bytes], limit: int) -> None:
    """Reads while the run goes on hold the unfinished line back, so that nothing shown is wrong later."""
    log = new_log(directory)
    readings: list[Reading] = []
    for part in parts:
        log.append(part)
        readings += read_on(log, position(readings), limit, TEXT, HOLD)
    readings += read_on(log, position(readings), limit, TEXT, END)
    assert "".join(str(reading.data) for reading in readings) == render(b"".join(parts))
    log.close()


@settings(max_examples=150, deadline=None)
@given(parts=st.lists(PLAIN, max_size=4), limit=st.integers(4, 40), form=st.sampled_from(OutputFormat))
def test_reads_never_split_a_character(directory: Path, parts: list[bytes], limit: int, form: OutputFormat) -> None:
    """Each piece decodes by itself, raw ones too; and a plain text is never read beyond its limit."""
    log = new_log(directory)
    readings: list[Reading] = []
    for part in parts:
        log.append(part)
        readings += read_on(log, position(readings), limit, form, HOLD)
    readings += read_on(log, position(readings), limit, form, END)
    pieces = [item.data.decode() if isinstance(item.data, bytes) else item.data for item in readings]
    assert "".join(pieces) == b"".join(parts).decode()
    assert all(len(piece.encode()) <= limit for piece in pieces)
    log.close()


@pytest.mark.parametrize("limit", [1, 2, 3])
def test_raw_reads_that_are_smaller_than_a_character_go_on(directory: Path, limit: int) -> None:
    """A limit below the length of a character gives that character, and not nothing for ever."""
    data = "a😀b€".encode()
    log = new_log(directory, data)
    readings = read_on(log, 0, limit, RAW, END)
    assert b"".join(bytes(reading.data) for reading in readings) == data
    log.close()


@pytest.mark.parametrize(
    ("data", "unfinished", "text", "next_cursor"),
    [
        (b"line\nprompt> ", HOLD, "line\n", 5),
        (b"line\nprompt> ", SHOW, "line\nprompt> ", 5),
        (b"line\nprompt> ", TAKE, "line\nprompt> ", 13),
        (b"line\nprompt> ", END, "line\nprompt> ", 13),
        (b"prompt> ", HOLD, "", 0),
        (b"prompt> ", SHOW, "prompt> ", 0),
        (b"prompt> ", TAKE, "prompt> ", 8),
        (b"10%\r20%", SHOW, "20%", 0),
        (b"10%\r20%", END, "20%", 7),
        (b"x\xe2\x82", HOLD, "", 0),
        (b"x\xe2\x82", SHOW, "x", 0),
        (b"x\xe2\x82", TAKE, "x", 1),
        (b"x\xe2\x82", END, "x\ufffd", 3),
        (b"x\x1b[3", TAKE, "x", 1),
        (b"x\x1b[3", END, "x", 4),
        (b"", END, "", 0),
        (b"", TAKE, "", 0),
    ],
)
def test_what_becomes_of_an_unfinished_line(
    directory: Path, data: bytes, unfinished: Unfinished, text: str, next_cursor: int
) -> None:
    """It is held back, shown, taken as a prompt, or given as the end; an incomplete character only as the end."""
    log = new_log(directory, data)
    assert read_output(log, 0, 1000, TEXT, unfinished) == Reading(0, next_cursor, text, 0)
    log.close()


def test_a_dialogue(directory: Path) -> None:
    """A prompt that was taken is not given again; what comes after it is."""
    log = new_log(directory, b"Name: ")
    first = read_output(log, 0, 1000, TEXT, TAKE)
    log.append(b"Hello\nAge: ")
    second = read_output(log, first.next_cursor, 1000, TEXT, TAKE)
    log.append(b"Bye\n")
    third = read_output(log, second.next_cursor, 1000, TEXT, END)
    assert [first.data, second.data, third.data] == ["Name: ", "Hello\nAge: ", "Bye\n"]
    log.close()


@pytest.mark.parametrize(
    ("data", "limit"), [(b"x" * 1000 + b"\n", 10), (b"x" * 200_000, 1000), ("€".encode() * 70_000 + b"\n", 2000)]
)
def test_long_lines_are_read_in_parts(directory: Path, data: bytes, limit: int) -> None:
    """A line that does not redraw itself can be read in parts of the limit, once it is complete."""
    log = new_log(directory, data)
    readings = read_on(log, 0, limit, TEXT, END)
    assert "".join(str(reading.data) for reading in readings) == data.decode()
    assert all(reading.next_cursor - reading.cursor <= max(limit, 4) for reading in readings[:-1])
    log.close()


def test_a_line_that_redraws_itself_is_read_whole(directory: Path) -> None:
    """More than the limit is read where the text is only known as a whole."""
    data = b"".join(b"\r%d%%" % percent for percent in range(101)) + b"\nnext\n"
    log = new_log(directory, data)
    first = read_output(log, 0, 20, TEXT, HOLD)
    assert first.data == "100%\n"
    assert read_output(log, first.next_cursor, 20, TEXT, HOLD).data == "next\n"
    log.close()


@pytest.mark.parametrize("form", OutputFormat)
def test_gaps_are_told(directory: Path, form: OutputFormat) -> None:
    """A read that begins where bytes were dropped says how many, and goes on behind them."""
    data = b"".join(b"%06d\n" % number for number in range(1000))
    log = new_log(directory, data, 1400)
    readings = read_on(log, 0, 300, form, END)
    dropped = [reading for reading in readings if reading.dropped]
    assert len(dropped) == 1
    assert dropped[0].dropped == log.size - log.kept
    joined = [item.data.encode() if isinstance(item.data, str) else item.data for item in readings]
    assert b"".join(joined) == data[:700] + data[700 + dropped[0].dropped :]
    assert position(readings) == len(data)
    log.close()


def test_a_cursor_behind_the_end_waits_there(directory: Path) -> None:
    """It never becomes invalid."""
    log = new_log(directory, b"text\n")
    for form in OutputFormat:
        assert read_output(log, 5, 10, form, HOLD).next_cursor == 5
    log.close()


def test_an_endless_line_can_be_followed(directory: Path) -> None:
    """Even while it is going on a line is given out from `LINE_LIMIT` bytes on."""
    log = new_log(directory)
    seen = 0
    for _ in range(40):
        log.append(b"y" * 10_000)
        readings = read_on(log, seen, 65536, TEXT, HOLD)
        seen = position(readings) or seen
        assert log.size - seen <= LINE_LIMIT + 10_000
    assert seen > LINE_LIMIT
    log.close()


def test_a_large_read_lets_others_go_on(directory: Path) -> None:
    """Megabytes are rendered beside the event loop, which has its turns meanwhile, and they are rendered alike."""
    data = b"\x1b[32mcoloured\x1b[0m and\rredrawn\n" * 150_000
    log = new_log(directory, data)
    turns = 0

    async def go_on() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0.001)
            turns += 1

    async def read() -> Reading:
        others = asyncio.create_task(go_on())
        try:
            record = Record("r1", "main", 0, RunStatus.COMPLETED, in_directory=True, command="ls", duration=0)
            return await StoredRun(record, lambda _: log).read(Stream.STDOUT, 0, limit=1 << 30)
        finally:
            others.cancel()

    assert asyncio.run(read()) == read_output(log, 0, 1 << 30, TEXT, END)
    assert turns > 5
    log.close()
