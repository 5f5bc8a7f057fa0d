"""The user's own pause: it lasts until they end it or until the time they gave."""

import logging
import math
import threading
from datetime import tzinfo
from typing import Final

import msgspec

from slidepack.daemon.policy.holding import Hold
from slidepack.daemon.policy.windows import clock_text
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

LONGEST_PAUSE_SECONDS: Final = 366 * 86400.0
"""Whoever means longer than a year resumes by hand."""
_KEY: Final = "pause"


class ManualPause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pause as it is stored. Times are unix seconds."""

    since: float
    until: float | None
    """None lasts until the user resumes."""
    why: str = ""
    """Why, where it was not the user who paused."""

    def end(self, now: float) -> float | None:
        """Return when it ends, or None where the user ends it, as they do one of years."""
        if self.until is None or self.until - now > LONGEST_PAUSE_SECONDS:
            return None
        return self.until

    def over(self, now: float) -> bool:
        """Return whether its time has come."""
        end = self.end(now)
        return end is not None and now >= end


class Pausing:
    """Keeps the pause in the database, so that no restart ends it.

    A pause may be written in the middle of a longer transaction, which may yet fail. So what was
    just written is read from the database, until a look from outside has found it settled.
    """

    def __init__(self, documents: Documents, now: float) -> None:
        """Read the stored pause; one that cannot be read lasts until the user resumes.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the database cannot be read.
        """
        self._documents = documents
        # Taken inside a transaction only: two threads that took the two in different orders would
        # wait for each other.
        self._lock = threading.Lock()
        self._unsettled = False
        self._pause = self._read(now)

    def pause(self, until: float | None, now: float, why: str = "") -> None:
        """Pause until a time, or until `resume`; a pause that lasts already keeps its beginning.

        It may be a part of a transaction of the caller's, and then stands or falls with it.

        Args:
            until: unix seconds, or None.
            now: likewise.
            why: empty where the user asked for it.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID where that time is not to come, or is more than
                a year away.
        """
        if until is not None and not 0 < until - now <= LONGEST_PAUSE_SECONDS:
            raise _refused(until, now)
        with self._documents.transaction():
            self._expect_change()
            before = self._read(now)
            since = now if before is None else before.since
            self._documents.put(_KEY, ManualPause(since=since, until=until, why=why))

    def resume(self) -> None:
        """End the pause; there need not be one."""
        with self._documents.transaction():
            self._expect_change()
            self._documents.delete(_KEY)

    def settle(self, now: float) -> None:
        """Take note of what became of changes, and end a pause whose time has come.

        Call it now and then, outside of any transaction.

        Args:
            now: unix seconds.
        """
        pause = self._pause
        if not self._unsettled and (pause is None or not pause.over(now)):
            return
        with self._documents.transaction():
            pause = self._read(now)
            if pause is not None and pause.over(now):
                self._expect_change()
                self._documents.delete(_KEY)
                return
            # No other transaction is open now, so this is how all of them ended.
            with self._lock:
                self._pause, self._unsettled = pause, False

    def hold(self, now: float, zone: tzinfo) -> Hold | None:
        """Return the pause as a hold, or None where there is none or it is over.

        Args:
            now: unix seconds.
            zone: in which the user reads clocks.

        Raises:
            SlidepackError: DISK-UNWRITABLE where it was just changed and cannot be read.
        """
        with self._lock:
            pause, unsettled = self._pause, self._unsettled
        if unsettled:
            pause = self._read(now)
        if pause is None or pause.over(now):
            return None
        end = pause.end(now)
        text = "you resume it" if end is None else clock_text(end, now, zone)
        return Hold(
            code="paused",
            reason=f"{pause.why}; resume the queue to go on"
            if pause.why
            else f"you paused the queue until {text}",
            since=pause.since,
            until=end,
        )

    def _expect_change(self) -> None:
        with self._lock:
            self._unsettled = True

    def _read(self, now: float) -> ManualPause | None:
        try:
            return self._documents.get(_KEY, ManualPause)
        except SlidepackError as error:
            if error.report.code != "DAEMON-SETTINGS":
                raise
            logger.error("%s", error)
            return ManualPause(since=now, until=None)


def _refused(until: float, now: float) -> SlidepackError:
    days = LONGEST_PAUSE_SECONDS / 86400
    far = math.isfinite(until) and until > now
    return SlidepackError(
        "DAEMON-REQUEST-INVALID",
        "The queue cannot be paused until then.",
        why=f"until is {until:g} and it is {now:.0f} now, in unix seconds"
        + (f"; that is more than {days:g} days" if far else ""),
        fix="Give a time that is to come, within a year, or none to pause until you resume.",
    )
