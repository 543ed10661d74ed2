"""What the tests of file operations share: a service on real directories, and a runner for its coroutines."""

import asyncio
import dataclasses
import hashlib
import os
import sys
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from shelld_py.config import FileSettings
from shelld_py.files import FileService
from shelld_py.files.paths import DirectoryOpener, open_by_openat2, open_by_walk
from tests.daemons import RunningDaemon, running_daemon
from tests.files.places import Place

T = TypeVar("T")
RIPGREP = str(Path(sys.executable).with_name("rg"))
"""What the extra `dev` brings."""
_CONFIG = """
[server]
max_body = "1MiB"
[files]
max_file_size = "64KiB"
max_token_count = 1000
"""


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


@pytest.fixture(scope="session")
def file_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon with low limits on files."""
    with running_daemon(tmp_path_factory.mktemp("files"), config=_CONFIG) as daemon:
        yield daemon


@pytest.fixture
def place(file_daemon: RunningDaemon, request: pytest.FixtureRequest) -> Place:
    """A directory with one of everything."""
    work = file_daemon.data.parent / "work"
    directory = work / hashlib.md5(request.node.nodeid.encode(), usedforsecurity=False).hexdigest()
    (directory / "sub").mkdir(parents=True)
    (directory / "a.txt").write_bytes(b"one\ntwo\nthree\n")
    (directory / "open.txt").write_bytes(b"one\ntwo")
    (directory / "crlf.txt").write_bytes(b"\xef\xbb\xbfone\r\ntwo\r\n")
    (directory / "empty.txt").write_bytes(b"")
    (directory / "data.dat").write_bytes(b"text first\n" * 2000 + b"\0")
    (directory / "latin.txt").write_bytes(b"caf\xe9")
    (directory / "prog.EXE").write_bytes(b"text all the same")
    (directory / ".hidden").write_bytes(b"x")
    (directory / "tokens.txt").write_bytes(b"a line of text\n" * 1000)
    (directory / "large.txt").write_bytes(b"a line of text\n" * 5000)
    (directory / "locked.txt").write_bytes(b"one\n")
    (directory / "locked.txt").chmod(0o444)
    (directory / "inside").symlink_to("a.txt")
    (directory / "outside").symlink_to("/etc/passwd")
    (directory / "up").symlink_to("../..")
    os.mkfifo(directory / "fifo")
    return Place(file_daemon, directory)
