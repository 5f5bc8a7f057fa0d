"""What the planner is asked: tasks, devices, hours, with what was learned of time."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import pytest
from support.plan_shop import NOW, PlanShop, cards

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planner.cost import Sample
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.request import PlanRequest
from slidepack.daemon.planner.tasks import Task
from slidepack.daemon.planner.tasks import Window as Hours
from slidepack.daemon.planning.planned_queue import newly_in_time, planned_queue
from slidepack.daemon.planning.request import RequestMaker, cost_key, is_hard
from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Window
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.job import LoraMethod

CARD = "NVIDIA GeForce RTX 4090"


def _request(shop: PlanShop, **options: Any) -> PlanRequest:
    return shop.maker.request(shop.reader.picture(NOW), **options)


def _tasks(shop: PlanShop) -> dict[str, Task]:
    return {task.key: task for task in _request(shop).tasks}


def test_a_lora_job_is_a_lane_with_its_place_in_time(shop: PlanShop) -> None:
    first = shop.add()
    second = shop.add(JobTiming(priority=3, not_before=NOW + 60, after=(first,)), batch_size=8)
    tasks = _tasks(shop)
    lane = tasks[f"job {second}"]
    assert (lane.kind, lane.steps, lane.tokens) == ("lora", 113, 480)
    assert (lane.priority, lane.not_before, lane.after) == (3, NOW + 60, (f"job {first}",))
    assert lane.model == tasks[f"job {first}"].model == "base|bf16|plain"


def test_a_job_that_runs_stays_where_it_is(shop: PlanShop) -> None:
    running, waiting = shop.add(), shop.add()
    shop.run(running, "cuda:1", steps=25, tokens=240)
    tasks = _tasks(shop)
    assert (tasks[f"job {running}"].running_on, tasks[f"job {running}"].steps) == (("cuda:1",), 200)
    assert tasks[f"job {waiting}"].running_on == ()


def test_jobs_that_have_ended_hold_nobody_up(shop: PlanShop) -> None:
    done, failed = shop.add(), shop.add()
    shop.run(done)
    shop.end(done, NOW)
    shop.run(failed)
    shop.end(failed, NOW, "failed")
    after = shop.add(JobTiming(after=(done,)))
    anyway = shop.add(JobTiming(after=(done, failed), after_failure="run"))
    held = shop.add(JobTiming(after=(failed,)))
    tasks = _tasks(shop)
    assert tasks[f"job {after}"].after == tasks[f"job {anyway}"].after == ()
    assert tasks[f"job {held}"].after == (f"job {failed}",)


def test_a_full_fine_tuning_is_timed_on_each_device_and_says_why_it_fits_none(
    tmp_path: Path,
) -> None:
    shop = PlanShop(tmp_path, cards(2))
    job = shop.stores.jobs.add(shop.full(), NOW)
    (task,) = _request(shop).tasks
    assert task.full is not None
    assert set(task.full.step_seconds) == {"cuda:0", "cuda:1"}
    assert task.full.refusal == ""
    shop.report = cards(2, free_gib=1.0)
    (task,) = _request(shop).tasks
    assert task.full is not None
    assert (task.key, dict(task.full.step_seconds)) == (f"job {job.id}", {})
    assert "GiB" in task.full.refusal


def test_a_full_fine_tuning_of_short_rows_is_faster_than_one_of_the_longest(
    shop: PlanShop,
) -> None:
    job = shop.stores.jobs.add(shop.full(max_seq_len=4096), NOW)
    before = _tasks(shop)[f"job {job.id}"].full
    shop.run(job.id, steps=1, tokens=4 * 4000)
    shop.reader.picture(NOW)
    other = shop.stores.jobs.add(shop.full(max_seq_len=4096), NOW)
    after = _tasks(shop)[f"job {other.id}"].full
    assert before is not None
    assert after is not None
    assert after.step_seconds["cuda:0"] > 2 * before.step_seconds["cuda:0"]


def test_what_a_running_full_fine_tuning_says_of_itself_counts(shop: PlanShop) -> None:
    job = shop.stores.jobs.add(shop.full(), NOW)
    shop.run(job.id, steps=25, tokens=240)
    full = _tasks(shop)[f"job {job.id}"].full
    assert full is not None
    assert full.step_seconds["cuda:0"] == pytest.approx(0.5)


def test_measured_steps_and_starts_take_the_place_of_predictions(shop: PlanShop) -> None:
    shop.add()
    job = shop.stores.jobs.add(shop.full(), NOW)
    predicted = _request(shop)
    assert predicted.tasks[1].full is not None
    lora, full = cost_key(shop.spec(), "cuda:0"), cost_key(shop.full(), "cuda:0")
    assert lora != full
    for tokens in (100, 1000, 10_000):
        shop.book.record_step(CARD, lora, Sample(tokens=tokens, lanes=1, seconds=7.0), NOW)
    shop.book.record_step(CARD, full, Sample(tokens=240, lanes=1, seconds=9.0), NOW)
    shop.book.record_start(CARD, lora, 77.0, NOW)
    shop.book.record_start(CARD, full, 99.0, NOW)
    measured = _request(shop)
    base = measured.devices[0].bases["base|bf16|plain"]
    assert base.startup_seconds == 77.0
    assert base.cost.seconds(240, 1) == pytest.approx(7.0, rel=0.05)
    task = measured.tasks[1]
    assert task.full is not None
    assert task.key == f"job {job.id}"
    assert task.full.step_seconds["cuda:1"] == pytest.approx(9.0, rel=0.05)
    assert task.full.startup_seconds == 99.0


def test_a_base_that_a_device_cannot_hold_is_not_there(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(1, free_gib=0.5))
    shop.add(method=LoraMethod(base_precision="fp32"))
    (device,) = _request(shop).devices
    assert device.bases == {}


def test_without_packing_a_device_has_one_lane(shop: PlanShop) -> None:
    shop.add()
    alone = RequestMaker(shop.book, max_lanes=1).request(shop.reader.picture(NOW))
    assert [device.max_lanes for device in alone.devices] == [1, 1]
    assert [device.max_lanes for device in _request(shop).devices] == [0, 0]


def test_short_jobs_stay_where_they_train(shop: PlanShop) -> None:
    shop.report = cards(2)
    for _ in range(4):
        shop.run(shop.add(), "cuda:0", steps=1, tokens=4 * 500)
    assert _plan(_request(shop)).moved == ()


LONG: Final = 400_000


def _run_long(shop: PlanShop, *, reports: bool = True, full: bool = False) -> int:
    """Let a job of many steps train on the first card."""
    spec = (shop.full if full else shop.spec)(steps=LONG, batch_size=32)
    job = shop.stores.jobs.add(spec, NOW).id
    shop.run(job, "cuda:0")
    if reports:
        shop.report_steps(job, 1, 32 * 400, total=LONG)
    return job


def test_of_long_jobs_on_one_card_some_go_to_the_other(shop: PlanShop) -> None:
    shop.report = cards(2)
    jobs = [_run_long(shop) for _ in range(4)]
    picture = shop.reader.picture(NOW)
    plan = _plan(shop.maker.request(picture))
    moves = planned_queue(picture, plan, 1).moves
    # The plan may let all of them leave; those that come back at once need not.
    assert {move.job_id for move in moves} < set(jobs)
    assert len(moves) == 2
    assert all("cuda:1" in move.why for move in moves)


def test_a_lane_makes_room_for_a_more_urgent_run_of_its_own(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(1))
    low = _run_long(shop)
    urgent = shop.stores.jobs.add(
        shop.full(steps=10_000, batch_size=8), NOW, JobTiming(priority=5)
    ).id
    picture = shop.reader.picture(NOW)
    queue = planned_queue(picture, _plan(shop.maker.request(picture)), 1)
    assert [move.job_id for move in queue.moves] == [low]
    assert "more urgent" in queue.moves[0].why
    assert urgent not in queue.reasons or "waits" in queue.reasons[urgent]


@pytest.mark.parametrize("what", [{"reports": False}, {"full": True}])
def test_what_cannot_say_what_it_would_lose_stays(shop: PlanShop, what: dict[str, bool]) -> None:
    shop.report = cards(2)
    _run_long(shop)
    there = _run_long(shop, **what)
    assert f"job {there}" not in _plan(_request(shop)).moved


def _plan(request: PlanRequest) -> Plan:
    return make_plan(request.tasks, request.devices, request.now, request.options)


@pytest.mark.parametrize(("jobs", "devices", "hard"), [(8, 2, True), (7, 2, False), (8, 1, False)])
def test_many_jobs_for_several_devices_are_hard(
    tmp_path: Path, jobs: int, devices: int, hard: bool
) -> None:
    shop = PlanShop(tmp_path, cards(devices))
    for _ in range(jobs):
        shop.add()
    shop.stores.jobs.add(shop.full(), NOW)
    shop.run(shop.add())
    request = _request(shop)
    assert is_hard(request, _plan(request)) is hard


@pytest.mark.parametrize(("hours", "hard"), [(0.001, True), (10.0, False)])
def test_a_night_too_short_for_all_is_hard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hours: float, hard: bool
) -> None:
    shop = PlanShop(tmp_path, cards(1))
    for _ in range(8):
        shop.add()
    night = Hours(begin=NOW - 60.0, end=NOW + hours * 3600.0)
    week = Hours(begin=NOW + 86_400.0, end=NOW + 2 * 86_400.0)
    picture = replace(shop.reader.picture(NOW), windows=(night, week))
    request = shop.maker.request(picture)
    assert request.options.until == night.end
    assert is_hard(request, _plan(request)) is hard


def test_a_deadline_reaches_the_plan_and_is_kept_once_it_was_shown(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(1))
    first, late, plain = (
        shop.add(JobTiming(deadline=NOW + 86_400.0)),
        shop.add(JobTiming(deadline=NOW + 0.001)),
        shop.add(JobTiming(priority=5)),
    )
    picture = shop.reader.picture(NOW)
    request = shop.maker.request(picture)
    assert [(task.deadline, task.promised) for task in request.tasks] == [
        (None, False),
        (NOW + 86_400.0, False),
        (NOW + 0.001, False),
    ], "the highest priority first"
    assert request.tasks[0].value > request.tasks[1].value
    plan = _plan(request)
    assert newly_in_time(picture, plan) == [first]
    reasons = planned_queue(picture, plan, 1).reasons
    assert "after its deadline" in reasons.get(late, "begins") or late not in reasons
    shop.stores.jobs.promise([first])
    again = shop.reader.picture(NOW)
    assert newly_in_time(again, plan) == []
    assert {job.key: job.promised for job in again.jobs} == {
        f"job {first}": True,
        f"job {late}": False,
        f"job {plain}": False,
    }


def _closed(shop: PlanShop) -> float:
    """Let windows be closed, and return when they open."""
    shop.policy = Policy(
        windows=(Window(days=WEEKDAYS, start="23:00", end="07:00"),), time_zone="UTC"
    )
    opens = shop.reader.picture(NOW).windows[0].begin
    assert opens > NOW
    return opens


def test_hours_are_those_of_the_policy(shop: PlanShop) -> None:
    opens = _closed(shop)
    shop.add()
    windows = _request(shop).options.windows
    assert windows[0] == Hours(begin=opens, end=opens + 8 * 3600)
    assert _tasks(shop)["job 1"].not_before is None


def test_a_job_that_minds_no_window_begins_and_the_others_wait_for_theirs(shop: PlanShop) -> None:
    opens = _closed(shop)
    minds, late = shop.add(), shop.add(JobTiming(not_before=opens + 60))
    running, anyway = shop.add(), shop.add(JobTiming(any_time=True))
    shop.run(running)
    request = _request(shop)
    earliest = {task.key: task.not_before for task in request.tasks}
    assert request.options.windows == ()
    assert earliest == {
        f"job {minds}": opens,
        f"job {late}": opens + 60,
        f"job {running}": None,
        f"job {anyway}": None,
    }
    plan = make_plan(request.tasks, request.devices, request.now, request.options)
    begins = {task.task: task.begin for task in plan.tasks}
    assert begins[f"job {anyway}"] == NOW
    assert begins[f"job {minds}"] == opens


def test_in_an_open_window_all_jobs_keep_to_it(shop: PlanShop) -> None:
    shop.policy = Policy(
        windows=(Window(days=WEEKDAYS, start="00:00", end="23:59"),), time_zone="UTC"
    )
    shop.add(JobTiming(any_time=True))
    assert len(_request(shop).options.windows) >= 7


def test_without_a_device_there_is_nothing_to_ask(tmp_path: Path) -> None:
    shop = PlanShop(tmp_path, cards(1))
    shop.add()
    picture = shop.reader.picture(NOW)
    nothing = shop.maker.request(
        type(picture)(now=NOW, queue=picture.queue, jobs=picture.jobs, devices=(), windows=())
    )
    assert (nothing.tasks, nothing.devices) == ((), ())


def test_a_job_whose_model_cannot_be_read_is_set_aside_with_the_reason(shop: PlanShop) -> None:
    good = shop.add()
    (shop.model / "config.json").rename(shop.model / "gone")
    picture = shop.new_reader().picture(NOW)
    assert picture.jobs == ()
    assert "MODEL-NOT-A-MODEL" in picture.unplanned[good]
