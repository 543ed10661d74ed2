"""Archives on their way in: tar, tar.gz and zip, parsed as they come, piece by piece.

An archive is hostile. Nothing of it is held but a header and the bytes at hand; whatever in it has a length is bounded,
and so is what it says twice. Knows nothing of where the bytes come from, waits for nothing, and leaves to the
`Destination` what may be written.
"""

import contextlib
import encodings.cp437  # noqa: F401  # of old zip files; a thread that asks for it may not be able to read it
import os
import stat
import struct
import zlib
from collections.abc import Callable, Generator

from shelld_py.errors import BadArchive, ShelldError
from shelld_py.files.models import ArchiveFormat, ArchiveResult
from shelld_py.files.open_file import meaning
from shelld_py.files.paths import displayable
from shelld_py.files.storage import CHUNK
from shelld_py.files.unpacking import Destination

_BLOCK = 512
"""Bytes of a header of tar, of which everything in it is a multiple."""
_MOST_HEADER = 64 << 10
"""Bytes of an extended header of tar: a name and a target of 4096 bytes each are far below."""
_MOST_IN_A_ROW = 4
"""Extended headers before one entry: a name and a target of GNU tar, and the two of pax."""
_KEYS = frozenset({"path", "linkpath", "size", "mtime"})
"""What of an extended header counts here."""
_SPARSE = "GNU.sparse"

_Steps = Generator[None, None, None]
"""What takes steps: it yields when it needs more bytes."""


class Unpacker:
    """Takes an archive in pieces, and unpacks what they hold."""

    def __init__(self, form: ArchiveFormat, destination: Destination) -> None:
        self._destination = destination
        self._pending = bytearray()
        self._ended = False
        self._done = False
        self._gzip = zlib.decompressobj(31) if form is ArchiveFormat.TAR_GZ else None
        self._steps = self._zip() if form is ArchiveFormat.ZIP else self._tar()

    def feed(self, data: bytes) -> bool:
        """Take the next bytes; return whether more are wanted.

        Raises `BadArchive`, `FileTooLarge`, and what writing raises, each with what has been written before.
        """
        with self._telling():
            if self._gzip is None:
                return self._step(data)
            while data and not self._done:
                try:
                    plain = self._gzip.decompress(data, CHUNK)
                except zlib.error as error:
                    raise BadArchive(f"The archive is not what gzip has made: {error}.") from None
                data = self._gzip.unconsumed_tail
                if self._gzip.eof:  # another member may follow (RFC 1952, 2.2)
                    data = self._gzip.unused_data
                    self._gzip = zlib.decompressobj(31)
                self._step(plain)
            return not self._done

    def finish(self) -> ArchiveResult:
        """Return what has been unpacked. Raises `BadArchive` where the end of the archive is missing."""
        with self._telling():
            self._ended = True
            if not self._done:
                self._step(b"")
            return self._destination.finish()

    def stop(self) -> None:
        """Have what is being unpacked, in another thread, end at its next entry or piece: nobody waits for it."""
        self._destination.stopped = True

    @contextlib.contextmanager
    def _telling(self) -> Generator[None, None, None]:
        """Add to every error what has been written, and where it stopped."""
        there = self._destination
        try:
            yield
        except (ShelldError, OSError) as fault:
            error = meaning(fault, os.path.join(there.path, there.entry)) if isinstance(fault, OSError) else fault
            entry = displayable(there.entry[:200])
            told = f"It stopped at {entry!r}; {there.entries} entries had been unpacked, {there.size} bytes in all."
            members = {**error.extra, "entries": there.entries, "bytes": there.size, "entry": entry}
            raise type(error)(f"{error.detail} {told}", **members) from None

    def _step(self, data: bytes) -> bool:
        self._pending += data
        try:
            next(self._steps)
        except StopIteration:
            self._done = True
        return not self._done

    def _take(self, size: int) -> Generator[None, None, bytes]:
        """Return the next `size` bytes."""
        while len(self._pending) < size:
            if self._ended:
                raise BadArchive("The archive ends before it is whole.")
            yield
        data = bytes(self._pending[:size])
        del self._pending[:size]
        return data

    def _copy(self, size: int, use: Callable[[bytes], object]) -> _Steps:
        """Hand the next `size` bytes to `use`, as they come."""
        while size:
            data = yield from self._take(min(size, max(1, min(len(self._pending), CHUNK))))
            use(data)
            size -= len(data)

    # --- tar: pax(1), "ustar Interchange Format" and "pax Interchange Format", and what GNU tar adds ---------------

    def _tar(self) -> _Steps:
        there = self._destination
        common: dict[str, str] = {}
        own: dict[str, str] = {}
        in_a_row = 0
        while True:
            header = yield from self._take(_BLOCK)
            if not header.strip(b"\0"):
                return
            kind = header[156:157]
            size = _checked_size(header)
            if kind in b"xgLK":
                in_a_row += 1
                if size > _MOST_HEADER or in_a_row > _MOST_IN_A_ROW:
                    raise BadArchive("The archive has an extended header that is too large, or too many for one entry.")
                data = yield from self._take(size)
                yield from self._take(-size % _BLOCK)
                if kind == b"L":
                    own["path"] = os.fsdecode(data.rstrip(b"\0"))
                elif kind == b"K":
                    own["linkpath"] = os.fsdecode(data.rstrip(b"\0"))
                else:
                    (common if kind == b"g" else own).update(_pax_records(data))
                continue
            in_a_row = 0
            told = {**common, **own}
            own = {}
            raw = told.get("path") or _tar_name(header)
            name = there.begin(raw)
            if _SPARSE in told:
                there.refuse("is a sparse file; pack it without --sparse")
            size = _whole_number(told["size"]) if "size" in told else size
            mode = _number(header[100:108])
            if kind == b"5" or (kind in b"0\0" and raw.endswith("/") and not size):  # the latter by tars of old
                there.directory(name, mode)
                size = 0
            elif kind in b"0\0" + b"7":
                there.open_file(name)
                yield from self._copy(size, there.write)
                there.close_file(name, mode, _time(told.get("mtime"), _number(header[136:148])))
            elif kind in b"12":
                target = told.get("linkpath") or os.fsdecode(header[157:257].split(b"\0")[0])
                (there.hard_link if kind == b"1" else there.symbolic_link)(name, target)
                size = 0
            else:
                there.refuse("is neither a file nor a directory nor a link")
            yield from self._take(-size % _BLOCK)

    # --- zip: APPNOTE.TXT of PKWARE, 4.3 ----------------------------------------------------------------------------

    def _zip(self) -> _Steps:
        there = self._destination
        names: dict[bytes, str] = {}
        while True:
            signature = yield from self._take(4)
            if signature == b"PK\x03\x04":
                yield from self._zip_entry(names)
            elif signature == b"PK\x01\x02":
                yield from self._zip_directory_entry(names)
            elif signature in (b"PK\x05\x06", b"PK\x06\x06"):
                if names:
                    there.entry = os.fsdecode(next(iter(names)))
                    there.refuse("is not in the archive's directory")
                return
            else:
                raise BadArchive("The archive is not a zip file, or is damaged.")

    def _zip_entry(self, names: dict[bytes, str]) -> _Steps:
        there = self._destination
        header = yield from self._take(26)
        _, flags, method, _, _, checksum, packed, size, name_length, extra_length = struct.unpack("<HHHHHIIIHH", header)
        raw = yield from self._take(name_length)
        extra = yield from self._take(extra_length)
        name = there.begin(_zip_name(raw, flags))
        size, packed = _zip64(extra, size, packed)
        if flags & 0x2041:
            there.refuse("is encrypted")
        if raw.endswith(b"/") and method == 0 and flags & 8:
            size = 0  # who writes to where he cannot go back says so at the end only, and a directory has nothing
        elif method not in (0, 8) or (method == 0 and flags & 8):
            there.refuse("is packed in a way that cannot be read as it comes; use deflate")
        if raw in names:
            there.refuse("is there twice")
        names[raw] = name
        if raw.endswith(b"/"):
            there.directory(name, None)
        else:
            there.open_file(name)
        seen = _Checksum(there.write if not raw.endswith(b"/") else self._refuse_content)
        if method == 0:
            yield from self._copy(size, seen.take)
        else:
            yield from self._inflate(seen.take)
        if flags & 8:
            # The signature is optional, and sizes have 8 bytes where there is a zip64 field. What follows tells.
            start = yield from self._take(4)
            checksum = struct.unpack("<I", (yield from self._take(4)) if start == b"PK\x07\x08" else start)[0]
            yield from self._take(16 if _has_zip64(extra) else 8)
        if seen.value != checksum:
            there.refuse("is damaged: its checksum does not fit")
        if not raw.endswith(b"/"):
            there.close_file(name, None, None)

    def _refuse_content(self, data: bytes) -> None:
        if data:
            self._destination.refuse("is a directory with content")

    def _inflate(self, use: Callable[[bytes], object]) -> _Steps:
        inflater = zlib.decompressobj(-15)
        while not inflater.eof:
            data = yield from self._take(max(1, min(len(self._pending), CHUNK)))
            while data and not inflater.eof:
                try:
                    use(inflater.decompress(data, CHUNK))
                except zlib.error:
                    self._destination.refuse("is damaged")
                data = inflater.unconsumed_tail
        self._pending[:0] = inflater.unused_data

    def _zip_directory_entry(self, names: dict[bytes, str]) -> _Steps:
        header = yield from self._take(42)
        flags, lengths, attributes = struct.unpack("<H", header[4:6])[0], header[24:30], header[34:38]
        system = header[1]
        name_length, extra_length, comment_length = struct.unpack("<HHH", lengths)
        raw = yield from self._take(name_length)
        yield from self._take(extra_length)
        yield from self._take(comment_length)
        there = self._destination
        there.entry = _zip_name(raw, flags)
        if raw not in names:
            there.refuse("is in the archive's directory, but not in the archive, or twice")
        name = names.pop(raw)
        mode = struct.unpack("<I", attributes)[0] >> 16
        if system == 3 and mode and stat.S_ISDIR(mode) is raw.endswith(b"/"):  # made on Unix
            there.amend(name, mode)


class _Checksum:
    """Passes data on and sums it up."""

    def __init__(self, use: Callable[[bytes], object]) -> None:
        self._use = use
        self.value = 0

    def take(self, data: bytes) -> None:
        self.value = zlib.crc32(data, self.value)
        self._use(data)


def _checked_size(header: bytes) -> int:
    """Return the size in a header of tar. Raises `BadArchive` for what is none."""
    unsigned = sum(header[:148]) + sum(header[156:]) + 8 * 32
    if _number(header[148:156]) != unsigned:
        raise BadArchive("The archive is not a tar file, or is damaged: the checksum of a header does not fit.")
    return _number(header[124:136])


def _number(field: bytes) -> int:
    """Return a number of tar: octal, or with the first bit set binary (GNU tar)."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    text = field.split(b"\0")[0].strip()
    if not text:
        return 0
    if text.strip(b"01234567"):
        raise BadArchive("The archive is not a tar file, or is damaged: a number in a header is none.")
    return int(text, 8)


def _whole_number(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise BadArchive("The archive is damaged: the size in an extended header is no number.")
    return int(text)


def _time(told: str | None, whole: int) -> float:
    with contextlib.suppress(ValueError):
        return float(told[:32]) if told else float(whole)
    return float(whole)


def _tar_name(header: bytes) -> str:
    name = header[:100].split(b"\0")[0]
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return os.fsdecode(prefix + b"/" + name if prefix else name)


def _pax_records(data: bytes) -> dict[str, str]:
    """Return the records of an extended header: `LENGTH KEY=VALUE` and a newline each."""
    records: dict[str, str] = {}
    at = 0
    while at < len(data):
        space = data.find(b" ", at, at + 8)
        length = data[at:space] if space > at else b""
        end = at + int(length) if length.isdigit() else 0
        key, equals, value = data[space + 1 : end - 1].partition(b"=")
        if end <= max(space, at) or end > len(data) or not equals:  # each record goes on, so there is an end
            raise BadArchive("The archive is damaged: an extended header has a record that is none.")
        if (name := os.fsdecode(key)) in _KEYS or name.startswith("GNU.sparse."):
            records[name if name in _KEYS else _SPARSE] = os.fsdecode(value)
        at = end
    return records


def _zip_name(raw: bytes, flags: int) -> str:
    return os.fsdecode(raw) if flags & 0x800 or raw.isascii() else raw.decode("cp437")


def _fields(extra: bytes) -> dict[int, bytes]:
    """Return the extra fields of a zip entry by their kinds."""
    fields: dict[int, bytes] = {}
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        fields.setdefault(kind, extra[at + 4 : at + 4 + length])
        at += 4 + length
    return fields


def _has_zip64(extra: bytes) -> bool:
    return 1 in _fields(extra)


def _zip64(extra: bytes, size: int, packed: int) -> tuple[int, int]:
    """Return the sizes, from the field for large files where they are there."""
    field = _fields(extra).get(1, b"")
    if size == 0xFFFFFFFF and len(field) >= 8:
        size, field = struct.unpack("<Q", field[:8])[0], field[8:]
    if packed == 0xFFFFFFFF and len(field) >= 8:
        packed = struct.unpack("<Q", field[:8])[0]
    return size, packed
