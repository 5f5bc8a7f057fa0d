"""Settings that users change while the daemon runs: one struct a key."""

from contextlib import AbstractContextManager
from typing import TypeVar

import msgspec

from slidepack.daemon.store.database import Database
from slidepack.engine.contract.errors import SlidepackError

T = TypeVar("T", bound=msgspec.Struct)


class Documents:
    """Reads and writes structs by key."""

    def __init__(self, database: Database) -> None:
        """Bind the database."""
        self._db = database

    def transaction(self) -> AbstractContextManager[None]:
        """Run the block as one transaction, or as a part of the one that this thread is in.

        What may be called inside of one takes its own lock after it: whoever took the two the other
        way round would wait for the database while its holder waits for the lock.
        """
        return self._db.transaction()

    def get(self, key: str, kind: type[T]) -> T | None:
        """Return the struct of a key, or None where there is none.

        Raises:
            SlidepackError: DAEMON-SETTINGS where what is stored is no such struct.
        """
        row = self._db.one("SELECT body FROM documents WHERE key = ?", key)
        if row is None:
            return None
        try:
            return msgspec.json.decode(row["body"], type=kind)
        except msgspec.MsgspecError as error:
            raise SlidepackError(
                "DAEMON-SETTINGS",
                f"The stored {key} cannot be used.",
                why=str(error),
                fix="Set it again; it may have been written by another version.",
            ) from error

    def put(self, key: str, value: msgspec.Struct) -> None:
        """Store a struct; it replaces the one before."""
        self._db.execute(
            "INSERT INTO documents (key, body) VALUES (?, ?) "
            "ON CONFLICT (key) DO UPDATE SET body = excluded.body",
            key,
            msgspec.json.encode(value).decode(),
        )

    def delete(self, key: str) -> None:
        """Remove a key; it need not be there."""
        self._db.execute("DELETE FROM documents WHERE key = ?", key)
