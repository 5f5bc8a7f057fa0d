"""The addresses that notices go to.

They are Apprise URLs and hold secrets, so only `url` columns and delivering processes ever have
them. They are kept in the database and not in a file of their own: it can be read by its owner
only, as its backups can, and a notice, its addresses and its deliveries change together or not at
all.
"""

from typing import Final

import msgspec

from slidepack.daemon.notices.contract import Message
from slidepack.daemon.notices.courier import Courier
from slidepack.daemon.notices.errors import bad_address, no_such_notifier, too_many
from slidepack.daemon.store.database import Database

_MAX_URL: Final = 2000
_MAX_NAME: Final = 60
_MAX_NOTIFIERS: Final = 20
_COLUMNS: Final = "id, name, service, shown, created_at"


class NotifierRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One address, as everybody may see it."""

    id: int
    name: str
    service: str
    """What it is, as in Discord."""
    shown: str
    """The address without its secrets."""
    created_at: float


class Targets:
    """All reads and writes of addresses."""

    def __init__(self, database: Database, courier: Courier) -> None:
        """Bind the database, and what knows whether an address can be used."""
        self._db = database
        self._courier = courier

    def add(self, url: str, name: str, now: float) -> NotifierRecord:
        """Check an address and store it; takes about a second. A known one is only renamed.

        Args:
            url: an Apprise URL; a secret.
            name: what to call it; empty takes the service's name.
            now: unix time in seconds.

        Raises:
            SlidepackError: DAEMON-NOTIFIER-INVALID where it cannot be used; it names no secret.
        """
        url, name = url.strip(), name.strip()
        _refuse_nonsense(url, name)
        answer = self._courier.run(Message(key=0, url=url), check_only=True)
        if not answer.ok:
            raise bad_address(answer.error)
        with self._db.transaction():
            if len(self.records()) >= _MAX_NOTIFIERS and not self._knows(url):
                raise too_many(_MAX_NOTIFIERS)
            row = self._db.query(
                "INSERT INTO notifiers (name, service, shown, url, created_at) "
                "VALUES (?, ?, ?, ?, ?) ON CONFLICT (url) DO UPDATE SET "
                f"name = CASE WHEN ? THEN excluded.name ELSE name END RETURNING {_COLUMNS}",
                name or answer.service,
                answer.service,
                answer.shown,
                url,
                now,
                bool(name),
            )[0]
        return msgspec.convert(row, NotifierRecord)

    def records(self) -> list[NotifierRecord]:
        """Return all addresses, oldest first."""
        rows = self._db.query(f"SELECT {_COLUMNS} FROM notifiers ORDER BY id")
        return [msgspec.convert(row, NotifierRecord) for row in rows]

    def url(self, notifier_id: int) -> str:
        """Return an address with its secrets, for a delivery.

        Raises:
            SlidepackError: DAEMON-NOTIFIER-NOT-FOUND where there is none.
        """
        row = self._db.one("SELECT url FROM notifiers WHERE id = ?", notifier_id)
        if row is None:
            raise no_such_notifier(notifier_id)
        return str(row["url"])

    def remove(self, notifier_id: int) -> None:
        """Forget an address; what was still to be sent to it is dropped.

        Raises:
            SlidepackError: DAEMON-NOTIFIER-NOT-FOUND where there is none.
        """
        # What SQLite frees, it overwrites: the secret does not stay in unused pages.
        self._db.query("PRAGMA secure_delete = ON")
        with self._db.transaction():
            self.url(notifier_id)
            self._db.execute("DELETE FROM notifiers WHERE id = ?", notifier_id)
            self._db.execute(
                "UPDATE deliveries SET state = 'dropped', error = 'Its address was removed.' "
                "WHERE notifier_id = ? AND state = 'pending'",
                notifier_id,
            )

    def _knows(self, url: str) -> bool:
        return self._db.one("SELECT id FROM notifiers WHERE url = ?", url) is not None


def _refuse_nonsense(url: str, name: str) -> None:
    if not url:
        raise bad_address("it is empty")
    if len(url) > _MAX_URL:
        raise bad_address(f"it has {len(url):,} letters; {_MAX_URL:,} are allowed")
    if not url.isprintable():
        raise bad_address("it holds a control character, as of a line break")
    if len(name) > _MAX_NAME or not name.isprintable():
        raise bad_address(f"its name must be printable and have at most {_MAX_NAME} letters")
    if "://" not in url:
        raise bad_address("it has no scheme, as in ntfy://")
