"""One daemon a data directory: a lock, and a file that tells the command line where it is."""

import fcntl
import os
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import write_atomic


class DaemonAddress(msgspec.Struct, frozen=True, kw_only=True):
    """Where a running daemon is and what opens it; only the owner can read the file."""

    url: str
    token: str
    """Bearer token of the API."""
    pid: int


class InstanceLock:
    """Held for as long as the daemon lives; the system frees it when the process dies."""

    def __init__(self, paths: DataPaths) -> None:
        """Name the lock; `__enter__` takes it."""
        self._paths = paths
        self._descriptor = -1

    def __enter__(self) -> Self:
        """Take the lock.

        Raises:
            SlidepackError: DAEMON-RUNNING, DISK-UNWRITABLE or DISK-FULL.
        """
        path = self._paths.lock
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise disk_error(error, path) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = path.read_text("ascii").strip() or "unknown"
            os.close(self._descriptor)
            raise SlidepackError(
                "DAEMON-RUNNING",
                "A daemon already runs on this data directory.",
                why=f"{self._paths.home} is held by process {holder}",
                fix="Use that one, or choose another data directory with SLIDEPACK_HOME.",
            ) from error
        os.ftruncate(self._descriptor, 0)
        os.write(self._descriptor, str(os.getpid()).encode())
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        """Remove the address file and let the lock go."""
        self._paths.address.unlink(missing_ok=True)
        os.close(self._descriptor)


def publish_address(paths: DataPaths, address: DaemonAddress) -> None:
    """Write the address file, mode 0600 from its first byte on."""
    previous = os.umask(0o077)
    try:
        write_atomic(paths.address, msgspec.json.encode(address))
    finally:
        os.umask(previous)


def read_address(home: Path) -> DaemonAddress:
    """Return the address of the running daemon.

    Raises:
        SlidepackError: DAEMON-NOT-RUNNING.
    """
    path = DataPaths(home).address
    try:
        return msgspec.json.decode(path.read_bytes(), type=DaemonAddress)
    except (OSError, msgspec.DecodeError) as error:
        raise not_running(f"{path} does not tell where it is") from error


def not_running(why: str) -> SlidepackError:
    """Return the error of a command that found no daemon."""
    return SlidepackError(
        "DAEMON-NOT-RUNNING",
        "No daemon answers.",
        why=why,
        fix="Start it with `slidepack serve`.",
    )
