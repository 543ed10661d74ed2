"""Containers of the image, started by podman with runc as an orchestrator would: no rights, nothing writable but
what is mounted."""

import contextlib
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from typing import Any

import httpx

KEY = "image-key"
LOCKED_DOWN = ("--read-only", "--read-only-tmpfs=false", "--cap-drop=ALL", "--security-opt=no-new-privileges")
"""What a careful operator sets."""
WRITABLE = ("/work", "/home/agent", "/tmp", "/var/lib/shelld-py")
"""The places that docs/operations.md names."""

_DEADLINE = 60.0


def podman(*arguments: str, check: bool = True) -> str:
    """Run podman; return what it printed."""
    command = ["podman", "--cgroup-manager", "cgroupfs", *arguments]
    # Not here: for a container that runs out of memory its monitor leaves a file "oom" in the directory of its start.
    place = tempfile.gettempdir()
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=place)
    if check and done.returncode:
        raise AssertionError(f"{command}: {done.stderr}")
    return done.stdout


class Container:
    """A running container, and a client for the daemon in it."""

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self.url = url
        self.client = httpx.Client(base_url=url, headers={"X-Shell-Key": KEY}, timeout=60)

    def healthy(self) -> bool:
        """Whether the daemon answers."""
        with contextlib.suppress(httpx.TransportError):
            return self.client.get("/health").status_code == 200
        return False

    def run(self, command: str, **fields: Any) -> dict[str, Any]:
        """Run a command in the main shell; return its result."""
        answer = self.client.post("/run", json={"command": command, **fields}, headers={"Accept": "application/json"})
        return answer.json()

    def inspect(self, template: str) -> str:
        """What podman knows of the container."""
        return podman("inspect", "--format", template, self.name).strip()

    def log(self) -> str:
        """What its daemon has said."""
        return podman("logs", self.name, check=False)

    def processes(self) -> list[str]:
        """State and command of each process in the container, as the host sees them."""
        return podman("top", self.name, "state", "comm").splitlines()[1:]

    def stop(self) -> float:
        """End it by its stop signal; return the seconds that took."""
        begun = time.monotonic()
        podman("stop", "--time", "30", self.name)
        return time.monotonic() - begun


@contextlib.contextmanager
def container(image: str, *options: str, locked: bool = True) -> Iterator[Container]:
    """Start a container, wait until its daemon answers; remove it in the end.

    It has our key and a shell, unless it is not to be `locked`: then nobody has spoken to it with a key.
    """
    name = f"shelld-test-{uuid.uuid4().hex[:8]}"
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    # The host's network: a test machine need not have a container network. Limits below those of most hosts, since
    # not every root may raise them.
    setting = {"SHELLD_SERVER__HOST": "127.0.0.1", "SHELLD_SERVER__PORT": str(port)}
    if locked:
        setting["SHELLD_KEY"] = KEY
    podman(
        "run", "--detach", "--name", name, "--runtime", "runc", "--network", "host", "--log-driver", "k8s-file",
        "--ulimit", "nofile=4096:8192", "--ulimit", "nproc=4096:8192",
        *(word for variable, value in setting.items() for word in ("--env", f"{variable}={value}")), *options, image,
    )  # fmt: skip
    started = Container(name, f"http://127.0.0.1:{port}")
    try:
        deadline = time.monotonic() + _DEADLINE
        while not started.healthy():
            assert time.monotonic() < deadline, f"{started.inspect('{{json .State}}')}\n{started.log()}"
            time.sleep(0.05)
        if locked:
            assert started.client.post("/startup").text == "ready"
        yield started
    finally:
        started.client.close()
        podman("rm", "--force", "--time", "5", name, check=False)


def tmpfs(*places: str) -> tuple[str, ...]:
    """Options that mount a tmpfs of root's at each place."""
    return tuple(word for place in places for word in ("--tmpfs", place))
