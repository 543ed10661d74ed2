"""Events over Socket.IO, with the client of python-socketio: order, cancelling, the key, the end."""

import asyncio
import contextlib
import gc
import os
import select
import socket
import subprocess
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import socketio

from tests.daemons import KEY, RunningDaemon, alive, running_daemon, wait_for

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # of the client, where it is refused

TOLD = ("request_queued", "request_success", "request_failed")


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that serves Socket.IO, for all tests of this file that leave it as it is."""
    with running_daemon(tmp_path_factory.mktemp("socketio"), server__socketio="true") as daemon:
        yield daemon


@pytest.fixture(autouse=True)
def clients_are_collected() -> Iterator[None]:
    """Let what the client leaves unclosed be collected where its warnings are ignored."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()


class Client:
    """A connected client, and what it was told, in order."""

    def __init__(self, daemon: RunningDaemon) -> None:
        self._daemon = daemon
        self.socket = socketio.AsyncClient(reconnection=False)
        self.told: list[tuple[str, dict[str, Any]]] = []
        self._new_output = asyncio.Event()
        for name in TOLD:
            self.socket.on(name, self._listener(name))

    def _listener(self, name: str) -> Callable[[dict[str, Any]], None]:
        def listen(data: dict[str, Any]) -> None:
            self.told.append((name, data))
            self._new_output.set()

        return listen

    async def connect(self, key: str | None = KEY, transport: str = "websocket") -> None:
        """Connect; raise `ConnectionError` of python-socketio when it is refused."""
        headers = {} if key is None else {"X-Shell-Key": key}
        await self.socket.connect(self._daemon.url, headers=headers, transports=[transport])

    async def send(self, event_type: str, request_id: str | None = None, **data: Any) -> Any:
        """Send an event; return the request id of the acknowledgement."""
        event = {"event_type": event_type, "data": data, **({"request_id": request_id} if request_id else {})}
        return (await self.socket.call("bot_response", event))["request_id"]

    async def answer(self, request_id: str | None) -> tuple[str, dict[str, Any]]:
        """Wait for what has become of a request."""
        while True:
            for name, data in self.told:
                if data["request_id"] == request_id and name != "request_queued":
                    return name, data
            self._new_output.clear()
            await self._new_output.wait()


def talk(daemon: RunningDaemon, test: Callable[[Client], Awaitable[None]], **connection: Any) -> None:
    """Run `test` with a connected client."""

    async def body() -> None:
        client = Client(daemon)
        try:
            async with asyncio.timeout(60):
                await client.connect(**connection)
                await test(client)
        finally:
            await left(client)

    asyncio.run(body())


async def left(client: Client) -> None:
    """Disconnect; over polling the client would wait for its last poll."""
    leaving = asyncio.create_task(client.socket.disconnect())
    await asyncio.wait({leaving}, timeout=0.3)
    leaving.cancel()
    with contextlib.suppress(asyncio.CancelledError, Exception):
        await leaving
    session = client.socket.eio.http
    if session:
        await session.close()


@pytest.mark.parametrize("transport", ["websocket", "polling"])
def test_a_request_is_queued_and_done(served: RunningDaemon, transport: str) -> None:
    async def test(client: Client) -> None:
        assert client.socket.transport() == transport
        assert await client.send("execute_command", "r", command="echo a; exit 2") == "r"
        assert await client.answer("r") == (
            "request_success",
            {
                "adapter_type": "shell",
                "request_id": "r",
                "stdout": "a\n",
                "stderr": "",
                "exit_code": 2,
                "original_stdout_size": 2,
                "original_stderr_size": 0,
            },
        )
        assert client.told[0] == ("request_queued", {"adapter_type": "shell", "request_id": "r"})

    talk(served, test, transport=transport)


def test_a_request_without_an_id_is_given_one(served: RunningDaemon) -> None:
    async def test(client: Client) -> None:
        request_id = await client.send("shell_metadata")
        name, data = await client.answer(request_id)
        assert (name, data["adapter_type"]) == ("request_success", "shell")
        assert data["workspace_directory"]

    talk(served, test)


def test_requests_of_one_client_are_done_in_order(served: RunningDaemon) -> None:
    """A slow one first, failures in between; each is queued at once and told in its turn."""

    async def test(client: Client) -> None:
        await client.send("execute_command", "0", command="sleep 0.3; echo slow")
        for number in range(1, 9):
            data = {"path": "nowhere"} if number % 3 == 0 else {"path": "."}
            await client.send("view", str(number), **data)
        await client.answer("8")
        queued = [data["request_id"] for name, data in client.told if name == "request_queued"]
        ended = [(data["request_id"], name) for name, data in client.told if name != "request_queued"]
        assert queued == [str(number) for number in range(9)]
        assert ended == [
            (str(number), "request_failed" if number in (3, 6) else "request_success") for number in range(9)
        ]

    talk(served, test)


def test_two_clients_do_not_wait_for_each_other_nor_hear_each_other(served: RunningDaemon) -> None:
    async def test(client: Client) -> None:
        other = Client(served)
        await other.connect()
        await client.send("execute_command", "slow", command="sleep 0.5")
        await other.send("shell_metadata", "quick")
        assert (await other.answer("quick"))[0] == "request_success"
        assert [data["request_id"] for _, data in client.told] == ["slow"]
        assert (await client.answer("slow"))[0] == "request_success"
        assert {data["request_id"] for _, data in other.told} == {"quick"}
        await left(other)

    talk(served, test)


def test_a_running_command_is_cancelled(served: RunningDaemon) -> None:
    """It is interrupted, the session stays, and the next request has its turn."""

    async def test(client: Client) -> None:
        await client.send("open_session", "o")
        session_id = (await client.answer("o"))[1]["session_id"]
        await client.send("execute_command", "c", session_id=session_id, command="kept=1; sleep 60")
        await client.send("execute_command", "next", session_id=session_id, command="echo $kept")
        await asyncio.to_thread(
            wait_for, lambda: served.json("GET", f"/sessions/{session_id}/status")["state"] == "busy"
        )
        assert await client.socket.call("cancel_request", {"request_id": "c"}) == {"request_id": "c", "cancelled": True}
        name, data = await client.answer("c")
        assert (name, data["code"], data["adapter_type"]) == ("request_failed", "request_cancelled", "shell")
        assert (await client.answer("next"))[1]["stdout"] == "1\n"

    talk(served, test)


def test_a_waiting_request_is_cancelled_before_it_is_begun(served: RunningDaemon, tmp_path: Path) -> None:
    async def test(client: Client) -> None:
        await client.send("execute_command", "first", command="sleep 0.3")
        await client.send("execute_command", "second", command=f"touch {tmp_path}/done")
        answer = await client.socket.call("cancel_request", {"data": {"request_id": "second"}})
        assert answer == {"request_id": "second", "cancelled": True}
        assert (await client.answer("second"))[1]["code"] == "request_cancelled"
        assert (await client.answer("first"))[0] == "request_success"
        await client.send("shell_metadata", "last")
        await client.answer("last")
        assert not (tmp_path / "done").exists()

    talk(served, test)


def test_what_cannot_be_cancelled_is_told(served: RunningDaemon) -> None:
    async def test(client: Client) -> None:
        answer = await client.socket.call("cancel_request", {"request_id": "never"})
        assert answer == {"request_id": "never", "cancelled": False}
        assert (await client.answer("never"))[1]["code"] == "request_not_found"
        for nonsense in (None, "x", {}, {"request_id": 1}, {"data": None}):
            answer = await client.socket.call("cancel_request", nonsense)
            assert answer == {"request_id": None, "cancelled": False}

    talk(served, test)


def test_what_is_no_event_fails(served: RunningDaemon) -> None:
    async def test(client: Client) -> None:
        for nonsense in (None, [], "x", {"event_type": 1}, {"event_type": "view", "x": 1}):
            assert await client.socket.call("bot_response", nonsense) == {"request_id": None}
        assert [(name, data["code"]) for name, data in client.told] == 5 * [("request_failed", "invalid_request")]
        assert await client.send("no_event", "n") == "n"
        name, data = await client.answer("n")
        assert (name, data["adapter_type"]) == ("request_failed", None)
        assert "There is no event_type 'no_event'" in data["error"]

    talk(served, test)


def test_an_id_that_is_taken_and_a_queue_that_is_full_are_refused(served: RunningDaemon) -> None:
    async def test(client: Client) -> None:
        await client.send("execute_command", "busy", command="sleep 60")
        await client.send("execute_command", "busy", command="echo other")
        assert client.told[-1][1]["error"] == "There is a request busy already."
        for number in range(101):
            await client.socket.emit("bot_response", {"event_type": "shell_metadata", "request_id": f"w{number}"})
        name, data = await client.answer("w100")
        assert (name, data["code"], data["status"]) == ("request_failed", "too_many_requests", 429)
        await client.socket.call("cancel_request", {"request_id": "busy"})
        assert (await client.answer("w99"))[0] == "request_success"

    talk(served, test)


@pytest.mark.parametrize("transport", ["websocket", "polling"])
@pytest.mark.parametrize("key", [None, "other"])
def test_nobody_without_the_key_gets_through(served: RunningDaemon, transport: str, key: str | None) -> None:
    async def body() -> None:
        client = Client(served)
        with pytest.raises((socketio.exceptions.ConnectionError, RuntimeError)):  # it reads the refusal, or cannot
            await client.connect(key, transport)
        assert not client.socket.connected
        await left(client)

    asyncio.run(body())
    headers = {} if key is None else {"X-Shell-Key": key}
    for path in (
        "/socket.io/?EIO=4&transport=polling",
        "/socket.io/?EIO=4&transport=polling&sid=guessed",
        "/socket.io/?EIO=4&transport=polling&sid=%C3%A9%FF",
    ):
        for method in ("GET", "POST"):
            assert served.ask(method, path, headers=headers).status == 401
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==", **headers}
    refused = served.ask("GET", "/socket.io/?EIO=4&transport=websocket", headers=upgrade)
    assert refused.status == 401
    assert b'"code": "key_' in refused.body


def test_another_path_has_no_websocket(served: RunningDaemon) -> None:
    upgrade = {"Upgrade": "websocket", "Connection": "Upgrade", "Sec-WebSocket-Version": "13"}
    upgrade |= {"Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}
    assert served.ask("GET", "/run", headers=upgrade, key=KEY).status == 405
    assert served.ask("GET", "/run", headers=upgrade).status == 401


def test_a_websocket_is_not_opened_behind_a_request_that_waits(served: RunningDaemon) -> None:
    """What was asked before is answered, and the connection ends."""
    session = "/sessions/" + served.json("POST", "/sessions")["session_id"]
    run_id = served.json("POST", f"{session}/run", json={"command": "sleep 60", "timeout": 0})["run_id"]
    address = urlsplit(served.url)
    rest = f"HTTP/1.1\r\nHost: localhost\r\nX-Shell-Key: {KEY}\r\n"
    offer = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + "A" * 22
    with socket.create_connection((address.hostname, address.port), timeout=60) as raw:
        raw.sendall(f"GET /runs/{run_id}/wait?timeout=60 {rest}\r\n".encode())
        raw.sendall(f"GET /socket.io/?EIO=4&transport=websocket {rest}{offer}==\r\n\r\n".encode())
        assert select.select([raw], [], [], 0.1)[0] == [], "what came first is answered first"
        assert served.client.delete(session).is_success
        with raw.makefile("rb") as answers:
            assert answers.readline() == b"HTTP/1.1 200 OK\r\n"
            assert b"HTTP/1.1" not in answers.read()


def test_the_first_key_locks_over_a_websocket_too(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon(key=None, server__socketio="true")

    async def test(client: Client) -> None:
        await client.send("shell_metadata", "m")
        assert (await client.answer("m"))[0] == "request_success"

    talk(daemon, test, key="mine")
    assert daemon.ask("GET", "/status", key="other").status == 401
    assert daemon.ask("GET", "/status", key="mine").status == 200


@pytest.mark.parametrize("transport", ["websocket", "polling"])
def test_a_recycle_for_the_next_client_sends_all_away(
    start_daemon: Callable[..., RunningDaemon], transport: str
) -> None:
    """The old connection is of no use with the old key forgotten."""
    daemon = start_daemon(key=None, server__socketio="true")

    async def test(client: Client) -> None:
        gone = asyncio.Event()
        client.socket.on("disconnect", lambda *_: gone.set())
        await client.send("execute_command", "r", command="sleep 60")
        recycled = await asyncio.to_thread(daemon.client.post, "/shutdown?recycle=true")
        assert recycled.text == "available"
        await gone.wait()

    talk(daemon, test, transport=transport)
    assert daemon.ask("GET", "/status", key="next").status == 200
    assert daemon.ask("GET", "/status", key=KEY).status == 401


def test_a_connection_of_the_client_before_is_not_known(start_daemon: Callable[..., RunningDaemon]) -> None:
    """Not even one that had opened the transport and not yet the connection on it."""
    daemon = start_daemon(key=None, server__socketio="true")
    opened = daemon.client.get("/socket.io/?EIO=4&transport=polling").text
    connection = f"/socket.io/?EIO=4&transport=polling&sid={opened.partition('sid')[2][3:].partition(chr(34))[0]}"
    assert daemon.ask("POST", connection, body=b"40").status == 200
    daemon.client.post("/shutdown?recycle=true")
    assert daemon.ask("POST", connection, body=b'42["bot_response",{}]').status == 401
    assert daemon.ask("POST", connection, body=b"40", key="next").status == 404


def test_a_client_that_goes_away_leaves_what_was_begun_and_drops_the_rest(
    served: RunningDaemon, tmp_path: Path
) -> None:
    async def test(client: Client) -> None:
        await client.send(
            "execute_command", "1", command=f"until [ -e {tmp_path}/go ]; do sleep 0.02; done; touch {tmp_path}/done"
        )
        await client.send("execute_command", "2", command=f"touch {tmp_path}/never")

    before = {run["run_id"] for run in served.json("GET", "/runs")}
    talk(served, test)
    (tmp_path / "go").touch()
    wait_for((tmp_path / "done").exists)
    new = [run for run in served.json("GET", "/runs") if run["run_id"] not in before]
    assert len(new) == 1
    assert not (tmp_path / "never").exists()


@pytest.mark.parametrize("transport", ["websocket", "polling"])
def test_the_daemon_ends_with_clients_connected(start_daemon: Callable[..., RunningDaemon], transport: str) -> None:
    """In good order, and soon; a command that runs for one ends with it."""
    daemon = start_daemon(server__socketio="true")

    async def test(client: Client) -> None:
        await client.send("execute_command", "r", command=f"echo $$ >{daemon.data}/pid; sleep 60")
        await asyncio.to_thread(wait_for, lambda: (daemon.data / "pid").exists() and (daemon.data / "pid").read_text())
        assert await asyncio.to_thread(daemon.stop) == 0

    talk(daemon, test, transport=transport)
    assert not alive(int((daemon.data / "pid").read_text()))
    log = daemon.log.read_text()
    assert "Traceback" not in log
    assert " error " not in log  # uvicorn logs one where it has to cut them off


def test_a_connected_client_keeps_an_idle_daemon(start_daemon: Callable[..., RunningDaemon]) -> None:
    """A connection counts as a request, however long nothing is asked over it."""
    daemon = start_daemon(server__socketio="true", timeout__idle="3s")

    async def test(client: Client) -> None:
        await asyncio.sleep(3.5)
        await client.send("shell_metadata", "m")
        assert (await client.answer("m"))[0] == "request_success"

    talk(daemon, test)
    assert daemon.process.wait(60) == 0


def test_without_the_setting_there_is_no_socketio(start_daemon: Callable[..., RunningDaemon]) -> None:
    daemon = start_daemon()
    assert daemon.client.get("/socket.io/?EIO=4&transport=polling").status_code == 404
    maps = Path(f"/proc/{daemon.process.pid}/maps").read_text()
    assert "aiohttp" not in maps


def test_the_setting_needs_the_extra(tmp_path: Path) -> None:
    (tmp_path / "socketio.py").write_text("raise ImportError('not here')\n")
    search = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    environ = {**os.environ, "PYTHONPATH": search, "SHELLD_SERVER__SOCKETIO": "true", "SHELLD_SERVER__PORT": "0"}
    done = subprocess.run([sys.executable, "-m", "shelld_py"], env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "server.socketio: python-socketio cannot be imported (not here)" in done.stderr
    assert "pip install '.[socketio]' in shelld-py's checkout" in done.stderr
