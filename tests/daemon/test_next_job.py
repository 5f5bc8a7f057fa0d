"""Which job starts next: who waits for what, and who may overtake."""

from collections.abc import Callable
from dataclasses import dataclass, field

from support.stores import Stores, plain_spec

from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.supervisor.next_job import NextJob
from slidepack.engine.contract.errors import ErrorReport


@dataclass
class _World:
    """Stands for starter, gate and outcomes; jobs in `blocked` find no memory."""

    stores: Stores
    blocked: set[int] = field(default_factory=set)
    gated: dict[int, str] = field(default_factory=dict)
    shortages: dict[int, str] = field(default_factory=dict)
    clock: float = 0.0
    tries: list[int] = field(default_factory=list)
    settled_jobs: list[tuple[int, JobState]] = field(default_factory=list)

    def start(self, job: JobRecord, now: float) -> object | None:
        self.tries.append(job.id)
        if job.id in self.blocked:
            self.stores.jobs.explain(job.id, "waits for memory")
            return None
        self.stores.jobs.move(job.id, "starting", "planned", now)
        return object()

    def shortage(self, job: JobRecord) -> str:
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
            starter=self,  # type: ignore[arg-type]  # as much of it as is used
            gate=self,
            outcomes=self,
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
