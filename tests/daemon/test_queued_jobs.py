"""The queue's records are kept while nothing changes them, and never longer."""

from collections.abc import Callable
from pathlib import Path

import pytest
from support.stores import Stores, open_stores, plain_spec

from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.queued_jobs import QueuedJobs
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.errors import ErrorReport

_FULL = ErrorReport(
    code="DISK-FULL", what="The disk is full.", why="0 bytes free", fix="Free some."
)
_WRITES: list[tuple[str, Callable[[Stores, list[int]], object]]] = [
    ("added", lambda stores, ids: stores.jobs.add(plain_spec("new"), 2.0)),
    ("after", lambda stores, ids: stores.jobs.add(plain_spec(), 2.0, JobTiming(after=(ids[1],)))),
    ("waits for another", lambda stores, ids: stores.jobs.wait_for_instead(ids[0], ids[1])),
    ("explained", lambda stores, ids: stores.jobs.explain(ids[0], "waits for the night")),
    ("moved", lambda stores, ids: stores.jobs.place(ids[2], ids[0])),
    ("first", lambda stores, ids: stores.jobs.place_first(ids[2])),
    ("timed", lambda stores, ids: stores.jobs.set_timing(ids[1], JobTiming(not_before=7.0))),
    ("promised", lambda stores, ids: stores.jobs.promise(ids)),
    ("after a failure", lambda stores, ids: stores.jobs.run_after_failure(ids[2])),
    ("paused", lambda stores, ids: stores.jobs.move(ids[1], "paused", "paused", 2.0)),
    ("started", lambda stores, ids: stores.jobs.move(ids[0], "starting", "starts", 2.0)),
    ("cancelled", lambda stores, ids: stores.jobs.move(ids[0], "cancelled", "cancelled", 2.0)),
    ("removed", lambda stores, ids: stores.jobs.remove(ids[2])),
    ("in trouble", lambda stores, ids: stores.jobs.set_error(ids[0], _FULL)),
    ("further", lambda stores, ids: stores.runlog.set_phase(ids[0], "training")),
    (
        "continued",
        lambda stores, ids: stores.database.execute(
            "UPDATE jobs SET continues = ? WHERE id = ?", ids[0], ids[1]
        ),
    ),
]


@pytest.mark.parametrize(("name", "write"), _WRITES, ids=[name for name, _ in _WRITES])
def test_whatever_is_written_is_seen(
    stores: Stores, name: str, write: Callable[[Stores, list[int]], object]
) -> None:
    ids = _three(stores)
    before = stores.jobs.queued()
    write(stores, ids)
    seen = stores.jobs.queued()
    assert seen == JobStore(stores.database).queued()
    assert seen != before, name


def test_it_is_read_once_while_nothing_changes_and_another_process_is_heard(
    stores: Stores, tmp_path: Path
) -> None:
    ids = _three(stores)
    reads = 0

    def read() -> list[JobRecord]:
        nonlocal reads
        reads += 1
        return JobStore(stores.database).queued()

    kept = QueuedJobs(stores.database, read)
    assert [job.id for job in kept.now()] == ids
    stores.jobs.move(ids[0], "starting", "starts", 2.0)
    assert len(kept.now()) == 2
    for step in range(5):
        # A job that trains writes all the time, and is none of these.
        stores.database.execute("UPDATE jobs SET step = ? WHERE id = ?", step, ids[0])
        assert len(kept.now()) == 2
    assert reads == 2
    kept.now().clear()
    assert len(kept.now()) == 2, "what is handed out is the asker's own"
    open_stores(stores.folder).jobs.add(plain_spec(), 3.0)
    assert len(kept.now()) == 3


def test_what_is_undone_was_never_there(stores: Stores) -> None:
    ids = _three(stores)
    stores.jobs.queued()
    with pytest.raises(ZeroDivisionError), stores.database.transaction():
        stores.jobs.place_first(ids[2])
        assert stores.jobs.queued()[0].id == ids[2]
        1 / 0  # noqa: B018  # any failure will do
    stores.jobs.move(ids[1], "paused", "paused", 2.0)
    assert [job.id for job in stores.jobs.queued()] == [ids[0], ids[2]]


def _three(stores: Stores) -> list[int]:
    """Queue three jobs, of which the last waits for the first."""
    first = stores.jobs.add(plain_spec(), 1.0).id
    second = stores.jobs.add(plain_spec(), 1.0).id
    return [first, second, stores.jobs.add(plain_spec(), 1.0, JobTiming(after=(first,))).id]
