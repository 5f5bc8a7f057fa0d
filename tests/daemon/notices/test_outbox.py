"""Notices as rows: recorded with what they tell of, tried again, given up, forgotten."""

from pathlib import Path

import pytest

from slidepack.daemon.notices.outbox import Outbox
from slidepack.daemon.store.database import Database

_HOUR = 3600.0


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "slidepack.db")


@pytest.fixture
def outbox(database: Database) -> Outbox:
    return Outbox(database)


def _add_address(database: Database, number: int = 1) -> None:
    database.execute(
        "INSERT INTO notifiers (id, name, service, shown, url, created_at) "
        "VALUES (?, ?, ?, ?, ?, ?)",
        number,
        f"phone {number}",
        "JSON",
        "json://…",
        f"json://127.0.0.1/{number}",
        0.0,
    )


def _try(outbox: Outbox, now: float, error: str = "") -> int:
    due = outbox.due(now)
    outbox.claim(due, now)
    outbox.settle(due, error, now)
    return len(due)


def test_a_notice_is_there_exactly_where_what_it_tells_of_is(
    outbox: Outbox, database: Database
) -> None:
    _add_address(database)
    with pytest.raises(RuntimeError), database.transaction():
        outbox.record("failed", "lost", "", None, 1.0)
        raise RuntimeError("the transition did not happen")
    assert outbox.recent() == []
    assert outbox.due(2.0) == []
    with database.transaction():
        outbox.record("failed", "kept", "why", 7, 1.0)
    (notice,) = outbox.recent()
    assert (notice.title, notice.body, notice.job_id, notice.kind) == ("kept", "why", 7, "failed")


def test_it_goes_to_the_addresses_of_its_time(outbox: Outbox, database: Database) -> None:
    outbox.record("finished", "before", "", None, 1.0)
    _add_address(database, 1)
    _add_address(database, 2)
    outbox.record("finished", "after", "", None, 2.0)
    assert [(due.notifier_id, due.title) for due in outbox.due(3.0)] == [(1, "after"), (2, "after")]
    assert [len(notice.deliveries) for notice in outbox.recent()] == [2, 0]


def test_one_that_arrived_is_never_due_again(outbox: Outbox, database: Database) -> None:
    _add_address(database)
    outbox.record("finished", "t", "b", None, 1.0)
    assert _try(outbox, 2.0) == 1
    assert outbox.due(1e9) == []
    (delivery,) = outbox.recent()[0].deliveries
    assert (delivery.state, delivery.tries, delivery.sent_at, delivery.notifier) == (
        *("sent", 1, 2.0, "phone 1"),
    )


def test_waits_grow_and_after_a_day_it_is_given_up(outbox: Outbox, database: Database) -> None:
    _add_address(database)
    outbox.record("finished", "t", "b", None, 0.0)
    now, waits = 0.0, []
    while outbox.open_counts()["pending"]:
        assert now < 3 * 24 * _HOUR
        assert _try(outbox, now, "HTTP 500") == 1
        (delivery,) = outbox.recent()[0].deliveries
        if delivery.state == "pending":
            assert outbox.due(delivery.next_at - 1) == []
            waits.append(delivery.next_at - now)
            now = delivery.next_at
    assert waits[:8] == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert waits == sorted(waits)
    assert 24 * _HOUR <= now <= 25 * _HOUR
    assert (delivery.state, delivery.error) == ("failed", "HTTP 500")
    assert outbox.open_counts() == {"pending": 0, "failed": 1}
    assert outbox.due(1e9) == []


def test_a_claim_outlives_the_daemon_that_died(outbox: Outbox, database: Database) -> None:
    _add_address(database)
    outbox.record("finished", "t", "b", None, 0.0)
    outbox.claim(outbox.due(0.0), 0.0)
    # The delivering process may still be at work; nothing sends it a second time meanwhile.
    assert outbox.due(59.0) == []
    assert len(outbox.due(60.0)) == 1


def test_a_clock_that_was_set_back_holds_nothing_up(outbox: Outbox, database: Database) -> None:
    _add_address(database)
    year = 365 * 24 * _HOUR
    outbox.record("finished", "t", "b", None, year)
    assert _try(outbox, year, "no network") == 1
    assert _try(outbox, 1000.0) == 1, "a year of waiting was a clock's mistake"


def test_what_the_user_does_not_want_is_listed_and_not_sent(
    outbox: Outbox, database: Database
) -> None:
    _add_address(database)
    outbox.record("paused", "t", "b", None, 1.0)
    outbox.record("failed", "u", "b", None, 1.0)
    outbox.drop_unwanted(("failed",))
    assert [due.title for due in outbox.due(2.0)] == ["u"]
    states = {notice.title: notice.deliveries[0].state for notice in outbox.recent()}
    assert states == {"t": "dropped", "u": "pending"}
    outbox.drop_unwanted(())
    assert outbox.due(2.0) == []


def test_old_ones_are_forgotten_but_none_that_is_to_be_sent(
    outbox: Outbox, database: Database
) -> None:
    month = 31 * 24 * _HOUR
    outbox.record("finished", "old", "", None, 0.0)
    _add_address(database)
    outbox.record("finished", "old and pending", "", None, 0.0)
    outbox.record("finished", "new", "", None, month)
    outbox.prune(month)
    assert [notice.title for notice in outbox.recent()] == ["new", "old and pending"]
    database.execute("DELETE FROM notifiers")
    with database.transaction():
        for number in range(1100):
            outbox.record("finished", str(number), "", None, month)
    outbox.prune(month)
    kept = outbox.recent(5000)
    assert (len(kept), kept[0].title) == (1002, "1099")
    assert [notice.title for notice in kept[-2:]] == ["new", "old and pending"]
    assert outbox.recent(3) == kept[:3]
