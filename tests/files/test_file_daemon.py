"""File operations of a whole daemon: crashes, races, memory, backups, and a shell that works on the same files."""

import concurrent.futures
import contextlib
import ctypes
import http.client
import os
import re
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.daemons import KEY, RunningDaemon, alive, running_daemon, wait_for

Starter = Callable[..., RunningDaemon]


def _work(daemon: RunningDaemon) -> Path:
    return daemon.data.parent / "work"


def _post(daemon: RunningDaemon, operation: str, **fields: Any) -> httpx.Response:
    return daemon.client.post(f"/files/{operation}", json=fields)


def test_shell_and_operations_see_the_same_files(daemon: RunningDaemon) -> None:
    """What a command writes can be read and edited, what was edited is run, and neither loses the other's work."""
    daemon.run("mkdir -p mixed && cd mixed && printf 'echo one\\n' > a.sh && chmod 750 a.sh")
    read = _post(daemon, "read", path="mixed/a.sh").json()
    assert read["content"] == "echo one\n"
    edit = {"path": "mixed/a.sh", "old_string": "one", "new_string": "two"}
    assert _post(daemon, "replace", **edit, if_match=read["etag"]).json()["replacements"] == 1
    assert daemon.run("./a.sh; stat -c %a a.sh")["stdout"] == "two\n750\n"
    daemon.run("sed -i 's/two/three/' a.sh")
    assert _post(daemon, "replace", **edit, if_match=read["etag"]).json()["code"] == "precondition_failed"
    refused = _post(daemon, "undo", path="mixed/a.sh")
    assert (refused.status_code, refused.json()["code"]) == (409, "file_changed")
    assert "got another content by something else since the last replace" in refused.json()["detail"]
    assert daemon.run("./a.sh")["stdout"] == "three\n"
    assert _post(daemon, "undo", path="mixed/a.sh", force=True).json()["undone"] == "replace"
    assert daemon.run("./a.sh; stat -c %a a.sh")["stdout"] == "one\n750\n"
    assert _post(daemon, "undo", path="mixed/a.sh").json()["undone"] == "undo"
    assert daemon.run("./a.sh")["stdout"] == "three\n"


def test_killed_daemon_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    """Whatever it was doing when it was killed; the next daemon removes the backups that it left."""
    contents = [letter * 300_000 for letter in "ab"]
    for _ in range(2):
        with running_daemon(tmp_path) as daemon:
            file = _work(daemon) / "a.txt"
            file.write_text(contents[0])
            updates = threading.Thread(target=_update_until_it_fails, args=(daemon.url, contents))
            updates.start()
            inode = file.stat().st_ino
            wait_for(lambda file=file, inode=inode: file.stat().st_ino != inode)
            time.sleep(int.from_bytes(os.urandom(1)) / 10_000)
            daemon.process.kill()
            daemon.process.wait()
            updates.join()
            assert file.read_text() in contents
            assert {path.name for path in _work(daemon).iterdir() if not path.name.startswith(".")} == {"a.txt"}
    with running_daemon(tmp_path) as daemon:
        assert os.listdir(daemon.data / "backups") == []


def _update_until_it_fails(url: str, contents: list[str]) -> None:
    with httpx.Client(base_url=url, headers={"X-Shell-Key": KEY}) as client, contextlib.suppress(httpx.TransportError):
        while True:
            for content in contents:
                client.post("/files/update", json={"path": "a.txt", "content": content})


def test_directory_swapped_for_a_link_leads_nowhere(shared_daemon: RunningDaemon, tmp_path: Path) -> None:
    """While something swaps it, over and over, every operation stays inside or is refused."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "a.txt").write_text("secret")
    place = _work(shared_daemon) / "swapped"
    (place / "dir").mkdir(parents=True)
    (place / "dir/a.txt").write_text("inside")
    (place / "link").symlink_to(outside)
    stop = threading.Event()
    swapping = threading.Thread(target=_swap, args=(place, stop))
    swapping.start()
    path, statuses = "swapped/dir/a.txt", set()
    try:
        deadline = time.monotonic() + 0.7
        while time.monotonic() < deadline:
            answers = [
                _post(shared_daemon, "read", path=path),
                _post(shared_daemon, "update", path=path, content="inside"),
                _post(shared_daemon, "view", path="swapped/dir"),
                _post(shared_daemon, "create", path="swapped/dir/new.txt", content="inside"),
                _post(shared_daemon, "delete", path="swapped/dir/new.txt"),
                shared_daemon.client.get("/files/raw", params={"path": path}),
                shared_daemon.client.put("/files/raw", params={"path": path}, content=b"inside"),
            ]
            assert not any(b"secret" in answer.content for answer in answers)
            statuses |= {answer.status_code for answer in answers}
    finally:
        stop.set()
        swapping.join()
    assert {200, 403} <= statuses <= {200, 403, 404, 409, 415}
    assert [(entry.name, entry.read_text()) for entry in outside.iterdir()] == [("a.txt", "secret")]


def _swap(place: Path, stop: threading.Event) -> None:
    exchange = ctypes.CDLL(None).renameat2
    names = (-100, os.fsencode(place / "dir"), -100, os.fsencode(place / "link"), 2)  # AT_FDCWD, RENAME_EXCHANGE
    while not stop.is_set():
        assert exchange(*names) == 0


def test_backups_end_with_their_time_their_client_and_their_daemon(start_daemon: Starter) -> None:
    """None is left at the start, after a recycle, when it is too old, and at the end."""
    daemon = start_daemon(files__event_ttl="500ms", files__cleanup_interval="100ms")
    backups, file = daemon.data / "backups", _work(daemon) / "a.txt"
    file.write_text("1")
    assert backups.stat().st_mode & 0o777 == 0o700
    _post(daemon, "update", path="a.txt", content="2")
    assert len(os.listdir(backups)) == 1
    wait_for(lambda: not os.listdir(backups))
    assert _post(daemon, "undo", path="a.txt").json()["code"] == "nothing_to_undo"
    _post(daemon, "update", path="a.txt", content="3")
    assert daemon.client.post("/shutdown?recycle=true").status_code == 200
    assert os.listdir(backups) == []
    assert _post(daemon, "undo", path="a.txt").json()["code"] == "nothing_to_undo"
    _post(daemon, "update", path="a.txt", content="4")
    assert daemon.stop() == 0
    assert not backups.exists() or os.listdir(backups) == []


def test_search_does_not_outlive_a_killed_daemon(tmp_path: Path) -> None:
    """One that would never end, above all."""
    with running_daemon(tmp_path) as daemon, concurrent.futures.ThreadPoolExecutor(1) as pool:
        (_work(daemon) / "a.txt").write_text("a" * 60 + "b")
        search = pool.submit(_post, daemon, "search", pattern=r"(a+)+\Z")
        (pid,) = wait_for(daemon.children)
        wait_for(lambda: b"State:\tR" in Path(f"/proc/{pid}/status").read_bytes() and _cpu_ticks(pid) > 15)
        assert daemon.client.get("/health").text == "ok"
        daemon.process.kill()
        wait_for(lambda: not alive(pid))
        assert isinstance(search.exception(), httpx.TransportError)


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_security_mode_is_what_the_settings_say(start_daemon: Starter) -> None:
    """Strict reads what is listed, whatever its case; what is refused can still be moved about as bytes."""
    extensions = '["PY", "env", "makefile", "tar.gz", "exe"]'
    daemon = start_daemon(files__security_mode="strict", files__allowed_extensions=extensions)
    names = {
        "a.Py": 200,
        ".ENV": 200,
        "Makefile": 200,
        "a.tar.GZ": 200,
        "a.gz": 403,
        "a": 403,
        "a.exe": 403,
        "a.py.b": 403,
    }
    for name, status in names.items():
        (_work(daemon) / name).write_text("x")
        answer = _post(daemon, "read", path=name)
        assert answer.status_code == status, name
        assert status == 200 or "allows only the extensions in files.allowed_extensions" in answer.json()["detail"]
        assert daemon.client.get("/files/raw", params={"path": name}).content == b"x"


def test_write_without_room_changes_nothing(start_daemon: Starter) -> None:
    """A limit on file sizes is as good as a full disk."""
    daemon = start_daemon()
    file = _work(daemon) / "a.txt"
    file.write_text("old")
    resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
    answers = [
        _post(daemon, "update", path="a.txt", content="x" * 200_000),
        _post(daemon, "create", path="new/a.txt", content="x" * 200_000),
        daemon.client.put("/files/raw?path=a.txt", content=b"x" * 200_000),
    ]
    for answer in answers:
        assert (answer.status_code, answer.json()["code"]) == (507, "no_space"), answer.text
        assert "was not changed" in answer.json()["detail"]
    assert file.read_text() == "old"
    assert os.listdir(file.parent) == ["a.txt"]
    assert os.listdir(daemon.data / "backups") == []


def test_log_that_grows_can_be_read_at_any_moment(shared_daemon: RunningDaemon) -> None:
    """A read does not end in the middle of a character because the file gets longer under it."""
    log = _work(shared_daemon) / "growing.txt"
    log.write_text("")
    stop = threading.Event()
    writer = threading.Thread(target=_append, args=(log, stop))
    writer.start()
    try:
        deadline = time.monotonic() + 0.5
        while time.monotonic() < deadline:
            answer = _post(shared_daemon, "read", path="growing.txt")
            assert answer.status_code == 200 or answer.json()["code"] == "too_many_tokens", answer.text
    finally:
        stop.set()
        writer.join()


def _append(log: Path, stop: threading.Event) -> None:
    with log.open("ab", buffering=0) as file:
        while not stop.is_set():
            file.write("€\n".encode())  # four bytes, so that no page of the file ends in the middle of a character
            if file.tell() > 30_000:
                file.truncate(0)


def test_large_files_pass_through_without_being_held(start_daemon: Starter) -> None:
    """An upload goes to disk and a download comes from there, piece by piece, whatever the size."""
    daemon = start_daemon(server__max_body="100MiB")
    piece, count = os.urandom(1 << 20), 48
    before = _peak_memory(daemon)
    pieces = (piece for _ in range(count))
    answer = daemon.client.put("/files/raw?path=large.bin", content=pieces, headers={"If-None-Match": "*"})
    assert answer.json()["size"] == count << 20
    received = 0
    with daemon.client.stream("GET", "/files/raw?path=large.bin") as download:
        for data in download.iter_raw():
            received += len(data)
    assert received == count << 20
    assert daemon.client.get("/files/raw?path=large.bin", headers={"Range": "bytes=-5"}).content == piece[-5:]
    assert _peak_memory(daemon) - before < 24 * 1024


def _peak_memory(daemon: RunningDaemon) -> int:
    """Return the most memory, in KiB, that the daemon has had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{daemon.process.pid}/status").read_text())
    assert found
    return int(found[1])


def test_upload_that_breaks_off_changes_nothing(shared_daemon: RunningDaemon) -> None:
    """Nor does it hold up other operations on that file while it lasts."""
    file = _work(shared_daemon) / "upload/a.txt"
    file.parent.mkdir()
    file.write_text("old")
    with _upload(shared_daemon, "upload/a.txt", b"half", 8) as connection:
        assert _post(shared_daemon, "update", path="upload/a.txt", content="new").status_code == 200
        connection.shutdown(socket.SHUT_RDWR)
    with _upload(shared_daemon, "upload/made/b.txt", b"half", 8):
        wait_for((file.parent / "made").exists)
    wait_for(lambda: not (file.parent / "made").exists())
    assert file.read_text() == "new"
    assert os.listdir(file.parent) == ["a.txt"]


@contextlib.contextmanager
def _upload(daemon: RunningDaemon, path: str, content: bytes, length: int) -> Iterator[socket.socket]:
    """Begin an upload of `length` bytes, of which only `content` is sent."""
    connection = http.client.HTTPConnection(urlsplit(daemon.url).netloc)
    connection.putrequest("PUT", f"/files/raw?path={path}")
    connection.putheader("X-Shell-Key", KEY)
    connection.putheader("Content-Length", str(length))
    connection.endheaders(content)
    assert connection.sock is not None
    try:
        yield connection.sock
    finally:
        connection.close()


def test_concurrent_requests_are_all_done(shared_daemon: RunningDaemon) -> None:
    """On one file one after the other, on others at the same time; health is answered meanwhile."""
    work = _work(shared_daemon) / "crowd"
    work.mkdir()
    (work / "shared.txt").write_text("")

    def insert(number: int) -> int:
        path = "crowd/shared.txt" if number % 2 else f"crowd/own{number}.txt"
        if number % 2 == 0:
            _post(shared_daemon, "create", path=path, content="")
        assert shared_daemon.client.get("/health").text == "ok"
        return _post(shared_daemon, "insert", path=path, content=f"{number}\n", line=0).status_code

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert set(pool.map(insert, range(40))) == {200}
    assert sorted(map(int, (work / "shared.txt").read_text().split())) == list(range(1, 40, 2))
    assert all((work / f"own{number}.txt").read_text() == f"{number}\n" for number in range(0, 40, 2))


def test_work_that_would_last_for_hours_ends_with_its_key(daemon: RunningDaemon) -> None:
    """To hash terabytes of holes keeps nobody from giving the daemon up; the file is as it was."""
    file = _work(daemon) / "holes"
    file.touch()
    os.truncate(file, 1 << 42)
    descriptors = Path(f"/proc/{daemon.process.pid}/fd")

    def is_open() -> bool:
        with contextlib.suppress(FileNotFoundError):  # of a descriptor that was closed meanwhile
            return any(os.readlink(each) == str(file) for each in descriptors.iterdir())
        return False

    with concurrent.futures.ThreadPoolExecutor() as pool:
        moved = pool.submit(_post, daemon, "move", source_path="holes", destination_path="moved")
        wait_for(is_open)
        assert daemon.client.post("/shutdown?recycle=true").status_code == 200
        assert moved.result().json()["code"] == "shutting_down"
    assert file.stat().st_size == 1 << 42
    assert not file.with_name("moved").exists()
