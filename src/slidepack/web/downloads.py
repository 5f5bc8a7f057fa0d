"""Downloads of files as they lie on the disk: alone or as one tar, from any byte on.

A tar is put together while it is sent: headers from memory, contents from the files. Its length is
known before the first byte, and nothing of it is ever written to the disk.
"""

import os
import re
import stat
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO, Final

from litestar import Request, Response
from litestar.response import Stream

from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["Body", "answer", "file_body", "tar_body"]

_CHUNK_BYTES: Final = 1 << 20
_BLOCK: Final = tarfile.BLOCKSIZE
_RANGE: Final = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


class Body:
    """Pieces of memory and of open files, one after the other."""

    def __init__(self, pieces: Sequence[bytes | tuple[BinaryIO, int]]) -> None:
        """Take over the files.

        Args:
            pieces: bytes, or an open file and how many bytes of it, from its start, belong here.
        """
        self._pieces = pieces
        sizes = [piece[1] if isinstance(piece, tuple) else len(piece) for piece in pieces]
        self._sizes = sizes
        self.num_bytes = sum(sizes)

    def chunks(self, start: int, end: int) -> Iterator[bytes]:
        """Yield the bytes from `start` up to and without `end`, then close the files.

        Raises:
            OSError: a file cannot be read, or became shorter than it was.
        """
        try:
            at = 0
            for piece, size in zip(self._pieces, self._sizes, strict=True):
                first, last = max(start - at, 0), min(end - at, size)
                if first < last:
                    yield from _part(piece, first, last)
                at += size
        finally:
            self.close()

    def close(self) -> None:
        """Close the files."""
        for piece in self._pieces:
            if isinstance(piece, tuple):
                piece[0].close()


def file_body(path: Path) -> Body:
    """Return one file.

    Raises:
        SlidepackError: EXPORT-FILE-NOT-FOUND: it is gone, or no plain file.
    """
    return Body([_opened(path)])


def tar_body(paths: Mapping[str, Path], changed_at: float) -> Body:
    """Return a tar, not compressed: weights are noise to a compressor.

    All files are open before the first byte is sent, so that one which is deleted meanwhile is
    sent to its end.

    Args:
        paths: the files by their names in the archive.
        changed_at: unix time in seconds that the archive gives all of them.

    Raises:
        SlidepackError: EXPORT-FILE-NOT-FOUND: a file is gone, or no plain file.
    """
    pieces: list[bytes | tuple[BinaryIO, int]] = []
    with ExitStack() as opened:
        for name, path in paths.items():
            file, size = _opened(path)
            opened.callback(file.close)
            pieces += [_header(name, size, changed_at), (file, size), b"\0" * (-size % _BLOCK)]
        opened.pop_all()
    return Body([*pieces, b"\0" * (2 * _BLOCK)])


def answer(
    request: Request[Any, Any, Any], body: Body, *, filename: str, etag: str, media_type: str
) -> Response[Any]:
    """Return the response to a request for a body, or for one range of it.

    Args:
        request: may carry Range and If-Range.
        body: closed when it was sent.
        filename: as a browser saves it; plain ASCII, with no quotes.
        etag: changes when the body does; in quotes.
        media_type: of the whole.
    """
    total = body.num_bytes
    headers = {
        "accept-ranges": "bytes",
        "etag": etag,
        "content-disposition": f'attachment; filename="{filename}"',
    }
    asked = request.headers.get("range", "")
    if request.headers.get("if-range", etag) != etag:
        asked = ""
    wanted = _wanted(asked, total)
    if wanted is None:
        headers["content-length"] = str(total)
        return Stream(body.chunks(0, total), headers=headers, media_type=media_type)
    start, end = wanted
    if start >= end:
        body.close()
        return _no_such_range(asked, total)
    headers |= {
        "content-length": str(end - start),
        "content-range": f"bytes {start}-{end - 1}/{total}",
    }
    chunks = body.chunks(start, end)
    return Stream(chunks, headers=headers, media_type=media_type, status_code=206)


def _wanted(text: str, total: int) -> tuple[int, int] | None:
    """Return the first byte of a range and the one behind it; None for the whole.

    A range that cannot be met has its end at its start. Several ranges at once, and what is none,
    are answered with the whole, as the standard allows.
    """
    found = _RANGE.fullmatch(text.replace(" ", ""))
    if found is None or found[0] == "bytes=-":
        return None
    first, last = found[1], found[2]
    if not first:
        return max(0, total - int(last)), total
    if last and int(last) < int(first):
        return None
    start = int(first)
    return start, max(start, min(total, int(last) + 1 if last else total))


def _no_such_range(asked: str, total: int) -> Response[Any]:
    report = ErrorReport(
        code="EXPORT-RANGE",
        what="The file has no such bytes.",
        why=f"{asked} of {total} bytes",
        fix="Download it anew from its start.",
    )
    headers = {"content-range": f"bytes */{total}"}
    return Response(report, status_code=416, headers=headers, media_type="application/json")


def _part(piece: bytes | tuple[BinaryIO, int], first: int, last: int) -> Iterator[bytes]:
    if isinstance(piece, bytes):
        yield piece[first:last]
        return
    file, _ = piece
    file.seek(first)
    while first < last:
        data = file.read(min(_CHUNK_BYTES, last - first))
        if not data:
            raise OSError(f"{file.name} became shorter while it was sent")
        first += len(data)
        yield data


def _opened(path: Path) -> tuple[BinaryIO, int]:
    try:
        # No link is followed, so that nothing outside its folder can be sent.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        file = os.fdopen(descriptor, "rb", buffering=0)
    except OSError as error:
        raise _not_there(path, error.strerror or str(error)) from error
    about = os.fstat(file.fileno())
    if not stat.S_ISREG(about.st_mode):
        file.close()
        raise _not_there(path, "it is no plain file")
    return file, about.st_size


def _header(name: str, size: int, changed_at: float) -> bytes:
    about = tarfile.TarInfo(name)
    about.size = size
    about.mtime = int(changed_at)
    return about.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def _not_there(path: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "EXPORT-FILE-NOT-FOUND",
        "A file of the export is not there.",
        why=f"{path}: {why}",
        fix="Make the export again.",
    )
