"""The plan at hand: soon there, never of an older queue, and never in the way."""

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
import psutil
import pytest
from support.plan_shop import NOW, PlanShop, cards
from support.waiting import PATIENCE, wait_until

from slidepack.daemon.planner.answer import Options
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planning.replanner import Replanner
from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Window
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.job import LoraMethod

ENDLESS: Final = (sys.executable, "-c", "while True: pass")
BROKEN: Final = (sys.executable, "-c", "raise SystemExit(3)")


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


class Gate:
    """Hardware whose answer can be held up, or fail."""

    def __init__(self, report: HardwareReport) -> None:
        self.report = report
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.error: Exception | None = None

    def __call__(self) -> HardwareReport:
        self.asked.set()
        assert self.open.wait(PATIENCE)
        if self.error is not None:
            raise self.error
        return self.report


Begin = Callable[..., Replanner]


@pytest.fixture
def begin(shop: PlanShop) -> Iterator[Begin]:
    """Start replanners; ended, with what they hold open, afterwards."""
    started: list[Replanner] = []

    def make(**changes: Any) -> Replanner:
        made = shop.replanner(**({"clock": lambda: NOW} | changes))
        made.start()
        started.append(made)
        return made

    yield make
    for one in started:
        one.stop()


def _children() -> set[int]:
    return {child.pid for child in psutil.Process().children()}


def _begun(replanner: Replanner, jobs: int = 0) -> list[int]:
    """Wait until so many jobs begin, or any, and return them."""
    found: list[int] = []

    def ready() -> bool:
        found[:] = [start.job_id for start in replanner.starts(NOW) or ()]
        return len(found) == jobs if jobs else bool(found)

    wait_until(ready, what=f"{jobs} jobs begin")
    return found


def test_jobs_begin_in_the_order_of_the_plan_and_where_it_says(
    shop: PlanShop, begin: Begin
) -> None:
    jobs = [shop.add(batch_size=size) for size in (1, 8)]
    full = shop.stores.jobs.add(shop.full(), NOW).id
    replanner = begin()
    _begun(replanner, 3)
    plan = replanner.plan()
    assert plan is not None
    planned = {task.task: task.devices[0] for task in plan.plan.tasks}
    starts = replanner.starts(NOW) or []
    assert {start.job_id: start.device for start in starts} == {
        job: planned[f"job {job}"] for job in (*jobs, full)
    }
    assert [start.job_id for start in starts] == [*jobs, full]


def test_a_job_that_was_cancelled_never_begins_by_an_older_plan(
    shop: PlanShop, begin: Begin
) -> None:
    gate = Gate(shop.report)
    shop.ask_hardware = gate
    first, second = shop.add(), shop.add()
    replanner = begin()
    assert _begun(replanner, 2) == [first, second]
    gate.open.clear()
    shop.stores.jobs.move(second, "cancelled", "-", NOW)
    # The next plan cannot be made yet, and nobody said that anything changed.
    assert replanner.starts(NOW) == []
    gate.open.set()
    assert _begun(replanner, 1) == [first]


@pytest.mark.parametrize("change", ["priority", "paused", "another"])
def test_whatever_changes_in_the_queue_an_older_plan_is_not_followed(
    shop: PlanShop, begin: Begin, change: str
) -> None:
    gate = Gate(shop.report)
    shop.ask_hardware = gate
    first, second = shop.add(), shop.add()
    replanner = begin()
    _begun(replanner, 2)
    gate.open.clear()
    if change == "priority":
        shop.stores.database.execute("UPDATE jobs SET priority = 9 WHERE id = ?", second)
    elif change == "paused":
        shop.stores.jobs.move(first, "paused", "-", NOW)
    else:
        shop.add()
    assert replanner.starts(NOW) == []
    gate.open.set()


def test_that_something_changed_can_be_said_while_a_plan_is_made(
    shop: PlanShop, begin: Begin
) -> None:
    gate = Gate(shop.report)
    gate.open.clear()
    shop.ask_hardware = gate
    shop.add()
    replanner = begin()
    assert gate.asked.wait(PATIENCE)
    done = threading.Event()

    def say() -> None:
        for _ in range(10_000):
            replanner.changed()
        done.set()

    threading.Thread(target=say, daemon=True).start()
    assert done.wait(PATIENCE)
    assert replanner.plan() is None
    gate.open.set()


def test_nothing_begins_for_a_moment_and_then_the_queues_order_counts(
    shop: PlanShop, begin: Begin
) -> None:
    gate = Gate(shop.report)
    shop.ask_hardware = gate
    clock = Clock(100.0)
    shop.add()
    replanner = begin(monotonic=clock)
    _begun(replanner, 1)
    gate.open.clear()
    shop.add()
    assert replanner.starts(NOW) == []
    clock.now += 2.9
    assert replanner.starts(NOW) == []
    clock.now += 0.2
    assert replanner.starts(NOW) is None
    gate.open.set()
    _begun(replanner, 2)


@pytest.mark.full
def test_a_failure_leaves_the_queues_order_is_told_once_and_passes(
    shop: PlanShop, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    gate = Gate(shop.report)
    shop.ask_hardware = gate
    shop.add()
    replanner = begin()
    _begun(replanner, 1)
    gate.error = ValueError("no such card")
    shop.add()
    replanner.changed()
    wait_until(lambda: replanner.starts(NOW) is None)
    for _ in range(2):
        gate.asked.clear()
        replanner.changed()
        assert gate.asked.wait(PATIENCE)
    assert [record.getMessage() for record in caplog.records] == [
        "The queue cannot be planned: no such card"
    ]
    gate.error = None
    replanner.changed()
    _begun(replanner, 2)


def test_a_queue_that_is_empty_leaves_the_hardware_alone(shop: PlanShop, begin: Begin) -> None:
    gate = Gate(shop.report)
    shop.ask_hardware = gate
    replanner = begin()
    wait_until(lambda: replanner.plan() is not None)
    replanner.changed()
    assert replanner.starts(NOW) == []
    assert not gate.asked.is_set()
    job = shop.add()
    assert replanner.starts(NOW) == []
    assert _begun(replanner, 1) == [job]


def test_while_the_windows_are_closed_the_hardware_is_left_alone(
    shop: PlanShop, begin: Begin
) -> None:
    gate, wall, clock = Gate(shop.report), Clock(NOW), Clock(100.0)
    shop.ask_hardware = gate
    shop.policy = Policy(
        windows=(Window(days=WEEKDAYS, start="23:00", end="07:00"),), time_zone="UTC"
    )
    job = shop.add()
    replanner = begin(clock=wall, monotonic=clock)
    wait_until(lambda: replanner.plan() is not None)
    assert replanner.starts(NOW) == []
    clock.now += 40.0
    replanner.changed()
    assert not gate.asked.wait(0.3)
    wall.now = shop.reader.hours(NOW)[0].begin
    replanner.changed()
    assert _begun(replanner, 1) == [job]


def test_a_job_that_minds_no_window_is_planned_while_they_are_closed(
    shop: PlanShop, begin: Begin
) -> None:
    shop.policy = Policy(
        windows=(Window(days=WEEKDAYS, start="23:00", end="07:00"),), time_zone="UTC"
    )
    shop.add()
    anyway = shop.add(JobTiming(any_time=True))
    assert _begun(begin(), 1) == [anyway]


def test_before_torch_has_told_of_the_cards_nobody_begins(shop: PlanShop, begin: Begin) -> None:
    known = shop.report
    shop.report = type(known)(
        **{name: getattr(known, name) for name in known.__struct_fields__} | {"software": None}
    )
    shop.add()
    replanner = begin()
    wait_until(lambda: replanner.plan() is not None)
    assert replanner.starts(NOW) == []
    shop.report = known
    _begun(replanner, 1)


def test_a_running_job_does_not_begin_again(shop: PlanShop, begin: Begin) -> None:
    running, waiting = shop.add(), shop.add()
    shop.run(running)
    assert _begun(begin(), 1) == [waiting]


def test_a_job_that_waits_says_why(shop: PlanShop, begin: Begin) -> None:
    first = shop.add()
    after = shop.add(JobTiming(after=(first,)))
    replanner = begin()
    assert _begun(replanner, 1) == [first]
    assert replanner.why(after) == f"waits for job {first}"
    assert replanner.why(first) == ""
    assert replanner.why(999) == ""


def test_what_fits_nowhere_is_offered_last_and_only_to_a_device_that_is_idle(
    shop: PlanShop, begin: Begin
) -> None:
    shop.report = cards(1, free_gib=4.5)
    huge = shop.add(method=LoraMethod(rank=1024))
    replanner = begin()
    assert _begun(replanner, 1) == [huge]
    assert replanner.why(huge).startswith("fits no device now: ")
    small = shop.add()
    assert _begun(replanner, 1) == [small]


def test_what_cannot_be_planned_is_offered_to_who_can_say_what_is_wrong(
    shop: PlanShop, begin: Begin
) -> None:
    shop.report = cards(1)
    job = shop.add()
    (shop.model / "config.json").unlink()
    replanner = begin()
    assert _begun(replanner, 1) == [job]
    assert "MODEL-NOT-A-MODEL" in replanner.why(job)


def test_a_job_that_does_not_begin_does_not_keep_others_from_it(
    shop: PlanShop, begin: Begin
) -> None:
    shop.report = cards(1)
    clock = Clock(NOW)
    stuck = shop.stores.jobs.add(shop.full(), NOW).id
    behind = shop.stores.jobs.add(shop.full(steps=1000), NOW).id
    replanner = begin(clock=clock)
    first = _begun(replanner, 1)
    for _ in range(12):
        clock.now += 4.0
        replanner.starts(clock.now)

    def other() -> bool:
        starts = replanner.starts(clock.now)
        return [start.job_id for start in starts or ()] not in ([], first)

    wait_until(other, what="the other begins")
    assert {first[0], (replanner.starts(clock.now) or [])[0].job_id} == {stuck, behind}
    assert "tried again soon" in replanner.why(first[0])


def _many(shop: PlanShop) -> None:
    for number in range(9):
        shop.add(batch_size=1 + number % 3)


def _solver(folder: Path) -> tuple[str, ...]:
    """Return a command that answers with an empty plan."""
    answer = folder / "answer.json"
    from_solver = make_plan((), (), NOW, Options())
    answer.write_bytes(msgspec.json.encode(from_solver))
    return (sys.executable, "-c", f"print(open({str(answer)!r}).read())")


def test_a_hard_queue_is_given_to_the_solver_too(
    shop: PlanShop, begin: Begin, tmp_path: Path
) -> None:
    _many(shop)
    replanner = begin(solver=_solver(tmp_path))
    wait_until(lambda: (plan := replanner.plan()) is not None and plan.revision == 2)
    plan = replanner.plan()
    assert plan is not None
    assert plan.plan.tasks == ()


def test_the_real_solver_answers(shop: PlanShop, begin: Begin) -> None:
    _many(shop)
    replanner = begin()
    wait_until(lambda: (plan := replanner.plan()) is not None and plan.revision == 2)
    assert _begun(replanner)


def test_the_solver_is_ended_when_the_queue_changes_and_when_the_daemon_ends(
    shop: PlanShop, begin: Begin
) -> None:
    before = _children()
    _many(shop)
    replanner = begin(solver=ENDLESS)
    (first,) = wait_until(lambda: _children() - before)
    for number in range(3):
        shop.stores.jobs.move(1 + number, "cancelled", "-", NOW)
    replanner.changed()
    wait_until(lambda: first not in _children(), what="the solver ends")
    _begun(replanner)
    for _ in range(3):
        shop.add()
    wait_until(lambda: _children() - before)
    replanner.stop()
    assert _children() == before


def test_steps_that_are_done_do_not_stop_the_solver(shop: PlanShop, begin: Begin) -> None:
    _many(shop)
    running = shop.add()
    shop.run(running, steps=2, tokens=480)
    before = _children()
    clock = Clock(100.0)
    replanner = begin(solver=ENDLESS, monotonic=clock)
    _begun(replanner)
    (solver,) = wait_until(lambda: _children() - before)
    before_steps = replanner.plan()
    gate = Gate(shop.report)
    shop.ask_hardware = gate
    shop.stores.database.execute("UPDATE jobs SET step = 3 WHERE id = ?", running)
    # The second look begins when the first has ended.
    for _ in range(2):
        gate.asked.clear()
        clock.now += 3.0
        replanner.changed()
        assert gate.asked.wait(PATIENCE)
    assert replanner.plan() == before_steps
    assert solver in _children()


def test_a_solver_that_fails_leaves_the_plan_that_there_is(
    shop: PlanShop, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    _many(shop)
    replanner = begin(solver=BROKEN)
    wait_until(lambda: caplog.records)
    assert "ended with code 3" in caplog.text
    assert _begun(replanner)


def test_a_solver_that_cannot_be_started_leaves_the_plan_that_there_is(
    shop: PlanShop, begin: Begin, caplog: pytest.LogCaptureFixture
) -> None:
    _many(shop)
    replanner = begin(solver=("/nowhere/solver",))
    wait_until(lambda: caplog.records)
    assert "/nowhere/solver" in caplog.text
    assert _begun(replanner)


def test_less_memory_makes_another_plan(shop: PlanShop, begin: Begin) -> None:
    clock = Clock(100.0)
    shop.add(batch_size=32, max_seq_len=4096)
    replanner = begin(monotonic=clock)
    _begun(replanner, 1)
    first = replanner.plan()
    shop.report = cards(2, free_gib=1.0)
    clock.now += 3.0
    replanner.changed()
    wait_until(lambda: replanner.plan() != first)
    planned = replanner.plan()
    assert planned is not None
    assert not planned.plan.tasks[0].fits


def test_the_end_of_a_job_is_promised_once_it_trains_and_then_checked(
    shop: PlanShop, begin: Begin
) -> None:
    clock, wall = Clock(100.0), Clock(NOW)
    job = shop.add()
    replanner = begin(monotonic=clock, clock=wall)
    _begun(replanner, 1)
    assert shop.book.promised() == frozenset()
    shop.run(job, "cuda:1", steps=25, tokens=480)
    replanner.changed()
    wait_until(lambda: shop.book.promised() == {job})
    (row,) = shop.stores.database.query("SELECT * FROM promises")
    assert (row["device"], row["seat"]) == ("NVIDIA GeForce RTX 4090", "cuda:1")
    assert row["model"] == "base|bf16|plain"
    real = 2 * (row["end_at"] - NOW)
    shop.end(job, NOW + real)
    replanner.changed()
    wait_until(lambda: shop.book.accuracy())
    assert shop.book.accuracy()[0].worst_error == pytest.approx(0.5)


def test_a_job_that_moves_is_told_once_and_then_left_alone(shop: PlanShop, begin: Begin) -> None:
    shop.report = cards(2)
    spec = shop.spec(steps=400_000, batch_size=32)
    jobs = [shop.stores.jobs.add(spec, NOW).id for _ in range(2)]
    for job in jobs:
        shop.run(job, "cuda:0")
        shop.report_steps(job, 1, 32 * 400, total=400_000)
    replanner = begin()
    wait_until(lambda: replanner.plan() is not None)
    (move,) = replanner.moves(NOW)
    assert move.job_id in jobs
    assert replanner.moves(NOW + 60.0) == []
    assert [again.job_id for again in replanner.moves(NOW + 3600.0)] == [move.job_id]
    # By a plan of another queue nobody is moved.
    shop.add()
    assert replanner.moves(NOW + 7200.0) == []
