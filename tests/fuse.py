"""A file system whose one file never gives its bytes: a network share that does not answer (fuse(4), as root)."""

import contextlib
import ctypes
import errno
import os
import stat
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _INIT, _INTERRUPT = 1, 2, 3, 14, 15, 26, 36
_ASYNC_READ = 1
_SIZE = 1_000_000
_MNT_DETACH = 2


@contextlib.contextmanager
def unanswered_file(directory: Path) -> Iterator[threading.Event]:
    """Mount the file `file` in `directory`; give an event that is set when somebody reads it."""
    directory.mkdir()
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if libc.mount(b"test", os.fsencode(directory), b"fuse", 0, options):
        os.close(device)
        raise OSError(ctypes.get_errno(), "mount")
    asked = threading.Event()
    pending: list[int] = []
    server = threading.Thread(target=_serve, args=(device, asked, pending), daemon=True)
    server.start()
    try:
        yield asked
    finally:
        for unique in pending:
            _answer(device, unique, -errno.EIO)
        libc.umount2(os.fsencode(directory), _MNT_DETACH)
        server.join(60)
        os.close(device)


def _serve(device: int, asked: threading.Event, pending: list[int]) -> None:
    while True:
        try:
            request = os.read(device, 200_000)
        except OSError as error:
            if error.errno == errno.ENODEV:  # unmounted
                return
            if error.errno == errno.ENOENT:  # who asked was killed before the question was read
                continue
            raise
        _, operation, unique, node = struct.unpack_from("=IIQQ", request)
        if operation in (_FORGET, _INTERRUPT):
            continue
        if operation == _READ:
            pending.append(unique)
            asked.set()
            continue
        answer = {
            # Asynchronous reads: a process that waits for one can be killed, as with most network shares.
            _INIT: struct.pack("=IIIIHHI", 7, 31, 65536, _ASYNC_READ, 8, 8, 65536) + bytes(40),
            _LOOKUP: struct.pack("=QQQQII", 2, 0, 3600, 3600, 0, 0) + _attributes(2),
            _GETATTR: struct.pack("=QII", 3600, 0, 0) + _attributes(node),
            _OPEN: struct.pack("=QII", 1, 0, 0),
        }.get(operation)
        _answer(device, unique, 0 if answer is not None else -errno.ENOSYS, answer or b"")


def _answer(device: int, unique: int, code: int, answer: bytes = b"") -> None:
    with contextlib.suppress(FileNotFoundError):  # who asked was killed meanwhile
        os.write(device, struct.pack("=IiQ", 16 + len(answer), code, unique) + answer)


def _attributes(node: int) -> bytes:
    mode = stat.S_IFDIR | 0o755 if node == 1 else stat.S_IFREG | 0o644
    size = 0 if node == 1 else _SIZE
    return struct.pack("=6Q10I", node, size, size // 512, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)
