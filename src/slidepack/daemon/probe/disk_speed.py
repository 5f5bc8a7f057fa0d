"""How fast the data directory's drive really is: a short sequential write, read back, and both."""

import errno
import fcntl
import mmap
import os
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.drives import disk_usage
from slidepack.daemon.probe.problem import ProbeFailure

MAX_BYTES: Final = 256 * 10**6
MAX_SECONDS: Final = 2.0
FREE_FLOOR_BYTES: Final = 10 * 10**9
"""A drive with less free than this is left alone."""

_CHUNK_BYTES: Final = 8 << 20
_NOT_OFFERED: Final = (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT)
"""How file systems say that they know no nameless files or no O_DIRECT."""
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class DiskSpeed(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="disk_speed",
):
    """What was measured, in bytes per second."""

    folder: str
    write_bytes_per_second: float
    read_bytes_per_second: float
    both_bytes_per_second: float
    """Read and written together, while both go on: less than the sum on most drives."""
    measured_bytes: int
    direct: bool
    """Whether the page cache was passed by; else the write was synced and the cache dropped."""


class DiskUnmeasured(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="disk_unmeasured",
):
    """Why nothing was measured, on a drive that may well be in order."""

    why: str


def measure_disk(
    data_dir: Path,
    *,
    max_bytes: int = MAX_BYTES,
    max_seconds: float = MAX_SECONDS,
    usage: Callable[[str], tuple[int, int]] = disk_usage,
    clock: Callable[[], float] = time.perf_counter,
) -> DiskSpeed | DiskUnmeasured:
    """Write a nameless file beside the data, read it back, and let it vanish.

    Args:
        data_dir: it need not exist yet; its nearest folder that does is measured.
        max_bytes: the most that is written.
        max_seconds: for all of it; the chunk under way is finished.
        usage: total and free bytes of the file system of a folder.
        clock: seconds.

    Raises:
        ProbeFailure: the folder cannot be written, or the drive fails.
    """
    try:
        folder = _nearest_folder(data_dir)
        _, free = usage(str(folder))
        if free < FREE_FLOOR_BYTES:
            return DiskUnmeasured(why=f"only {free / 1e9:.1f} GB are free on the drive of {folder}")
        descriptor = _open(folder)
        try:
            return _measure(descriptor, folder, max_bytes, max_seconds, clock)
        finally:
            # Nothing else names the file, so its blocks go with this; also where we are killed.
            os.close(descriptor)
    except OSError as error:
        why = f"{data_dir}: {error.strerror}"
        if error.errno in _FULL:
            return DiskUnmeasured(why=why)
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise ProbeFailure(
                "The data directory cannot be written.",
                why=why,
                fix="Check its owner and rights (`ls -ld`), or set SLIDEPACK_HOME to a folder of "
                "your own.",
            ) from error
        raise ProbeFailure(
            "The data directory's drive does not work as it should.",
            why=why,
            fix="Look for I/O errors in `dmesg`, or set SLIDEPACK_HOME to a folder on another "
            "drive.",
        ) from error


def _nearest_folder(path: Path) -> Path:
    resolved = path.resolve()
    return next(folder for folder in (resolved, *resolved.parents) if folder.is_dir())


def _open(folder: Path) -> int:
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise
        descriptor, name = tempfile.mkstemp(prefix=".slidepack-speed-", dir=folder)
        os.unlink(name)
    _set_direct(descriptor, True)
    return descriptor


def _set_direct(descriptor: int, wanted: bool) -> None:
    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    flags = flags | os.O_DIRECT if wanted else flags & ~os.O_DIRECT
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
    except OSError as error:
        if error.errno not in _NOT_OFFERED:
            raise


def _is_direct(descriptor: int) -> bool:
    return bool(fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_DIRECT)


def _measure(
    descriptor: int,
    folder: Path,
    max_bytes: int,
    max_seconds: float,
    clock: Callable[[], float],
) -> DiskSpeed:
    # Anonymous pages are aligned as O_DIRECT wants them.
    with mmap.mmap(-1, _CHUNK_BYTES) as buffer, mmap.mmap(-1, _CHUNK_BYTES) as other:
        # Noise, because some file systems compress.
        buffer.write(os.urandom(_CHUNK_BYTES))

        def write(offset: int) -> int:
            return _write(descriptor, buffer, offset)

        def read(offset: int) -> int:
            return os.preadv(descriptor, [other], offset)

        written, write_seconds = _repeat(write, max_bytes, max_seconds / 3, clock)
        started = clock()
        os.fdatasync(descriptor)
        write_seconds += clock() - started
        if not _is_direct(descriptor):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        got, read_seconds = _repeat(read, written, max_seconds / 3, clock)
        if not _is_direct(descriptor):
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        both = _both(read, write, written, max_seconds / 3, clock)
    return DiskSpeed(
        folder=str(folder),
        write_bytes_per_second=written / write_seconds,
        read_bytes_per_second=got / read_seconds,
        both_bytes_per_second=both,
        measured_bytes=written,
        direct=_is_direct(descriptor),
    )


def _write(descriptor: int, buffer: mmap.mmap, offset: int) -> int:
    try:
        written = os.pwritev(descriptor, [buffer], offset)
    except OSError as error:
        # Some file systems take the flag and refuse the write.
        if error.errno != errno.EINVAL or not _is_direct(descriptor):
            raise
        _set_direct(descriptor, False)
        written = os.pwritev(descriptor, [buffer], offset)
    if not _is_direct(descriptor):
        # Chunk by chunk: a slow drive would have all of the cache to catch up with at the end.
        os.fdatasync(descriptor)
    return written


def _both(
    read: Callable[[int], int],
    write: Callable[[int], int],
    max_bytes: int,
    max_seconds: float,
    clock: Callable[[], float],
) -> float:
    """Return the bytes a second of a reader and a writer at once, each in its half of a file."""
    half = max(1, max_bytes // (2 * _CHUNK_BYTES)) * _CHUNK_BYTES
    failed: list[OSError] = []
    moved: list[tuple[int, float]] = []

    def write_first_half() -> None:
        try:
            moved.append(_repeat(write, half, max_seconds, clock))
        except OSError as error:
            failed.append(error)

    writer = threading.Thread(target=write_first_half, name="disk-speed")
    writer.start()
    try:
        start = half if max_bytes > half else 0
        moved.append(_repeat(lambda offset: read(start + offset), half, max_seconds, clock))
    finally:
        writer.join()
    if failed:
        raise failed[0]
    # Until both are done: a step reads about as much as it writes, and waits for either.
    return sum(size for size, _ in moved) / max(seconds for _, seconds in moved)


def _repeat(
    move: Callable[[int], int], max_bytes: int, max_seconds: float, clock: Callable[[], float]
) -> tuple[int, float]:
    started = clock()
    moved = 0
    while True:
        step = move(moved)
        moved += step
        seconds = clock() - started
        over = moved + _CHUNK_BYTES > max_bytes or seconds >= max_seconds
        if over or step < _CHUNK_BYTES:
            # A clock too coarse to see a step must not divide by nothing.
            return moved, max(seconds, 1e-9)
