"""Notices and their deliveries, as rows.

`record` joins the caller's transaction, so a notice is there exactly where what it tells of is.
Each delivery is then made at least once: it is claimed before it is tried and marked after the
service has answered, so a daemon that dies between the two sends it again. It is never sent again
once its answer was stored.
"""

from collections.abc import Collection, Iterable
from typing import Final, Literal

import msgspec

from slidepack.daemon.notices.settings import Kind
from slidepack.daemon.store.database import Database, Row

DeliveryState = Literal["pending", "sent", "failed", "dropped"]

_GIVE_UP_SECONDS: Final = 24 * 3600.0
_FIRST_WAIT_SECONDS: Final = 60.0
"""Longer than a delivery may take: a claim of a daemon that died outlives its process."""
_LONGEST_WAIT_SECONDS: Final = 3600.0
_KEEP_SECONDS: Final = 30 * 24 * 3600.0
_KEEP_NOTICES: Final = 1000
_DUE_AT_ONCE: Final = 200


class DeliveryRecord(msgspec.Struct, frozen=True, kw_only=True):
    """How a notice fares at one address."""

    notifier_id: int
    notifier: str
    """The address's name; empty where it was removed since."""
    state: DeliveryState
    tries: int
    next_at: float
    """Unix time in seconds of the next try, while it is pending."""
    sent_at: float | None
    error: str
    """Why the last try failed."""


class NoticeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One notice and where it went; nowhere, where there was no address."""

    id: int
    kind: Kind
    title: str
    body: str
    job_id: int | None
    at: float
    deliveries: tuple[DeliveryRecord, ...] = ()


class Due(msgspec.Struct, frozen=True, kw_only=True):
    """A delivery that may be made now."""

    notice_id: int
    notifier_id: int
    url: str
    kind: Kind
    title: str
    body: str

    def __repr__(self) -> str:
        """Leave the address out, so that no log and no traceback can hold it."""
        return f"Due(notice_id={self.notice_id}, notifier_id={self.notifier_id})"


class Outbox:
    """All reads and writes of notices."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def record(self, kind: Kind, title: str, body: str, job_id: int | None, now: float) -> int:
        """Write a notice for every address that there is, and return its id.

        Call it inside the transaction of what it tells of.

        Args:
            kind: what the user's choice goes by.
            title: one line.
            body: plain text.
            job_id: the job that it is about, or None.
            now: unix time in seconds.
        """
        with self._db.transaction():
            notice_id = self._insert(kind, title, body, job_id, now)
            self._db.execute(
                "INSERT INTO deliveries (notice_id, notifier_id, next_at) "
                "SELECT ?, id, ? FROM notifiers",
                notice_id,
                now,
            )
        return notice_id

    def record_test(self, notifier_id: int, title: str, body: str, error: str, now: float) -> int:
        """Write a test that was just made, and its outcome; `error` is empty where it arrived."""
        with self._db.transaction():
            notice_id = self._insert("test", title, body, None, now)
            self._db.execute(
                "INSERT INTO deliveries (notice_id, notifier_id, state, tries, next_at, "
                "first_tried_at, sent_at, error) VALUES (?, ?, ?, 1, ?, ?, ?, ?)",
                notice_id,
                notifier_id,
                "failed" if error else "sent",
                now,
                now,
                None if error else now,
                error,
            )
        return notice_id

    def _insert(self, kind: Kind, title: str, body: str, job_id: int | None, now: float) -> int:
        row = self._db.query(
            "INSERT INTO notices (kind, title, body, job_id, at) VALUES (?, ?, ?, ?, ?) "
            "RETURNING id",
            kind,
            title,
            body,
            job_id,
            now,
        )[0]
        return int(row["id"])

    def drop_unwanted(self, wanted: Collection[str]) -> None:
        """Settle what the user does not want to be sent; it stays listed."""
        marks = ", ".join("?" * len(wanted))
        if self._db.one(
            "SELECT 1 AS found FROM deliveries JOIN notices ON id = notice_id "
            f"WHERE state = 'pending' AND kind NOT IN ({marks}) LIMIT 1",
            *wanted,
        ):
            self._db.execute(
                "UPDATE deliveries SET state = 'dropped', error = 'This kind is not sent.' "
                "WHERE state = 'pending' AND notice_id IN "
                f"(SELECT id FROM notices WHERE kind NOT IN ({marks}))",
                *wanted,
            )

    def due(self, now: float) -> list[Due]:
        """Return the deliveries that may be tried now, by address, oldest first."""
        rows = self._db.query(
            "SELECT d.notice_id, d.notifier_id, t.url, n.kind, n.title, n.body "
            "FROM deliveries AS d JOIN notices AS n ON n.id = d.notice_id "
            "JOIN notifiers AS t ON t.id = d.notifier_id "
            # A clock that was set back must not hold a delivery for longer than any wait is.
            "WHERE d.state = 'pending' AND (d.next_at <= ? OR d.next_at > ?) "
            "ORDER BY d.notifier_id, d.notice_id LIMIT ?",
            now,
            now + _LONGEST_WAIT_SECONDS,
            _DUE_AT_ONCE,
        )
        return [msgspec.convert(row, Due) for row in rows]

    def claim(self, taken: Iterable[Due], now: float) -> None:
        """Count a try of each delivery and put the next one off; before it is tried."""
        with self._db.transaction():
            for item in taken:
                self._db.execute(
                    "UPDATE deliveries SET tries = tries + 1, "
                    "first_tried_at = COALESCE(first_tried_at, ?), "
                    "next_at = ? + MIN(?, ? * (1 << MIN(tries, 6))) "
                    "WHERE notice_id = ? AND notifier_id = ?",
                    now,
                    now,
                    _LONGEST_WAIT_SECONDS,
                    _FIRST_WAIT_SECONDS,
                    item.notice_id,
                    item.notifier_id,
                )

    def settle(self, taken: Iterable[Due], error: str, now: float) -> None:
        """Record how a try ended.

        Args:
            taken: the deliveries of one message.
            error: why it failed; empty where it arrived.
            now: unix time in seconds. A day after the first try, a delivery is given up.
        """
        with self._db.transaction():
            for item in taken:
                key = (item.notice_id, item.notifier_id)
                if error:
                    self._db.execute(
                        "UPDATE deliveries SET error = ?, state = CASE "
                        "WHEN ? - first_tried_at >= ? THEN 'failed' ELSE state END "
                        "WHERE notice_id = ? AND notifier_id = ? AND state = 'pending'",
                        error,
                        now,
                        _GIVE_UP_SECONDS,
                        *key,
                    )
                else:
                    self._db.execute(
                        "UPDATE deliveries SET state = 'sent', sent_at = ?, error = '' "
                        "WHERE notice_id = ? AND notifier_id = ?",
                        now,
                        *key,
                    )

    def recent(self, limit: int = 50) -> list[NoticeRecord]:
        """Return the newest notices, newest first."""
        notices = self._db.query("SELECT * FROM notices ORDER BY id DESC LIMIT ?", limit)
        if not notices:
            return []
        rows = self._db.query(
            "SELECT d.*, COALESCE(t.name, '') AS notifier FROM deliveries AS d "
            "LEFT JOIN notifiers AS t ON t.id = d.notifier_id "
            "WHERE d.notice_id >= ? ORDER BY d.notifier_id",
            notices[-1]["id"],
        )
        deliveries: dict[int, list[DeliveryRecord]] = {}
        for row in rows:
            deliveries.setdefault(row["notice_id"], []).append(_delivery(row))
        return [
            msgspec.convert(
                row | {"deliveries": tuple(deliveries.get(row["id"], ()))}, NoticeRecord
            )
            for row in notices
        ]

    def open_counts(self) -> dict[str, int]:
        """Return how many deliveries are pending and how many were given up and are listed."""
        rows = self._db.query(
            "SELECT state, COUNT(*) AS number FROM deliveries "
            "WHERE state IN ('pending', 'failed') GROUP BY state"
        )
        found = {row["state"]: int(row["number"]) for row in rows}
        return {"pending": found.get("pending", 0), "failed": found.get("failed", 0)}

    def prune(self, now: float) -> None:
        """Forget notices that are a month old or beyond the newest thousand.

        One that is still to be sent stays.
        """
        with self._db.transaction():
            old = self._db.query(
                "SELECT id FROM notices WHERE (at < ? OR id <= "
                "(SELECT COALESCE(MAX(id), 0) FROM notices) - ?) AND NOT EXISTS "
                "(SELECT 1 FROM deliveries WHERE notice_id = id AND state = 'pending')",
                now - _KEEP_SECONDS,
                _KEEP_NOTICES,
            )
            for row in old:
                self._db.execute("DELETE FROM deliveries WHERE notice_id = ?", row["id"])
                self._db.execute("DELETE FROM notices WHERE id = ?", row["id"])


def _delivery(row: Row) -> DeliveryRecord:
    return DeliveryRecord(**{name: row[name] for name in DeliveryRecord.__struct_fields__})
