"""Brings a database to the newest schema: numbered SQL files, each one a transaction."""

import os
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.runfolder import fsync_folder

_FOLDER: Final = Path(__file__).with_name("migrations")
_NAME: Final = re.compile(r"(\d{4})_[a-z_]+\.sql")


def migrate(connection: sqlite3.Connection, path: Path, folder: Path = _FOLDER) -> None:
    """Apply what is missing; a database that holds anything is copied aside first.

    Args:
        connection: in autocommit mode.
        path: of the database; copies go to `backups/` beside it.
        folder: of the SQL files, numbered from 1 without a gap.

    Raises:
        SlidepackError: DAEMON-DATABASE-NEWER.
        OSError: the disk refused the copy; nothing was changed.
        sqlite3.DatabaseError: the disk refused; the database is as it was after the last file.
    """
    files = _numbered(folder)
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(files):
        raise SlidepackError(
            "DAEMON-DATABASE-NEWER",
            "The database was written by a newer Slidepack.",
            why=f"{path} has version {version}, this program knows {len(files)}",
            fix=f"Update Slidepack, or put back the copy in {path.parent / 'backups'}.",
        )
    if 0 < version < len(files):
        _copy_aside(connection, path, version)
    for number in range(version + 1, len(files) + 1):
        _apply(connection, files[number - 1].read_text("utf-8"), number)


def _numbered(folder: Path) -> list[Path]:
    found = sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))
    assert [int(path.name[:4]) for path in found] == list(range(1, len(found) + 1))
    return found


def _copy_aside(connection: sqlite3.Connection, path: Path, version: int) -> None:
    folder = path.parent / "backups"
    folder.mkdir(mode=0o700, exist_ok=True)
    final = folder / f"{path.stem}-version-{version}.db"
    temporary = folder / f".{final.name}.tmp"
    temporary.unlink(missing_ok=True)
    temporary.touch(mode=0o600)
    with sqlite3.connect(temporary) as copy:
        connection.backup(copy)
    copy.close()
    descriptor = os.open(temporary, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    temporary.replace(final)
    fsync_folder(folder)


def _apply(connection: sqlite3.Connection, script: str, number: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    try:
        for statement in _statements(script):
            connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {number}")
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def _statements(script: str) -> Iterator[str]:
    """Yield statement by statement: `executescript` would end the transaction."""
    pending = ""
    for line in script.splitlines(keepends=True):
        pending += line
        if sqlite3.complete_statement(pending):
            yield pending
            pending = ""
    assert not pending.strip(), "the last statement has no semicolon"
