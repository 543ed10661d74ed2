"""Archives in and out: the same tree, whatever its form; hostile ones lead nowhere and cost no more than allowed."""

import asyncio
import contextlib
import gzip
import io
import os
import random
import shutil
import stat
import subprocess
import tarfile
import threading
import time
import tracemalloc
import zipfile
import zlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from shelld_py.client import AsyncClient, Client
from shelld_py.errors import (
    BadArchive,
    FileAlreadyExists,
    FileNotFound,
    FileTooLarge,
    NotADirectory,
    NothingToUndo,
    PathNotAllowed,
    ShelldError,
)
from shelld_py.files import ArchiveFormat, ArchiveResult, CreateRequest, UndoRequest
from shelld_py.files.paths import AllowedDirectories, best_directory_opener
from shelld_py.files.unpacking import Destination, Limits
from shelld_py.linux.removal import remove_tree
from tests.daemons import KEY, RunningDaemon, running_daemon

from .conftest import Desk, DeskMaker

FORMS = list(ArchiveFormat)


async def _read(desk: Desk, path: str, form: ArchiveFormat, **options: Any) -> bytes:
    async with await desk.service.read_archive(path, form, **options) as archive:
        return b"".join([chunk async for chunk in archive.chunks()])


async def _write(
    desk: Desk, path: str, form: ArchiveFormat, data: bytes, *, overwrite: bool = True, step: int = 1 << 16
) -> ArchiveResult:
    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(data), step):
            yield data[start : start + step]

    return await desk.service.write_archive(path, form, pieces(), overwrite=overwrite)


def _plant(root: Path) -> None:
    """Make a tree with one of everything that can be in an archive."""
    (root / "sub/empty").mkdir(parents=True)
    (root / "a.txt").write_text("one\n")
    (root / "empty.txt").touch()
    (root / "sub/large.bin").write_bytes(random.Random(1).randbytes(700_001))
    (root / "sub/zeros.bin").write_bytes(bytes(3_000_000))
    (root / "sub" / ("n" * 200)).write_text("a name too long for the first tar")
    (root / "sub/ümläut and \n newline").write_text("x")
    (root / "run.sh").write_text("#!/bin/sh\n")
    (root / "run.sh").chmod(0o751)
    (root / "link").symlink_to("sub/large.bin")
    (root / "sub/up").symlink_to("../a.txt")
    (root / "sub/dangling").symlink_to("nowhere")
    (root / "sub/empty").chmod(0o500)


def _shown(root: Path) -> dict[str, tuple[Any, ...]]:
    """What is below a directory: kind, mode, and content or target."""
    shown: dict[str, tuple[Any, ...]] = {}
    for path in sorted(root.rglob("*")):
        mode = path.lstat().st_mode
        if stat.S_ISLNK(mode):
            shown[str(path.relative_to(root))] = ("link", os.readlink(path))
        else:
            content = path.read_bytes() if path.is_file() else None
            shown[str(path.relative_to(root))] = (stat.S_IFMT(mode), stat.S_IMODE(mode), content)
    return shown


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("step", [1 << 16, 4099, 777])
def test_tree_comes_back_as_it_was(desk: Desk, form: ArchiveFormat, step: int) -> None:
    """However the bytes come; and the same tree gives the same bytes."""
    _plant(desk.root / "tree")
    data = desk.do(_read(desk, "tree", form))
    assert data == desk.do(_read(desk, "tree", form))
    result = desk.do(_write(desk, "new/copy", form, data, step=step))
    assert _shown(desk.root / "new/copy") == _shown(desk.root / "tree")
    assert (result.path, result.entries) == (str(desk.root / "new/copy"), len(_shown(desk.root / "tree")))
    assert result.bytes >= 3_700_000


def test_byte_by_byte_is_as_good_as_whole(desk: Desk) -> None:
    """Wherever a header is cut."""
    (desk.root / "tree").mkdir()
    (desk.root / "tree/a").write_text("a" * 600)
    (desk.root / "tree/b").symlink_to("a")
    for form in FORMS:
        data = desk.do(_read(desk, "tree", form))
        desk.do(_write(desk, f"copy.{form}", form, data, step=1))
        assert _shown(desk.root / f"copy.{form}") == _shown(desk.root / "tree")


def test_other_programs_read_and_write_the_same(desk: Desk, tmp_path: Path) -> None:
    """GNU tar with long names in its own way and in that of POSIX, and Python's zipfile."""
    _plant(desk.root / "tree")
    expected = _shown(desk.root / "tree")
    for number, options in enumerate((["--format=gnu"], ["--format=posix"], ["--format=ustar", "--exclude=n*"])):
        packed = subprocess.run(["tar", "-c", *options, "-C", desk.root / "tree", "."], capture_output=True, check=True)
        desk.do(_write(desk, f"copy{number}", ArchiveFormat.TAR, packed.stdout))
        without = {name: value for name, value in expected.items() if number < 2 or "nnn" not in name}
        assert _shown(desk.root / f"copy{number}") == without
    there = tmp_path / "there"
    there.mkdir()
    command = ["tar", "-xz", "-C", str(there)]
    subprocess.run(command, input=desk.do(_read(desk, "tree", ArchiveFormat.TAR_GZ)), check=True)
    assert _shown(there) == expected
    with zipfile.ZipFile(io.BytesIO(desk.do(_read(desk, "tree", ArchiveFormat.ZIP)))) as archive:
        assert archive.testzip() is None
        assert archive.read("a.txt") == b"one\n"


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
@pytest.mark.parametrize("seekable", [True, False])
def test_zip_files_of_others(desk: Desk, method: int, *, seekable: bool) -> None:
    """Stored and deflated, with sizes in front or behind, also where those have eight bytes."""
    whole = io.BytesIO()
    whole.seekable = lambda: seekable  # type: ignore[method-assign]
    if not seekable:
        whole.tell = _refuse  # type: ignore[method-assign,assignment]
    with zipfile.ZipFile(whole, "w", method) as archive:
        archive.writestr("d/", b"")
        with archive.open("d/a.txt", "w", force_zip64=True) as file:
            file.write(b"one\n" * 1000)
    if method == zipfile.ZIP_STORED and not seekable:
        with pytest.raises(BadArchive, match="use deflate"):
            desk.do(_write(desk, "copy", ArchiveFormat.ZIP, whole.getvalue()))
        return
    desk.do(_write(desk, "copy", ArchiveFormat.ZIP, whole.getvalue()))
    assert (desk.root / "copy/d/a.txt").read_bytes() == b"one\n" * 1000


def _refuse() -> int:
    raise OSError


def test_further_names_stay_names_in_a_tar(desk: Desk) -> None:
    """Of a zip each is a file."""
    (desk.root / "tree").mkdir()
    (desk.root / "tree/a").write_text("x")
    os.link(desk.root / "tree/a", desk.root / "tree/b")
    for form, links in ((ArchiveFormat.TAR, 2), (ArchiveFormat.ZIP, 1)):
        desk.do(_write(desk, form, form, desk.do(_read(desk, "tree", form))))
        assert (desk.root / form / "b").stat().st_nlink == links
        assert (desk.root / form / "b").read_text() == "x"


def test_names_of_any_bytes_pass_through_a_tar(desk: Desk) -> None:
    """File systems have them."""
    name = os.fsdecode(b"caf\xe9")
    (desk.root / "tree").mkdir()
    (desk.root / "tree" / name).write_text("x")
    desk.do(_write(desk, "copy", ArchiveFormat.TAR, desk.do(_read(desk, "tree", ArchiveFormat.TAR))))
    assert os.listdir(desk.root / "copy") == [name]


def test_single_file_is_an_archive_too(desk: Desk) -> None:
    """Under its own name."""
    (desk.root / "a.txt").write_text("one\n")
    with tarfile.open(fileobj=io.BytesIO(desk.do(_read(desk, "a.txt", ArchiveFormat.TAR)))) as archive:
        assert archive.getnames() == ["a.txt"]


def test_what_is_left_out(desk: Desk) -> None:
    """By globs, by .gitignore, and what is no file; links are not followed."""
    tree = desk.root / "tree"
    (tree / "node_modules/x").mkdir(parents=True)
    (tree / ".git").mkdir()
    (tree / ".git/config").touch()
    (tree / ".gitignore").write_text("*.log\n")
    for name in ("a.py", "a.log", "b.pyc"):
        (tree / name).touch()
    os.mkfifo(tree / "fifo")
    (tree / "out").symlink_to(desk.outside)
    (desk.outside / "secret").write_text("x")

    def names(**options: Any) -> list[str]:
        data = desk.do(_read(desk, "tree", ArchiveFormat.TAR, **options))
        with tarfile.open(fileobj=io.BytesIO(data)) as archive:
            return archive.getnames()

    inner = ["node_modules", "node_modules/x", "out"]
    assert names() == [".git", ".git/config", ".gitignore", "a.log", "a.py", "b.pyc", *inner]
    assert names(ignored=False) == [".git", ".git/config", ".gitignore", "a.py", "b.pyc", *inner]
    assert names(exclude=["*.pyc", "node_modules", ".git*"]) == ["a.log", "a.py", "out"]


def test_places_are_those_of_all_operations(desk: Desk) -> None:
    """Outside of the allowed directories, nothing; below a file, nothing."""
    (desk.root / "a.txt").touch()
    (desk.root / "out").symlink_to(desk.outside)
    data = desk.do(_read(desk, "a.txt", ArchiveFormat.TAR))
    for path in (str(desk.outside), "out", "../outside", "out/deeper"):
        with pytest.raises(PathNotAllowed):
            desk.do(_read(desk, path, ArchiveFormat.TAR))
        with pytest.raises(PathNotAllowed):
            desk.do(_write(desk, path, ArchiveFormat.TAR, data))
    with pytest.raises(FileNotFound):
        desk.do(_read(desk, "b.txt", ArchiveFormat.TAR))
    for path in ("a.txt", "a.txt/b"):
        with pytest.raises(NotADirectory):
            desk.do(_write(desk, path, ArchiveFormat.TAR, data))
    assert os.listdir(desk.outside) == []


def _member(name: str, kind: bytes = tarfile.REGTYPE, content: bytes = b"", **fields: Any) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(content)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


def _tar(*members: tarfile.TarInfo, content: bytes = b"", form: int = tarfile.PAX_FORMAT) -> bytes:
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w", format=form) as archive:
        for member in members:
            archive.addfile(member, io.BytesIO(content))
    return whole.getvalue()


def _zip(name: str, content: bytes, mode: int = 0, **fields: Any) -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as archive:
        info = zipfile.ZipInfo(name)
        info.external_attr = mode << 16
        info.create_system = 3
        for field, value in fields.items():
            setattr(info, field, value)
        archive.writestr(info, content)
    return whole.getvalue()


def _extended(records: bytes) -> bytes:
    header = _member("x", tarfile.XHDTYPE, content=records).tobuf(tarfile.USTAR_FORMAT)
    return header + records.ljust(512, b"\0") + _tar(_member("d"))


_HARD, _SOFT = tarfile.LNKTYPE, tarfile.SYMTYPE
_HOSTILE: dict[str, tuple[bytes, str]] = {
    "above": (_tar(_member("../evil")), r"has \.\. in its name"),
    "above, later": (_tar(_member("a/../../evil")), r"has \.\. in its name"),
    "absolute link": (_tar(_member("l", _SOFT, linkname="/etc/passwd")), "may lead out"),
    "link above": (_tar(_member("l", _SOFT, linkname="../evil")), "may lead out"),
    "link above from below": (_tar(_member("a/b/l", _SOFT, linkname="../../../evil")), "may lead out"),
    "link by way of another": (
        _tar(_member("a/b/up", _SOFT, linkname="../.."), _member("l", _SOFT, linkname="a/b/up/../evil")),
        "may lead out",
    ),
    "empty link": (_tar(_member("l", _SOFT, linkname="")), "cannot be a path"),
    "hard link above": (_tar(_member("l", _HARD, linkname="../outside/secret")), "outside of the directory"),
    "absolute hard link": (_tar(_member("l", _HARD, linkname="/etc/passwd")), "outside of the directory"),
    "hard link to a link": (
        _tar(_member("s", _SOFT, linkname="x"), _member("l", _HARD, linkname="s")),
        "no file that is there",
    ),
    "hard link to a NUL": (_tar(_member("l", _HARD, pax_headers={"linkpath": "d\0/a"})), "outside of the directory"),
    "hard link to nothing": (_tar(_member("l", _HARD, linkname="none/there")), "not there"),
    "device": (_tar(_member("d", tarfile.CHRTYPE, devmajor=1, devminor=3)), "neither a file"),
    "fifo": (_tar(_member("d", tarfile.FIFOTYPE)), "neither a file"),
    "sparse": (_tar(_member("d", tarfile.GNUTYPE_SPARSE)), "neither a file"),
    "sparse of pax": (_tar(_member("d", pax_headers={"GNU.sparse.major": "1"})), "sparse"),
    "name too long": (_tar(_member("n" * 5000)), "cannot be one"),
    "no name": (_tar(_member(".")), "without a name"),
    "large extended header": (_tar(_member("d", pax_headers={"comment": "x" * 100_000})), "too large"),
    "link of a zip": (_zip("l", b"../../etc/passwd", stat.S_IFLNK | 0o777), "may lead out"),
    "device of a zip": (_zip("d", b"", stat.S_IFCHR | 0o666), "neither a file"),
    "above in a zip": (_zip("../evil", b"x"), r"has \.\. in its name"),
    "directory with content": (_zip("d/", b"x"), "directory with content"),
    "extended header without a length": (_extended(b"there is no length=1\n"), "a record that is none"),
    "no archive": (b"this is no archive" * 100, "not a"),
    "nothing": (b"", "ends before it is whole"),
}


@pytest.mark.parametrize("name", _HOSTILE)
def test_hostile_entries_are_refused(desk: Desk, name: str) -> None:
    """In words, with nothing outside touched."""
    data, words = _HOSTILE[name]
    (desk.outside / "secret").write_text("x")
    form = ArchiveFormat.ZIP if data.startswith(b"PK") else ArchiveFormat.TAR
    with pytest.raises(BadArchive, match=words) as refusal:
        desk.do(_write(desk, "copy", form, data))
    assert refusal.value.extra.keys() >= {"entries", "bytes", "entry"}
    assert os.listdir(desk.outside) == ["secret"]
    assert sorted(os.listdir(desk.root)) in ([], ["copy"])


def test_what_can_be_cleaned_is_cleaned(desk: Desk) -> None:
    """A name from the root becomes one without; bits for set-id are dropped; the owner is the daemon."""
    members = [
        _member("/abs/a", content=b"x", mode=0o6755, uid=12, gid=13),
        _member("./d", tarfile.DIRTYPE, mode=0o1700),
    ]
    desk.do(_write(desk, "copy", ArchiveFormat.TAR, _tar(*members, content=b"x")))
    status = (desk.root / "copy/abs/a").stat()
    assert (stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid) == (0o755, os.geteuid(), os.getegid())
    assert stat.S_IMODE((desk.root / "copy/d").stat().st_mode) == 0o700
    desk.do(_write(desk, "copy", ArchiveFormat.ZIP, _zip("b", b"x", stat.S_IFREG | 0o4711)))
    assert stat.S_IMODE((desk.root / "copy/b").stat().st_mode) == 0o711


def test_nothing_is_written_through_a_link(desk: Desk) -> None:
    """Neither one that is there nor one of the archive; a file takes the place of a link, not of its target."""
    copy = desk.root / "copy"
    copy.mkdir()
    (desk.root / "other").mkdir()
    (copy / "d").symlink_to("../other")
    with pytest.raises(NotADirectory, match="link"):
        desk.do(_write(desk, "copy", ArchiveFormat.TAR, _tar(_member("d/a"))))
    own = _tar(_member("e", _SOFT, linkname="f"), _member("f", tarfile.DIRTYPE), _member("e/a"))
    with pytest.raises(NotADirectory, match="link"):
        desk.do(_write(desk, "copy", ArchiveFormat.TAR, own))
    (desk.outside / "kept").write_text("kept")
    (copy / "a").symlink_to(desk.outside / "kept")
    os.link(desk.outside / "kept", copy / "b")
    desk.do(
        _write(
            desk,
            "copy",
            ArchiveFormat.TAR,
            _tar(_member("a", content=b"new"), _member("b", content=b"new"), content=b"new"),
        )
    )
    assert ((copy / "a").read_text(), (copy / "b").read_text()) == ("new", "new")
    assert (desk.outside / "kept").read_text() == "kept"
    assert os.listdir(desk.root / "other") == []


def test_directory_swapped_for_a_link_leads_nowhere(desk: Desk) -> None:
    """While the archive is unpacked, something exchanges a directory of it and a link out."""
    data = _tar(*(_member(f"d/{number % 7}/f{number}") for number in range(300)))
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for name in range(7):
                place = desk.root / f"copy/d/{name}"
                with contextlib.suppress(OSError):
                    place.rename(f"{place}.moved")
                with contextlib.suppress(OSError):
                    place.symlink_to(desk.outside)
                    place.unlink()
                with contextlib.suppress(OSError):
                    Path(f"{place}.moved").rename(place)

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        for _ in range(10):
            with contextlib.suppress(ShelldError):
                desk.do(_write(desk, "copy", ArchiveFormat.TAR, data))
    finally:
        stop.set()
        swapper.join()
    assert os.listdir(desk.outside) == []


def test_overwrite_is_asked_for(desk: Desk) -> None:
    """Without it, what is there stays, and the error says what was unpacked before."""
    copy = desk.root / "copy"
    desk.do(desk.service.perform(CreateRequest(path="copy/b", content="old")))
    data = _tar(_member("a"), _member("b"), _member("c"))
    with pytest.raises(FileAlreadyExists, match="overwrite is false") as refusal:
        desk.do(_write(desk, "copy", ArchiveFormat.TAR, data, overwrite=False))
    assert (refusal.value.extra["entries"], refusal.value.extra["entry"]) == (1, "b")
    assert ((copy / "b").read_text(), sorted(os.listdir(copy))) == ("old", ["a", "b"])
    desk.do(_write(desk, "copy", ArchiveFormat.TAR, data))
    assert ((copy / "b").read_text(), sorted(os.listdir(copy))) == ("", ["a", "b", "c"])
    with pytest.raises(NothingToUndo):
        desk.do(desk.service.perform(UndoRequest(path="copy/b")))
    (copy / "d").mkdir()
    with pytest.raises(FileAlreadyExists, match="is a directory"):
        desk.do(_write(desk, "copy", ArchiveFormat.TAR, _tar(_member("d"))))


def _bombs() -> Iterator[tuple[str, ArchiveFormat, bytes]]:
    zeros = bytes(1 << 20)
    plain = _tar(_member("big", content=zeros), content=zeros)
    yield "gzip", ArchiveFormat.TAR_GZ, gzip.compress(plain)
    yield "zip", ArchiveFormat.ZIP, _zip("big", zeros * 20)
    yield "many", ArchiveFormat.TAR, _tar(*(_member(str(number)) for number in range(60)))
    yield "many directories", ArchiveFormat.ZIP, _many_directories()
    yield "directories on the way", ArchiveFormat.TAR, _tar(_member("d/" * 60 + "f"))
    claimed = _member("big")
    claimed.size = 1 << 50
    yield "claimed", ArchiveFormat.TAR, claimed.tobuf(tarfile.GNU_FORMAT) + bytes(300_000)


def _many_directories() -> bytes:
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w") as archive:
        for number in range(60):
            archive.writestr(f"{number}/", b"")
    return whole.getvalue()


@pytest.mark.parametrize(("form", "data"), [bomb[1:] for bomb in _bombs()], ids=[bomb[0] for bomb in _bombs()])
def test_bombs_stop_at_the_limit(make_desk: DeskMaker, form: ArchiveFormat, data: bytes) -> None:
    """Of bytes or of entries, with little memory, and no half a file is left."""
    desk = make_desk(max_archive_size=200_000, max_archive_entries=50)
    tracemalloc.start()
    try:
        with pytest.raises(FileTooLarge, match=r"files\.max_archive_") as refusal:
            desk.do(_write(desk, "copy", form, data))
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()
    assert refusal.value.extra["entries"] in (0, 50)
    assert "big" not in os.listdir(desk.root / "copy") if (desk.root / "copy").exists() else True


def test_names_have_a_bound_of_their_own(desk: Desk) -> None:
    """They are remembered while an archive is unpacked: a hundred thousand of 4 KB are refused."""
    directories = AllowedDirectories(str(desk.root), (str(desk.root),), best_directory_opener())
    with directories.locate("file") as place:
        there = Destination(place, best_directory_opener(), Limits(0, 0), lambda _: None, overwrite=True)
        for _ in range(8192):
            there.begin("n" * 4096)
        with pytest.raises(FileTooLarge, match="names in the archive have more than 32MiB"):
            there.begin("n")
        there.close()
    assert there.entries == 0


def test_unpacking_ends_when_nobody_waits_for_it(make_desk: DeskMaker) -> None:
    """After a cancellation nothing more is begun, though one piece of the archive would be hours of work."""
    desk = make_desk(max_archive_entries=0)
    many = gzip.compress(b"".join(_deep_member(number) for number in range(20_000)))
    assert len(many) < 1 << 20

    async def cancelled() -> None:
        task = asyncio.ensure_future(_write(desk, "copy", ArchiveFormat.TAR_GZ, many, step=1 << 20))
        while not (desk.root / "copy" / "9").exists():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    desk.do(cancelled())
    assert len(os.listdir(desk.root / "copy")) < 10_000
    remove_tree(str(desk.root / "copy"))


def _deep_member(number: int) -> bytes:
    return _member(f"{number}/" + "a/" * 100 + "f").tobuf(tarfile.GNU_FORMAT)


def test_endless_headers_are_refused(desk: Desk) -> None:
    """They name nothing and would never end."""
    header = _tar(_member("x", pax_headers={"comment": "c"}))[:1024]
    with pytest.raises(BadArchive, match="too many for one entry"):
        desk.do(_write(desk, "copy", ArchiveFormat.TAR, header * 50))


def _samples() -> list[tuple[ArchiveFormat, bytes]]:
    members = _member("d", tarfile.DIRTYPE), _member("d/a", content=b"x" * 600), _member("l", _SOFT, linkname="d/a")
    plain = _tar(*members, content=b"x" * 600)[: 512 * 7]
    zipped = _zip("d/a", b"x" * 600, stat.S_IFREG | 0o644)
    return [(ArchiveFormat.TAR, plain), (ArchiveFormat.TAR_GZ, gzip.compress(plain)), (ArchiveFormat.ZIP, zipped)]


@pytest.mark.parametrize(("form", "data"), _samples(), ids=FORMS)
def test_cut_archives_are_refused(desk: Desk, form: ArchiveFormat, data: bytes) -> None:
    """Wherever they are cut before their end is seen: what broke off does not look whole."""
    needed = {ArchiveFormat.TAR: 512 * 6, ArchiveFormat.TAR_GZ: len(data) - 30, ArchiveFormat.ZIP: len(data) - 18}[form]
    for end in range(0, needed, 7):
        with pytest.raises(BadArchive):
            desk.do(_write(desk, "copy", form, data[:end]))
    assert not [path for path in desk.root.rglob("*") if path.name.endswith(".tmp")]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(_samples()), st.data())
def test_damaged_archives_never_do_more_than_fail(
    make_desk_once: Callable[[], Desk], sample: tuple[ArchiveFormat, bytes], data: st.DataObject
) -> None:
    """With any bytes changed, they are unpacked, or refused in words."""
    form, whole = sample
    changed = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    if form is ArchiveFormat.TAR_GZ and data.draw(st.booleans()):
        plain = bytearray(zlib.decompress(whole, 31))
        plain[data.draw(st.integers(0, len(plain) - 1))] = data.draw(st.integers(0, 255))
        changed = bytearray(gzip.compress(bytes(plain)))
    desk = make_desk_once()
    with contextlib.suppress(ShelldError):
        desk.do(_write(desk, "copy", form, bytes(changed)))
    shutil.rmtree(desk.root / "copy", ignore_errors=True)
    assert os.listdir(desk.root) == []
    assert os.listdir(desk.outside) == []


@pytest.fixture
def make_desk_once(make_desk: DeskMaker) -> Callable[[], Desk]:
    """The same desk for all examples."""
    desk = make_desk(max_archive_size=100_000)
    return lambda: desk


def test_deep_tree_is_packed_and_unpacked(desk: Desk) -> None:
    """Deeper than Python calls itself."""
    deep = "d/" * 1_500
    desk.do(desk.service.perform(CreateRequest(path=f"t/{deep}a", content="x")))
    data = desk.do(_read(desk, "t", ArchiveFormat.TAR_GZ))
    assert desk.do(_write(desk, "u", ArchiveFormat.TAR_GZ, data)).entries == 1_501
    assert (desk.root / "u" / deep / "a").read_text() == "x"
    for tree in ("t", "u"):
        remove_tree(str(desk.root / tree))  # pytest could not


def test_file_that_shrinks_under_the_reader_keeps_its_place(desk: Desk) -> None:
    """It is filled up with zeros, and what follows is whole."""
    tree = desk.root / "tree"
    tree.mkdir()
    (tree / "a").write_bytes(b"a" * 3_000_000)
    (tree / "b").write_text("b")

    async def work() -> bytes:
        async with await desk.service.read_archive("tree", ArchiveFormat.TAR) as archive:
            pieces: list[bytes] = []
            async for chunk in archive.chunks():
                if not pieces:
                    os.truncate(tree / "a", 10)
                pieces.append(chunk)
            return b"".join(pieces)

    with tarfile.open(fileobj=io.BytesIO(desk.do(work()))) as archive:
        assert [member.size for member in archive.getmembers()] == [3_000_000, 1]
        last = archive.extractfile("b")
        assert last is not None
        assert last.read() == b"b"


@pytest.fixture(scope="module")
def archive_daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningDaemon]:
    """A daemon that takes small bodies, and archives of a megabyte."""
    config = '[server]\nmax_body = "10KiB"\n[files]\nmax_archive_size = "1MiB"\n'
    with running_daemon(tmp_path_factory.mktemp("archives"), config=config) as daemon:
        yield daemon


def test_archives_over_http(archive_daemon: RunningDaemon) -> None:
    """Larger than other bodies may be, with a type and a name, and refusals with what was done."""
    client, work = archive_daemon.client, archive_daemon.data.parent / "work"
    (work / "träe").mkdir()
    (work / "träe/a.bin").write_bytes(os.urandom(500_000))
    for form, media_type in (("tar", "application/x-tar"), ("tar.gz", "application/gzip"), ("zip", "application/zip")):
        answer = client.get("/files/archive", params={"path": "träe", "format": form})
        assert (answer.status_code, answer.headers["content-type"]) == (200, media_type)
        assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''tr%C3%A4e.{form}"
        head = client.head("/files/archive", params={"path": "träe", "format": form})
        assert (head.status_code, head.headers["content-type"], head.content) == (200, media_type, b"")
        done = client.put("/files/archive", params={"path": f"c/{form}", "format": form}, content=answer.content)
        assert done.json() == {"path": str(work / "c" / form), "entries": 1, "bytes": 500_000}
        assert (work / "c" / form / "a.bin").read_bytes() == (work / "träe/a.bin").read_bytes()
    big = _tar(_member("a"), _member("b", content=bytes(1 << 21)), content=bytes(1 << 21))
    answer = client.put("/files/archive", params={"path": "big"}, content=gzip.compress(big))
    assert (answer.status_code, answer.json()["code"], answer.json()["entries"]) == (413, "file_too_large", 1)
    for query, status in (
        ({"path": "träe", "format": "rar"}, 400),
        ({"path": "träe", "exclude": "[z-a]"}, 400),
        ({"path": "none"}, 404),
        ({"path": "/etc"}, 403),
        ({}, 400),
        ({"path": ""}, 400),
    ):
        assert client.get("/files/archive", params=query).status_code == status, query
    assert client.put("/files/archive?path=x", content=b"x").json()["code"] == "bad_archive"


def test_broken_upload_leaves_whole_files(archive_daemon: RunningDaemon) -> None:
    """What came before the connection was lost is there; of the file in the making there is nothing."""
    work = archive_daemon.data.parent / "work"
    data = _tar(_member("a", content=b"x" * 9000), _member("b", content=b"x" * 9000), content=b"x" * 9000)

    def half() -> Iterator[bytes]:
        yield data[:12_000]
        deadline = time.monotonic() + 20
        while not (work / "broken/a").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        archive_daemon.client.put("/files/archive", params={"path": "broken", "format": "tar"}, content=half())
    assert archive_daemon.client.get("/health").status_code == 200
    assert os.listdir(work / "broken") == ["a"]
    assert (work / "broken/a").stat().st_size == 9000


def test_clients_have_archives(archive_daemon: RunningDaemon) -> None:
    """The blocking one and the other, with the refusals as errors."""
    work = archive_daemon.data.parent / "work"
    (work / "mine").mkdir()
    (work / "mine/a.txt").write_text("one\n")
    (work / "mine/a.log").write_text("no")
    with Client(archive_daemon.url, KEY) as client:
        data = client.files.read_archive("mine", exclude=["*.log"])
        assert client.files.write_archive("yours", data).entries == 1
        with pytest.raises(FileAlreadyExists):
            client.files.write_archive("yours", data, overwrite=False)
        with pytest.raises(BadArchive):
            client.files.write_archive("yours", data, format="zip")

    async def asynchronous() -> int:
        async with AsyncClient(archive_daemon.url, KEY) as client:
            data = await client.files.read_archive("mine", format="zip")
            return (await client.files.write_archive("theirs", data, format="zip")).bytes

    assert asyncio.run(asynchronous()) == 6
