"""Which job starts next: who waits for what, and who may overtake."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.hardware import DeviceNow
from slidepack.daemon.planner.from_engine import model_key
from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.packs import PackRecord
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.supervisor.following import PlannedMove
from slidepack.daemon.supervisor.launching import StartedWorker, Waits
from slidepack.daemon.supervisor.next_job import NextJob
from slidepack.daemon.supervisor.pack_starting import Joined
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec
from slidepack.engine.memory import Machine


@dataclass
class _Start:
    job_id: int
    device: str


def _started(*jobs: JobRecord) -> StartedWorker:
    return StartedWorker("nonce", None, tuple(job.id for job in jobs))  # type: ignore[arg-type]  # nobody asks for the process


def device(key: str) -> DeviceNow:
    """Return a device with plenty of memory."""
    machine = Machine(
        device=key, device_free_bytes=1 << 40, ram_available_bytes=1 << 40, cpu_threads=1
    )
    return DeviceNow(key=key, name=key, card="", machine=machine)


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
    machine: tuple[DeviceNow, ...] = (device("cpu"),)
    room: int = 64
    planned: list[_Start] | None = None
    held: dict[str, str] = field(default_factory=dict)

    def devices(self) -> list[DeviceNow]:
        return list(self.machine)

    def run(
        self, job: JobRecord, spec: JobSpec, device: DeviceNow, now: float
    ) -> StartedWorker | Waits | None:
        self.tries.append(job.id)
        if job.id in self.wrong:
            raise ValueError("year 58884 is out of range")
        if job.id in self.blocked:
            return Waits("waits for memory", soon=True)
        if job.id in self.away:
            return Waits("waits: the model's folder cannot be read", soon=False)
        self._begin(job, device, f"nonce-{job.id}", None, now)
        return _started(job)

    def pack(
        self,
        lanes: Sequence[tuple[JobRecord, JobSpec]],
        later: Sequence[JobSpec],
        device: DeviceNow,
        now: float,
        *,
        alone: bool,
    ) -> StartedWorker | Waits | None:
        self.tries.append(lanes[0][0].id)
        nonce = f"nonce-{lanes[0][0].id}"
        pack = self.stores.packs.add(
            device=device.key,
            model=model_key(lanes[0][1], device.key),
            folder=Path("/packs") / nonce,
            nonce=nonce,
            machine=device.machine,
            alone=alone,
            now=now,
        )
        for job, _ in lanes[: self.room]:
            self._begin(job, device, nonce, pack.id, now)
        return _started(*(job for job, _ in lanes[: self.room]))

    def join(
        self, job: JobRecord, spec: JobSpec, pack: PackRecord, now: float
    ) -> Joined | Waits | None:
        if job.id in self.blocked:
            return Waits("waits for a seat", soon=False)
        self._begin(job, self.devices()[0], pack.nonce, pack.id, now)
        return Joined(job.id)

    def _begin(
        self, job: JobRecord, device: DeviceNow, nonce: str, pack_id: int | None, now: float
    ) -> None:
        number = len(self.stores.attempts.of(job.id)) + 1
        self.stores.jobs.move(job.id, "starting", "planned", now)
        self.stores.attempts.add(
            job.id, number, f"/jobs/{job.id}", nonce, now, device=device.key, pack_id=pack_id
        )

    def starts(self, now: float) -> list[_Start] | None:
        return self.planned

    def moves(self, now: float) -> list[PlannedMove]:
        return []

    def why(self, job_id: int) -> str:
        return f"the plan lets {job_id} wait"

    def changed(self) -> None:
        pass

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

    def next_job(self, *, packing: bool = False) -> NextJob:
        monotonic: Callable[[], float] = lambda: self.clock  # noqa: E731 -- read at each call
        return NextJob(
            database=self.stores.database,
            jobs=self.stores.jobs,
            attempts=self.stores.attempts,
            packs=self.stores.packs,
            starter=self,  # type: ignore[arg-type]  # as much of it as is used
            pack_starter=_Packs(self),  # type: ignore[arg-type]  # as much of it as is used
            gate=self,
            outcomes=self,
            plan=self,
            packing=packing,
            retry_seconds=5.0,
            held=lambda: self.held,
            monotonic=monotonic,
        )

    def add(self, timing: JobTiming | None = None) -> int:
        return self.stores.jobs.add(plain_spec(), 0.0, timing).id

    def add_full(self) -> int:
        spec = msgspec.structs.replace(plain_spec(), method=FullMethod())
        return self.stores.jobs.add(spec, 0.0).id

    def state(self, job_id: int) -> str:
        return self.stores.jobs.get(job_id).state

    def reason(self, job_id: int) -> str:
        return self.stores.jobs.get(job_id).reason


def test_one_starts_and_the_others_say_for_whom_they_wait(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    queue = world.next_job()
    assert queue.start(1.0)
    assert world.state(first) == "starting"
    assert world.reason(second) == f"waits for job {first} to end"
    assert not queue.start(2.0)
    assert world.tries == [first]


def test_a_job_that_waits_for_its_time_is_overtaken(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    world.gated[first] = "waits until 23:00"
    assert world.next_job().start(1.0)
    assert (world.state(first), world.reason(first)) == ("queued", "waits until 23:00")
    assert world.state(second) == "starting"


def test_a_job_without_memory_is_not_overtaken_at_once(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    world.blocked = {first}
    queue = world.next_job()
    for clock in (0.0, 1.0, 3.0, 29.0):
        world.clock = clock
        assert not queue.start(clock)
        assert world.reason(second) == f"waits behind job {first}, which was tried just now"
    assert world.reason(first) == "waits for memory"
    assert world.tries == [first] * 3, "a try takes work, so there is one every two seconds"
    world.clock = 30.0
    assert queue.start(30.0)
    assert world.state(second) == "starting"


def test_what_was_held_by_the_run_before_is_free_in_time(stores: Stores) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    world.blocked = {first}
    queue = world.next_job()
    assert not queue.start(0.0)
    world.blocked = set()
    world.clock = 2.0
    assert queue.start(2.0)
    assert world.state(first) == "starting"
    assert world.reason(second) == f"waits for job {first} to end"


def test_what_comes_after_a_failure_is_held_and_told(stores: Stores) -> None:
    world = _World(stores)
    first = world.add()
    after = world.add(JobTiming(after=(first,)))
    anyway = world.add(JobTiming(after=(first,), after_failure="run"))
    stores.jobs.move(first, "failed", "it failed", 1.0)
    queue = world.next_job()
    assert queue.start(2.0)
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
    assert not queue.start(0.0)
    world.clock = 30.0
    assert queue.start(30.0)
    assert world.state(small) == "starting"


def test_a_model_that_is_away_holds_up_nobody_else(stores: Stores) -> None:
    world = _World(stores)
    away, here = world.add(), world.add()
    world.away = {away}
    assert world.next_job().start(0.0)
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
    assert queue.start(0.0)
    assert world.state(good) == "starting"
    assert "year 58884 is out of range" in world.reason(wrong)
    stores.end(good, "failed")
    for clock in (2.0, 4.0):
        world.clock = clock
        queue.start(clock)
    told = [record for record in caplog.records if "cannot be started" in record.message]
    assert len(told) == 1, "once, with its traceback"
    assert told[0].exc_info


@dataclass
class _Packs:
    """The world as the starter of packs."""

    world: "_World"

    def start(self, *arguments: Any, **options: Any) -> StartedWorker | Waits | None:
        return self.world.pack(*arguments, **options)

    def join(self, *arguments: Any) -> Joined | Waits | None:
        return self.world.join(*arguments)


CARDS: tuple[DeviceNow, ...] = (device("cuda:0"), device("cuda:1"))


def test_jobs_of_one_base_begin_together_and_later_ones_join(stores: Stores) -> None:
    world = _World(stores, room=2)
    job_ids = [world.add() for _ in range(3)]
    queue = world.next_job(packing=True)
    queue.start(0.0)
    assert [world.state(job_id) for job_id in job_ids] == ["starting", "starting", "queued"]
    assert world.reason(job_ids[2]) == f"waits for job {job_ids[0]} and 1 others to end"
    world.clock = 2.0
    queue.start(2.0)
    assert world.state(job_ids[2]) == "starting"
    assert {stores.attempt(job_id).pack_id for job_id in job_ids} == {1}


def test_nobody_joins_a_worker_that_was_asked_to_leave(stores: Stores) -> None:
    world = _World(stores, room=1)
    first, second = world.add(), world.add()
    queue = world.next_job(packing=True)
    queue.start(0.0)
    world.clock = 3.0
    queue.start(3.0, {f"nonce-{first}"})
    assert world.state(second) == "queued"
    assert world.reason(second) == f"waits for job {first} to end"


def test_a_full_fine_tuning_takes_a_device_of_its_own(stores: Stores) -> None:
    world = _World(stores, machine=CARDS)
    first, full, third = world.add(), world.add_full(), world.add_full()
    world.next_job(packing=True).start(0.0)
    assert stores.attempt(first).device == "cuda:0"
    assert (stores.attempt(full).device, stores.attempt(full).pack_id) == ("cuda:1", None)
    assert world.reason(third) == f"waits for job {first} to end"


def test_without_a_plan_nobody_overtakes_one_who_waits_for_a_device(stores: Stores) -> None:
    world = _World(stores, room=1)
    first, full, third = world.add(), world.add_full(), world.add()
    queue = world.next_job(packing=True)
    queue.start(0.0)
    world.clock = 3.0
    queue.start(3.0)
    assert world.state(first) == "starting"
    assert world.state(full) == world.state(third) == "queued"
    stores.end(first, "completed")
    stores.packs.end(1, 4.0)
    world.clock = 6.0
    queue.start(6.0)
    assert world.state(full) == "starting"
    assert world.state(third) == "queued"


def test_the_plan_says_who_begins_where(stores: Stores) -> None:
    world = _World(stores, machine=CARDS)
    job_ids = [world.add() for _ in range(4)]
    world.planned = [
        _Start(job_ids[3], "cuda:1"),
        _Start(job_ids[0], "cuda:0"),
        _Start(job_ids[1], "cuda:1"),
    ]
    world.next_job(packing=True).start(0.0)
    where = {job_id: stores.attempts.of(job_id) for job_id in job_ids}
    assert [a[0].device if a else "" for a in where.values()] == [
        "cuda:0",
        "cuda:1",
        "",
        "cuda:1",
    ]
    assert where[job_ids[1]][0].pack_id == where[job_ids[3]][0].pack_id
    assert where[job_ids[0]][0].pack_id != where[job_ids[1]][0].pack_id
    assert world.reason(job_ids[2]) == f"the plan lets {job_ids[2]} wait"


def test_a_job_whose_company_died_twice_is_tried_alone(stores: Stores) -> None:
    world = _World(stores)
    unlucky, other = world.add(), world.add()
    for number in (1, 2):
        attempt = stores.add_attempt(unlucky, number)
        stores.attempts.end(attempt, "interrupted", -9, 0.0)
    world.clock = 100.0
    queue = world.next_job(packing=True)
    queue.start(100.0)
    assert world.state(unlucky) == "starting"
    assert stores.packs.live()[0].alone
    world.clock = 103.0
    queue.start(103.0)
    assert world.state(other) == "queued", "nobody joins it"


def test_bases_are_not_mixed(stores: Stores) -> None:
    world = _World(stores)
    first = world.add()
    other = stores.jobs.add(plain_spec(base="other"), 0.0).id
    queue = world.next_job(packing=True)
    queue.start(0.0)
    world.clock = 3.0
    queue.start(3.0)
    assert (world.state(first), world.state(other)) == ("starting", "queued")


def test_a_worker_that_dies_at_once_is_tried_again_later_each_time(stores: Stores) -> None:
    world = _World(stores)
    job_id = world.add()
    queue = world.next_job()
    ended = 0.0
    for number, wait in ((1, 5.0), (2, 30.0)):
        world.clock = ended
        assert queue.start(ended), number
        attempt = stores.attempt(job_id, number)
        stores.attempts.end(attempt, "interrupted", -9, ended)
        stores.jobs.move(job_id, "queued", "its worker died", ended)
        world.clock = ended + wait - 0.1
        assert not queue.start(ended + wait - 0.1)
        assert f"its worker died {number} times without a step" in world.reason(job_id)
        # A clock that was set back by a day does not make a day of seconds.
        ended += wait
    assert queue.start(ended - 86_400)


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


@pytest.mark.parametrize("follows_a_plan", [True, False])
def test_jobs_wait_for_a_chat_say_so_and_go_on_when_it_ends(
    stores: Stores, follows_a_plan: bool
) -> None:
    world = _World(stores)
    first, second = world.add(), world.add()
    if follows_a_plan:
        world.planned = [_Start(first, "cpu")]
    world.held = {"cpu": "a chat with job 12 uses cpu"}
    queue = world.next_job()
    assert not queue.start(1.0)
    assert {world.reason(job) for job in (first, second)} == {"a chat with job 12 uses cpu"}
    assert world.tries == []
    world.held = {}
    assert queue.start(2.0)
    assert world.state(first) == "starting"


def test_a_chat_on_one_card_leaves_the_other_to_the_queue(stores: Stores) -> None:
    world = _World(stores)
    world.machine = (device("cuda:0"), device("cuda:1"))
    first, second = world.add(), world.add()
    world.held = {"cuda:0": "a chat uses cuda:0"}
    assert world.next_job().start(1.0)
    assert stores.attempt(first).device == "cuda:1"
    assert world.state(second) == "queued"
