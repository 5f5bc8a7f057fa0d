"""The SQLite database: one connection a thread, explicit immediate transactions."""

import errno
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from sqlite_utils import Database as SqliteDatabase

from slidepack.daemon.paths import disk_error
from slidepack.daemon.store.migrations import migrate

Row = dict[str, Any]

_BUSY_SECONDS: Final = 30.0
_BIGGEST: Final = 2**63 - 1
_DISK_ERRORS: Final = frozenset(
    {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_CORRUPT,
        sqlite3.SQLITE_NOTADB,
    }
)


class Database:
    """Hands each thread its own connection to one file."""

    def __init__(self, path: Path) -> None:
        """Open the file and bring it to the newest schema.

        Raises:
            SlidepackError: DISK-UNWRITABLE, DISK-FULL or DAEMON-DATABASE-NEWER.
        """
        self._path = path
        self._local = threading.local()
        try:
            path.touch(mode=0o600)
            # WAL is a property of the file: readers never wait for the writer.
            self._connection().enable_wal()
            migrate(self._connection().conn, path)
        except OSError as error:
            raise disk_error(error, path) from error
        except sqlite3.DatabaseError as error:
            raise self._coded(error) from error

    def query(self, sql: str, *values: object) -> list[Row]:
        """Run one statement that returns rows, and return them.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        try:
            return list(self._connection().query(sql, [_storable(value) for value in values]))
        except sqlite3.DatabaseError as error:
            raise self._coded(error) from error

    def execute(self, sql: str, *values: object) -> None:
        """Run one statement that returns no rows; alone, it is a transaction of its own.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        try:
            self._connection().conn.execute(sql, values)
        except sqlite3.DatabaseError as error:
            raise self._coded(error) from error

    def values(self, sql: str, *values: object) -> list[tuple[Any, ...]]:
        """Run one statement and return its rows as bare tuples: for many small reads in a row.

        Raises:
            SlidepackError: DISK-UNWRITABLE or DISK-FULL.
        """
        try:
            storable = [_storable(value) for value in values]
            return self._connection().conn.execute(sql, storable).fetchall()
        except sqlite3.DatabaseError as error:
            raise self._coded(error) from error

    def one(self, sql: str, *values: object) -> Row | None:
        """Return the first row, or None."""
        rows = self.query(sql, *values)
        return rows[0] if rows else None

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a transaction."""
        return self._connection().conn.in_transaction

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Run the block as one BEGIN IMMEDIATE transaction; a failure undoes all of it.

        It joins the transaction of the same thread where there is one already.
        """
        connection = self._connection().conn
        if connection.in_transaction:
            yield
            return
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            # A full disk can end the transaction by itself.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise

    def _connection(self) -> SqliteDatabase:
        found: SqliteDatabase | None = getattr(self._local, "connection", None)
        if found is None:
            raw = sqlite3.connect(self._path, timeout=_BUSY_SECONDS, isolation_level=None)
            raw.execute("PRAGMA synchronous = FULL")
            # SQLite's own LIKE and lower() fold ASCII only.
            raw.create_function("casefold", 1, str.casefold, deterministic=True)
            found = SqliteDatabase(raw)
            self._local.connection = found
        return found

    def _coded(self, error: sqlite3.DatabaseError) -> Exception:
        """Return the coded error of a disk that refused, or the error itself where it is a bug."""
        primary = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if primary not in _DISK_ERRORS:
            return error
        number = errno.ENOSPC if primary == sqlite3.SQLITE_FULL else errno.EIO
        return disk_error(OSError(number, str(error)), self._path)


def _storable(value: object) -> object:
    """Return a value that SQLite can compare: a number beyond its range equals no stored one."""
    if isinstance(value, int):
        return max(-_BIGGEST - 1, min(_BIGGEST, value))
    return value
