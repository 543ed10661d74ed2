"""Search and find: the same answers with ripgrep and without, by the rules of .gitignore and of the policy."""

import asyncio
import os
import subprocess
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shelld_py.config import FileSettings
from shelld_py.errors import FileNotFound, InvalidRequest, SearchTooSlow
from shelld_py.files import FileService, FindRequest, SearchRequest
from shelld_py.files.globs import Globs, IgnoreRules
from tests.daemons import alive, wait_for

from .conftest import RIPGREP, Desk, DeskMaker


@pytest.fixture(params=[None, RIPGREP], ids=["python", "ripgrep"])
def tree(request: pytest.FixtureRequest, make_desk: DeskMaker) -> Desk:
    """A small project, searched with and without ripgrep."""
    desk = make_desk(ripgrep=request.param)
    for path, content in {
        "src/main.py": "import os\n\n\ndef main() -> None:\n    print('Needle')\n",
        "src/deep/er.py": "needle = 1\r\nx = needle\r\n",
        "docs/guide.md": "A needle (in) the haystack.\n",
        "build/out.py": "needle\n",
        ".github/ci.yml": "needle: yes\n",
        ".git/config": "needle\n",
        "a.exe": "needle\n",
        "marked.txt": "\ufeffneedle\n",
        ".gitignore": "build/\n*.log\n!keep.log\n",
        "drop.log": "needle\n",
        "keep.log": "needle\n",
        "src/.gitignore": "/deep/ignored.py\n",
        "src/deep/ignored.py": "needle\n",
    }.items():
        file = desk.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode())
    (desk.root / "binary.txt").write_bytes(b"needle\0")
    (desk.root / "link.txt").symlink_to("docs/guide.md")
    os.mkfifo(desk.root / "fifo.txt")
    return desk


def _places(desk: Desk, **fields: object) -> list[str]:
    result = desk.do(desk.service.perform(SearchRequest(**fields)))  # type: ignore[arg-type]
    return [f"{os.path.relpath(match.path, desk.root)}:{match.line}:{match.column}" for match in result.matches]


def test_search_finds_lines_in_order(tree: Desk) -> None:
    """By path and line; ignored, blocked and binary files, `.git` and links are left out."""
    result = tree.do(tree.service.perform(SearchRequest(pattern="needle")))
    assert _places(tree, pattern="needle") == [
        ".github/ci.yml:1:1",
        "docs/guide.md:1:3",
        "keep.log:1:1",
        "marked.txt:1:1",
        "src/deep/er.py:1:1",
        "src/deep/er.py:2:5",
    ]
    assert (result.path, result.truncated, result.files_skipped) == (str(tree.root), False, 1)
    assert result.matches[4].text == "needle = 1"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"pattern": "needle", "path": "src"}, ["src/deep/er.py:1:1", "src/deep/er.py:2:5"]),
        ({"pattern": "needle", "path": "docs/guide.md"}, ["docs/guide.md:1:3"]),
        ({"pattern": "needle", "path": "build"}, ["build/out.py:1:1"]),
        (
            {"pattern": "NEEDLE", "case_sensitive": False, "include": ("*.py",)},
            ["src/deep/er.py:1:1", "src/deep/er.py:2:5", "src/main.py:5:12"],
        ),
        ({"pattern": "needle", "exclude": ("src", "*.log", ".github/**")}, ["docs/guide.md:1:3", "marked.txt:1:1"]),
        ({"pattern": "needle", "include": ("src/**/*.{py,md}",)}, ["src/deep/er.py:1:1", "src/deep/er.py:2:5"]),
        ({"pattern": "(in)", "literal": True}, ["docs/guide.md:1:10"]),
        ({"pattern": "(in)", "path": "docs"}, ["docs/guide.md:1:11"]),
        ({"pattern": r"needle$"}, ["keep.log:1:1", "marked.txt:1:1", "src/deep/er.py:2:5"]),
        ({"pattern": r"(?<=x = )needle"}, ["src/deep/er.py:2:5"]),
        ({"pattern": r"\bdef\s+\w+\("}, ["src/main.py:4:1"]),
        ({"pattern": "^$"}, ["src/main.py:2:1", "src/main.py:3:1"]),
        ({"pattern": "absent"}, []),
        ({"pattern": "-needle"}, []),
    ],
)
def test_search_options(tree: Desk, fields: dict[str, object], expected: list[str]) -> None:
    """Each option does the same with both engines."""
    assert _places(tree, **fields) == expected


def test_search_shows_context_and_stops_at_the_limit(tree: Desk) -> None:
    """Lines around the match, as many as there are."""
    result = tree.do(tree.service.perform(SearchRequest(pattern="def main", context=2)))
    assert result.matches[0].before == ("", "")
    assert result.matches[0].after == ("    print('Needle')",)
    limited = tree.do(tree.service.perform(SearchRequest(pattern="needle", limit=2)))
    assert (len(limited.matches), limited.truncated) == (2, True)


@pytest.mark.parametrize("pattern", ["(", "a{2,1}", "(?u)(?a)x", "*"])
def test_bad_pattern_is_refused(tree: Desk, pattern: str) -> None:
    """With the reason."""
    with pytest.raises(InvalidRequest, match="not a regular expression"):
        tree.do(tree.service.perform(SearchRequest(pattern=pattern)))


def test_search_in_nothing_is_refused(tree: Desk) -> None:
    """A missing path is not an empty answer."""
    with pytest.raises(FileNotFound):
        tree.do(tree.service.perform(SearchRequest(pattern="x", path="missing")))


def test_endless_pattern_is_stopped(tmp_path: Path) -> None:
    """A pattern that backtracks for ever ends with an error, and the event loop never waits for it."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a" * 60 + "b\n")

    async def work() -> None:
        async with FileService(
            FileSettings(),
            base_directory=str(tmp_path / "work"),
            allowed_directories=[str(tmp_path / "work")],
            backup_directory=str(tmp_path / "backups"),
            ripgrep=None,
            search_timeout=0.3,
        ) as service:
            await service.perform(SearchRequest(pattern="(a+)+$"))

    with pytest.raises(SearchTooSlow):
        asyncio.run(work())


def test_pattern_that_costs_too_much_is_stopped(tmp_path: Path) -> None:
    """The kernel ends the process when a file has taken its CPU time, long before the whole search is too slow."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a" * 60 + "b\n")

    async def work() -> None:
        async with FileService(
            FileSettings(),
            base_directory=str(tmp_path / "work"),
            allowed_directories=[str(tmp_path / "work")],
            backup_directory=str(tmp_path / "backups"),
            ripgrep=None,
            search_timeout=600,
        ) as service:
            await service.perform(SearchRequest(pattern="(a+)+$"))

    with pytest.raises(SearchTooSlow, match="CPU time for one file"):
        asyncio.run(work())


def test_search_that_is_stopped_leaves_no_process(tmp_path: Path) -> None:
    """Nor does the program that it had started to help it."""
    program = tmp_path / "rg"
    program.write_text(f"#!/bin/sh\necho $$ > {tmp_path}/pid\nexec sleep 600\n")
    program.chmod(0o755)
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a")

    async def work() -> None:
        async with FileService(
            FileSettings(),
            base_directory=str(tmp_path / "work"),
            allowed_directories=[str(tmp_path / "work")],
            backup_directory=str(tmp_path / "backups"),
            ripgrep=str(program),
            search_timeout=60,
        ) as service:
            search = asyncio.ensure_future(service.perform(SearchRequest(pattern="a")))
            await asyncio.to_thread(wait_for, lambda: pid.exists() and pid.read_text())
            search.cancel()
            with pytest.raises(asyncio.CancelledError):
                await search

    pid = tmp_path / "pid"
    asyncio.run(work())
    wait_for(lambda: not alive(int(pid.read_text())))


def test_searches_wait_for_their_turn(tmp_path: Path) -> None:
    """However many are asked for, a few processes do them."""
    (tmp_path / "work").mkdir()
    (tmp_path / "work/a.txt").write_text("a" * 60 + "b\n")

    async def work() -> list[float]:
        async with FileService(
            FileSettings(),
            base_directory=str(tmp_path / "work"),
            allowed_directories=[str(tmp_path / "work")],
            backup_directory=str(tmp_path / "backups"),
            ripgrep=None,
            search_timeout=0.3,
        ) as service:
            request, started = SearchRequest(pattern="(a+)+$"), time.monotonic()

            async def took() -> float:
                with pytest.raises(SearchTooSlow):
                    await service.perform(request)
                return time.monotonic() - started

            return sorted(await asyncio.gather(*(took() for _ in range(5))))

    times = asyncio.run(work())
    assert times[3] < times[4] - 0.2
    assert times[4] >= 0.6


def test_find_lists_newest_first(desk: Desk) -> None:
    """By time of change, cut at the limit; the total counts all."""
    for age, name in enumerate(["new.py", "sub/middle.py", "old.py", "other.md"]):
        file = desk.root / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("x")
        os.utime(file, (1_000_000 - age, 1_000_000 - age))
    result = desk.do(desk.service.perform(FindRequest(pattern="*.py", limit=2)))
    assert [os.path.relpath(file.path, desk.root) for file in result.files] == ["new.py", "sub/middle.py"]
    assert (result.truncated, result.total, result.files[0].modified_at) == (True, 3, "1970-01-12T13:46:40.000Z")


@pytest.mark.parametrize(
    ("glob", "path", "matches"),
    [
        ("*.py", "a.py", True),
        ("*.py", "a/b.py", True),
        ("a/*.py", "a/b.py", True),
        ("a/*.py", "a/b/c.py", False),
        ("./a/*.py", "a/b.py", True),
        ("a/**/*.py", "a/b.py", True),
        ("a/**/*.py", "a/b/c/d.py", True),
        ("**/b", "b", True),
        ("a/**", "a/b/c", True),
        ("**", "a/b", True),
        ("?.[ch]", "x.c", True),
        ("?.[!ch]", "x.c", False),
        ("*.{py,md}", "x.md", True),
        ("*.{py,md}", "x.{py,md}", False),
        ("a{b", "a{b", True),
        (r"\*", "*", True),
        (r"\*", "a", False),
        ("[", "[", True),
        ("a.c", "abc", False),
    ],
)
def test_globs(glob: str, path: str, *, matches: bool) -> None:
    """A glob without a slash means names, one with a slash paths."""
    assert Globs.from_texts([glob]).match(path) is matches


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.text(alphabet="ab*?/!.[]", min_size=1, max_size=7).filter(lambda line: "***" not in line),
        min_size=1,
        max_size=4,
    )
)
def test_ignore_rules_agree_with_git(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """Git itself is asked about each path."""
    paths = ["a", "b", "ab", "a/b", "b/a", "a/b/a", "a.b", "b/a.b", "ab/ab/a"]
    directory = tmp_path_factory.mktemp("git")
    subprocess.run(["git", "init", "-q"], cwd=directory, check=True)
    (directory / ".gitignore").write_text("\n".join(lines) + "\n")
    command = ["git", "check-ignore", "--no-index", "--stdin", "-z"]
    asked = "\0".join(paths).encode()
    done = subprocess.run(command, cwd=directory, input=asked, capture_output=True, check=False)
    expected = set(done.stdout.decode().split("\0")) - {""}
    rules = IgnoreRules().extended("", "\n".join(lines))
    got = {path for path in paths if _ignored(rules, path)}
    assert got == expected


def _ignored(rules: IgnoreRules, path: str) -> bool:
    parts = path.split("/")
    parents = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    return any(rules.ignore(parent, directory=True) for parent in parents) or rules.ignore(path, directory=False)
