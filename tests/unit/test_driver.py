"""The reports of bash, cut anywhere, torn anywhere, with junk in between."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.bash.driver import Report, ReportKind, ReportParser, sets_exit_trap

TAG = "0123456789abcdef"
TEXTS = st.text(st.characters(blacklist_characters="\0", blacklist_categories=["Cs"]), max_size=12)
JUNK = st.binary(max_size=20).map(lambda data: data.replace(b"\0", b"")) | st.sampled_from(
    [b"", b"trap output\n", TAG.encode()[:7], b"bash: line 1: error\n"]
)


def record(kind: str, *fields: str) -> bytes:
    """Return a record as the driver's printf writes it."""
    return "".join(f"{item}\0" for item in (TAG, kind, *fields)).encode("utf-8", "surrogateescape")


def report_bytes(report: Report) -> list[bytes]:
    """Return the records of which `report` consists."""
    traps = "".join(f"trap -- '{action}' {name}\n" for name, action in report.traps.items())
    head = (str(report.status), first_word(report), report.flags, report.directory, report.previous_directory, traps)
    return [
        record(report.kind, *head),
        record("J", "[1]+ 77 Running  sleep 5 &\n" if report.jobs else ""),
        record("Z", report.kind, ""),
    ]


def first_word(report: Report) -> str:
    """Return what the driver's variable tells: nothing, that it was left alone, or what the command begins with."""
    if report.prepared:
        return ""
    return "\\uns" if report.loaded else "idle"


REPORTS = st.builds(
    Report,
    kind=st.sampled_from(list(ReportKind)),
    status=st.integers(0, 255),
    flags=st.text("himBHsevx", max_size=5),
    directory=TEXTS,
    previous_directory=TEXTS,
    traps=st.dictionaries(st.sampled_from(["DEBUG", "ERR", "RETURN", "EXIT"]), st.text("echo $x;\n", max_size=8)),
    jobs=st.booleans(),
).flatmap(
    lambda report: st.sampled_from([(True, True), (True, False), (False, False)]).map(
        lambda case: replace(report, loaded=case[0], prepared=case[1])
    )
)


def feed(data: bytes, places: list[int]) -> list[Report]:
    """Return what a parser makes of `data`, cut at `places`."""
    parser = ReportParser(TAG)
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [report for start, end in pairwise(edges) for report in parser.feed(data[start:end])]


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(JUNK, REPORTS), max_size=5), st.lists(st.integers(0, 2000), max_size=8))
def test_reports_however_they_are_cut(items: list[tuple[bytes, Report]], places: list[int]) -> None:
    """Every report arrives once, in order, whatever the cuts and whatever lies between the records."""
    data = b"".join(part for junk, report in items for item in report_bytes(report) for part in (junk, item))
    assert feed(data, places) == [report for _, report in items]


@settings(max_examples=50, deadline=None)
@given(REPORTS, JUNK)
def test_reports_byte_by_byte(report: Report, junk: bytes) -> None:
    """The finest cut there is; the report comes with its last byte and not before."""
    data = junk.join([b"", *report_bytes(report)])
    parser = ReportParser(TAG)
    for byte in data[:-1]:
        assert list(parser.feed(bytes([byte]))) == []
    assert list(parser.feed(data[-1:])) == [report]


@settings(max_examples=200, deadline=None)
@given(REPORTS, st.data(), REPORTS, st.lists(st.integers(0, 2000), max_size=5))
def test_a_torn_report_is_dropped(torn: Report, data: st.DataObject, whole: Report, places: list[int]) -> None:
    """An interrupt cuts a report short anywhere; the next one is read as if it had not been there."""
    records = b"".join(report_bytes(torn))
    records = records[: data.draw(st.integers(0, len(records) - 1))]
    found = feed(records + b"".join(report_bytes(whole)), places)
    assert len(found) == 1
    assert found[0].kind is whole.kind
    assert (found[0].directory, found[0].previous_directory) == (whole.directory, whole.previous_directory)
    if not (torn.kind in (ReportKind.RAN, ReportKind.PROMPT) and whole.kind is ReportKind.PROMPT):
        assert found == [whole]


def test_an_interrupted_report_of_the_end_keeps_its_status() -> None:
    """SIGINT between RAN's records: the prompt's report tells the status, flags and traps that RAN had."""
    torn = record("R", "3", "", "himBHse", "/a", "/", "trap -- 'echo x' ERR\n")
    prompt = record("P", "130", "idle", "himBHs", "/a", "/", "") + record("J", "") + record("Z", "P", "")
    (report,) = feed(torn + prompt, [])
    assert (report.kind, report.status, report.loaded, report.prepared) == (ReportKind.PROMPT, 3, True, True)
    assert set(report.flags) == set("himBHse")
    assert report.traps == {"ERR": "echo x"}


def test_an_interrupted_report_of_an_interrupt_is_about_the_same_command() -> None:
    """A second SIGINT while the first is reported: the command was loaded, and must not run again."""
    torn = record("P", "130", "", "himBHs", "/a", "/", "")
    prompt = record("P", "1", "idle", "himBHs", "/a", "/", "") + record("J", "") + record("Z", "P", "")
    (report,) = feed(torn + prompt, [])
    assert (report.status, report.loaded, report.prepared) == (130, True, True)


def test_the_parser_knows_when_the_exit_trap_of_the_user_runs() -> None:
    """From the record that says so to the end of the report."""
    parser = ReportParser(TAG)
    begin = record("X", "3", "", "himBHs", "/a", "/", "")
    assert not list(parser.feed(begin))
    assert not parser.in_exit_trap
    assert not list(parser.feed(record("U")))
    assert parser.in_exit_trap
    (report,) = parser.feed(record("Z", "X", "4"))
    assert report.status == 4
    assert not parser.in_exit_trap


WHOLE = b"".join(report_bytes(Report(ReportKind.RAN, directory="/", previous_directory="")))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        pytest.param(b"", 0, id="nothing"),
        pytest.param(b"junk\0more\0" * 100, 0, id="junk alone"),
        pytest.param(record("Q", "x") + WHOLE, 1, id="unknown kind"),
        pytest.param(record("J", "") + record("Z", "R", ""), 0, id="no header"),
        pytest.param(record("R", "0", "", "", "/", "", "") + record("Z", "P", ""), 0, id="another report's end"),
        pytest.param(WHOLE + WHOLE, 2, id="twice"),
        pytest.param(WHOLE.replace(TAG.encode(), b"f" * 16), 0, id="another tag"),
    ],
)
def test_records_that_make_no_report(data: bytes, expected: int) -> None:
    """What is not a whole report of this shell is passed over."""
    assert [report.kind for report in feed(data, [])] == [ReportKind.RAN] * expected


def test_the_last_record_can_change_the_status() -> None:
    """A user's EXIT trap decides the exit status at the last moment."""
    (report,) = feed(record("X", "1", "", "", "/", "", "") + record("Z", "X", "7"), [])
    assert (report.kind, report.status) == (ReportKind.EXITED, 7)


def test_directories_are_bytes() -> None:
    """A path that is not UTF-8 comes through (PEP 383)."""
    (report,) = feed(record("R", "0", "", "", "/tmp/\udcff", "/a\nb", "") + record("Z", "R", ""), [])
    assert (report.directory, report.previous_directory) == ("/tmp/\udcff", "/a\nb")


def test_traps_are_read_as_bash_quotes_them() -> None:
    """`trap -p` quotes actions of several lines and with quotes; traps of signals are not the driver's."""
    listing = "trap -- 'echo '\\''a'\\''\nb' DEBUG\ntrap -- '' SIGUSR1\ntrap -- 'x' EXIT\n"
    (report,) = feed(record("R", "0", "", "", "/", "", listing) + record("Z", "R", ""), [])
    assert report.traps == {"DEBUG": "echo 'a'\nb", "EXIT": "x"}


def test_junk_does_not_fill_the_memory() -> None:
    """A megabyte that is no report, and then one that is."""
    parser = ReportParser(TAG)
    for _ in range(16):
        assert list(parser.feed(b"x" * 65536)) == []
    assert [report.kind for report in parser.feed(WHOLE)] == [ReportKind.RAN]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("echo hello", False),
        ("exit 3", False),
        ("trap 'echo bye' EXIT; exit", True),
        ("trap 'echo bye' 0", True),
        ("trap 'rm x' INT\nexit", True),
        (". ./script", True),
        ("source script", True),
        ("cd x; . y", True),
    ],
)
def test_commands_that_may_set_an_exit_trap(command: str, expected: bool) -> None:
    """Those get a `trap` that keeps the driver's own."""
    assert sets_exit_trap(command) is expected
