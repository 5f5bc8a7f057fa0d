"""Files of an exact size on fast drives: allocated once, striped over folders, opened O_DIRECT."""

import errno
import fcntl
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple, Self

from slidepack.engine.nvme.failures import disk_error

ALIGNMENT: Final = 4096
"""Bytes: the multiple that O_DIRECT wants of addresses, offsets and sizes on any drive."""
STRIPE_BYTES: Final = 4 << 20
"""What lies in one folder before the next one's turn."""

_NOT_OFFERED: Final = (errno.EINVAL, errno.EOPNOTSUPP)
"""How file systems say that they know no O_DIRECT or no allocation ahead."""


def padded(num_bytes: int) -> int:
    """Return the bytes that so much takes in a tier file or in memory that is moved to one."""
    return -(-num_bytes // ALIGNMENT) * ALIGNMENT


class Piece(NamedTuple):
    """A run of bytes that lies in one of a tier file's files without a gap."""

    part: int
    """Which of the files."""
    offset: int
    """Where in that file, in bytes."""
    start: int
    """Where in the memory that is moved, in bytes."""
    size: int


class Check(NamedTuple):
    """The digest of bytes as they were in memory, before they went to a drive."""

    size: int
    crc: int
    """CRC-32."""


class TierFile:
    """One file of exact bytes; over several folders it is striped, a file in each."""

    def __init__(
        self,
        paths: Sequence[Path],
        num_bytes: int,
        descriptors: Sequence[int],
        checks: dict[int, Check] | None,
    ) -> None:
        """Take over open descriptors, one a path; use `create` or `open`."""
        self.paths = tuple(paths)
        self.bytes = num_bytes
        self.checks = checks
        """Digests of what was written, by its first byte; None where nobody will ask."""
        self.direct_refused = ""
        """Why the page cache is not passed by, as the file system put it; empty where it is."""
        self._descriptors = list(descriptors)
        self._lock = threading.Lock()
        for descriptor in self._descriptors:
            self._try_direct(descriptor)
        if self.direct_refused:
            # One way for all parts: what a part still refuses would be taken for a fault.
            self.use_page_cache(self.direct_refused)

    @classmethod
    def create(
        cls,
        paths: Path | Sequence[Path],
        num_bytes: int,
        *,
        checks: dict[int, Check] | None = None,
    ) -> Self:
        """Make and allocate the file; nothing of its size is left to be found later.

        Args:
            paths: one path, or one in each folder that takes a share, always in the same order.
            num_bytes: a multiple of `ALIGNMENT`.
            checks: takes digests of what is written; None for none.

        Raises:
            ValueError: the size is no such multiple.
            SlidepackError: DISK-FULL, DISK-UNWRITABLE (a path that exists is never taken over) or
                DISK-FAILED; nothing of the file is left then.
        """
        return cls._opened(_listed(paths), num_bytes, os.O_CREAT | os.O_EXCL, checks)

    @classmethod
    def open(
        cls,
        paths: Path | Sequence[Path],
        num_bytes: int,
        *,
        checks: dict[int, Check] | None = None,
    ) -> Self:
        """Open a file that `create` made with the same arguments; `checks` are what is known of it.

        Raises:
            ValueError: the size is no multiple of `ALIGNMENT`.
            SlidepackError: DISK-FAILED: a part is missing or of another size; DISK-UNWRITABLE.
        """
        return cls._opened(_listed(paths), num_bytes, 0, checks)

    @classmethod
    def _opened(
        cls, paths: Sequence[Path], num_bytes: int, flags: int, checks: dict[int, Check] | None
    ) -> Self:
        if num_bytes <= 0 or num_bytes % ALIGNMENT:
            raise ValueError(f"a tier file has a multiple of {ALIGNMENT} bytes, not {num_bytes}")
        descriptors: list[int] = []
        path = paths[0]
        try:
            for part, path in enumerate(paths):
                descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | flags, 0o600)
                descriptors.append(descriptor)
                size = part_bytes(num_bytes, part, len(paths))
                if flags:
                    _allocate(descriptor, size)
                elif (found := os.fstat(descriptor).st_size) != size:
                    raise OSError(errno.EIO, f"it has {found} bytes, {size} were written")
            return cls(paths, num_bytes, descriptors, checks)
        except OSError as error:
            for made, descriptor in zip(paths, descriptors, strict=False):
                os.close(descriptor)
                if flags:
                    made.unlink(missing_ok=True)
            doing = "allocate" if flags else "open"
            raise disk_error(error, doing, path, size=num_bytes) from error

    @property
    def direct(self) -> bool:
        """Whether all of it passes the page cache by."""
        return not self.direct_refused

    def descriptor(self, part: int) -> int:
        """Return the open descriptor of one of the files."""
        return self._descriptors[part]

    def pieces(self, offset: int, size: int, limit: int) -> Iterator[Piece]:
        """Cut a run of bytes into what lies in one file each.

        Args:
            offset: in bytes, a multiple of `ALIGNMENT`, as `size`.
            size: bytes, within the file.
            limit: the most that a piece has.

        Raises:
            ValueError: it is not within the file or not aligned.
        """
        if offset % ALIGNMENT or size % ALIGNMENT or not 0 <= offset <= offset + size <= self.bytes:
            raise ValueError(f"{size} bytes at {offset} of a tier file of {self.bytes}")
        start = 0
        while start < size:
            stripe, within = divmod(offset + start, STRIPE_BYTES)
            turn, part = divmod(stripe, len(self.paths))
            length = min(limit, STRIPE_BYTES - within, size - start)
            yield Piece(part, turn * STRIPE_BYTES + within, start, length)
            start += length

    def use_page_cache(self, why: str) -> None:
        """Give O_DIRECT up for all of the file: a request for it was refused."""
        with self._lock:
            for descriptor in self._descriptors:
                flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
                fcntl.fcntl(descriptor, fcntl.F_SETFL, flags & ~os.O_DIRECT)
            self.direct_refused = self.direct_refused or why

    def sync(self) -> None:
        """Wait until what was written has reached the drives.

        Raises:
            SlidepackError: DISK-FAILED: it did not.
        """
        for path, descriptor in zip(self.paths, self._descriptors, strict=True):
            try:
                os.fdatasync(descriptor)
            except OSError as error:
                raise disk_error(error, "sync", path) from error

    def close(self) -> None:
        """Close it; without effect the second time."""
        while self._descriptors:
            os.close(self._descriptors.pop())

    def _try_direct(self, descriptor: int) -> None:
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError as error:
            if error.errno not in _NOT_OFFERED:
                raise
            self.direct_refused = f"the file system refuses O_DIRECT ({error.strerror})"


def part_bytes(num_bytes: int, part: int, parts: int) -> int:
    """Return the size of one of a striped file's files."""
    turns, rest = divmod(num_bytes, STRIPE_BYTES * parts)
    return turns * STRIPE_BYTES + min(max(rest - part * STRIPE_BYTES, 0), STRIPE_BYTES)


def _listed(paths: Path | Sequence[Path]) -> Sequence[Path]:
    return [paths] if isinstance(paths, Path) else list(paths)


def _allocate(descriptor: int, size: int) -> None:
    if size:
        os.posix_fallocate(descriptor, 0, size)
