"""Tells systemd how the daemon is: ready, alive, stopping. Outside systemd it does nothing."""

import logging
import os
import socket
import threading
from collections.abc import Iterable, Mapping
from typing import Final, Self

logger = logging.getLogger(__name__)

SERVICE_VARIABLES: Final = frozenset(
    {
        "NOTIFY_SOCKET",
        "WATCHDOG_USEC",
        "WATCHDOG_PID",
        "LISTEN_FDS",
        "LISTEN_PID",
        "LISTEN_FDNAMES",
        "FDSTORE",
        "INVOCATION_ID",
        "JOURNAL_STREAM",
        "SYSTEMD_EXEC_PID",
        "MEMORY_PRESSURE_WATCH",
        "MEMORY_PRESSURE_WRITE",
        "CREDENTIALS_DIRECTORY",
    }
)
"""What systemd says to the daemon alone; the environment of a child process goes without."""

_SEND_SECONDS: Final = 1.0
_MICROSECONDS: Final = 1_000_000


class Notifier:
    """Sends states to the service manager; any thread may."""

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        """Bind the socket's address.

        Args:
            address: a path, or `@name` of an abstract socket; empty sends nothing.
            watchdog_seconds: the silence after which systemd restarts the daemon.
        """
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        self._failing = False

    @classmethod
    def from_environment(cls, environment: Mapping[str, str], pid: int) -> Self:
        """Read what systemd said to the process `pid`.

        A watchdog of another process is none of ours, and neither is a transport other than a
        local socket.
        """
        address = environment.get("NOTIFY_SOCKET", "")
        if not address.startswith(("/", "@")):
            return cls()
        return cls(address, _watchdog_seconds(environment, pid))

    @property
    def active(self) -> bool:
        """Whether a service manager listens."""
        return bool(self._address)

    def ready(self, status: str = "") -> None:
        """Say that start-up is over."""
        self._send("READY=1", *_status(status))

    def stopping(self, status: str = "") -> None:
        """Say that the daemon is on its way down."""
        self._send("STOPPING=1", *_status(status))

    def status(self, text: str) -> None:
        """Set the line that `systemctl status` shows."""
        self._send(*_status(text))

    def alive(self) -> None:
        """Reset systemd's watchdog."""
        if self.watchdog_seconds is not None:
            self._send("WATCHDOG=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for this long from now, in starting or stopping; repeat it before it is over."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * _MICROSECONDS)}")

    def _send(self, *lines: str) -> None:
        if not self._address or not lines:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                # A service manager that is stuck must not take the daemon with it.
                sender.settimeout(_SEND_SECONDS)
                sender.connect(self._address)
                sender.send("\n".join(lines).encode())
        except OSError as error:
            if not self._failing:
                logger.warning("systemd cannot be told %s: %s", lines[0], error)
            self._failing = True
        else:
            self._failing = False


class Watchdog:
    """Resets systemd's watchdog only while every part of the daemon gives signs of life."""

    def __init__(self, notifier: Notifier, parts: Iterable[str]) -> None:
        """Name the parts; each is to call `alive` again and again."""
        self._notifier = notifier
        self._lock = threading.Lock()
        self._parts = frozenset(parts)
        self._seen: set[str] = set()
        self._sent_at = float("-inf")

    @property
    def interval_seconds(self) -> float | None:
        """How often each part should call at least; None where no watchdog runs."""
        limit = self._notifier.watchdog_seconds
        return None if limit is None else limit / 4

    def alive(self, part: str, monotonic: float) -> None:
        """Take a sign of life.

        Args:
            part: its name.
            monotonic: this moment on the monotonic clock, in seconds.

        Raises:
            KeyError: the part was not named before; that is a bug of ours.
        """
        interval = self.interval_seconds
        if interval is None:
            return
        if part not in self._parts:
            raise KeyError(part)
        with self._lock:
            self._seen.add(part)
            if self._seen != self._parts or monotonic - self._sent_at < interval:
                return
            self._seen.clear()
            self._sent_at = monotonic
        self._notifier.alive()


def without_service_variables(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment for a child process, without what systemd said to the daemon."""
    return {name: value for name, value in environment.items() if name not in SERVICE_VARIABLES}


def _watchdog_seconds(environment: Mapping[str, str], pid: int) -> float | None:
    owner = environment.get("WATCHDOG_PID", str(pid))
    limit = environment.get("WATCHDOG_USEC", "")
    if owner != str(pid) or not limit.isdecimal() or int(limit) == 0:
        return None
    return int(limit) / _MICROSECONDS


def _status(text: str) -> tuple[str, ...]:
    # A line break would begin the next assignment.
    return (f"STATUS={' '.join(text.split())}",) if text.strip() else ()
