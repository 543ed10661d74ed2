"""A directory below the allowed one of a daemon that is asked over HTTP."""

from pathlib import Path
from typing import Any

import httpx

from tests.daemons import RunningDaemon


class Place:
    """A directory of the test's own below the allowed one, and the daemon."""

    def __init__(self, daemon: RunningDaemon, directory: Path) -> None:
        self.daemon = daemon
        self.directory = directory

    def post(self, operation: str, **fields: Any) -> httpx.Response:
        """Do an operation."""
        return self.daemon.client.post(f"/files/{operation}", json=fields)

    def at(self, value: Any) -> Any:
        """Return `value` with the directory in the place of `@`."""
        if isinstance(value, str):
            return value.replace("@", str(self.directory))
        return {name: self.at(item) for name, item in value.items()} if isinstance(value, dict) else value

    def done(self, operation: str, **fields: Any) -> dict[str, Any]:
        """Do an operation that succeeds."""
        answer = self.post(operation, **fields)
        assert answer.status_code == 200, answer.text
        assert answer.headers["content-type"] == "application/json"
        return dict(answer.json())

    def raw(self, method: str, path: str, content: bytes | None = None, **headers: str) -> httpx.Response:
        """Send a request for raw bytes; underscores in header names become hyphens."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        parameters = {"path": str(self.directory / path)}
        return self.daemon.client.request(method, "/files/raw", params=parameters, content=content, headers=sent)
