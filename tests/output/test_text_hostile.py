"""Rendering of what was written to do harm: never an error, no more work and memory than the bytes are worth."""

import asyncio
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, Final, Self

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import shelld_py.output.text
from shelld_py.http.sse import follow
from shelld_py.models import OutputFormat, RunResult, RunStatus, Stream
from shelld_py.output.excerpt import OutputChoice, SizeCounter, with_output
from shelld_py.output.log import OutputLog
from shelld_py.output.text import (
    INLINE,
    INLINE_DRAWN,
    LINE_LIMIT,
    WIDTH_LIMIT,
    TextRenderer,
    _render_lines,
    is_quick,
    render,
)
from shelld_py.shells.record import Record
from shelld_py.shells.run import StoredRun

MEGABYTE: Final = 1_000_000

NUMBERS = st.one_of(
    st.just(b""),
    st.integers(0, 70_000).map(lambda number: b"%d" % number),
    st.integers(1, 6000).map(lambda digits: b"9" * digits),
    st.integers(1, 6000).map(lambda digits: b"0" * digits + b"3"),
)
PARAMETERS = st.lists(NUMBERS | st.sampled_from([b"?", b":", b"<", b"38:2::1"]), max_size=4).map(b";".join)
CONTROL_SEQUENCES = st.tuples(
    st.just(b"\x1b["), PARAMETERS, st.sampled_from([b"", b" ", b"!"]), st.sampled_from(list(b"CDGKKmmABHJPX@Zhl\x00\n"))
).map(lambda parts: parts[0] + parts[1] + parts[2] + bytes([parts[3]]))
MOVEMENTS = st.tuples(NUMBERS, st.sampled_from([b"C", b"D", b"G"])).map(lambda parts: b"\x1b[" + b"".join(parts))
ERASURES = st.sampled_from([b"\x1b[K", b"\x1b[0K", b"\x1b[1K", b"\x1b[2K", b"\x1b[3K", b"\x1b[00K"])
STRINGS = st.tuples(
    st.sampled_from([b"\x1bP", b"\x1b]", b"\x1b_", b"\x1b^", b"\x1bX"]),
    st.sampled_from([b"", b"0;title", b"one\ntwo", b"\r", b"\xff", b"\x1b[m", b"q" * 300]),
    st.sampled_from([b"\x1b\\", b"\x07", b"\x18", b"\x1a", b"\x1b", b"\n", b""]),
).map(b"".join)
DRAWN = st.sampled_from([b"\r", b"\x08", b"\r\n", b"\r\r\n", b"\n", b"\x08\x08\x08", b"\r\x1b[K", b"\x1b[2K\r"])
TEXTS = st.sampled_from([b"a", b"hello world", "äöü".encode(), "😀".encode(), b"\xff", b"\xe2\x82", b"\xc0\x80", b"\t"])
ESCAPES = st.lists(st.one_of(CONTROL_SEQUENCES, MOVEMENTS, ERASURES, STRINGS, DRAWN, TEXTS), max_size=30).map(b"".join)


def filled(unit: bytes) -> bytes:
    """Return a line that is as long as can be: of whole units, and text. All that are broken off it are equal."""
    return (unit * (LINE_LIMIT // len(unit))).ljust(LINE_LIMIT, b"x")


WORST: Final = {
    "carriage returns": b"\r",
    "carriage returns and line feeds": b"\r\r\r\n",
    "backspaces": b"\x08",
    "text and backspace": b"ab\x08",
    "ESC": b"\x1b",
    "CSI without an end": b"\x1b[",
    "OSC without an end": b"\x1b]",
    "control strings without an end": b"\x1bP",
    "control strings over lines": b"\x1bP\n",
    "control strings that are closed": b"\x1b_\n\x1b\\",
    "one control string": b"\x1bP" + b"q\n" * MEGABYTE,
    "a parameter of many digits": b"\x1b[" + b"1" * 5000 + b"C",
    "a parameter without an end": b"\x1b[" + b"1;" * MEGABYTE,
    "movements": b"\x1b[65535C",
    "movements and text": b"\x1b[65535Cx",
    "movements in many lines": b"\x1b[65535Cx\n",
    "movements and erasures": b"\x1b[65535Cx\x1b[2K",
    "erasures of a long line": filled(b"x" * 30_000 + b"\x1b[1K" * 8000),
    "erasures near and far": filled(b"x" * 20_000 + b"\x1b[30000Gx\x1b[1K\x1b[2G\x1b[1K" * 2000),
    "text and erasures": b"a\x1b[K",
    "text in scattered columns": filled(b"".join(b"\x1b[%dGx" % (number * 7919 % 1000) for number in range(1000))),
    "text in falling columns": filled(b"".join(b"\x1b[%dGx" % (1000 - number * 2) for number in range(500))),
    "parts of all lengths": b"".join(b"x" * (number % 300) + b"\r" for number in range(1000)),
    "many colours": b"".join(b"\x1b[%dm" % number for number in range(1000)),
    "invalid UTF-8": b"\xff",
    "incomplete characters": b"\xf0\x9f\x98",
    "NUL": b"\x00",
    "line feeds": b"\n",
    "nothing but text": b"x",
}

DEAR: Final = {
    "carriage returns and line feeds",
    "control strings over lines",
    "control strings that are closed",
    "movements",
    "movements and text",
    "movements and erasures",
    "movements in many lines",
    "erasures of a long line",
    "erasures near and far",
    "text and erasures",
    "text in scattered columns",
    "text in falling columns",
}
"""Where a byte takes many times what it takes in others."""


def worst(name: str, size: int) -> bytes:
    """Return `size` bytes of one of the worst inputs."""
    unit = WORST[name]
    return (unit * (size // len(unit) + 1))[:size]


def fed(data: bytes, size: int, after: Callable[[int], None] = lambda _: None) -> tuple[int, int]:
    """Feed `data` in pieces of `size`; return the characters of the text, and of its longest piece.

    `after` is told how many bytes were fed, after each piece.
    """
    renderer = TextRenderer()
    total = longest = 0
    for start in range(0, len(data), size):
        text = renderer.feed(data[start : start + size])
        total, longest = total + len(text), max(longest, len(text))
        assert renderer.pending <= LINE_LIMIT
        after(start + size)
    return total + len(renderer.finish()), longest


class Work:
    """Counts what the renderer does in this thread: the lines of source executed, or the bytes its functions get."""

    def __init__(self, *, lines: bool) -> None:
        self._lines = lines
        self.done = 0

    def __enter__(self) -> Self:
        self._before = sys.gettrace()
        sys.settrace(self._count)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _count(self, frame: FrameType, _event: str, _argument: object) -> Any:
        code = frame.f_code
        if code.co_filename != shelld_py.output.text.__file__:
            return None
        if self._lines:
            self.done += 1
            return self._count
        arguments = map(frame.f_locals.get, code.co_varnames[: code.co_argcount])
        self.done += sum(len(argument) for argument in arguments if isinstance(argument, bytes | bytearray | str))
        return None


def work_for(data: bytes, part: int, size: int, *, lines: bool) -> tuple[int, int]:
    """Return what was done when `part` bytes had been fed in pieces of `size`, and in the end."""
    at_part = 0
    with Work(lines=lines) as work:

        def note(position: int) -> None:
            nonlocal at_part
            if position <= part:
                at_part = work.done

        fed(data, size, note)
    return at_part, work.done


def bytes_looked_at(data: bytes, part: int) -> tuple[int, int]:
    """Return what is looked at when `part` bytes have been fed in pieces, and in the end, as `TextRenderer.feed` does.

    What it does with complete lines depends on them alone. The worst inputs repeat themselves: so equal lines are
    rendered once, and counted as often as they come.
    """
    renderer = TextRenderer()
    known: dict[bytes, int] = {}
    at_part = done = 0
    for start in range(0, len(data), 4096):
        with Work(lines=False) as work:
            parts = renderer._completed(data[start : start + 4096])
        done += work.done
        for lines in parts:
            if lines not in known:
                with Work(lines=False) as work:
                    _render_lines(lines)
                known[lines] = work.done
            done += known[lines]
        if start + 4096 <= part:
            at_part = done
    return at_part, done


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=200) | ESCAPES, st.lists(st.integers(1, 400), min_size=1, max_size=8))
@example(b"\x1b[" + b"1" * 5000 + b"C", [4096])
@example(b"a\n\x1bPabc" + b"\n" + b"def\x1b\\ghi\n", [10, 1, 4])
@example(b"\x1bP\x1b", [2, 1])
def test_any_bytes_in_any_cut_give_the_same_text(data: bytes, sizes: list[int]) -> None:
    """Nothing raises, at no moment, and the text is that of the whole. Who only counts it counts the same."""
    renderer, counting = TextRenderer(), TextRenderer()
    parts, position, turn = [], 0, 0
    while position < len(data):
        part = data[position : position + sizes[turn % len(sizes)]]
        parts.append(renderer.feed(part))
        assert counting.feed_size(part) == len(parts[-1])
        position, turn = position + len(part), turn + 1
        line, meaningless = renderer.unfinished()
        assert len(line) <= renderer.pending + WIDTH_LIMIT
        assert 0 <= meaningless <= renderer.pending
    whole = render(data)
    assert "".join(parts) + renderer.finish() == whole
    assert len(whole) <= len(data) + WIDTH_LIMIT * (data.count(b"\n") + 1)


@settings(max_examples=100, deadline=None)
@given(ESCAPES)
def test_a_line_that_is_drawn_over_is_as_a_grid_shows_it(data: bytes) -> None:
    """Drawn backwards, a line is what it is when each cell is written at once, one after the other."""
    for line in render_grid(data):
        assert render(line[0]) == line[1]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["10%", "20%", "ä0%", "9%", "", "100%"]), max_size=8))
@example(["10%", "20%", "30%", "4"])
@example(["", "10%", "20%"])
@example(["100%", "10%", "20%", "30%"])
def test_states_of_a_progress_lie_over_one_another(states: list[str]) -> None:
    """Of each state that which is longer than all that came after it is seen, whether their widths differ or not."""
    shown = ""
    for state in states:
        shown = state + shown[len(state) :]
    assert render("\r".join(states).encode()) == shown


def render_grid(data: bytes) -> list[tuple[bytes, str]]:
    """Return some lines made of movements, erasures and text, each with what a grid of cells makes of it."""
    tokens = [
        b"abcdefghij",
        b"X",
        b"\r",
        b"\x08",
        b"\x1b[3C",
        b"\x1b[2D",
        b"\x1b[5G",
        b"\x1b[K",
        b"\x1b[1K",
        b"\x1b[2K",
    ]
    chosen = [tokens[byte % len(tokens)] for byte in data[:60]]
    cells: list[str] = []
    column = 0
    for token in chosen:
        if token == b"\r":
            column = 0
        elif token == b"\x08":
            column = max(0, column - 1)
        elif token == b"\x1b[3C":
            column += 3
        elif token == b"\x1b[2D":
            column = max(0, column - 2)
        elif token == b"\x1b[5G":
            column = 4
        elif token == b"\x1b[K":
            del cells[column:]
        elif token == b"\x1b[1K":
            cells[: column + 1] = [" "] * min(column + 1, len(cells))
        elif token == b"\x1b[2K":
            cells.clear()
        else:
            cells += [" "] * (column - len(cells))
            cells[column : column + len(token)] = token.decode()
            column += len(token)
    return [(b"".join(chosen), "".join(cells))]


@pytest.mark.parametrize("name", WORST)
def test_bytes_are_looked_at_a_few_times_each(name: str) -> None:
    """Four megabytes take four times what one takes, and no byte is looked at more than so often."""
    size = 4 * MEGABYTE
    part, whole = bytes_looked_at(worst(name, size), size // 4)
    assert whole <= 4.4 * part + 64 * LINE_LIMIT  # what is left at the end counts more in the shorter one
    assert whole <= 32 * size


@pytest.mark.parametrize("name", WORST)
def test_work_grows_with_the_bytes_alone(name: str) -> None:
    """Twice the bytes take twice the steps, and no byte takes more than a few.

    The renderer remembers one line, so sizes of some lines that are as long as can be tell all.
    """
    size = 4 * LINE_LIMIT
    part, whole = work_for(worst(name, size), size // 2, 4096, lines=True)
    assert whole <= 4.5 * part + 1000  # of two lines that are as long as can be, one is rendered with the next byte
    assert whole <= 12 * size


@pytest.mark.parametrize("name", WORST)
def test_memory_is_that_of_a_line(name: str) -> None:
    """Whatever is fed, what is kept and what is given at once stay in bounds."""
    data = worst(name, LINE_LIMIT if name in DEAR else 2 * LINE_LIMIT)
    tracemalloc.start()
    _, longest = fed(data, 4096)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert longest <= LINE_LIMIT + WIDTH_LIMIT * 4096
    assert peak <= 20 * MEGABYTE


@pytest.mark.parametrize("name", ["text and backspace", "control strings over lines", "nothing but text", "ESC"])
def test_single_bytes_are_not_looked_at_again_and_again(name: str) -> None:
    """Fed byte by byte, a line takes a bounded number of steps for each of them."""
    part, whole = work_for(worst(name, LINE_LIMIT // 4), LINE_LIMIT // 16, 1, lines=True)
    assert whole <= 4.5 * part


@pytest.mark.parametrize("name", WORST)
def test_the_event_loop_renders_no_more_than_a_little(name: str) -> None:
    """What is quick takes the steps of a few hundred of the worst bytes, or a handful however long it is."""
    with Work(lines=True) as work:
        for size in (INLINE_DRAWN, INLINE):
            before, data = work.done, worst(name, size)
            if is_quick(data):
                render(data)
                assert work.done - before <= (12 * INLINE_DRAWN if size == INLINE_DRAWN else 100)
    assert not is_quick(worst("nothing but text", INLINE + 1))


@pytest.mark.parametrize("name", ["movements in many lines", "text and erasures", "text in scattered columns"])
def test_who_reads_what_is_drawn_leaves_the_event_loop_free(tmp_path: Path, name: str) -> None:
    """Counting, showing, reading by cursor and following some kilobytes of the worst is done beside the loop."""
    data = worst(name, INLINE)
    log = OutputLog(f"{tmp_path}/log", 1 << 20).create()
    counter = SizeCounter(log)
    counter.note(memoryview(data))
    log.append(data)
    record = Record("r1", "main", 0, RunStatus.COMPLETED, in_directory=True, command="ls", duration=0, cursor=len(data))
    run = StoredRun(record, lambda stream: log if stream is Stream.STDOUT else None)
    choice = OutputChoice(OutputFormat.TEXT, 0, 0, 0)

    async def read_all() -> tuple[int, str | None, str | bytes, bytes]:
        await counter.measure()
        shown = await with_output(run.result(), {Stream.STDOUT: log}, choice, lambda *_: "")
        reading = await run.read(Stream.STDOUT, 0)

        async def result() -> RunResult:
            return run.result()

        followed = [event async for event in follow(run, [(Stream.STDOUT, log, 0)], OutputFormat.TEXT, None, result)]
        return counter.size, shown.stdout, reading.data, followed[0]

    with Work(lines=True) as work:
        size, shown, read, followed = asyncio.run(read_all())
    log.close()
    assert work.done <= 200
    assert shown == read == render(data)
    assert size == len(render(data))
    assert followed.startswith(b"event: output")


def test_a_movement_that_no_terminal_could_make() -> None:
    """A line grows by no more than a terminal's width, however often the cursor is moved beyond it."""
    assert render(b"\x1b[65535C" * 1000 + b"x") == " " * WIDTH_LIMIT + "x"
