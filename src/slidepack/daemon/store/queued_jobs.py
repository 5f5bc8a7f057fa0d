"""The jobs that wait, read anew only where they have changed."""

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from slidepack.daemon.store.database import Database

__all__ = ["QueuedJobs"]

_Record = TypeVar("_Record")


class QueuedJobs(Generic[_Record]):
    """Keeps the queue's records: thousands may wait, and every tick asks for them."""

    def __init__(self, database: Database, read: Callable[[], Sequence[_Record]]) -> None:
        """Bind the database and what reads the records, which nobody may change."""
        self._db = database
        self._read = read
        self._kept: tuple[int, tuple[_Record, ...]] | None = None

    def now(self) -> list[_Record]:
        """Return the records as they are. Any thread may ask."""
        if self._db.in_transaction:
            # What is not committed may never be, and its count is then given to something else.
            return list(self._read())
        # First: what changes while the rest is read makes an old count of it.
        number = self._db.values("SELECT number FROM queue_changes")[0][0]
        kept = self._kept
        if kept is None or kept[0] != number:
            kept = self._kept = (number, tuple(self._read()))
        return list(kept[1])
