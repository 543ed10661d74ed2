"""What a request was, as the audit log tells it: who asked, for what, and what came of it."""

from http import HTTPStatus
from typing import Final

from starlette.types import Scope

from shelld_py.audit import key_fingerprint, told
from shelld_py.errors import ShelldError
from shelld_py.http.keylock import presented_key
from shelld_py.shells.live_run import LiveRun
from shelld_py.shells.run import Run

_LONGEST_PATH: Final = 4096
"""Characters of a path that are kept: what a path of a file has at most."""
_LONGEST_REFUSED: Final = 200
"""Of a refused request, which anybody can send: a few long ones would make the file be rotated until all is gone."""


def is_action(scope: Scope) -> bool:
    """Whether a request does something, or takes files away; not one that only looks how things are.

    Using a link does: it lets somebody in.
    """
    return scope["method"] not in ("GET", "HEAD") or scope["path"].startswith(("/files/", "/download/", "/links/"))


def action(scope: Scope, status: int, error: ShelldError | None) -> dict[str, object]:
    """Return the members of the line about a request that was answered with `status`, refused where there is `error`.

    A refused key has its fingerprint there, too.
    """
    key = b"" if scope.get("visitor") else presented_key(scope)  # what else it sends is the port's
    client = scope.get("client")
    run = scope.get("run")
    begun = isinstance(run, LiveRun) and run.light
    result = run.result() if run and not begun else None
    return {
        "key": key_fingerprint(key) if key else None,
        "address": f"{client[0]}:{client[1]}" if client else None,
        "action": f"{scope['method']} {scope['path'][: _LONGEST_REFUSED if error else _LONGEST_PATH]}",
        **told(*scope.get("asked", ()), *_arguments(scope)),
        "status": status,
        "error": error.code if error else None,
        "run_id": run.run_id if run else None,
        "run_status": result.status if result else None,
        "exit_code": result.exit_code if result else None,
    }


def message(scope: Scope, kind: str, request: object, run: Run | None) -> dict[str, object]:
    """Return the members of the line about a message in a WebSocket: what `request` asked for, and of which run."""
    told_of_request = action(scope, HTTPStatus.SWITCHING_PROTOCOLS, None)
    return {**told_of_request, "action": f"{kind} {scope['path']}", **told(request), "run_id": run and run.run_id}


def _arguments(scope: Scope) -> list[object]:
    """Return what the tool of an event is given: it lies deeper than that of other requests."""
    return [data for part in scope.get("asked", ()) if (data := getattr(part, "data", None)) is not None]
