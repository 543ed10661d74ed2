"""The part of an output that an answer shows, and the count of what it leaves out."""

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.config import OutputSettings
from shelld_py.models import OutputFormat
from shelld_py.output.excerpt import Excerpt, OutputChoice, SizeCounter, excerpt, pieces
from shelld_py.output.log import OutputLog
from shelld_py.output.text import LINE_LIMIT, TextRenderer, render
from tests.output.test_text import OUTPUTS

TEXT, RAW = OutputFormat.TEXT, OutputFormat.RAW
MARK = "... [{} omitted] ..."


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One directory for all the logs of this file."""
    return tmp_path_factory.mktemp("excerpt")


def excerpt_of(directory: Path, data: bytes, cut: OutputChoice) -> Excerpt:
    """Return the excerpt of a log with `data`."""
    (directory / "log").unlink(missing_ok=True)
    log = OutputLog(f"{directory}/log", 1 << 30).create()
    log.append(data)
    found = excerpt(log, len(render(data)), cut, MARK, log.size)
    log.close()
    return found


def expected_cut(text: str, cut: OutputChoice) -> str:
    """Return the first and the last characters of `text` with the mark on a line of its own in between."""
    head, tail = text[: cut.begin], text[len(text) - cut.end :]
    line = "" if not head or head.endswith("\n") else "\n"
    return f"{head}{line}{MARK.format(len(text) - cut.begin - cut.end)}\n{tail}"


CUTS = st.tuples(st.integers(0, 15), st.integers(0, 15), st.integers(0, 10)).map(
    lambda sizes: OutputChoice(TEXT, sum(sizes), sizes[0], sizes[1])
)


@settings(max_examples=200, deadline=None)
@given(data=OUTPUTS, cut=CUTS)
def test_what_is_shown_and_what_is_counted(directory: Path, data: bytes, cut: OutputChoice) -> None:
    """A text within the maximum is shown whole; else its ends, with the exact number of characters between them."""
    text = render(data)
    whole = cut.maximum == 0 or len(text) <= cut.maximum
    shown = text if whole else expected_cut(text, cut)
    assert excerpt_of(directory, data, cut) == Excerpt(shown, not whole, len(text))


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"".join(b"line %d\n" % number for number in range(200_000)), id="many lines"),
        pytest.param("ä€😀\n".encode() * 100_000, id="long characters"),
        pytest.param(("ä€😀" * 100_000).encode(), id="one line of long characters"),
        pytest.param(b"\x1b[32mok\x1b[0m 10%\r\x1b[Kdone\r\n" * 80_000, id="colours and redraws"),
        pytest.param(b"x" * 2_000_000, id="one line"),
        pytest.param(b"\x1b[1m\x1b[0m" * 200_000 + b"visible text in the end\n" * 10, id="mostly invisible"),
    ],
)
@pytest.mark.parametrize("cut", [OutputChoice(TEXT, 100, 40, 60), OutputChoice(TEXT, 100_000, 40_000, 60_000)])
def test_large_outputs(directory: Path, data: bytes, cut: OutputChoice) -> None:
    """The end is found without rendering all, and is the same as if all had been rendered."""
    text = render(data)
    shown = text if len(text) <= cut.maximum else expected_cut(text, cut)
    assert excerpt_of(directory, data, cut) == Excerpt(shown, len(text) > cut.maximum, len(text))


@pytest.mark.parametrize("data", ["äöü€\n".encode() * 50, b"plain\n" * 50, b"\xff\xfe" * 200, b"\x1b[31mred\r\n" * 40])
@pytest.mark.parametrize("cut", [OutputChoice(RAW, *cut) for cut in ((100, 40, 60), (60, 60, 0), (60, 0, 60))])
def test_raw_outputs_are_counted_as_they_are_shown(directory: Path, data: bytes, cut: OutputChoice) -> None:
    """What is shown and what is said to be left out are together the whole: no byte twice, none unaccounted for."""
    found = excerpt_of(directory, data, cut)
    head, omitted, tail = re.split(r"\n?\.\.\. \[(-?\d+) omitted\] \.\.\.\n", found.text)
    text = data.decode("utf-8", "surrogateescape")
    assert text.startswith(head)
    assert text.endswith(tail)
    line_feed = 1 if text.startswith(head + "\n") and head and found.text[len(head) :].startswith("\n...") else 0
    assert int(omitted) in {len(text) - len(head) - len(tail) - extra for extra in (0, line_feed)}


def test_raw_outputs_are_not_rendered(directory: Path) -> None:
    """Raw is the bytes as they were written; those that are not UTF-8 are surrogates."""
    found = excerpt_of(directory, b"\x1b[31m\r\n\xff", OutputChoice(RAW, 0, 0, 0))
    assert found == Excerpt("\x1b[31m\r\n\udcff", False, 8)


@settings(max_examples=100, deadline=None)
@given(data=OUTPUTS, form=st.sampled_from(OutputFormat))
def test_pieces_join_to_the_whole(directory: Path, data: bytes, form: OutputFormat) -> None:
    """An answer that is sent piece by piece is the same as one that is sent at once."""
    (directory / "log").unlink(missing_ok=True)
    log = OutputLog(f"{directory}/log", 1 << 20).create()
    log.append(data)
    whole = render(data) if form is TEXT else data.decode("utf-8", "surrogateescape")
    assert "".join(pieces(log, form)) == whole
    log.close()


def counted(log: OutputLog, parts: list[bytes], asked: list[bool]) -> SizeCounter:
    """Write `parts` to `log`; ask for the size after those for which `asked` says so."""
    counter = SizeCounter(log)
    for index, part in enumerate(parts):
        log.append(part)
        counter.note(memoryview(part))
        if asked and asked[index % len(asked)]:
            assert counter.size == len(whole_text(b"".join(parts[: index + 1])))
            assert counter.exact
    return counter


def whole_text(data: bytes) -> str:
    """Return the text of all that has come, the unfinished line as it looks now."""
    renderer = TextRenderer()
    return renderer.feed(data) + renderer.unfinished()[0]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(OUTPUTS | st.sampled_from([b"plain", b"two\nlines", b"\r"]), max_size=5),
    st.lists(st.booleans(), max_size=3),
)
def test_sizes_are_those_of_the_text(directory: Path, parts: list[bytes], asked: list[bool]) -> None:
    """The size has the length of the text, however the bytes came and whenever it was asked for."""
    (directory / "log").unlink(missing_ok=True)
    log = OutputLog(f"{directory}/log", 1 << 20).create()
    counter = counted(log, parts, asked)
    counter.finish()
    assert counter.size == len(render(b"".join(parts)))
    log.close()


@pytest.mark.parametrize("before", [0, 1, LINE_LIMIT - 1, LINE_LIMIT, LINE_LIMIT + 1, 3 * LINE_LIMIT + 5])
def test_a_long_line_that_is_drawn_over_late(directory: Path, before: int) -> None:
    """Plain text is counted by its bytes until something draws over it: then from where the line was broken."""
    (directory / "log").unlink(missing_ok=True)
    log = OutputLog(f"{directory}/log", 1 << 20).create()
    parts = [b"first\n", b"x" * before, b"\rdrawn over"]
    counter = counted(log, parts, [False])
    counter.finish()
    asyncio.run(counter.measure())
    assert counter.exact
    assert counter.size == len(render(b"".join(parts)))
    log.close()


def test_much_that_is_not_plain_is_counted_when_it_is_asked_for(directory: Path) -> None:
    """Until then it counts by its bytes, and nothing is rendered in the event loop."""
    (directory / "log").unlink(missing_ok=True)
    log = OutputLog(f"{directory}/log", 1 << 20).create()
    line = b"\x1b[31mred\x1b[0m\n"
    counter = counted(log, [b"plain\n", line * 10_000], [False])
    assert not counter.exact
    assert counter.size == log.size
    asyncio.run(counter.measure())
    assert counter.exact
    assert counter.size == len("plain\n" + "red\n" * 10_000)
    log.close()


def test_what_is_not_kept_counts_by_its_bytes(directory: Path) -> None:
    """A log that has lost its middle has the size of the text that is left, and of the bytes that are not."""
    (directory / "log").unlink(missing_ok=True)
    log = OutputLog(f"{directory}/log", 8000).create()
    counter = counted(log, [b"\x1b[31mred\x1b[0m\n"] * 2000, [False])
    counter.finish()
    asyncio.run(counter.measure())
    gone = log.size - log.kept
    assert gone > 0
    assert abs(counter.size - gone - log.kept * len("red\n") // len(b"\x1b[31mred\x1b[0m\n")) < 50
    log.close()


@pytest.mark.parametrize(
    ("maximum", "begin", "end", "expected"),
    [
        (None, 40_000, 60_000, (100_000, 40_000, 60_000)),
        (None, 10, 20, (100_000, 10, 20)),
        (None, 80_000, 80_000, (100_000, 50_000, 50_000)),
        (100, 40_000, 60_000, (100, 40, 60)),
        (200_000, 40_000, 60_000, (200_000, 80_000, 120_000)),
        (0, 40_000, 60_000, (0, 0, 0)),
        (10, 0, 0, (10, 5, 5)),
        (1, 1, 1, (1, 0, 1)),
    ],
)
def test_a_cut_of_another_size_keeps_the_proportion(
    maximum: int | None, begin: int, end: int, expected: tuple[int, int, int]
) -> None:
    """Beginning and end share what there is; the settings' own are taken as they are where they fit."""
    output = OutputSettings(max_size=100_000, begin_size=begin, end_size=end)
    assert OutputChoice.of(TEXT, maximum, output) == OutputChoice(TEXT, *expected)


def test_a_log_whose_file_is_gone_is_counted_to_its_end(tmp_path: Path) -> None:
    """A run is deleted while its output is counted in a thread: the count gets on, by bytes, and ends."""
    log = OutputLog(f"{tmp_path}/log", 1 << 20).create()
    log.append(b"\x1b[31mred\r" * 10_000)
    counter = SizeCounter(log)
    counter.note(memoryview(b"\x1b[31mred\r"))
    (tmp_path / "log").unlink()
    counter.finish()

    async def measured() -> int:
        await asyncio.wait_for(counter.measure(), 60)
        return counter.size

    assert asyncio.run(measured()) == log.size
    log.close()
    chunk = log.read(0, 100)
    assert (chunk.data, chunk.start, chunk.dropped) == (b"", log.size, log.size)


def test_ends_that_are_longer_than_what_is_read_at_once(directory: Path) -> None:
    """The ends that somebody asks for may be many times what is read and rendered at once."""
    data = b"".join(b"%07d\n" % number for number in range(200_000))
    shown = excerpt_of(directory, data, OutputChoice(TEXT, 1_500_001, 700_000, 800_001))
    assert shown == Excerpt(expected_cut(data.decode(), OutputChoice(TEXT, 0, 700_000, 800_001)), True, len(data))
