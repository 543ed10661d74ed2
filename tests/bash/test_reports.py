"""The reports of bash, cut anywhere, torn anywhere, with junk in between."""

import sys
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.bash.protocol import Report, ReportKind, ReportParser

TAG = "tag456789abcdef01"
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
JUNK = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"")) | st.sampled_from(
    [b"", b"trap output\n", TAG.encode()[:7], b"bash: line 1: error\n"]
)


def record(kind: str, *fields: str, listing: str = "") -> bytes:
    """Return a record as the driver writes it."""
    return (listing + "".join(f"{item}\0" for item in (TAG, kind, *fields))).encode("utf-8", "surrogateescape")


def ran(summary: str = "0 himBHs 0 ", kind: str = "R", listing: str = "", directory: str = "/") -> bytes:
    """Return a record of the end of a command, or of the prompt."""
    return record(kind, summary, directory, "", "\\[\\]", listing=listing)


def state_of(report: Report) -> str:
    """Return what the driver's variable tells: nothing, its value between commands, or how the text begins."""
    if report.returned:
        return f"=returned {report.status}"
    if report.prepared:
        return ""
    return "=\\builtin unset" if report.loaded else ("=:" if report.kind is ReportKind.RAN else "=idle")


def report_bytes(report: Report) -> bytes:
    """Return the records of which `report` consists."""
    if report.kind is ReportKind.LOOP:
        return record("B")
    listing = "".join(f"trap -- '{action}' {name}\n" for name, action in report.traps.items())
    summary = f"{report.status} {report.flags} {report.last_job} {state_of(report)}"
    prompts = "> x" if report.prompts else "\\[\\]"
    if report.kind is ReportKind.EXITED:
        prompts = "exit" if report.handled is None else "slee"
        listing += "".join(f"trap -- '' {name}\n" for name in report.handled or ())
    data = record(report.kind, summary, report.directory, report.previous_directory or "", prompts, listing=listing)
    return data + record("Y", str(report.status)) if report.kind is ReportKind.EXITED else data


STATES = st.sampled_from([{}, {"prepared": False}, {"prepared": False, "loaded": False}, {"returned": True}])
REPORTS = st.builds(
    lambda kind, state, handled, **fields: (
        Report(kind, **fields, **state)
        if kind is not ReportKind.EXITED
        else Report(kind, **{**fields, "prompts": False}, handled=handled)
    ),
    kind=st.sampled_from([ReportKind.RAN, ReportKind.PROMPT, ReportKind.EXITED]),
    state=STATES,
    handled=st.none() | st.frozensets(st.sampled_from(["SIGUSR1", "SIGALRM", "SIGRTMIN+3"])),
    status=st.integers(0, 255),
    flags=st.text("himBHsevx", max_size=5),
    last_job=st.integers(0, 4194304).map(str),
    directory=TEXTS,
    previous_directory=TEXTS,
    prompts=st.booleans(),
    traps=st.dictionaries(st.sampled_from(["DEBUG", "ERR", "RETURN", "EXIT"]), st.text("echo $x;\n", max_size=8)),
) | st.just(Report(ReportKind.LOOP))


def feed(data: bytes, places: list[int]) -> list[Report]:
    """Return what a parser makes of `data`, cut at `places`."""
    parser = ReportParser(TAG)
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [report for start, end in pairwise(edges) for report in parser.feed(data[start:end])]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(JUNK, REPORTS), max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_reports_however_they_are_cut(items: list[tuple[bytes, Report]], places: list[int]) -> None:
    """Every report arrives once, in order, whatever the cuts and whatever lies between the records."""
    data = b"".join(part for junk, report in items for part in (junk, report_bytes(report)))
    assert feed(data, places) == [report for _, report in items]


@settings(max_examples=50, deadline=None)
@given(REPORTS, JUNK)
def test_reports_byte_by_byte(report: Report, junk: bytes) -> None:
    """The finest cut there is; the report comes with its last byte and not before."""
    data = junk + report_bytes(report)
    parser = ReportParser(TAG)
    for byte in data[:-1]:
        assert list(parser.feed(bytes([byte]))) == []
    assert list(parser.feed(data[-1:])) == [report]


@settings(max_examples=200, deadline=None)
@given(REPORTS, st.data(), REPORTS, st.lists(st.integers(0, 2000), max_size=5))
def test_a_torn_report_is_dropped(torn: Report, data: st.DataObject, whole: Report, places: list[int]) -> None:
    """An interrupt cuts a report short anywhere; of it, traps that were listed before its tag remain."""
    records = report_bytes(torn)
    cut = records[: data.draw(st.integers(0, len(records) - 1))]
    found = feed(cut + report_bytes(whole), places)
    if torn.kind is ReportKind.EXITED and whole.kind is not ReportKind.EXITED:
        found = [report for report in found if report.kind is not ReportKind.EXITED]
    assert len(found) == 1
    assert (found[0].kind, found[0].status, found[0].directory) == (whole.kind, whole.status, whole.directory)
    assert whole.traps.items() <= found[0].traps.items()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.binary(max_size=30) | st.sampled_from([TAG.encode(), b"\0", b"R\0", b"trap -- '", b"Y\0"])))
def test_any_bytes(pieces: list[bytes]) -> None:
    """Nothing that bash or a stranger writes into the pipe raises an error, or hides the report that follows."""
    parser = ReportParser(TAG)
    for piece in pieces:
        list(parser.feed(piece))
    assert list(parser.feed(b"\0" + ran("7 himBHs 0 ")))[-1].status == 7


def test_a_report_that_an_interrupt_cut_off_tells_its_status() -> None:
    """SIGINT between a report's summary and its record: the prompt's report has what the summary held."""
    torn = "trap -- 'echo x' ERR\n"
    (report,) = feed(torn.encode() + ran("130 himBHs 0 =3 himBHse 77 ", kind="P"), [])
    assert (report.kind, report.status, report.loaded, report.prepared) == (ReportKind.PROMPT, 3, True, True)
    assert set(report.flags) == set("himBHse")
    assert report.traps == {"ERR": "echo x"}


def test_a_report_that_an_interrupt_cut_off_tells_that_nothing_was_loaded() -> None:
    """Then the command has not run, whatever the status was."""
    (report,) = feed(ran("130 himBHs 0 =0 himBHs 0 =:", kind="P"), [])
    assert (report.loaded, report.prepared) == (False, False)


def test_the_parser_knows_when_the_exit_trap_of_the_user_runs() -> None:
    """From the record that says so to the end of the report."""
    parser = ReportParser(TAG)
    assert not list(parser.feed(ran("3 himBHs 0 ", kind="X")))
    assert not parser.in_exit_trap
    assert not list(parser.feed(record("U")))
    assert parser.in_exit_trap
    (report,) = parser.feed(record("Y", "4"))
    assert (report.kind, report.status) == (ReportKind.EXITED, 4)
    assert not parser.in_exit_trap


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", 0, id="nothing"),
        pytest.param(b"junk\0more\0" * 100, 0, id="junk alone"),
        pytest.param(record("Q", "x") + ran(), 1, id="unknown kind"),
        pytest.param(record("Y", "3"), 0, id="no header"),
        pytest.param(ran() + ran(), 2, id="twice"),
        pytest.param(ran().replace(TAG.encode(), b"f" * 16), 0, id="another tag"),
        pytest.param(ran("x"), 1, id="a summary that is none"),
        pytest.param(ran("9" * 5000), 1, id="a status of many digits"),
    ],
)
def test_records_that_make_no_report(data: bytes, expected: int) -> None:
    """What is not a whole report of this shell is passed over."""
    assert [report.kind for report in feed(data, [])] == [ReportKind.RAN] * expected


def test_directories_are_bytes() -> None:
    """A path that is not UTF-8 comes through (PEP 383); one that bash had to cut is none."""
    (report,) = feed(ran(directory="/tmp/\udcff\na"), [])
    assert report.directory == "/tmp/\udcff\na"
    (report,) = feed(record("R", "0 h 0 ", "/" * 65536, "/" * 65536, ""), [])
    assert (report.directory, report.previous_directory) == ("", None)


def test_traps_are_read_as_bash_quotes_them() -> None:
    """`trap -p` quotes actions of several lines and with quotes; traps of signals are not the driver's."""
    listing = "trap -- 'echo '\\''a'\\''\nb' DEBUG\ntrap -- '' SIGUSR1\ntrap -- 'x' EXIT\n"
    (report,) = feed(ran(listing=listing), [])
    assert report.traps == {"DEBUG": "echo 'a'\nb", "EXIT": "x"}


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGRTMIN-14", "USR1"])
def test_a_trap_on_a_signal_that_looks_like_others(name: str) -> None:
    """What its action says is no trap on anything else."""
    listing = f"trap -- 'trap -- '\\''x y'\\'' EXIT\n' {name}\ntrap -- 'z' ERR\n"
    (report,) = feed(ran(listing=listing), [])
    assert report.traps == {"ERR": "z"}


def test_equal_reports_are_read_once() -> None:
    """The bytes of the report before have its meaning; what comes in between is read as ever."""
    parser = ReportParser(TAG)
    (first,) = parser.feed(ran())
    (second,) = parser.feed(ran())
    assert second is first
    (other,) = parser.feed(ran("1 himBHs 0 "))
    (third,) = parser.feed(ran())
    assert (other.status, third) == (1, first)


@pytest.mark.parametrize(
    "behind", [ran(), record("B"), b"junk\0", ran()[:-1]], ids=["another", "the loop's", "junk", "a part"]
)
@pytest.mark.parametrize("kind", ["R", "P"])
def test_a_report_that_came_with_more_is_not_held_back(kind: str, behind: bytes) -> None:
    """When it comes alone it is complete, whatever followed it the last time."""
    parser = ReportParser(TAG)
    first, *_ = parser.feed(ran(kind=kind) + behind)
    list(parser.feed(b"\0"))
    assert list(parser.feed(ran(kind=kind))) == [first]


def test_nothing_repeats_no_report() -> None:
    """Who asks while a command goes on, of which nothing has come, is not told that its report has begun."""
    parser = ReportParser(TAG)
    (first,) = parser.feed(ran())
    assert (list(parser.feed(b"")), parser.repeats) == ([], False)
    assert (list(parser.feed(ran()[:5])), list(parser.feed(b"")), parser.repeats) == ([], [], True)
    assert list(parser.feed(ran()[5:])) == [first]


def test_equal_reports_are_read_once_however_they_are_cut() -> None:
    """Also where it comes in pieces, or a byte at a time; one that begins likewise is read as ever."""
    parser, data = ReportParser(TAG), ran(listing="trap -- 'a' USR1\n")
    assert [list(parser.feed(piece)) for piece in (data[:20], data[20:40])] == [[], []]
    (first,) = parser.feed(data[40:])
    for cut in range(1, len(data)):
        assert list(parser.feed(data[:cut])) == []
        assert parser.repeats
        assert list(parser.feed(data[cut:])) == [first]
    assert [report for place in range(len(data)) for report in parser.feed(data[place : place + 1])] == [first]
    other = ran("7 himBHs 0 ", listing="trap -- 'a' USR1\n")
    assert list(parser.feed(other[:25])) == []
    (second,) = parser.feed(other[25:])
    assert (second.status, second.traps, parser.repeats) == (7, first.traps, False)
    assert [report.status for report in parser.feed(data + other)] == [first.status, 7]


def test_two_exits_that_end_alike_are_told_apart() -> None:
    """Each report of an exit has the directory that its own record tells, and the user's trap is over with it."""
    parser = ReportParser(TAG)
    end = record("Y", "3") + record("B")
    for directory in ("/a", "/b"):
        assert list(parser.feed(record("U"))) == []
        assert parser.in_exit_trap
        assert list(parser.feed(ran("3 himBHs 0 ", "X", directory=directory))) == []
        exited, loop = parser.feed(end)
        assert (exited.kind, exited.status, exited.directory) == (ReportKind.EXITED, 3, directory)
        assert (loop.kind, parser.in_exit_trap) == (ReportKind.LOOP, False)


@pytest.mark.parametrize(
    "listing",
    [
        "trap -- '" * 30_000,
        "trap -- ''" * 30_000,
        "trap -- '" + "'\\''" * 60_000 + "' EXIT\n",
        "trap -- '' X\n" * 20_000,
        "'" * 250_000,
    ],
    ids=["unfinished", "without a name", "quotes", "many", "no trap"],
)
def test_a_listing_is_read_in_time_that_grows_with_it(listing: str) -> None:
    """Hostile traps of a quarter of a megabyte: each function is called in proportion to their length."""

    def calls(text: str) -> int:
        count = 0

        def profile(_frame: object, event: str, _argument: object) -> None:
            nonlocal count
            count += event == "c_call"

        parser = ReportParser(TAG)
        data = ran(listing=text)
        sys.setprofile(profile)
        try:
            list(parser.feed(data))
        finally:
            sys.setprofile(None)
        return count

    assert calls(listing) < 3 * calls(listing[: len(listing) // 2]) + 100
    assert calls(listing) < len(listing)


def test_a_long_report_is_bounded_in_memory() -> None:
    """What never ends is dropped but for its end; the report after it is read."""
    parser = ReportParser(TAG)
    for _ in range(100):
        assert list(parser.feed(b"x" * 65536)) == []
    assert sum(map(len, parser._pieces)) <= 2 * (1 << 20) + 65536
    assert [report.kind for report in parser.feed(ran())] == [ReportKind.RAN]
