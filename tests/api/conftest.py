"""Fixtures for tests that talk HTTP to a running daemon."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import pytest

from tests.daemons import RunningDaemon, running_daemon, wait_for


@pytest.fixture(scope="session")
def shared_impatient_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon with small limits for the whole session."""
    limits = {
        "server__max_body": "64KiB",
        "timeout__command": "300ms",
        "timeout__command_maximum": "600ms",
        "timeout__kill": "300ms",
        "output__max_size": "100",
        "output__begin_size": "30",
        "output__end_size": "50",
    }
    with running_daemon(tmp_path_factory.mktemp("impatient"), **limits) as daemon:
        yield daemon


@pytest.fixture
def impatient_daemon(shared_impatient_daemon: RunningDaemon) -> RunningDaemon:
    """The shared daemon with small limits, with a fresh bash."""
    shared_impatient_daemon.fresh()
    return shared_impatient_daemon


@pytest.fixture
def ready_daemon(shared_daemon: RunningDaemon) -> RunningDaemon:
    """The shared daemon, ready, with whatever bash it has: for requests that are refused before they reach it."""
    if shared_daemon.state() != "ready":
        shared_daemon.fresh()
    return shared_daemon


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., RunningDaemon]]:
    """A function that starts a daemon of the test's own. It is killed at the end: quicker than an orderly end."""
    with ExitStack() as stack:
        numbers = count(1)

        def start(**options: str) -> RunningDaemon:
            daemon = stack.enter_context(running_daemon(tmp_path / f"daemon{next(numbers)}", **options))
            stack.callback(daemon.process.kill)
            return daemon

        yield start


class Gate:
    """A fifo that a command waits at, until the test lets it pass: no timing needed."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._path = path

    def __str__(self) -> str:
        """Return the command that waits at the gate."""
        return f"read -r _ <{self._path}"

    def open(self) -> None:
        """Let the command pass; waits until it is there, but not for ever."""
        descriptor = wait_for(self._opened)
        os.write(descriptor, b"go\n")
        os.close(descriptor)

    def _opened(self) -> int | None:
        """Return a descriptor for writing; None as long as nobody reads (ENXIO, fifo(7))."""
        try:
            return os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            return None


@pytest.fixture
def gate(tmp_path: Path) -> Gate:
    """A place for a command to wait at."""
    return Gate(tmp_path / "gate")


@pytest.fixture
def gates(tmp_path: Path) -> Callable[[str], Gate]:
    """A function that makes gates by name."""
    return lambda name: Gate(tmp_path / f"gate-{name}")
