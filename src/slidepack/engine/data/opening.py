"""Opens a data file as a stream of plain bytes: gzip and zstd are unpacked on the way.

Memory stays bounded whatever the file claims to hold, and a file that breaks off says how far it
could be read.
"""

import gzip
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Final, Literal, Protocol

import zstandard

from slidepack.engine.contract.errors import SlidepackError

CHUNK_BYTES: Final = 1 << 20
DAMAGED_CODE: Final = "DATA-CUT-OFF"
"""Of a file that breaks off or whose bytes contradict themselves."""

_ZSTD_STEP_BYTES: Final = 512
"""Fed at a time: four bytes of zstd can unpack to 128 KiB, so a step gives 16 MiB at most."""
_ZSTD_WINDOW_BYTES: Final = 128 << 20
"""What the `zstd` command takes without asking."""

Compression = Literal["gzip", "zstd"]
_MAGIC: Final[dict[bytes, Compression]] = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}
_SUFFIXES: Final = (".gz", ".gzip", ".zst", ".zstd")


class ByteStream(Protocol):
    """What the readers need of an open file."""

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, and b"" at the end only."""


class Source:
    """A data file that can be opened any number of times."""

    def __init__(
        self,
        path: Path,
        on_bytes: Callable[[int], None] | None = None,
        name: str | None = None,
    ) -> None:
        """Look at the first bytes.

        Args:
            path: of the file; its suffix is the one that counts.
            on_bytes: told how many bytes of the file have been read.
            name: what the user calls the file, where that is not the path's own name.

        Raises:
            SlidepackError: DATA-NOT-FOUND.
        """
        self.path = path
        self.name = path.name if name is None else name
        """What the user calls the file, for messages."""
        self._on_bytes = on_bytes
        self._furthest = 0
        try:
            if path.exists() and not path.is_file():
                raise _not_found(f"{path} is not a file")
            with path.open("rb") as file:
                start = file.read(4)
            self.size = path.stat().st_size
        except (OSError, ValueError) as error:
            # A path with a NUL is a ValueError.
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise _not_found(f"{path}: {reason}") from error
        self.compression = next(
            (kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None
        )

        self.has_garbage = False
        """Whether bytes that are not gzip have been met behind what was unpacked."""

    @property
    def inner_name(self) -> str:
        """The name of what is inside: without `.gz` or `.zst`."""
        if self.compression and self.path.suffix.lower() in _SUFFIXES:
            return self.path.stem
        return self.path.name

    def open(self, *, watched: bool = False) -> "OpenFile":
        """Open the file at its start; `watched` where its rows are read, and not only looked at."""
        return OpenFile(self, watched)

    def tell(self, num_bytes: int) -> None:
        """Tell who watches that so many bytes of the file have been read; never goes back."""
        if num_bytes > self._furthest:
            self._furthest = num_bytes
            if self._on_bytes:
                self._on_bytes(num_bytes)


class OpenFile(AbstractContextManager["OpenFile"]):
    """The bytes of a file, unpacked."""

    def __init__(self, source: Source, watched: bool) -> None:
        """Open it; `close`, or the end of the `with`, closes it."""
        self._source = source
        self._file = source.path.open("rb")
        self._unpacked = 0
        counted = _Counted(self._file, source if watched else None)
        self._stream: ByteStream
        match source.compression:
            case "gzip":
                # Its annotation asks for more of a file than it uses.
                unpacker = gzip.GzipFile(fileobj=counted, mode="rb")  # type: ignore[call-overload]
                self._stream = _Members(unpacker, source)
            case "zstd":
                self._stream = _Blocks(_unpack_zstd(counted))
            case None:
                self._stream = counted

    def read(self, size: int, /) -> bytes:
        """Return up to `size` bytes, and b"" at the end only.

        Raises:
            SlidepackError: what is packed breaks off or is damaged.
        """
        if self._source.compression is None:
            return self._stream.read(size)
        try:
            data = self._stream.read(size)
        except EOFError as error:
            raise self._damaged("breaks off", "the end is missing") from error
        except (gzip.BadGzipFile, zlib.error, zstandard.ZstdError) as error:
            raise self._damaged("is damaged", str(error)) from error
        self._unpacked += len(data)
        return data

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the file."""
        self.close()

    def _damaged(self, what: str, reason: str) -> SlidepackError:
        source = self._source
        return SlidepackError(
            DAMAGED_CODE,
            f"The {source.compression} file {what}.",
            why=f"{source.name}: {reason}; byte {self._file.tell()} of {source.size}, "
            f"{self._unpacked} bytes unpacked until then",
            fix="Copy or download the file again.",
        )


class _Counted:
    def __init__(self, file: BinaryIO, source: Source | None) -> None:
        self._file = file
        self._source = source
        self._consumed = 0

    def read(self, size: int, /) -> bytes:
        data = self._file.read(size)
        self._consumed += len(data)
        if self._source is not None:
            self._source.tell(self._consumed)
        return data


class _Members:
    """The members of a gzip file; what follows the last one is left, and the source told."""

    def __init__(self, file: gzip.GzipFile, source: Source) -> None:
        self._file = file
        self._source = source
        self._at_end = False
        self._begun = False

    def read(self, size: int, /) -> bytes:
        # `GzipFile.read` would lose what it has unpacked when the next member is none.
        parts: list[bytes] = []
        while size > 0 and not self._at_end:
            try:
                data = self._file.read1(size)
            except gzip.BadGzipFile as error:
                if not self._begun or not str(error).startswith("Not a gzipped file"):
                    raise
                self._source.has_garbage = True
                data = b""
            self._at_end = not data
            self._begun = True
            size -= len(data)
            parts.append(data)
        return b"".join(parts)


class _Blocks:
    """Cuts blocks of any size into reads."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._block = memoryview(b"")

    def read(self, size: int, /) -> bytes:
        if not self._block:
            self._block = memoryview(next(self._blocks, b""))
        data, self._block = self._block[:size], self._block[size:]
        return bytes(data)


def _unpack_zstd(stream: ByteStream) -> Iterator[bytes]:
    """Yield blocks of at least a few KiB where there are as many.

    The package's own stream reader takes a file that breaks off for one that ends.
    """
    decompressor = zstandard.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_BYTES)
    frame = decompressor.decompressobj()
    begun = False
    ready: list[bytes] = []
    while packed := stream.read(CHUNK_BYTES):
        at = 0
        while at < len(packed):
            step = packed[at : at + _ZSTD_STEP_BYTES]
            at += len(step)
            begun = True
            ready.append(frame.decompress(step))
            if frame.eof:
                at -= len(frame.unused_data)
                frame = decompressor.decompressobj()
                begun = False
            if sum(map(len, ready)) >= CHUNK_BYTES or len(ready) >= _ZSTD_STEP_BYTES:
                if block := b"".join(ready):
                    yield block
                ready = []
    if block := b"".join(ready):
        yield block
    if begun:
        raise EOFError


def _not_found(why: str) -> SlidepackError:
    return SlidepackError(
        "DATA-NOT-FOUND", "The data file cannot be opened.", why=why, fix="Check the path."
    )


def empty(name: str, why: str) -> SlidepackError:
    """Return the error of a file without content."""
    return SlidepackError(
        "DATA-EMPTY",
        "The file is empty.",
        why=f"{name} {why}",
        fix="Choose a file with at least one row.",
    )
