"""When the digest is due, and that it is recorded once a day."""

from collections.abc import Callable
from datetime import timedelta, tzinfo
from typing import Final

from slidepack.daemon.notices.digest import Digest, compose
from slidepack.daemon.notices.local_time import last_moment, local_date, minute_of_day, moment
from slidepack.daemon.notices.night import read_night
from slidepack.daemon.notices.outbox import Outbox
from slidepack.daemon.notices.settings import AT_WINDOW_END, NoticeSettings, Outlook
from slidepack.daemon.store.database import Database

_MORNING: Final = "08:00"
"""When the digest comes where it should come at a window's end and no window ever ends."""
_WHOLE_DAY_SECONDS: Final = 24 * 3600.0

_SETTLE_SECONDS: Final = 180.0
"""After a window's end, for workers to checkpoint and leave."""


class DigestClock:
    """Records the digest of each night."""

    def __init__(
        self,
        database: Database,
        outbox: Outbox,
        settings: Callable[[], NoticeSettings],
        outlook: Callable[[float], Outlook],
        zone: tzinfo | None = None,
    ) -> None:
        """Bind the rows; `settings` and `outlook` are read when they are needed."""
        self._db = database
        self._outbox = outbox
        self._settings = settings
        self._outlook = outlook
        self._zone = zone

    def tick(self, now: float) -> bool:
        """Record the digest where it is due and something happened; return whether it did.

        A machine that slept through the hour records it when it wakes. It tells of everything
        since the digest before; the first one of a day.

        Args:
            now: unix time in seconds.

        Raises:
            SlidepackError: DISK-FULL, DISK-UNWRITABLE, DAEMON-SETTINGS.
        """
        due = self._due(now)
        last = self._last_until(now)
        if due is None or not last < due <= now:
            return False
        day = str(local_date(due, self._zone))
        if self._recorded(day):
            return False
        with self._db.transaction():
            digest = self._compose(last or self._day_before(due), now)
            notice_id = None
            if digest.night.eventful:
                notice_id = self._outbox.record("digest", digest.title, digest.body, None, now)
            self._db.execute(
                "INSERT INTO digests (day, since, until, notice_id) VALUES (?, ?, ?, ?)",
                day,
                digest.night.since,
                now,
                notice_id,
            )
        return notice_id is not None

    def latest(self, now: float) -> Digest:
        """Return the digest of the last night, up to now: since yesterday's hour of the digest."""
        return self._compose(self._day_before(now), now)

    def _compose(self, since: float, until: float) -> Digest:
        tonight = self._outlook(until).tonight_seconds
        return compose(read_night(self._db, since, until, tonight))

    def _due(self, now: float) -> float | None:
        """Return the newest moment at which a digest was due, or None where none is wanted."""
        at = self._settings().digest_at
        if not at:
            return None
        if at == AT_WINDOW_END:
            outlook = self._outlook(now)
            if outlook.window_ended_at is not None:
                return outlook.window_ended_at + _SETTLE_SECONDS
            if outlook.window_open and (outlook.tonight_seconds or 0.0) < _WHOLE_DAY_SECONDS:
                return None
        return last_moment(now, self._minute(), self._zone)

    def _minute(self) -> int:
        at = self._settings().digest_at
        return minute_of_day(_MORNING if at in ("", AT_WINDOW_END) else at)

    def _day_before(self, moment_of_day: float) -> float:
        yesterday = local_date(moment_of_day, self._zone) - timedelta(days=1)
        return moment(yesterday, self._minute(), self._zone)

    def _last_until(self, now: float) -> float:
        # One that lies ahead was recorded before the clock was set back.
        row = self._db.one("SELECT MAX(until) AS until FROM digests WHERE until <= ?", now)
        return 0.0 if row is None or row["until"] is None else float(row["until"])

    def _recorded(self, day: str) -> bool:
        return self._db.one("SELECT day FROM digests WHERE day = ?", day) is not None
