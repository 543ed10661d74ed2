"""The key: who is let in, what locks, and where the key must never appear."""

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.api.problems import problem, text_problem
from tests.daemons import KEY, RunningDaemon, wait_for

MISSING = "The X-Shell-Key header is required."
MISMATCH = "The provided key does not match the locked key."
MALFORMED = {
    "257 characters": "k" * 257,
    "a blank inside": "two words",
    "a tab inside": "two\twords",
    "not ASCII": "schl\xfcssel",
}


def test_one_of_many_first_keys_wins(start_daemon) -> None:
    """Of 40 simultaneous first requests with different keys one is let in, and it stays the one."""
    daemon = start_daemon(key=None)
    keys = [f"key-{number}" for number in range(40)]
    together = threading.Barrier(len(keys))

    def first(key: str) -> int:
        together.wait()
        return daemon.ask("GET", "/status", key=key).status

    with ThreadPoolExecutor(len(keys)) as pool:
        statuses = list(pool.map(first, keys))
    assert sorted(statuses) == [200] + [401] * 39
    assert [daemon.ask("GET", "/status", key=key).status for key in keys] == statuses


@pytest.mark.parametrize("path", ["/status", "/run", "/runs", "/nowhere", "/health/"])
def test_key_is_required(ready_daemon: RunningDaemon, path: str) -> None:
    """Without a key every path but /health answers 401 and says what is missing."""
    answer = ready_daemon.ask("GET", path, headers={"Accept": "application/json"})
    assert answer.status == 401
    assert MISSING in answer.body.decode()
    assert "www-authenticate" in answer.headers


@pytest.mark.parametrize(("headers", "message", "code"), [
    ({"X-Shell-Key": ""}, MISSING, "key_required"),
    ({"X-Shell-Key": "wrong"}, MISMATCH, "key_mismatch"),
    ({"X-Shell-Key": KEY + "x"}, MISMATCH, "key_mismatch"),
    ({"X-Shell-Key": KEY[:-1]}, MISMATCH, "key_mismatch"),
    ({"X-Shell-Key": KEY.upper()}, MISMATCH, "key_mismatch"),
    ({"X-Shell-Key": "", "Authorization": "Basic abc"}, MISSING, "key_required"),
    ({"X-Shell-Key": "", "Authorization": "Bearer"}, MISSING, "key_required"),
    ({"X-Shell-Key": "wrong", "Authorization": f"Bearer {KEY}"}, MISMATCH, "key_mismatch"),
])  # fmt: skip
def test_wrong_and_missing_keys(ready_daemon: RunningDaemon, headers, message, code) -> None:
    """A wrong key and a missing one get 401 with the exact message, as text and as a problem document."""
    assert text_problem(ready_daemon.client.get("/status", headers=headers), 401) == message
    document = problem(ready_daemon.client.get("/status", headers={**headers, "Accept": "application/json"}), 401, code)
    assert document["detail"] == message


@pytest.mark.parametrize("authorization", [f"Bearer {KEY}", f"bearer {KEY}", f"BEARER  {KEY}"])
def test_bearer_alias(ready_daemon: RunningDaemon, authorization: str) -> None:
    """`Authorization: Bearer KEY` is as good as X-Shell-Key."""
    answer = ready_daemon.ask("GET", "/status", headers={"Authorization": authorization})
    assert (answer.status, answer.body) == (200, b"ready")


def test_wrong_bearer(ready_daemon: RunningDaemon) -> None:
    """A wrong bearer token is refused as a wrong key is."""
    answer = ready_daemon.ask("GET", "/status", headers={"Authorization": "Bearer nope"})
    assert (answer.status, answer.body.decode()) == (401, MISMATCH)


def test_what_does_not_lock(start_daemon) -> None:
    """Refused keys, unknown paths, wrong methods and /health do not lock; the first good key does."""
    daemon = start_daemon(key=None)
    for key in MALFORMED.values():
        assert daemon.ask("GET", "/status", key=key).status == 401, key
    assert daemon.ask("GET", "/status", key="k\x7fy").status == 400
    assert daemon.ask("GET", "/status").status == 401
    assert daemon.ask("GET", "/status", key="").status == 401
    assert daemon.ask("GET", "/nowhere", key="a").status == 404
    assert daemon.ask("GET", "/runs/", key="b").status == 404
    assert daemon.ask("DELETE", "/status", key="c").status == 405
    assert daemon.ask("GET", "/run", key="d").status == 405
    assert daemon.ask("POST", "/health", key="e").status == 405
    assert daemon.ask("GET", "/health", key="f").status == 200
    assert daemon.ask("POST", "/run", headers={"Authorization": "Bearer first"}, body="").status == 400
    assert daemon.ask("GET", "/status", key="a").status == 401
    assert daemon.ask("GET", "/nowhere", key="a").status == 401
    assert daemon.ask("GET", "/status", key="first").status == 200


@pytest.mark.parametrize("key", ["k" * 256, "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~"])
def test_keys_at_the_limits(start_daemon, key: str) -> None:
    """A key may be 1 to 256 visible ASCII characters."""
    daemon = start_daemon(key=key)
    assert daemon.ask("GET", "/status", key=key).status == 200
    assert daemon.ask("GET", "/status", key=key + "x").status == 401


def test_key_file(start_daemon, tmp_path: Path) -> None:
    """The key of server.key_file is the only one from the start; a last line break does not belong to it."""
    (tmp_path / "key").write_text("from-a-file\n")
    daemon = start_daemon(key=None, server__key_file=str(tmp_path / "key"), hooks__on_startup="set >hook; env >>hook")
    assert daemon.ask("GET", "/status", key="other").status == 401
    assert daemon.ask("POST", "/startup", key="from-a-file").status == 200
    assert "from-a-file" not in (daemon.log.parent / "work" / "hook").read_text()


REJECTED = [
    ("POST", "/startup", None),
    ("POST", "/run", "touch {marker}"),
    ("POST", "/kill", None),
    ("POST", "/recycle", None),
    ("POST", "/stdin", "x\n"),
    ("POST", "/shutdown", None),
    ("POST", "/shutdown?recycle=true", None),
    ("DELETE", "/runs/kept", None),
    ("POST", "/runs/busy/kill", None),
    ("POST", "/runs/busy/stdin", "x\n"),
]


@pytest.mark.parametrize("key", [None, "wrong"])
def test_a_rejected_request_does_nothing(daemon: RunningDaemon, tmp_path: Path, key: str | None) -> None:
    """No refused request reaches its handler: the shell, its run, the runs and the daemon are as before."""
    for kept in ("kept", "busy"):
        daemon.client.delete(f"/runs/{kept}")
    daemon.run("true", run_id="kept")
    daemon.start("sleep 60; true", run_id="busy")
    before = daemon.json("GET", "/status")
    for method, path, body in REJECTED:
        body = body.format(marker=tmp_path / "marker") if body else None
        assert daemon.ask(method, path, key=key, body=body).status == 401, path
    after = daemon.json("GET", "/status")
    assert after["state"] == "busy"
    assert after["run"]["run_id"] == "busy"
    assert after["shell_pid"] == before["shell_pid"]
    assert daemon.json("GET", "/runs/kept")["status"] == "completed"
    assert not (tmp_path / "marker").exists()


def test_the_key_appears_nowhere(start_daemon) -> None:
    """The key is in no log, no file, not in the environment of the shell, the hooks or the daemon."""
    key = "a-very-secret-key-5309"
    daemon = start_daemon(
        key=key, logging__level="debug", hooks__on_startup="env >hook.env", hooks__on_recycle="env >>hook.env"
    )
    asked = [
        daemon.ask("POST", "/startup", key=key),
        daemon.ask("POST", "/recycle", headers={"Authorization": f"Bearer {key}"}),
        daemon.ask("POST", "/run", key=key, body="env; set; cat /proc/$PPID/environ /proc/$$/environ /proc/*/cmdline"),
        daemon.ask("POST", "/run", key=key, body=""),
        daemon.ask("GET", "/nowhere", key=key),
        daemon.ask("GET", "/status", key=key + "-almost"),
    ]
    assert [answer.status for answer in asked] == [200, 200, 200, 400, 404, 401]
    assert b"HOME=" in asked[2].body
    for answer in asked:
        assert key.encode() not in answer.body
    assert b"SHELLD_KEY=a" not in asked[2].body
    hook = (daemon.log.parent / "work" / "hook.env").read_text()
    assert "SHELLD_HOOK=startup" in hook
    assert "SHELLD_HOOK=recycle" in hook
    assert key not in hook
    assert key.encode() not in Path(f"/proc/{daemon.process.pid}/environ").read_bytes()
    wait_for(lambda: "/nowhere" in daemon.log.read_text())
    for path in [daemon.log, *(Path(folder, name) for folder, _, names in os.walk(daemon.data) for name in names)]:
        assert key.encode() not in path.read_bytes(), path
