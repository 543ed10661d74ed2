"""The bundle where there are bash, glibc, zlib, few programs and no Python: a root file system, and an image of it.

Built by scripts/build-bundle; SHELLD_TEST_BUNDLE names its directory. Needs root, and the image buildah and podman.
"""

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.daemons import wait_for
from tests.image.containers import LOCKED_DOWN, Container, tmpfs

ROOT = Path(__file__).parent.parent.parent
BUNDLE = Path(os.environ["SHELLD_TEST_BUNDLE"])
KEY = "bundle-key"
PROGRAMS = ("bash", "cat", "env", "ls", "sleep", "grep")
START = (
    'mount -t proc proc "$1/proc" && mount --rbind /dev "$1/dev" && cd "$1" && exec chroot . '
    "/opt/shelld-py/shelld-py --host 127.0.0.1 --port 0 --set shell.working_directory=/work"
)


def put(program: str, root: Path) -> None:
    """Copy a program and the libraries that it needs to where they lie here."""
    found = shutil.which(program)
    assert found
    listed = subprocess.run(["ldd", found], capture_output=True, text=True, check=True).stdout
    for path in (found, *re.findall(r"(/\S+) \(0x", listed)):
        target = root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(path), target)


@pytest.fixture(scope="module")
def foreign_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system as somebody else's image may have one."""
    root = tmp_path_factory.mktemp("root")
    for name in ("proc", "dev", "tmp", "work", "opt", "bin", "etc"):
        (root / name).mkdir()
    for program in PROGRAMS:
        put(program, root)
    if not (root / "bin/bash").exists():
        os.symlink("/usr/bin/bash", root / "bin/bash")
    # What PyInstaller has not packed is the system's to have: the C library, what belongs to it, and zlib.
    for library in (
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "libutil.so.1",
        "libz.so.1",
    ):
        for path in Path("/lib").glob(f"*-linux-gnu/{library}"):
            target = root / str(path).lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(os.path.realpath(path), target)
    (root / "tmp").chmod(0o1777)
    (root / "work").chmod(0o777)
    return root


@pytest.fixture(scope="module")
def client(foreign_root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A daemon of the bundle in that root, in PID and mount namespaces of its own."""
    root = tmp_path_factory.mktemp("entered") / "root"
    shutil.copytree(foreign_root, root, symlinks=True)
    shutil.copytree(BUNDLE, root / "opt/shelld-py", symlinks=True)
    environ = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "HOME": "/work",
        "SHELLD_KEY": KEY,
        "LD_LIBRARY_PATH": "/of/the/operator",
    }
    command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", START, "sh", str(root)]
    with (root / "log").open("wb") as log, subprocess.Popen(command, env=environ, stdout=log, stderr=log) as process:
        try:
            found = wait_for(
                lambda: process.poll() or re.search(r"serving on (http://\S+)", (root / "log").read_text())
            )
            assert process.poll() is None, (root / "log").read_text()
            with httpx.Client(base_url=found[1], headers={"X-Shell-Key": KEY}, timeout=60) as client:
                assert client.post("/startup").text == "ready"
                yield client
        finally:
            process.send_signal(signal.SIGKILL)


def run(client: httpx.Client, command: str, **fields: Any) -> str:
    return client.post("/run", json={"command": command, **fields}).text


def test_there_is_no_python(client: httpx.Client) -> None:
    assert run(client, "type python3 python; ls /usr/lib | grep -c python").endswith("0\n")


def test_commands_run(client: httpx.Client) -> None:
    """In a terminal, with state, with their own variables and input."""
    assert run(client, "x=5; [ -t 1 ] && echo terminal") == "terminal\n"
    assert run(client, "echo $x; cat; exit 3", stdin="typed") == "5\ntyped"
    assert client.post("/exec", content="echo out").json()["stdout"] == "out\n"


def test_the_environment_is_the_operators(client: httpx.Client) -> None:
    """Nothing of the bundle is in it: its libraries would be given to the programs of the image."""
    environment = run(client, "env")
    assert "LD_LIBRARY_PATH=/of/the/operator\n" in environment
    assert "_PYI" not in environment
    assert "/opt/shelld-py" not in environment


def test_helpers_start(client: httpx.Client) -> None:
    """A search of files, and a wait for a line, each take a process of their own: the bundle again."""
    client.put("/files/raw", params={"path": "a.txt"}, content="one\nneedle\n")
    found = client.post("/files/search", json={"path": ".", "pattern": "need(le|s)"}).json()
    assert [match["line"] for match in found["matches"]] == [2], found
    run_id = client.post("/exec", params={"timeout": "0"}, content="sleep 0.2; echo begun; sleep 60").json()["run_id"]
    waited = client.get(f"/runs/{run_id}/wait", params={"until": "output:beg[au]n", "timeout": "30s"}).json()
    assert waited["reached"] == "output:beg[au]n", waited
    client.post(f"/runs/{run_id}/kill")


@pytest.mark.parametrize("path", ["/openapi.json", "/docs", "/llms.txt", "/tools", "/metadata"])
def test_what_is_made_when_it_is_asked_for(client: httpx.Client, path: str) -> None:
    """Nothing of it was left out."""
    assert client.get(path).status_code == 200


@pytest.mark.skipif(not os.environ.get("SHELLD_TEST_IMAGE"), reason="scripts/test-image has what builds images")
def test_it_is_put_into_a_foreign_image(
    foreign_root: Path, tmp_path: Path, start_container: Callable[..., Container]
) -> None:
    """By the Containerfile that docs/operations.md shows, and run without rights, with a read-only root."""
    foreign, packed, made = (f"localhost/shelld-py-{name}:test" for name in ("foreign", "bundle", "agent"))
    tree = tmp_path / "bundle"
    shutil.copytree(BUNDLE, tree / "opt/shelld-py", symlinks=True)
    for root, image in ((foreign_root, foreign), (tree, packed)):
        with subprocess.Popen(["tar", "-C", str(root), "-c", "."], stdout=subprocess.PIPE) as archive:
            subprocess.run(["podman", "import", "--quiet", "-", image], stdin=archive.stdout, check=True)
    shown = re.search(r"```Dockerfile\n(.*?)```", (ROOT / "docs/operations.md").read_text(), re.DOTALL)
    assert shown
    text = shown[1].replace("node:22-bookworm", foreign).replace("registry.example/shelld-py-bundle", packed)
    (tmp_path / "Containerfile").write_text(text)
    command = ["buildah", "bud", "--isolation", "chroot", "--tag", made, str(tmp_path)]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    container = start_container(*LOCKED_DOWN, *tmpfs("/tmp", "/home/node"), image=made)
    assert container.run("echo $UID; pwd; type python3")["stdout"].startswith("1000\n/home/node\nbash: type: python3:")
    assert container.stop() < 20
    assert container.inspect("{{.State.ExitCode}}") == "0"
