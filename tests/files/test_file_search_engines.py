"""ripgrep is a filter and no more: whatever the pattern, the answers are those of Python's `re` alone."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.config import FileSettings
from shelld_py.errors import InvalidRequest
from shelld_py.files.models import SearchRequest
from shelld_py.files.policy import ReadPolicy
from shelld_py.files.search import SearchScope, search
from tests.files.conftest import RIPGREP

_LINES = [
    *(
        "needle",
        "Needle²",
        "a\rb",
        "a\x1cb",
        "a\u0301b",
        "\u017ftraße",
        "\u212a",
        "İi",
        "\u0131",
        "\u2028x",
        "a\xa0b",
        "x\x85y",
    ),
    *(
        "naïve",
        "\ufeffmid",
        "bar\r",
        "tab\tx",
        "a-b",
        "½",
        "Ⅷ",
        "ª",
        "_",
        "a‿b",
        "",
        " ",
        "a{b",
        "[x]",
        "\u200db",
        "١٢",
    ),
]
_POLICY = ReadPolicy.from_settings(FileSettings())


@pytest.fixture(scope="module")
def lines_of_every_kind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file for each line, for one match hides another."""
    directory = tmp_path_factory.mktemp("lines")
    for number, line in enumerate(_LINES):
        (directory / f"{number:02}.txt").write_bytes(line.encode() + b"\n")
    (directory / "marked.txt").write_bytes(b"\xef\xbb\xbfneedle\r\nx\r\n")
    (directory / "open.txt").write_bytes(b"needle")
    (directory / "binary.txt").write_bytes(b"needle\0")
    (directory / "utf16.txt").write_bytes("needle".encode("utf-16"))
    return directory


def _answers(directory: Path, request: SearchRequest, ripgrep: str | None) -> object:
    scope = SearchScope(str(directory), (str(directory),), _POLICY, ripgrep)
    try:
        return search(scope, request)
    except InvalidRequest as error:
        return error.detail


def _check_agreement(directory: Path, request: SearchRequest) -> None:
    assert _answers(directory, request, RIPGREP) == _answers(directory, request, None)


@pytest.mark.parametrize("case_sensitive", [True, False], ids=["case", "no case"])
@pytest.mark.parametrize(
    "pattern",
    [
        *(r"\w", r"^\w+$", r"\W", r"\s", r"^\S+$", r"a\b", r"\bb", r"\B", r"\d", r"\D", r"a.b", r"^.$", r"^$", r"b$"),
        *(
            r"[^a]",
            r"^[^\W]+$",
            r"[^\w\s]",
            r"(?i)k",
            r"(?i)İ",
            "i",
            "s",
            "\u0131",
            r"^[a-z ]+$",
            r"a{b",
            r"a{,2}b",
            r"\Z",
        ),
        *(r"(?P<n>a)b", r"[[]x", r"[]x]", r"[a&&b]", r"(?s).", r"(?x) a b", r"\x85", r"[\b]", r"\n", r"(a)\1", r"\r"),
        *(r"(?<=a)b", r"(?a)^\w+$", r"(?a)\d", r"bar\s", r"^needle$", r"\xe9", "\0", "a\nb", r"(?>a)-"),
    ],
)
def test_patterns_find_the_same(lines_of_every_kind: Path, pattern: str, *, case_sensitive: bool) -> None:
    """Word characters, white space, case and line ends differ between the two engines; the answers do not."""
    _check_agreement(lines_of_every_kind, SearchRequest(pattern=pattern, case_sensitive=case_sensitive, limit=1000))


@settings(max_examples=20, deadline=None)
@given(
    st.one_of(
        st.text(alphabet=r"ab\wsdb.^$[]()|*+?{}1i- ", min_size=1, max_size=8),
        st.sampled_from(_LINES).filter(bool),
    ),
    st.booleans(),
    st.booleans(),
)
def test_any_text_finds_the_same(
    lines_of_every_kind: Path,
    pattern: str,
    literal: bool,
    case_sensitive: bool,
) -> None:
    """As a pattern and as it stands."""
    request = SearchRequest(pattern=pattern, literal=literal, case_sensitive=case_sensitive, limit=1000)
    _check_agreement(lines_of_every_kind, request)


@pytest.mark.parametrize("literal", [True, False])
def test_ripgrep_is_used(tmp_path: Path, *, literal: bool) -> None:
    """It understands what it is asked: a refused pattern would only be slow, and nobody would notice."""
    program = tmp_path / "rg"
    program.write_text(f'#!/bin/sh\n{RIPGREP} "$@"\nstatus=$?\necho $status >> {tmp_path}/statuses\nexit $status\n')
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a (needle)\n")
    (tmp_path / "work/b.txt").write_text("hay\n")
    request = SearchRequest(pattern="(needle)" if literal else r"\(\w+\)$", literal=literal)
    _check_agreement(tmp_path / "work", request)
    _answers(tmp_path / "work", request, str(program))
    assert (tmp_path / "statuses").read_text() == "0\n"
