"""What the tests of file operations share: a service on real directories, and a runner for its coroutines."""

import asyncio
import dataclasses
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shelld_py.config import FileSettings
from shelld_py.files import FileService
from shelld_py.files.paths import DirectoryOpener, open_by_openat2, open_by_walk

T = TypeVar("T")


@dataclasses.dataclass
class Desk:
    """A service, the directory it works in, one beside it that is off limits, and a clock to turn."""

    service: FileService
    root: Path
    outside: Path
    backups: Path
    runner: asyncio.Runner
    now: float = 0.0

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine of the service to its end."""
        return self.runner.run(work)


DeskMaker = Callable[..., Desk]


@pytest.fixture
def make_desk(tmp_path: Path) -> Iterator[DeskMaker]:
    """Make desks with the given settings."""
    runner = asyncio.Runner()
    made: list[Desk] = []

    def make(*, directory_opener: DirectoryOpener | None = None, ripgrep: str | None = None, **settings: Any) -> Desk:
        root, outside, backups = tmp_path / "work", tmp_path / "outside", tmp_path / "backups"
        root.mkdir(exist_ok=True)
        outside.mkdir(exist_ok=True)
        service = FileService(
            FileSettings(**settings),
            base_directory=str(root),
            allowed_directories=[str(root)],
            backup_directory=str(backups),
            clock=lambda: made[-1].now if made else 0.0,
            ripgrep=ripgrep,
            directory_opener=directory_opener,
        )
        made.append(Desk(service, root, outside, backups, runner))
        return made[-1]

    yield make
    for desk in made:
        desk.do(desk.service.aclose())
    runner.close()


@pytest.fixture
def desk(make_desk: DeskMaker) -> Desk:
    """A desk with the default settings."""
    return make_desk()


@pytest.fixture(params=[open_by_walk, open_by_openat2], ids=["walk", "openat2"])
def opener(request: pytest.FixtureRequest) -> DirectoryOpener:
    """Each way to open directories."""
    chosen: DirectoryOpener = request.param
    return chosen
