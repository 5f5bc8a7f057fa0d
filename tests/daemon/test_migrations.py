"""Databases of older versions open with everything in them; newer ones are left alone."""

import shutil
import sqlite3
import stat
from pathlib import Path

import pytest
from support.stores import open_stores, plain_spec

from slidepack.daemon.store import migrations
from slidepack.daemon.store.access import Sessions, hash_of
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.migrations import migrate
from slidepack.engine.contract.errors import SlidepackError

_OLD = Path(__file__).with_name("databases")
_FILES = Path(migrations.__file__).with_name("migrations")


def _write_old(path: Path, version: int = 1) -> None:
    with sqlite3.connect(path) as connection:
        connection.executescript((_OLD / f"version-{version}.sql").read_text("utf-8"))
    connection.close()


def _schema(path: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute("SELECT name, sql FROM sqlite_master ORDER BY name").fetchall()
    connection.close()
    return rows


def _columns(path: Path) -> dict[str, list[tuple[object, ...]]]:
    with sqlite3.connect(path) as connection:
        names = [row[0] for row in connection.execute("SELECT name FROM sqlite_master")]
        found = {
            name: [
                tuple(row[1:])
                for row in connection.execute("SELECT * FROM pragma_table_info(?)", (name,))
            ]
            for name in names
        }
    connection.close()
    return found


@pytest.mark.parametrize("version", [int(p.stem.split("-")[1]) for p in _OLD.glob("*.sql")])
def test_an_older_database_opens_with_everything_in_it(tmp_path: Path, version: int) -> None:
    path = tmp_path / "slidepack.db"
    _write_old(path, version)
    before = _schema(path)
    stores = open_stores(tmp_path)
    assert [(job.id, job.state) for job in stores.jobs.list_jobs()] == [
        (2, "running"),
        (3, "paused"),
        (4, "queued"),
        (1, "completed"),
    ]
    assert [row["step"] for row in stores.runlog.progress(1)] == [1, 2]
    assert stores.attempt(1).last_step == 2
    assert stores.jobs.get(1).result == "/nowhere/result"
    assert stores.jobs.spec(4) == plain_spec("job 4")
    # It works on: the job at the head of the queue can be taken.
    stores.jobs.move(4, "starting", "planned", 20.0)
    stores.jobs.add(plain_spec("new"), 21.0)

    copy = tmp_path / "backups" / f"slidepack-version-{version}.db"
    assert _schema(copy) == before, "the copy was made before anything changed"
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600

    fresh = tmp_path / "fresh"
    fresh.mkdir()
    open_stores(fresh)
    assert _columns(path) == _columns(fresh / "slidepack.db")
    assert not (fresh / "backups").exists(), "a new database has nothing to lose"


def test_opening_twice_changes_nothing(tmp_path: Path) -> None:
    open_stores(tmp_path).jobs.add(plain_spec(), 0.0)
    before = _schema(tmp_path / "slidepack.db")
    stores = open_stores(tmp_path)
    assert _schema(tmp_path / "slidepack.db") == before
    assert len(stores.jobs.list_jobs()) == 1
    assert not (tmp_path / "backups").exists()


def test_a_newer_database_is_refused_and_untouched(tmp_path: Path) -> None:
    open_stores(tmp_path)
    path = tmp_path / "slidepack.db"
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 999")
        connection.execute("CREATE TABLE tomorrow (x)")
    connection.close()
    before = _schema(path)
    with pytest.raises(SlidepackError) as refused:
        open_stores(tmp_path)
    assert refused.value.report.code == "DAEMON-DATABASE-NEWER"
    assert "999" in refused.value.report.why
    assert _schema(path) == before


def test_a_migration_that_fails_leaves_the_version_before_it(tmp_path: Path) -> None:
    folder = tmp_path / "migrations"
    folder.mkdir()
    (folder / "0001_first.sql").write_text("CREATE TABLE a (x TEXT DEFAULT ';');\n")
    (folder / "0002_second.sql").write_text(
        "ALTER TABLE a ADD COLUMN y;\nINSERT INTO nowhere VALUES (1);\n"
    )
    path = tmp_path / "some.db"
    connection = sqlite3.connect(path, isolation_level=None)
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, path, folder)
    assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert [row[1] for row in connection.execute("PRAGMA table_info(a)")] == ["x"]
    (folder / "0002_second.sql").write_text("ALTER TABLE a ADD COLUMN y;\n")
    migrate(connection, path, folder)
    assert [row[1] for row in connection.execute("PRAGMA table_info(a)")] == ["x", "y"]
    connection.close()


def test_sessions_stay_and_their_ids_are_never_used_again(tmp_path: Path) -> None:
    folder, path = tmp_path / "migrations", tmp_path / "slidepack.db"
    folder.mkdir()
    for file in sorted(_FILES.glob("*.sql"))[:14]:
        shutil.copy(file, folder)
    connection = sqlite3.connect(path, isolation_level=None)
    migrate(connection, path, folder)
    for number in (1, 2, 3):
        connection.execute(
            "INSERT INTO sessions VALUES (?, ?, 7.0, 'Firefox on Linux', '10.0.0.9')",
            (hash_of(f"session {number}"), float(number)),
        )
    connection.execute("DELETE FROM sessions WHERE rowid = 2")
    connection.close()

    sessions = Sessions(Database(path))
    assert [sessions.id_of(f"session {number}") for number in (1, 2, 3)] == [1, None, 3]
    kept = sessions.records(0.0)[0]
    assert (kept.created_at, kept.seen_at) == (3.0, 7.0)
    assert (kept.browser, kept.address) == ("Firefox on Linux", "10.0.0.9")
    sessions.end(3)
    sessions.add("session 4", 8.0)
    assert sessions.id_of("session 4") == 4, "an old list that ends 3 ends nobody else"
    sessions.end(10**30)
    sessions.end_all()
    sessions.add("session 5", 9.0)
    assert sessions.id_of("session 5") == 5
