"""Notices that the machine goes to sleep, and that it woke up."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from slidepack.daemon.system.bus import BusError, Connection
from slidepack.daemon.system.logind import MANAGER

logger = logging.getLogger(__name__)

_LOOK_SECONDS: Final = 15.0
"""Between looks at the clocks; a signal is noticed at once."""
_FIRST_RETRY_SECONDS: Final = 1.0
_LAST_RETRY_SECONDS: Final = 60.0
_SLEPT_SECONDS: Final = 1.0
"""The two clocks are read one after the other, never at the same moment."""
_STUCK_SECONDS: Final = 120.0
"""A machine that announced its sleep, and is still awake after this, will not sleep."""


def suspended_seconds() -> float:
    """Return how long this machine has slept since it was switched on.

    The one clock goes on during a suspend, the other does not.
    """
    return time.clock_gettime(time.CLOCK_BOOTTIME) - time.clock_gettime(time.CLOCK_MONOTONIC)


class SleepWatch:
    """Follows logind's `PrepareForSleep`; where there is no logind, only the clocks.

    Each sleep is announced at most once and its end is told exactly once, whatever the bus does
    meanwhile: a wake-up whose signal was missed shows in the clocks.
    """

    def __init__(
        self,
        address: str,
        on_change: Callable[[bool], None],
        *,
        suspended: Callable[[], float] = suspended_seconds,
        look_seconds: float = _LOOK_SECONDS,
        retry_seconds: float = _FIRST_RETRY_SECONDS,
    ) -> None:
        """Bind the callback; nothing is watched until `start`.

        Args:
            address: `SYSTEM` or a D-Bus address.
            on_change: called with True before a sleep and with False after it, in a thread of
                its own kind: the watch waits until it returns.
            suspended: how long the machine has slept so far, in seconds.
            look_seconds: between looks at the clocks.
            retry_seconds: before the first new attempt at a bus that went away.
        """
        self._address = address
        self._on_change = on_change
        self._suspended = suspended
        self._look_seconds = look_seconds
        self._retry_seconds = retry_seconds
        self._stopping = threading.Event()
        self._connected = threading.Event()
        self._connection: Connection | None = None
        self._thread = threading.Thread(target=self._run, name="sleep-watch", daemon=True)
        self._slept = suspended()
        self._asleep_since: float | None = None

    @property
    def connected(self) -> bool:
        """Whether a sleep would be announced."""
        return self._connected.is_set()

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def stop(self) -> None:
        """Stop watching; waits for a callback that is going on."""
        self._stopping.set()
        connection = self._connection
        if connection is not None:
            connection.interrupt()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        wait_seconds = self._retry_seconds
        told = ""
        while not self._stopping.is_set():
            try:
                with contextlib.closing(Connection(self._address)) as connection:
                    connection.subscribe(MANAGER, "PrepareForSleep")
                    wait_seconds, told = self._retry_seconds, ""
                    self._follow(connection)
            except BusError as error:
                # Most containers have no bus, and a bus comes back: neither is worth a warning.
                if error.why != told:
                    logger.info("No word of this machine's sleep: %s", error.why)
                told = error.why
            self._wait(wait_seconds)
            wait_seconds = min(2 * wait_seconds, _LAST_RETRY_SECONDS)

    def _follow(self, connection: Connection) -> None:
        self._connection = connection
        self._connected.set()
        try:
            while not self._stopping.is_set():
                values = connection.next_signal(self._look_seconds)
                if values is None:
                    self._look_at_clocks()
                elif values[:1] == (True,):
                    self._sleeps()
                else:
                    self._wakes()
        finally:
            self._connected.clear()
            self._connection = None

    def _wait(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            if self._stopping.wait(min(left, self._look_seconds)):
                return
            self._look_at_clocks()

    def _sleeps(self) -> None:
        if self._asleep_since is None:
            self._asleep_since = time.monotonic()
            self._on_change(True)

    def _wakes(self) -> None:
        slept = self._has_slept()
        if slept or self._asleep_since is not None:
            self._asleep_since = None
            self._on_change(False)

    def _look_at_clocks(self) -> None:
        since = self._asleep_since
        stuck = since is not None and time.monotonic() - since > _STUCK_SECONDS
        if stuck or self._suspended() - self._slept > _SLEPT_SECONDS:
            self._wakes()

    def _has_slept(self) -> bool:
        before, self._slept = self._slept, self._suspended()
        return self._slept - before > _SLEPT_SECONDS
