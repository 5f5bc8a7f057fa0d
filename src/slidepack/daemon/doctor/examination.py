"""The whole examination of this machine in the daemon: once at a time, in a thread of its own."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.doctor.fixes import FixName, carry_out
from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.doctor.recent_log import RecentLog
from slidepack.daemon.probe.report import HardwareReport, probe_hardware
from slidepack.daemon.probe.setup import SetupReport, probe_setup

__all__ = ["Examination", "Examiner"]

logger = logging.getLogger(__name__)


class Examination(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found, and when."""

    at: float
    """Unix time in seconds."""
    hardware: HardwareReport
    setup: SetupReport
    findings: tuple[Finding, ...]


class Examiner:
    """Examines on demand: it asks torch and measures the disk, which takes seconds."""

    def __init__(self, home: Path, changed: Callable[[], None]) -> None:
        """Bind what is examined; nothing is looked at yet.

        Args:
            home: the data directory.
            changed: called when an examination has ended.
        """
        self.log = RecentLog()
        """What the daemon logged last."""
        self._home = home
        self._changed = changed
        self._lock = threading.Lock()
        self._running = False
        self._last: Examination | None = None

    def last(self) -> Examination | None:
        """Return the last examination; None before the first."""
        with self._lock:
            return self._last

    def running(self) -> bool:
        """Return whether one is on."""
        with self._lock:
            return self._running

    def begin(self) -> None:
        """Begin an examination, unless one is on."""
        with self._lock:
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._examine, name="doctor", daemon=True).start()

    def fix(self, name: FixName) -> None:
        """Carry out what a finding offers, and examine anew.

        Raises:
            SlidepackError: DAEMON-NO-SYSTEMD or DAEMON-SERVICE-FAILED.
        """
        carry_out(name)
        self.begin()

    def _examine(self) -> None:
        found: Examination | None = None
        try:
            hardware = probe_hardware(self._home, software=True)
            setup = probe_setup(self._home)
            found = Examination(
                at=time.time(),
                hardware=hardware,
                setup=setup,
                findings=findings(hardware, setup),
            )
        except OSError as error:
            logger.warning("This machine could not be examined: %s", error)
        finally:
            with self._lock:
                self._running = False
                self._last = found or self._last
            self._changed()
