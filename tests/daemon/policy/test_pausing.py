"""The user's pause over a real database: how long it may last, and what a failure leaves of it."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from datetime import UTC
from pathlib import Path

import msgspec
import pytest

from slidepack.daemon.aftermath import Aftermath
from slidepack.daemon.policy.gpu_sample import no_gpus
from slidepack.daemon.policy.pausing import LONGEST_PAUSE_SECONDS, ManualPause, Pausing
from slidepack.daemon.policy.watch import PolicyWatch
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.documents import Documents
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import SlidepackError

NOW = 1_796_000_000.0
FOREVER = "you paused the queue until you resume it"
_SOON = 20.0
"""Far less than the half minute that SQLite waits for a lock."""


@pytest.fixture
def database(tmp_path: Path) -> Database:
    return Database(tmp_path / "slidepack.db")


@pytest.fixture
def documents(database: Database) -> Documents:
    return Documents(database)


def _reason(pausing: Pausing, now: float = NOW) -> str:
    hold = pausing.hold(now, UTC)
    return "" if hold is None else hold.reason


@pytest.mark.parametrize(
    "until",
    [NOW, 0.0, -1e18, NOW + LONGEST_PAUSE_SECONDS + 60, 1.8e12, 1e300, math.inf, math.nan],
)
def test_a_pause_ends_within_a_year_or_never(documents: Documents, until: float) -> None:
    pausing = Pausing(documents, NOW)
    with pytest.raises(SlidepackError) as refused:
        pausing.pause(until, NOW)
    assert refused.value.report.code == "DAEMON-REQUEST-INVALID"
    assert refused.value.http_status == 400
    assert _reason(pausing) == _reason(Pausing(documents, NOW)) == ""
    for allowed in (NOW + 1, NOW + LONGEST_PAUSE_SECONDS, None):
        pausing.pause(allowed, NOW)
        assert _reason(pausing)


@pytest.mark.parametrize("until", [1.8e12, 1e300, NOW + 3 * LONGEST_PAUSE_SECONDS])
def test_a_stored_pause_of_years_lasts_until_it_is_resumed(
    documents: Documents, until: float
) -> None:
    documents.put("pause", ManualPause(since=NOW, until=until))
    pausing = Pausing(documents, NOW)
    pausing.settle(NOW)
    hold = pausing.hold(NOW, UTC)
    assert hold is not None
    assert (hold.reason, hold.until) == (FOREVER, None)
    pausing.resume()
    assert _reason(pausing) == ""


@pytest.mark.parametrize("until", [-1e300, -1e18, 0.0, NOW - 1])
def test_a_stored_pause_of_the_past_is_over(documents: Documents, until: float) -> None:
    documents.put("pause", ManualPause(since=NOW, until=until))
    pausing = Pausing(documents, NOW)
    assert _reason(pausing) == ""
    pausing.settle(NOW)
    assert documents.get("pause", ManualPause) is None


def test_a_pause_ends_with_its_time_and_keeps_its_beginning(documents: Documents) -> None:
    pausing = Pausing(documents, NOW)
    pausing.pause(NOW + 60, NOW)
    pausing.settle(NOW + 1)
    pausing.pause(NOW + 90, NOW + 30)
    hold = pausing.hold(NOW + 89, UTC)
    assert hold is not None
    assert (hold.since, hold.until) == (NOW, NOW + 90)
    assert _reason(pausing, NOW + 90) == ""
    pausing.settle(NOW + 90)
    assert documents.get("pause", ManualPause) is None


class _Broken(Exception):
    """What undoes a transaction in the tests."""


def _other_thread(pausing: Pausing) -> str:
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_reason, pausing).result(_SOON)


@pytest.mark.parametrize("paused_before", [False, True])
def test_what_is_undone_was_never_so(
    database: Database, documents: Documents, paused_before: bool
) -> None:
    pausing = Pausing(documents, NOW)
    if paused_before:
        pausing.pause(None, NOW, "an earlier reason")
        pausing.settle(NOW)
    before = _reason(pausing)
    with pytest.raises(_Broken), database.transaction():
        pausing.resume() if paused_before else pausing.pause(None, NOW, "job 7 failed")
        # Whoever changed it sees the change; nobody else does before it is settled.
        assert _reason(pausing) != before
        assert _other_thread(pausing) == before
        raise _Broken
    assert _reason(pausing) == before
    pausing.settle(NOW)
    assert _reason(pausing) == before == _reason(Pausing(documents, NOW))


def test_what_is_done_holds_at_once_and_for_all(database: Database, documents: Documents) -> None:
    pausing = Pausing(documents, NOW)
    with database.transaction():
        pausing.pause(None, NOW, "job 7 failed")
    assert "job 7 failed" in _reason(pausing)
    assert "job 7 failed" in _other_thread(pausing)
    pausing.settle(NOW)
    assert "job 7 failed" in _reason(pausing)


class _Announcing(Documents):
    """Says that a thread is about to write."""

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.about_to = threading.Event()
        self.announcer: int | None = None

    def _announce(self) -> None:
        if threading.get_ident() == self.announcer:
            self.about_to.set()

    def transaction(self) -> AbstractContextManager[None]:
        self._announce()
        return super().transaction()

    def put(self, key: str, value: msgspec.Struct) -> None:
        self._announce()
        super().put(key, value)

    def delete(self, key: str) -> None:
        self._announce()
        super().delete(key)


@pytest.mark.parametrize("act", ["pause", "resume", "look"])
def test_a_request_and_the_supervisor_never_wait_for_each_other(
    database: Database, act: str
) -> None:
    documents = _Announcing(database)
    documents.put("pause", ManualPause(since=NOW, until=NOW + 10))
    watch = PolicyWatch(documents, sample=no_gpus, clock=lambda: NOW)

    def request() -> None:
        documents.announcer = threading.get_ident()
        if act == "pause":
            watch.pause(None)
        elif act == "resume":
            watch.resume()
        else:
            watch.look(NOW + 11, 1.0, (), waiting=False)

    def supervise() -> None:
        with database.transaction():
            waiting = pool.submit(request)
            assert documents.about_to.wait(_SOON)
            watch.pause(why="job 7 failed, which was to stop the queue")
        waiting.result(_SOON)

    with ThreadPoolExecutor(2) as pool:
        pool.submit(supervise).result(_SOON)
    hold = watch.hold()
    assert (hold is not None) == (act != "resume")


def test_a_job_that_stops_the_queue_stops_it_for_good_or_not_at_all(tmp_path: Path) -> None:
    database = Database(tmp_path / "other.db")
    watch = PolicyWatch(Documents(database), sample=no_gpus, clock=lambda: NOW)
    aftermath = Aftermath(_NoNotices(), watch)  # type: ignore[arg-type]  # tells nobody
    job = _failing()
    with pytest.raises(_Broken), database.transaction():
        aftermath.settled(job, "failed", "it broke", None, NOW)
        raise _Broken
    assert watch.hold() is None
    with database.transaction():
        aftermath.settled(job, "failed", "it broke", None, NOW)
    hold = watch.hold()
    assert hold is not None
    assert "job 7 failed" in hold.reason


class _NoNotices:
    def job_changed(self, *_arguments: object) -> None:
        """Tell nobody."""


def _failing() -> JobRecord:
    return JobRecord(
        id=7,
        name="a job",
        state="running",
        reason="",
        model_id="m",
        dataset_id=1,
        step=1,
        total_steps=2,
        phase="",
        loss=None,
        eta_seconds=None,
        tokens_per_second=None,
        result=None,
        error=None,
        wanted=None,
        wanted_at=None,
        on_failure="stop",
        created_at=NOW,
        started_at=NOW,
        ended_at=None,
    )
