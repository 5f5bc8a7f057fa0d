"""The SQLite database: one connection a thread, explicit immediate transactions."""

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlite_utils import Database as SqliteDatabase

from slidepack.daemon.paths import disk_error

Row = dict[str, Any]

SCHEMA_VERSION: Final = 1
_BUSY_SECONDS: Final = 30.0


class Database:
    """Hands each thread its own connection to one file."""

    def __init__(self, path: Path) -> None:
        """Open the file and create what is missing.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        self._path = path
        self._local = threading.local()
        try:
            path.touch(mode=0o600)
            # WAL is a property of the file: readers never wait for the writer.
            self._connection().enable_wal()
            schema = Path(__file__).with_name("schema.sql").read_text("utf-8")
            self._connection().conn.executescript(schema)
            self._connection().conn.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        except (OSError, sqlite3.OperationalError) as error:
            number = error.errno if isinstance(error, OSError) else None
            raise disk_error(OSError(number, str(error)), path) from error

    def query(self, sql: str, *values: object) -> list[Row]:
        """Run one statement that returns rows, and return them."""
        return list(self._connection().query(sql, values))

    def execute(self, sql: str, *values: object) -> None:
        """Run one statement that returns no rows; alone, it is a transaction of its own."""
        self._connection().conn.execute(sql, values)

    def one(self, sql: str, *values: object) -> Row | None:
        """Return the first row, or None."""
        rows = self.query(sql, *values)
        return rows[0] if rows else None

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one BEGIN IMMEDIATE transaction; a failure undoes all of it.

        It joins the transaction of the same thread where there is one already.
        """
        connection = self._connection().conn
        if connection.in_transaction:
            yield
            return
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            connection.execute("ROLLBACK")
            raise
        connection.execute("COMMIT")

    def _connection(self) -> SqliteDatabase:
        found: SqliteDatabase | None = getattr(self._local, "connection", None)
        if found is None:
            raw = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            raw.execute("PRAGMA synchronous = FULL")
            found = SqliteDatabase(raw)
            self._local.connection = found
        return found
