"""Which job starts next: who waits for what, and who may overtake."""

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.supervisor.next_job import NextJob
from slidepack.daemon.supervisor.starting import StartedWorker, Waits
from slidepack.engine.contract.errors import ErrorReport, SlidepackError


@dataclass
class _World:
    """Stands for starter, gate and outcomes."""

    stores: Stores
    blocked: set[int] = field(default_factory=set)
    away: set[int] = field(default_factory=set)
    wrong: set[int] = field(default_factory=set)
    gated: dict[int, str] = field(default_factory=dict)
    shortages: dict[int, str] = field(default_factory=dict)
    clock: float = 0.0
    tries: list[int] = field(default_factory=list)
    settled_jobs: list[tuple[int, JobState]] = field(default_factory=list)

    def start(self, job: JobRecord, now: float) -> StartedWorker | Waits | None:
        self.tries.append(job.id)
        if job.id in self.wrong:
            raise ValueError("year 58884 is out of range")
        if job.id in self.blocked:
            return Waits("waits for memory", soon=True)
        if job.id in self.away:
            return Waits("waits: the model's folder cannot be read", soon=False)
        self.stores.jobs.move(job.id, "starting", "planned", now)
        return StartedWorker("nonce", None)  # type: ignore[arg-type]  # nobody asks for the process

    def shortage(self, job: JobRecord) -> str:
        if job.id in self.wrong:
            raise SlidepackError("RUN-FOLDER-BROKEN", "plan.json cannot be read.")
        return self.shortages.get(job.id, "")

    def why_wait(self, job: JobRecord, now: float) -> str:
        return self.gated.get(job.id, "")

    def why_leave(self, job: JobRecord, now: float) -> str:
        return ""

    def settled(
        self, job: JobRecord, state: JobState, reason: str, error: ErrorReport | None, now: float
    ) -> None:
        self.settled_jobs.append((job.id, state))

    def next_job(self) -> NextJob:
        monotonic: Callable[[], float] = lambda: self.clock  # noqa: E731 -- read at each call
        return NextJob(
            database=self.stores.database,
            jobs=self.stores.jobs,
            attempts=self.stores.attempts,
            starter=self,  # type: ignore[arg-type]  # as much of it as is used
            gate=self,
            outcomes=self,
            retry_seconds=5.0,
            monotonic=monotonic,
        )

    def add(self, timing: JobTiming | None = None) -> int:
        return self.stores.jobs.add(plain_spec(), 0.0, timing).id

    def state(self, job_id: int) -> str:
        return self.stores.jobs.get(job_id).state

    def reason(self, job_id: int) -> str:
        return self.stores.jobs.get(job_id).reason


def test_one_starts_and_the_others_say_for_whom_they_wait(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    queue = world.next_job()
    assert queue.start(1.0) is not None
    assert world.state(first) == "starting"
    assert world.reason(second) == f"waits for job {first} to end"
    assert queue.start(2.0) is None
    assert world.tries == [first]


def test_a_job_that_waits_for_its_time_is_overtaken(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    world.gated[first] = "waits until 23:00"
    assert world.next_job().start(1.0) is not None
    assert (world.state(first), world.reason(first)) == ("queued", "waits until 23:00")
    assert world.state(second) == "starting"


def test_a_job_without_memory_is_not_overtaken_at_once(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    world.blocked = {first}
    queue = world.next_job()
    for clock in (0.0, 1.0, 3.0, 29.0):
        world.clock = clock
        assert queue.start(clock) is None
        assert world.reason(second) == f"waits behind job {first}, which was tried just now"
    assert world.reason(first) == "waits for memory"
    assert world.tries == [first] * 3, "a try takes work, so there is one every two seconds"
    world.clock = 30.0
    assert queue.start(30.0) is not None
    assert world.state(second) == "starting"


def test_what_was_held_by_the_run_before_is_free_in_time(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    world.blocked = {first}
    queue = world.next_job()
    assert queue.start(0.0) is None
    world.blocked = set()
    world.clock = 2.0
    assert queue.start(2.0) is not None
    assert world.state(first) == "starting"
    assert world.reason(second) == f"waits for job {first} to end"


def test_what_comes_after_a_failure_is_held_and_told(stores: Stores) -> None:
    world = _World(stores)
    first = world.add()
    after = world.add(JobTiming(after=(first,)))
    anyway = world.add(JobTiming(after=(first,), after_failure="run"))
    stores.jobs.move(first, "failed", "it failed", 1.0)
    queue = world.next_job()
    assert queue.start(2.0) is not None
    assert world.state(after) == "paused"
    assert f"job {first}, which it comes after, failed" in world.reason(after)
    assert world.settled_jobs == [(after, "paused")]
    assert world.state(anyway) == "starting"


def test_a_full_disk_lets_go_by_itself_and_a_user_does_not(stores: Stores) -> None:
    world = _World(stores)
    full, by_user = world.add(), world.add()
    for job_id in (full, by_user):
        stores.jobs.move(job_id, "paused", "paused", 1.0)
    stores.jobs.set_error(full, ErrorReport(code="DISK-FULL", what="Full.", why="x", fix="y"))
    world.shortages[full] = "1.00 GB needed"
    queue = world.next_job()
    assert not queue.wake_paused(2.0)
    world.shortages.clear()
    assert not queue.wake_paused(2.1), "it is looked at every two seconds"
    world.clock = 2.0
    assert queue.wake_paused(4.0)
    assert world.state(full) == "queued"
    assert stores.jobs.get(full).error is None
    assert world.state(by_user) == "paused"


def test_several_without_memory_hold_the_line_together(stores: Stores) -> None:
    world = _World(stores)
    large = [world.add() for _ in range(5)]
    small = world.add()
    world.blocked = set(large)
    queue = world.next_job()
    assert queue.start(0.0) is None
    world.clock = 30.0
    assert queue.start(30.0) is not None
    assert world.state(small) == "starting"


def test_a_model_that_is_away_holds_up_nobody_else(stores: Stores) -> None:
    world = _World(stores)
    away, here = world.add(), world.add()
    world.away = {away}
    assert world.next_job().start(0.0) is not None
    assert world.state(here) == "starting"
    assert (world.state(away), world.reason(away)) == (
        "queued",
        "waits: the model's folder cannot be read",
    )


def test_what_is_wrong_with_one_job_holds_up_nobody_else(
    stores: Stores, caplog: pytest.LogCaptureFixture
) -> None:
    world = _World(stores)
    wrong, good, full = world.add(), world.add(), world.add()
    stores.jobs.move(full, "paused", "full", 1.0)
    stores.jobs.set_error(full, ErrorReport(code="DISK-FULL", what="Full.", why="x", fix="y"))
    world.wrong = {wrong, full}
    queue = world.next_job()
    assert not queue.wake_paused(1.0)
    assert world.state(full) == "paused"
    assert queue.start(0.0) is not None
    assert world.state(good) == "starting"
    assert "year 58884 is out of range" in world.reason(wrong)
    stores.jobs.move(good, "failed", "failed", 2.0)
    for clock in (2.0, 4.0):
        world.clock = clock
        queue.start(clock)
    told = [record for record in caplog.records if "cannot be started" in record.message]
    assert len(told) == 1, "once, with its traceback"
    assert told[0].exc_info


def test_a_worker_that_dies_at_once_is_tried_again_later_each_time(stores: Stores) -> None:
    world = _World(stores)
    job_id = world.add()
    queue = world.next_job()
    ended = 0.0
    for number, wait in ((1, 5.0), (2, 30.0)):
        world.clock = ended
        assert queue.start(ended) is not None, number
        attempt = stores.add_attempt(job_id, number)
        stores.attempts.end(attempt, "interrupted", -9, ended)
        stores.jobs.move(job_id, "queued", "its worker died", ended)
        world.clock = ended + wait - 0.1
        assert queue.start(ended + wait - 0.1) is None
        assert f"its worker died {number} times without a step" in world.reason(job_id)
        # A clock that was set back by a day does not make a day of seconds.
        ended += wait
    assert queue.start(ended - 86_400) is not None


def test_a_disk_that_is_full_again_each_time_is_asked_less_often(stores: Stores) -> None:
    world = _World(stores)
    job_id = world.add()
    queue = world.next_job()
    now = 0.0
    for number, wait in ((1, 0.0), (2, 5.0), (3, 30.0), (4, 180.0)):
        stores.jobs.move(job_id, "starting", "planned", now)
        attempt = stores.add_attempt(job_id, number)
        stores.attempts.end(attempt, "failed", 40, now)
        stores.jobs.move(job_id, "paused", "full", now)
        stores.jobs.set_error(job_id, ErrorReport(code="DISK-FULL", what="F.", why="x", fix="y"))
        if wait:
            world.clock = now + wait - 0.1
            assert not queue.wake_paused(now + wait - 0.1), number
        world.clock = now + wait + 2
        assert queue.wake_paused(now + wait + 2), number
        now += wait + 4
