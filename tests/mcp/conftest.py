"""A daemon that speaks MCP and soon hands over."""

from collections.abc import Iterator

import pytest

from tests.daemons import RunningDaemon, running_daemon


@pytest.fixture(scope="session")
def speaker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """One daemon for all tests that leave it as they find it."""
    settings = {"server__mcp": "true", "server__max_body": "6MiB", "timeout__mcp": "3s"}
    with running_daemon(tmp_path_factory.mktemp("mcp"), **settings) as daemon:
        yield daemon
