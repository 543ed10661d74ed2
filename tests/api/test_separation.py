"""An agent that tries to reach the daemon, whose shells and file operations are another user's (`shell.user`)."""

import asyncio
import errno
import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from shelld_py.files import Looks
from shelld_py.linux.users import User, missing_capabilities, own_files, uses_files_as
from tests.daemons import KEY, RunningDaemon, alive, processes_with, running_daemon, wait_for

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or bool(missing_capabilities()),
    reason="only root, with its capabilities, may become somebody else",
)

UID = 100_000 + os.getpid()
"""Of this test alone: it kills all that the user has."""
AGENT = f"{UID}:{UID}"
SECRET = "a-secret-that-no-agent-may-see"


@pytest.fixture(scope="module")
def place() -> Iterator[Path]:
    """A directory that everybody can enter, with one for the agent to work in: those of pytest are closed."""
    path = Path(tempfile.mkdtemp(prefix="shelld-test-"))
    path.chmod(0o755)
    (path / "work").mkdir()
    os.chown(path / "work", UID, UID)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def separated(place: Path) -> Iterator[RunningDaemon]:
    """A daemon whose shells are the agent's, and whose file operations may go anywhere that the agent may."""
    (place / "key").write_text(KEY)
    (place / "key").chmod(0o600)
    files = {
        "server__key_file": str(place / "key"),
        "logging__file": str(place / "daemon.log"),
        "logging__audit": str(place / "audit.log"),
        "files__allowed_directories": '["/"]',
        "files__base_directory": str(place / "work"),
        "files__security_mode": "unrestricted",
    }
    with running_daemon(place, key=None, shell__user=AGENT, **files) as daemon:
        yield daemon


@pytest.fixture
def box(separated: RunningDaemon) -> RunningDaemon:
    """The same with a fresh bash."""
    separated.fresh()
    return separated


@pytest.fixture
def roots_file(place: Path) -> Iterator[Path]:
    """A file of root's, in the directory that the agent can write to."""
    path = place / "work/roots"
    path.write_text(f"{SECRET}\n")
    path.chmod(0o600)
    yield path
    path.unlink(missing_ok=True)


def of_files(daemon: RunningDaemon, operation: str, **fields: Any) -> dict[str, Any]:
    """Do a file operation; return the answer."""
    return daemon.json("POST", f"/files/{operation}", json=fields)


def daemons_processes(daemon: RunningDaemon) -> list[int]:
    """The daemon, and the helper from which its commands with pipes come: it has been there before any of those."""
    daemon.json("POST", "/exec", json={"command": "true", "streams": "pipes"})
    helper = min(set(daemon.children()) & set(processes_with("keeper")))
    return [daemon.process.pid, helper]


def test_processes_of_the_daemon_are_closed(box: RunningDaemon) -> None:
    """Neither memory, environment, descriptors nor directories of the daemon and its helpers can be looked at."""
    for pid in daemons_processes(box):
        tried = " ".join(f"/proc/{pid}/{name}" for name in ("mem", "environ", "maps", "auxv", "io", "syscall", "stack"))
        shown = box.run(f"for f in {tried}; do head -c1 $f >/dev/null 2>&1 && echo $f; done; ls /proc/{pid}/fd/ 2>&1")
        assert shown["stdout"] == f"ls: cannot open directory '/proc/{pid}/fd/': Permission denied\n"
        assert box.run(f"cd /proc/{pid}/cwd || cd /proc/{pid}/root || readlink /proc/{pid}/exe")["exit_code"] == 1
        assert KEY.encode() not in Path(f"/proc/{pid}/cmdline").read_bytes()


def test_processes_of_the_daemon_cannot_be_signalled(box: RunningDaemon) -> None:
    """Not by their ids, not by all at once: what is killed is the agent's own."""
    found = daemons_processes(box)
    for pid in found:
        for signal in ("STOP", "KILL", "USR1", "CONT"):
            assert box.run(f"kill -{signal} {pid} 2>&1")["exit_code"] == 1
    box.run("kill -STOP -1; kill -KILL -1")
    assert all(map(alive, found))
    box.fresh()
    assert box.run("echo ok")["stdout"] == "ok\n"


def test_processes_of_the_daemon_cannot_be_traced(box: RunningDaemon) -> None:
    """PTRACE_ATTACH, process_vm_readv(2), pidfd_getfd(2), and the limits of the process: EPERM each."""
    pid = box.process.pid
    script = f"""
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
def tried(result): print(result, ctypes.get_errno())
tried(libc.ptrace(16, {pid}, 0, 0))
tried(libc.ptrace(0x4206, {pid}, 0, 0))
tried(libc.process_vm_readv({pid}, vector, 1, vector, 1, 0))
tried(libc.syscall(438, os.pidfd_open({pid}), 0, 0))
tried(libc.prlimit({pid}, 7, vector, None))
"""
    shown = box.run("/usr/bin/python3 -", stdin=script)
    assert shown["stdout"] == "-1 1\n" * 5


def test_what_the_daemon_keeps_is_closed(box: RunningDaemon, place: Path) -> None:
    """The data directory with runs and undo copies, key, log and audit log; by a shell, and by file operations."""
    of_files(box, "create", path="undone.txt", content="before\n")
    of_files(box, "replace", path="undone.txt", old_string="before", new_string="after")
    copies = list((box.data / "backups").iterdir())
    assert copies
    for path in (box.data, box.data / "runs", *copies, place / "key", place / "daemon.log", place / "audit.log"):
        tried = box.run(f"cat {path} || ls {path}/ || echo >{path} || mv {path} {path}x || rm -rf {path}")
        assert tried["exit_code"], tried["stdout"]
        assert path.exists()
        for operation in ("read", "delete", "view"):
            answer = of_files(box, operation, path=str(path))
            assert answer["code"] in ("permission_denied", "not_a_file", "not_a_directory"), (operation, path)
        assert of_files(box, "move", source_path=str(path), destination_path=f"{path}x")["code"] in (
            "permission_denied",
            "not_a_file",
        )
        assert of_files(box, "search", path=str(path), pattern=".").get("matches", []) == []
    assert of_files(box, "undo", path="undone.txt")["size"] == 7


def test_file_operations_cannot_do_more_than_the_user(box: RunningDaemon, place: Path, roots_file: Path) -> None:
    """Files of root's are not read, found in, changed or packed: by name, by links, by archives."""
    box.run("ln -s /etc/shadow shadow; ln -s roots link; mkdir -p sub; ln -s / sub/top; ls -la")
    for path in ("shadow", "roots", "link", "/etc/shadow", "sub/top/etc/shadow", "/proc/1/environ"):
        assert of_files(box, "read", path=path)["code"] == "permission_denied"
        assert box.client.get("/files/raw", params={"path": path}).status_code == 403
        assert of_files(box, "replace", path=path, old_string="root", new_string="x")["code"] == "permission_denied"
        assert box.client.put("/files/raw", params={"path": path}, content=b"x").status_code == 403
        answer = box.json("POST", "/exec", json={"command": "cat", "stdin_path": path, "streams": "pipes"})
        assert answer["code"] == "permission_denied"
    for path in ("/etc/new", "/root/new", "/new", str(place / "new")):
        assert of_files(box, "create", path=path, content="x")["code"] == "permission_denied"
    assert of_files(box, "search", path="roots", pattern=SECRET)["matches"] == []
    assert of_files(box, "search", pattern="secret-that")["matches"] == []
    assert box.client.get("/files/archive", params={"path": "/root"}).status_code == 403
    assert roots_file.read_text() == f"{SECRET}\n"
    assert roots_file.stat().st_uid == 0


def test_the_process_itself_is_closed_to_its_threads(box: RunningDaemon) -> None:
    """A thread may look at all of its own process in /proc, so nothing of /proc is given."""
    for pid in ("self", "thread-self", box.process.pid):
        for name in ("maps", "status", "environ", "mem", "fd/0", "task/1/maps", "fdinfo/0"):
            answer = of_files(box, "read", path=f"/proc/{pid}/{name}")
            assert answer["code"] in ("permission_denied", "file_not_found"), answer
    assert of_files(box, "view", path="/proc/self/fd")["code"] == "permission_denied"


def test_what_file_operations_make_is_theirs(box: RunningDaemon, place: Path) -> None:
    """New files and directories, replaced and moved ones, what an archive holds, whatever owner that names."""
    of_files(box, "create", path="made/deep/file.txt", content="one\n")
    of_files(box, "replace", path="made/deep/file.txt", old_string="one", new_string="two")
    of_files(box, "undo", path="made/deep/file.txt")
    of_files(box, "move", source_path="made/deep/file.txt", destination_path="made/moved.txt")
    box.client.put("/files/raw", params={"path": "made/raw"}, content=b"raw")
    packed = box.client.get("/files/archive", params={"path": "made"}).content
    box.client.put("/files/archive", params={"path": "unpacked"}, content=packed)
    found = [path for name in ("made", "unpacked") for path in (place / "work" / name).rglob("*")]
    assert len(found) == 6
    assert {(path.stat().st_uid, path.stat().st_gid) for path in found} == {(UID, UID)}
    assert [match["line"] for match in of_files(box, "search", path="unpacked", pattern="one")["matches"]] == [1]
    assert box.client.get("/files/raw", params={"path": "unpacked/raw"}).content == b"raw"


def test_set_id_programs_and_owners(box: RunningDaemon, place: Path, roots_file: Path) -> None:
    """Nothing can be given to root, no set-user-id file of root's comes of it, and no hard link of root's file."""
    assert box.run("cp /usr/bin/id id; chmod 4755 id; ./id -u")["stdout"] == f"{UID}\n"
    assert box.run("chown 0 id; ln roots hard; chmod 644 roots")["exit_code"] != 0
    of_files(box, "move", source_path="id", destination_path="id2")
    assert of_files(box, "move", source_path="roots", destination_path="mine")["code"] == "permission_denied"
    program = (place / "work/id2").stat()
    assert (program.st_uid, roots_file.stat().st_uid) == (UID, 0)


def test_looks_for_changes_are_theirs(place: Path) -> None:
    """The looks before and after a command: a directory that is closed to the user has no names."""
    closed = place / "work/closed"
    closed.mkdir(mode=0o700)

    async def changed(user: User | None, word: str) -> list[str]:
        looks = Looks([str(place / "work")], [], user=user)
        comparison = await looks.compare(everything=False)
        (closed / f"hidden-{word}").write_text("x")
        (place / f"work/shown-{word}").write_text("x")
        comparison.end()
        found = await comparison.changes()
        await looks.aclose()
        return [Path(change.path).name for change in found.changes or ()]

    assert asyncio.run(changed(User.find(AGENT), "one")) == ["shown-one"]
    assert asyncio.run(changed(None, "two")) == ["hidden-two", "shown-two"]


def test_the_port_of_a_daemon_that_crashed_is_nobody_elses(place: Path) -> None:
    """What outlives it cannot listen there, nor kill who holds it; the next daemon gets it, with who waits there.

    That one also removes what the shells of the crashed one have shared with it.
    """
    home = place / "crash"
    (home / "work").mkdir(parents=True)
    os.chown(home / "work", UID, -1)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    script = f"""
import os, pathlib, socket, sys, time
def tried():
    found = set()
    for host in ("127.0.0.1", "0.0.0.0"):
        for option in (0, socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            with socket.socket() as ours:
                if option: ours.setsockopt(socket.SOL_SOCKET, option, 1)
                try: ours.bind((host, {port})); ours.listen(); found.add("got it")
                except OSError as error: found.add(error.errno)
    return found
pathlib.Path("ready").touch()
while not pathlib.Path("crashed").exists(): time.sleep(0.01)
os.kill(-1, 9)  # all that it may signal, but itself
for _ in range(20):
    found = tried()
    time.sleep(0.005)
pathlib.Path("found.new").write_text(str(found))
os.rename("found.new", "found")
"""
    (home / "work/agent.py").write_text(script)
    with running_daemon(home, shell__user=AGENT, server__port=str(port)) as daemon:
        daemon.fresh()
        left = Path(daemon.run("readlink /proc/$$/fd/244")["stdout"].strip()).parent
        daemon.run("setsid /usr/bin/python3 agent.py >/dev/null 2>&1 </dev/null &")
        wait_for((home / "work/ready").exists)
        assert left.exists()  # from the kill on, any daemon of this user may remove it, such as that of another test
        daemon.process.kill()
        daemon.process.wait()
        (home / "work/crashed").touch()
        wait_for((home / "work/found").exists)
        assert (home / "work/found").read_text() == str({errno.EADDRINUSE})
        with socket.create_connection(("127.0.0.1", port)) as waiting:
            waiting.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            with running_daemon(home, shell__user=AGENT, server__port=str(port)) as following:
                assert waiting.recv(12) == b"HTTP/1.1 200"
                assert following.json("GET", "/status")["state"] == "available"
                following.fresh()
                assert not left.exists()
                following.run("true")
    with socket.socket() as free:  # after an orderly end nobody holds it
        free.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        free.bind(("127.0.0.1", port))


def test_a_thread_is_somebody_else_for_files_alone(place: Path) -> None:
    """It opens what they can and no more; for what is the daemon's own it is itself again; no other thread changes."""
    user = User.find(AGENT)
    closed = place / "closed"
    closed.write_text("x")
    closed.chmod(0o600)

    def status() -> dict[str, list[str]]:
        lines = Path("/proc/thread-self/status").read_text().splitlines()
        return {line.split(":")[0]: line.split()[1:] for line in lines}

    def allowed() -> bool:
        return os.access(closed, os.R_OK, effective_ids=True)

    def work() -> None:
        assert uses_files_as() == user
        assert not allowed()
        there = status()
        assert there["Uid"] == ["0", "0", "0", str(user.uid)]
        assert there["Gid"] == ["0", "0", "0", str(user.gid)]
        assert there["Groups"] == [str(group) for group in user.groups]
        assert int(there["CapEff"][0], 16) == 0
        with own_files():
            assert allowed()
        assert not allowed()
        with pytest.raises(ZeroDivisionError), own_files():
            raise ZeroDivisionError
        assert not allowed()

    before = status()
    with ThreadPoolExecutor(1, initializer=user.use_files) as pool:
        pool.submit(work).result()
        assert allowed()
    after = status()
    assert all(after[name] == before[name] for name in ("Uid", "Gid", "Groups", "CapEff"))
