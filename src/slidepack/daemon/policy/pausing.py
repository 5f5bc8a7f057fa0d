"""The user's own pause: it lasts until they end it or until the time they gave."""

import logging
import math
import threading
from datetime import tzinfo

import msgspec

from slidepack.daemon.policy.holding import Hold
from slidepack.daemon.policy.windows import clock_text
from slidepack.daemon.store.documents import Documents
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

_KEY = "pause"


class ManualPause(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pause as it is stored. Times are unix seconds."""

    since: float
    until: float | None
    """None lasts until the user resumes."""
    why: str = ""
    """Why, where it was not the user who paused."""


class Pausing:
    """Keeps the pause in the database, so that no restart ends it."""

    def __init__(self, documents: Documents, now: float) -> None:
        """Read the stored pause; one that cannot be read lasts until the user resumes.

        Raises:
            SlidepackError: DISK-UNWRITABLE where the database cannot be read.
        """
        self._documents = documents
        # What others read is one attribute; this keeps two writers from crossing.
        self._writing = threading.Lock()
        try:
            self._pause = documents.get(_KEY, ManualPause)
        except SlidepackError as error:
            if error.report.code != "DAEMON-SETTINGS":
                raise
            logger.error("%s", error)
            self._pause = ManualPause(since=now, until=None)

    def pause(self, until: float | None, now: float, why: str = "") -> None:
        """Pause until a time, or until `resume`; a pause that lasts already keeps its beginning.

        Args:
            until: unix seconds, or None.
            now: likewise.
            why: empty where the user asked for it.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID where that time is not to come.
        """
        if until is not None and not (math.isfinite(until) and until > now):
            raise SlidepackError(
                "DAEMON-REQUEST-INVALID",
                "The queue cannot be paused until then.",
                why=f"until is {until:g} and it is {now:.0f} now, in unix seconds",
                fix="Give a time that is to come, or none to pause until you resume.",
            )
        with self._writing:
            since = now if self._pause is None else self._pause.since
            pause = ManualPause(since=since, until=until, why=why)
            self._documents.put(_KEY, pause)
            self._pause = pause

    def resume(self) -> None:
        """End the pause; there need not be one."""
        with self._writing:
            self._documents.delete(_KEY)
            self._pause = None

    def end_if_over(self, now: float) -> None:
        """End a pause whose time has come; `now` is unix seconds."""
        if self._pause is not None and _over(self._pause, now):
            with self._writing:
                if self._pause is not None and _over(self._pause, now):
                    self._documents.delete(_KEY)
                    self._pause = None

    def hold(self, now: float, zone: tzinfo) -> Hold | None:
        """Return the pause as a hold, or None where there is none or it is over.

        Args:
            now: unix seconds.
            zone: in which the user reads clocks.
        """
        pause = self._pause
        if pause is None or _over(pause, now):
            return None
        end = "you resume it" if pause.until is None else clock_text(pause.until, now, zone)
        said = f"you paused the queue until {end}"
        return Hold(
            code="paused",
            reason=f"{pause.why}; resume the queue to go on" if pause.why else said,
            since=pause.since,
            until=pause.until,
        )


def _over(pause: ManualPause, now: float) -> bool:
    return pause.until is not None and now >= pause.until
