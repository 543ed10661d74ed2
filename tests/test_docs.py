"""The documentation is true: it names all that there is, and its examples do what they show."""

import contextlib
import json
import logging
import os
import re
import socket
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import tomli

from shelld_py import errors
from shelld_py.api.app import ENDPOINTS, Application
from shelld_py.api.llms import text
from shelld_py.api.output import OUTPUT
from shelld_py.bash import protocol
from shelld_py.computer import Computer, Surroundings
from shelld_py.config import SECTIONS, ServerSettings, Settings, kinds
from shelld_py.errors import ShelldError
from shelld_py.http.keylock import KeyLock
from shelld_py.http.listener import Capacity
from shelld_py.idle import IdleTimer
from shelld_py.loading import load
from shelld_py.models import Cause, OutputPart, RunStatus, Usage, WaitResult
from shelld_py.shells.states import diagram
from tests.daemons import RunningDaemon

ROOT = Path(__file__).parent.parent
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
SETTINGS = [(section, key) for section, kind in SECTIONS.items() for key in kinds(kind)]

_MARK = "----- answer -----"
_VOLATILE = [
    (re.compile(r"[0-9a-f]{64}|[0-9a-f]{32}|[0-9a-f]{16}"), "ID"),
    (re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z"), "TIME"),
    (re.compile(r"^date: .*", re.MULTILINE), "date: DATE"),
    (re.compile(r'"(duration|cpu_seconds|peak_memory_mb|uptime|idle|shell_pid)": [\d.]+'), r'"\1": NUMBER'),
]


def _read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def _table(document: str, heading: str, first: str) -> list[list[str]]:
    """Return the cells of the rows of the table below a heading whose first column is called `first`."""
    part = _read(document).partition(f"\n{heading}\n")[2]
    table = re.search(rf"^\| {re.escape(first)} \|.*\n\|[-|]+\n((?:\|.*\n)+)", part, re.MULTILINE)
    assert table, f"{document}: no such table below {heading}"
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[1].splitlines()]


def _says(cell: str, default: str) -> bool:
    return f"`{default}`" in cell or "(../config.example.toml)" in cell


def _quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def application(directory: Path) -> Application:
    """Return an application that serves nothing: it has the routes of every other."""
    logger = logging.getLogger("test")
    surroundings = Surroundings(
        environment={}, working_directory=str(directory), data_directory=directory, open_files=(1024, 1024)
    )
    settings = Settings(server=ServerSettings(mcp=True))
    return Application(
        Computer(settings, surroundings, logger),
        KeyLock(None),
        IdleTimer(0, lambda: None),
        Capacity(settings.server),
        logger=logger,
        shut_down=lambda: None,
    )


def _errors(kind: type[ShelldError] = ShelldError) -> Iterator[type[ShelldError]]:
    yield kind
    for below in kind.__subclasses__():
        if below.__module__ == errors.__name__:
            yield from _errors(below)


def test_the_example_configuration_is_the_defaults() -> None:
    assert load(str(ROOT / "config.example.toml"), {}) == load(None, {})


@pytest.mark.parametrize(("section", "key"), SETTINGS)
def test_the_example_configuration_names_every_key(section: str, key: str) -> None:
    text = _read("config.example.toml")
    if (section, key) == ("shell", "environment"):
        assert "\n[shell.environment]\n" in text
        return
    part = re.search(rf"^\[{section}\]\n(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
    assert part
    assert re.search(rf"^# .+\n{key} = ", part[1], re.MULTILINE), "each key has a line of comment above it"


def test_the_configuration_of_the_container_image_can_be_loaded(tmp_path: Path) -> None:
    settings = load(str(ROOT / "config/container.toml"), {"SHELLD_SHELL__WORKING_DIRECTORY": str(tmp_path)}).settings
    assert settings.server.host == "0.0.0.0"
    assert settings.shell.environment["LANG"] == "C.UTF-8"
    assert settings.server.data_directory


@pytest.mark.parametrize("section", SECTIONS)
def test_the_table_of_a_section_has_its_settings_and_their_defaults(section: str) -> None:
    """And nothing else; a default is written as the example configuration writes it, or leads there."""
    rows = _table("docs/configuration.md", f"## `[{section}]`", "key")
    assert sorted(row[0] for row in rows) == sorted(f"`{key}`" for of, key in SETTINGS if of == section)
    example = _read("config.example.toml").partition(f"\n[{section}]\n")[2].partition("\n[")[0]
    defaults = dict(re.findall(r"^(\w+) = (.+)$", example, re.MULTILINE))
    assert [row for row in rows if not _says(row[1], defaults.get(row[0].strip("`"), "cat"))] == []


def test_every_endpoint_is_in_the_readme_and_in_the_api_reference(tmp_path: Path) -> None:
    readme, reference = _read("README.md"), _read("docs/api.md")
    routes = [f"`{method} {path}`" for method, path in application(tmp_path).routes]
    assert [route for route in routes if route not in readme] == []
    assert [route for route in routes if route not in reference] == []


def test_the_table_of_errors_is_that_of_the_code() -> None:
    """Every error with its code and status, and no other."""
    rows = _table("docs/api.md", "## Error codes", "code")
    assert sorted(row[:2] for row in rows) == sorted([f"`{kind.code}`", str(kind.status)] for kind in _errors())


def test_the_table_of_the_run_result_has_its_members() -> None:
    """And no other; the parts of `usage` stand in its row."""
    rows = {name: row for row in _table("docs/api.md", "### The run result", "member") for name in _quoted(row[0])}
    assert sorted(rows) == sorted(WaitResult.__struct_fields__)
    assert set(Usage.__struct_fields__) <= set(_quoted(rows["usage"][1]))


def test_the_table_of_an_output_answer_has_its_members() -> None:
    """With the headers that stand for them in a text answer."""
    rows = _table("docs/api.md", "### `GET /runs/{run_id}/output`", "member")
    assert [row[0] for row in rows] == [f"`{name}`" for name in OutputPart.__struct_fields__]
    declared = {header.name for answer in OUTPUT["answers"].values() for header in answer.headers}
    assert {name for row in rows for name in _quoted(row[1])} == declared


def test_the_table_of_endings_has_every_cause_and_status() -> None:
    rows = _table("docs/api.md", "## How a run ends", "`status`")
    assert {name for row in rows for name in _quoted(row[0])} == {status.value for status in RunStatus}
    assert {name for row in rows for name in _quoted(row[1])} == {cause.value for cause in Cause}


def test_the_text_for_models_is_that_of_the_declarations() -> None:
    """It is what `GET /llms.txt` answers: `curl localhost:8080/llms.txt >docs/llms.txt`."""
    assert _read("docs/llms.txt") == text(ENDPOINTS)


def test_the_state_diagram_is_made_from_the_table() -> None:
    assert f"```mermaid\n{diagram()}\n```" in _read("docs/architecture.md")
    assert f"```mermaid\n{protocol.diagram()}\n```" in _read("docs/architecture.md")


def test_every_file_says_in_its_first_line_what_it_is_for() -> None:
    files = sorted((ROOT / "shelld_py").rglob("*.py"))
    assert [path.name for path in files if not re.match(r'r?"""\S.*\w', path.read_text(encoding="utf-8"))] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", document.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = document.parent / name if name else document
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in [_anchor(heading) for heading in headings], target


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def test_the_settings_of_clients_can_be_read() -> None:
    text = _read("docs/mcp.md")
    readers: dict[str, Callable[[str], Any]] = {
        "json": json.loads,
        "toml": tomli.loads,
        "python": lambda block: compile(block, "mcp.md", "exec"),
    }
    for language, read in readers.items():
        blocks = re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)
        assert blocks
        for block in blocks:
            read(block)


@pytest.mark.parametrize("script", ["scripts/serve", "scripts/test"])
def test_the_readme_shows_the_two_commands(script: str) -> None:
    assert re.search(rf"^{script}\b", _read("README.md"), re.MULTILINE)
    assert os.access(ROOT / script, os.X_OK)


@pytest.mark.parametrize(("document", "ends"), [("README.md", True), ("docs/files.md", False)])
def test_walks_are_what_happens(start_daemon: Callable[..., RunningDaemon], document: str, *, ends: bool) -> None:
    """Every command is run, in order, by one bash. The lines shown appear in its answers, in that order."""
    daemon = start_daemon(key=None)
    walk(_read(document), daemon.url, daemon.data.parent / "work")
    if ends:
        assert daemon.process.wait(60) == 0


def test_the_recording_of_the_walk_shows_it() -> None:
    """All of its commands, in order, with their answers: scripts/record-walk makes it anew."""
    content = (ROOT / "docs/walk.cast").read_bytes()
    header, *events = map(json.loads, content.splitlines())
    assert (header["version"], header["title"]) == (2, "shelld-py: a walk with curl")
    assert len(content) < 20_000
    shown = "".join(data for _, kind, data in events if kind == "o").replace("\r", "")
    blocks = re.findall(r"```console\n(.*?)\n```", _read("README.md"), re.DOTALL)
    commands = [command for block in blocks for command, _ in _steps(block)]
    assert re.findall(r"^\x1b\[1;32m\$\x1b\[0m (.*)$", shown, re.MULTILINE) == commands
    assert "\nHTTP/1.1 200 OK\n" in shown


def test_the_life_of_a_job_is_what_happens(start_daemon: Callable[..., RunningDaemon], tmp_path: Path) -> None:
    """The walk of docs/runs.md, with a crash of the daemon before the next day, and a port that is free here."""
    text = _read("docs/runs.md").replace("8123", str(_free_port()))
    first_day, headline, next_day = text.partition("\n### The next day\n")
    assert headline
    first = start_daemon(tmp_path, key="my-secret")
    walk(first_day, first.url, first.data.parent / "work")
    first.process.kill()
    first.process.wait()
    second = start_daemon(tmp_path, key="my-secret")
    walk(next_day, second.url, second.data.parent / "work")


def _free_port() -> int:
    """Return a port of four digits that nobody listens on."""
    for port in range(8123, 10000):
        with contextlib.suppress(OSError), socket.socket() as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def walk(text: str, url: str, work: Path, directory: Path | None = None) -> None:
    """Run the commands in the console blocks of `text` in one bash in `work`, and compare their answers.

    The daemon at `url` has its shells in `directory`, by default `work`.
    """
    steps = [step for block in re.findall(r"```console\n(.*?)\n```", text, re.DOTALL) for step in _steps(block)]
    assert steps
    script = "".join(f"{command.replace('localhost:8080', url)}\necho; echo '{_MARK}'\n" for command, _ in steps)
    done = subprocess.run(["bash"], input=script, capture_output=True, text=True, cwd=work, timeout=600, check=True)
    answers = done.stdout.split(_MARK + "\n")[:-1]
    assert len(answers) == len(steps)
    place = str(directory or work.resolve())
    for (command, shown), answer in zip(steps, answers, strict=True):
        actual = iter(_stable(answer.replace(place, "/tmp/demo")).splitlines())
        missing = [line for line in _stable(shown).splitlines() if line not in actual]
        assert missing == [], f"{command}\n{answer}"


def _steps(block: str) -> Iterator[tuple[str, str]]:
    """Yield (command, shown answer) of a block in which commands begin with `$ `."""
    for step in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, answer = step.partition("\n")
        yield command, answer


def _stable(text: str) -> str:
    """Return `text` without what differs from time to time."""
    for pattern, replacement in _VOLATILE:
        text = pattern.sub(replacement, text)
    return text
