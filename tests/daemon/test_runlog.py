"""What is asked of the events, however many there are."""

import shutil
import sqlite3
from pathlib import Path

from support.stores import Stores, plain_spec

from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.events import (
    AnyEvent,
    Checkpointed,
    Failed,
    Started,
    Yielded,
)

_STEP = '{"type":"progress","at":1.0,"step":1}'


def _checkpoint(path: Path, *, healthy: bool = True) -> Checkpointed:
    return Checkpointed(at=1.0, step=1, path=str(path), seconds=1.0, reason="time", healthy=healthy)


def _report(stores: Stores, job_id: int, events: list[AnyEvent], number: int = 1) -> None:
    stores.runlog.ingest(stores.attempt(job_id, number), events, 1)


def _job(stores: Stores) -> int:
    job_id = stores.jobs.add(plain_spec(), 0.0).id
    stores.add_attempt(job_id)
    return job_id


def _folder(stores: Stores, name: str) -> Path:
    path = stores.folder / name
    path.mkdir()
    return path


def test_only_a_healthy_checkpoint_that_is_on_disk_is_a_good_one(stores: Stores) -> None:
    job_id, other = _job(stores), _job(stores)
    good = stores.runlog.has_good_checkpoint
    assert not good(job_id)
    first, second = _folder(stores, "first"), _folder(stores, "second")
    _report(stores, job_id, [_checkpoint(first, healthy=False)])
    assert not good(job_id)
    _report(stores, job_id, [_checkpoint(second)])
    _report(stores, job_id, [_checkpoint(first, healthy=False)])
    assert good(job_id)
    assert not good(other)
    shutil.rmtree(second)
    assert not good(job_id)
    second.touch()
    assert not good(job_id), "a file is no checkpoint"


def test_a_good_checkpoint_of_an_earlier_attempt_counts(stores: Stores) -> None:
    job_id = _job(stores)
    _report(stores, job_id, [_checkpoint(_folder(stores, "good"))])
    stores.add_attempt(job_id, 2)
    _report(stores, job_id, [_checkpoint(_folder(stores, "bad"), healthy=False)], number=2)
    assert stores.runlog.has_good_checkpoint(job_id)


def test_a_step_that_was_saved_anew_is_as_good_as_it_is_now(stores: Stores) -> None:
    job_id = _job(stores)
    path = _folder(stores, "step")
    for healthy in (True, False, True):
        _report(stores, job_id, [_checkpoint(path, healthy=healthy)])
        assert stores.runlog.has_good_checkpoint(job_id) is healthy


def test_an_event_that_does_not_say_tells_of_a_healthy_checkpoint(stores: Stores) -> None:
    job_id = _job(stores)
    path = _folder(stores, "old")
    stores.database.execute(
        "INSERT INTO events (job_id, attempt, type, body) VALUES (?, 1, 'checkpoint', ?)",
        job_id,
        f'{{"type":"checkpoint","at":1.0,"step":1,"path":"{path}","seconds":1.0,"reason":"time"}}',
    )
    assert stores.runlog.has_good_checkpoint(job_id)


def _many_steps(stores: Stores, job_id: int, count: int) -> None:
    with stores.database.transaction():
        stores.database.execute(
            "WITH RECURSIVE steps(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM steps WHERE n < ?) "
            "INSERT INTO events (job_id, attempt, type, body) "
            f"SELECT ?, 1, 'progress', '{_STEP}' FROM steps",
            count,
            job_id,
        )


def _work(stores: Stores, job_id: int) -> int:
    """Count what SQLite does to find how an attempt ended and whether it left a checkpoint."""
    done = 0

    def step() -> int:
        nonlocal done
        done += 1
        return 0

    connection: sqlite3.Connection = stores.database._connection().conn  # the only way to count
    connection.set_progress_handler(step, 10)
    stores.runlog.ending(job_id, 1)
    stores.runlog.has_good_checkpoint(job_id)
    connection.set_progress_handler(None, 0)
    return done


def test_what_an_attempt_ended_with_is_found_without_a_walk(stores: Stores) -> None:
    """Whatever is there to be found: an ending, none, or one far back."""
    error = ErrorReport(code="RUN-CRASHED", what="It died.", why="-", fix="-")
    endings: list[list[AnyEvent]] = [
        [],
        [Yielded(at=1.0, reason="asked")],
        [Failed(at=1.0, error=error)],
    ]
    for events in endings:
        small, large = _job(stores), _job(stores)
        for job_id, steps in ((small, 10), (large, 20_000)):
            _report(stores, job_id, events)
            _many_steps(stores, job_id, steps)
            assert stores.runlog.ending(job_id, 1) == (events[0] if events else None)
            assert stores.runlog.ending(job_id, 2) is None
        assert _work(stores, large) <= _work(stores, small) + 5


def test_steps_are_dropped_oldest_first_and_no_more_than_asked_for(stores: Stores) -> None:
    job_id, other = _job(stores), _job(stores)
    ended = Yielded(at=1.0, reason="asked")
    for each in (job_id, other):
        _many_steps(stores, each, 7)
        _report(stores, each, [ended])
    ids = [row["id"] for row in stores.runlog.events_after(0, job_id)]
    assert stores.runlog.drop_steps(job_id, 3) == 3
    assert [row["id"] for row in stores.runlog.events_after(0, job_id)] == ids[3:]
    assert stores.runlog.drop_steps(job_id, 100) == 4
    assert stores.runlog.drop_steps(job_id, 100) == 0
    assert [row["id"] for row in stores.runlog.events_after(0, job_id)] == ids[-1:]
    assert stores.runlog.ending(job_id, 1) == ended
    assert len(stores.runlog.events_after(0, other)) == 8


def test_the_last_start_tells_what_moves_state_to_drives(stores: Stores) -> None:
    job_id, moved_by = _job(stores), stores.runlog.drives_moved_by
    assert moved_by(job_id) == ""
    for number, drives in ((1, "ring: O_DIRECT"), (2, "kvikio: GPUDirect Storage"), (3, "")):
        if number > 1:
            stores.add_attempt(job_id, number)
        event = Started(
            at=1.0,
            pid=1,
            device="cpu",
            precision="fp32",
            total_steps=1,
            from_step=0,
            train_rows=1,
            eval_rows=0,
            trainable_params=1,
            attention="eager: asked for",
            drives=drives,
        )
        _report(stores, job_id, [event], number)
        assert moved_by(job_id) == drives
