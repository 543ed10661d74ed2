"""Fixtures for tests of tools: called over HTTP, in a directory of the test's own."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.api.conftest import start_daemon
from tests.daemons import RunningDaemon

__all__ = ["start_daemon"]


class Called(NamedTuple):
    """What a call answered: its structured result, its text, and the whole of it."""

    result: dict[str, Any]
    text: str
    answer: dict[str, Any]

    @property
    def footer(self) -> str:
        """The last line of the text, without its brackets."""
        last = self.text.split("\n")[-1]
        assert last.startswith("[")
        assert last.endswith("]")
        return last[1:-1]

    @property
    def body(self) -> str:
        """The text above the last line."""
        return self.text[: -len(self.footer) - 2]


class Bench:
    """Calls tools of a daemon."""

    def __init__(self, daemon: RunningDaemon, directory: Path) -> None:
        self.daemon = daemon
        self.directory = directory

    def call(self, tool: str, *, query: str = "", **arguments: Any) -> Called:
        """Call a tool that must succeed."""
        answer = self.daemon.client.post(f"/tools/{tool}?full=true{query}", json=arguments)
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert list(document) == ["tool", "result", "text", "is_error", "run_id", "running"]
        assert document["tool"] == tool
        return Called(document["result"], document["text"], document)

    def refused(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool that must refuse; return the problem document."""
        answer = self.daemon.client.post(f"/tools/{tool}", json=arguments)
        assert answer.status_code >= 400, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        return json.loads(answer.content)

    def file(self, name: str, content: str) -> str:
        """Make a file; return its path."""
        path = self.directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        return str(path)


@pytest.fixture
def bench(shared_daemon: RunningDaemon, request: pytest.FixtureRequest) -> Bench:
    """Tools of the shared daemon, whatever its main shell is at."""
    name = f"{request.path.stem}-{request.node.name}".replace("[", "-").rstrip("]")
    directory = (shared_daemon.data.parent / "work" / name).resolve()
    directory.mkdir()
    return Bench(shared_daemon, directory)
