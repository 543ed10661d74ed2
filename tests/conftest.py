"""Fixtures: a daemon for all tests that only need its shell, and a way to start others."""

import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import hypothesis
import pytest

from tests.daemons import LONG, RunningDaemon, running_daemon

# A change is judged by the same examples each time; new ones are looked for where there is time.
hypothesis.settings.register_profile(
    "steady", derandomize=True, deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("default" if LONG else "steady")


# Who is started in the background ignores these, and all that it starts does: tests of Ctrl-C would wait for ever.
for ignored in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(ignored) is signal.SIG_IGN:
        signal.signal(ignored, signal.default_int_handler if ignored == signal.SIGINT else signal.SIG_DFL)


@pytest.fixture(scope="session")
def shared_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for the whole session."""
    with running_daemon(tmp_path_factory.mktemp("shared")) as daemon:
        yield daemon


@pytest.fixture
def daemon(shared_daemon: RunningDaemon) -> RunningDaemon:
    """The shared daemon with a fresh bash."""
    shared_daemon.fresh()
    return shared_daemon


@pytest.fixture
def start_daemon(tmp_path: Path) -> Iterator[Callable[..., RunningDaemon]]:
    """A function that starts a daemon of the test's own."""
    with ExitStack() as stack:
        count = 0

        def start(directory: Path | None = None, **options: str) -> RunningDaemon:
            nonlocal count
            count += 1
            return stack.enter_context(running_daemon(directory or tmp_path / f"daemon{count}", **options))

        yield start
