"""System calls of Linux that Python's `os` lacks: openat2(2), renameat2(2), pidfd_getfd(2), uses of prctl(2).

And those about a single thread: its groups, setfsuid(2), its effective capabilities.

Every use of ctypes is here. Raw calls with the errors of `os`: an `OSError` with the kernel's errno. Knows nothing of
what they are used for, and has no opinion on which paths are good.
"""

import ctypes
import errno
import os
import signal
from collections.abc import Sequence

RESOLVE_NO_MAGICLINKS = 0x02
"""Refuse links such as /proc/self/fd/3, which lead to objects rather than names (openat2(2))."""
RESOLVE_NO_SYMLINKS = 0x04
"""Refuse all symbolic links, in any component."""
RESOLVE_BENEATH = 0x08
"""Refuse everything that would leave the starting directory, even for a moment."""

_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.getenv.restype = ctypes.c_void_p
_SYS_OPENAT2 = 437
"""The same number on every architecture that Python runs on (Linux 5.6, the table of unified numbers)."""
_SYS_PIDFD_GETFD = 438
"""As that of openat2 (Linux 5.6)."""
_RENAME_NOREPLACE = 1
_PR_SET_PDEATHSIG, _PR_GET_PDEATHSIG = 1, 2
_PR_SET_CHILD_SUBREAPER = 36
_PR_GET_CHILD_SUBREAPER = 37
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "loongarch64": 159, "ppc64le": 81, "s390x": 206}
"""Of those with 32 bits to a group. The function of the C library is about all threads (nptl(7))."""
_CAPABILITIES_VERSION = 0x20080522
"""_LINUX_CAPABILITY_VERSION_3: 64 of them, in two halves."""
_NO_ID = 0xFFFFFFFF
_M_MMAP_THRESHOLD = -3
_LARGE_BLOCK = 1 << 20
_PROC = 0x9FA0
"""PROC_SUPER_MAGIC of statfs(2)."""
_ANYWHERE = -100
"""AT_FDCWD: the directory argument is not looked at, for the path is absolute."""


class _OpenHow(ctypes.Structure):
    """`struct open_how` of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


class _CapabilityHeader(ctypes.Structure):
    """`struct __user_cap_header_struct` of capset(2)."""

    _fields_ = (("version", ctypes.c_uint32), ("pid", ctypes.c_int))


class _Capabilities(ctypes.Structure):
    """`struct __user_cap_data_struct` of capset(2)."""

    _fields_ = (("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32))


def openat2(directory: int, path: str, flags: int, resolve: int) -> int:
    """Open `path` relative to the descriptor `directory` and return a new descriptor.

    Raises `OSError`: `EXDEV` and `ELOOP` where `resolve` forbids a step, `ENOSYS` on kernels before 5.6,
    `EPERM` under seccomp filters that do not know the call.
    """
    how = _OpenHow(flags=flags | os.O_CLOEXEC, mode=0, resolve=resolve)
    descriptor = _LIBC.syscall(_SYS_OPENAT2, directory, os.fsencode(path), ctypes.byref(how), ctypes.sizeof(how))
    if descriptor < 0:
        raise _last_error(path)
    return int(descriptor)


def has_openat2() -> bool:
    """Return whether the kernel knows openat2 and lets this process use it."""
    try:
        os.close(openat2(_ANYWHERE, "/", os.O_PATH | os.O_DIRECTORY, RESOLVE_NO_MAGICLINKS))
    except OSError:
        return False
    return True


def rename_without_replacing(source_directory: int, source: str, directory: int, name: str) -> None:
    """Rename a file unless the new name is taken, in one step.

    Uses renameat2(2) with `RENAME_NOREPLACE`. Where the file system or the C library lacks it, link(2) and
    unlink(2) have the same outcome, with a moment in which the file has both names.

    Raises `FileExistsError` when `name` exists, other `OSError` as rename(2).
    """
    if hasattr(_LIBC, "renameat2"):
        arguments = (source_directory, os.fsencode(source), directory, os.fsencode(name), _RENAME_NOREPLACE)
        if _LIBC.renameat2(*arguments) == 0:
            return
        if ctypes.get_errno() not in (errno.EINVAL, errno.ENOSYS):
            raise _last_error(name)
    os.link(source, name, src_dir_fd=source_directory, dst_dir_fd=directory, follow_symlinks=False)
    os.unlink(source, dir_fd=source_directory)


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Have this process get a signal when the thread that started it ends, also through execve(2) (prctl(2))."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, number, 0, 0, 0)


def signal_at_parents_death() -> int:
    """Return the signal that this process gets then; 0 where it gets none."""
    answer = ctypes.c_int()
    _LIBC.prctl(_PR_GET_PDEATHSIG, ctypes.byref(answer), 0, 0, 0)
    return answer.value


def return_large_blocks() -> None:
    """Have the C library give memory back to the kernel as soon as a large block is freed.

    glibc begins with that, and stops when the first one is freed, for blocks of up to 32 MiB (mallopt(3)): between what
    lies in its heap they leave holes of hundreds of MiB. Other C libraries have no such function, and need none.
    """
    if mallopt := getattr(_LIBC, "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BLOCK)


def be_subreaper(*, yes: bool = True) -> None:
    """Make this process the parent of descendants that lose theirs, also through execve(2), or no more (prctl(2))."""
    _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, int(yes), 0, 0, 0)


def is_subreaper() -> bool:
    """Return whether it is."""
    answer = ctypes.c_int()
    _LIBC.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(answer), 0, 0, 0)
    return bool(answer.value)


def copied_descriptor(pidfd: int, number: int) -> int | None:
    """Return a copy of the descriptor `number` of another process (pidfd_getfd(2)).

    None where it has none of that number, where the kernel is older than 5.6, or where we may not trace the process.
    """
    copy = int(_LIBC.syscall(_SYS_PIDFD_GETFD, pidfd, number, 0))
    return None if copy < 0 else copy


def set_thread_groups(groups: Sequence[int]) -> None:
    """Set the supplementary groups of this thread alone. Raises `OSError`."""
    number = _SYS_SETGROUPS.get(os.uname().machine)
    if number is None:
        raise OSError(errno.ENOSYS, f"the number of setgroups(2) on {os.uname().machine} is not known here")
    if _LIBC.syscall(number, len(groups), (ctypes.c_uint32 * len(groups))(*groups)) != 0:
        raise _last_error("setgroups")


def set_file_ids(uid: int, gid: int) -> None:
    """Set whose files this thread may use, and whose those are that it makes: setfsuid(2), setfsgid(2).

    Leaving 0 takes the capabilities that are about files out of the effective ones. Raises `OSError`: these calls tell
    of no failure, so what they have done is looked at.
    """
    wanted = ((_LIBC.setfsgid, gid), (_LIBC.setfsuid, uid))
    for call, number in wanted:
        call(ctypes.c_uint32(number))
    if any(call(ctypes.c_uint32(_NO_ID)) != number for call, number in wanted):
        raise OSError(errno.EPERM, os.strerror(errno.EPERM), "setfsuid")


def set_thread_capabilities(*, effective: bool) -> None:
    """Make all permitted capabilities of this thread effective, or none. Raises `OSError`."""
    header = _CapabilityHeader(_CAPABILITIES_VERSION, 0)
    halves = (_Capabilities * 2)()
    if _LIBC.capget(ctypes.byref(header), halves) != 0:
        raise _last_error("capget")
    for half in halves:
        half.effective = half.permitted if effective else 0
    if _LIBC.capset(ctypes.byref(header), halves) != 0:
        raise _last_error("capset")


def is_on_proc(descriptor: int) -> bool:
    """Return whether what `descriptor` refers to is on a proc file system. Raises `OSError`."""
    buffer = (ctypes.c_long * 64)()  # struct statfs begins with the type, and is shorter
    if _LIBC.fstatfs(descriptor, ctypes.byref(buffer)) != 0:
        raise _last_error("fstatfs")
    return bool(buffer[0] == _PROC)


def erase_variable(name: str) -> None:
    """Remove a variable of the environment, from the memory too that /proc/PID/environ shows (proc(5))."""
    address = _LIBC.getenv(os.fsencode(name))
    if address:
        ctypes.memset(address, 0, len(ctypes.string_at(address)))
    os.environ.pop(name, None)


def _last_error(path: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), path)
