"""A plan that is asked for: with names and reasons, of the queue as it is or as it would be."""

from typing import Any

import msgspec
import pytest
from support.plan_shop import NOW, PlanShop, cards

from slidepack.daemon.planning.question import PlanQuestion
from slidepack.daemon.planning.report import PlanReport, ReportedJob
from slidepack.daemon.planning.what_if import ExtraDevice, ExtraJobs, WhatIf
from slidepack.daemon.policy.rules import WEEKDAYS, Policy, Window
from slidepack.daemon.store.costs import Promise
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod

NIGHT = Window(days=WEEKDAYS, start="23:00", end="07:00")


def _ask(shop: PlanShop, held: str = "", **what_if: Any) -> PlanReport:
    question = PlanQuestion(
        reader=shop.new_reader(),
        maker=shop.maker,
        book=shop.book,
        jobs=shop.stores.jobs,
        policy=lambda: shop.policy,
        held=lambda: held,
    )
    return question.ask(NOW, WhatIf(**what_if) if what_if else None)


def _jobs(report: PlanReport) -> dict[str, ReportedJob]:
    return {job.key: job for job in report.jobs}


def test_jobs_have_names_places_times_and_reasons(shop: PlanShop) -> None:
    first = shop.add(name="nightly")
    second = shop.add(JobTiming(after=(first,)), name="then")
    report = _ask(shop)
    plan = report.plan
    assert plan is not None
    jobs = _jobs(report)
    one, two = jobs[f"job {first}"], jobs[f"job {second}"]
    assert (one.name, one.job_id, one.begin, one.waits) == ("nightly", first, NOW, "")
    assert one.devices[0] in {device.key for device in report.devices}
    assert one.end is not None
    assert two.begin == pytest.approx(one.end, abs=1.0)
    assert two.waits == f"waits for job {first}"
    assert plan.bound_seconds <= plan.open_seconds
    assert plan.one_by_one_seconds >= plan.open_seconds
    assert plan.verdict


def test_a_job_that_fits_nothing_says_what_would_help(shop: PlanShop) -> None:
    shop.report = cards(1, free_gib=4.5)
    job = shop.add(method=LoraMethod(rank=1024))
    one = _jobs(_ask(shop))[f"job {job}"]
    assert (one.fits, one.begin) == (False, None)
    assert "GiB" in one.waits
    assert "rank" in one.remedy


def test_a_job_that_cannot_be_planned_is_listed_with_the_reason(shop: PlanShop) -> None:
    job = shop.add(name="lost")
    (shop.model / "config.json").unlink()
    (one,) = _ask(shop).jobs
    assert (one.job_id, one.name, one.fits) == (job, "lost", False)
    assert "MODEL-NOT-A-MODEL" in one.waits


def test_without_a_device_it_says_why(shop: PlanShop) -> None:
    shop.add()
    shop.report = msgspec.structs.replace(shop.report, software=None)
    report = _ask(shop)
    assert report.plan is None
    assert report.waiting == "waits until the hardware has been looked at"


@pytest.mark.full
def test_notes_say_what_the_plan_does_not_know(shop: PlanShop) -> None:
    shop.add()
    assert [note.partition(" ")[0] for note in _ask(shop).notes] == ["The"]
    shop.policy = Policy(windows=(NIGHT,), time_zone="UTC")
    shop.add(JobTiming(any_time=True))
    shop.report = cards(1)
    held, anyway = _ask(shop, held="elden ring runs").notes
    assert "elden ring runs" in held
    assert "mind no window" in anyway


def test_earlier_predictions_are_held_against_what_happened(shop: PlanShop) -> None:
    job = shop.add()
    shop.run(job, steps=5, tokens=480)
    promise = Promise(job_id=job, device="card", model="m", seat="cuda:0", end=NOW + 80)
    shop.book.promise([promise], NOW)
    shop.end(job, NOW + 100)
    (found,) = _ask(shop).accuracy
    assert found.jobs == 1
    assert found.worst_error == pytest.approx(0.2)


@pytest.mark.full
def test_asking_what_would_be_changes_nothing(shop: PlanShop) -> None:
    job = shop.add()
    before = _ask(shop)
    report = _ask(
        shop,
        devices=(ExtraDevice(name="RTX 3090", count=2),),
        without_devices=("cuda:0",),
        jobs=(ExtraJobs(like=job, count=3, rank=64),),
        without_jobs=(job,),
        windows=(NIGHT,),
    )
    assert {device.key for device in report.devices} == {"cuda:1", "extra 1.1", "extra 1.2"}
    assert set(_jobs(report)) == {"extra 1.1", "extra 1.2", "extra 1.3"}
    assert {job.job_id for job in report.jobs} == {None}
    assert report.plan is not None
    assert report.plan.makespan_seconds > report.plan.open_seconds
    after = _ask(shop)
    assert after.devices == before.devices
    assert _jobs(after) == _jobs(before)


@pytest.mark.full
def test_another_card_makes_it_shorter_and_a_slow_one_less_so(shop: PlanShop) -> None:
    shop.report = cards(1)
    for _ in range(4):
        shop.stores.jobs.add(shop.full(), NOW)

    def seconds(**what_if: Any) -> float:
        plan = _ask(shop, **what_if).plan
        assert plan is not None
        return plan.open_seconds

    alone = seconds()
    twice = seconds(devices=(ExtraDevice(like="cuda:0"),))
    assert twice == pytest.approx(alone / 2, rel=0.15)
    assert twice < seconds(devices=(ExtraDevice(name="RTX 3090"),)) < alone


def test_less_memory_on_a_card_keeps_a_job_from_it(shop: PlanShop) -> None:
    shop.add()
    device = ExtraDevice(name="a card from 2012", memory_gb=1.5)
    report = _ask(shop, devices=(device,), without_devices=("cuda:0", "cuda:1"))
    assert [job.fits for job in report.jobs] == [False]


@pytest.mark.full
def test_extra_jobs_have_what_was_asked_for_and_the_rest_of_their_like(shop: PlanShop) -> None:
    job = shop.add(batch_size=4)
    asked = (
        ExtraJobs(like=job, batch_size=10, rows=500, row_tokens=30.0, epochs=2.0, priority=4),
        ExtraJobs(like=job, steps=17),
        ExtraJobs(like=job, max_seq_len=32),
    )
    jobs = _jobs(_ask(shop, jobs=asked))
    assert (jobs["extra 1"].steps, jobs["extra 1"].tokens_a_step) == (100, 300)
    assert (jobs["extra 2"].steps, jobs["extra 2"].tokens_a_step) == (17, 240)
    assert jobs["extra 3"].tokens_a_step == 4 * 32
    assert jobs["extra 1"].method == "lora"


@pytest.mark.full
def test_without_its_device_a_job_that_runs_goes_on_elsewhere(shop: PlanShop) -> None:
    job = shop.add()
    shop.run(job, "cuda:0", steps=25, tokens=480)
    one = _jobs(_ask(shop, without_devices=("cuda:0",)))[f"job {job}"]
    assert (one.devices, one.running, one.steps) == (("cuda:1",), False, 200)


@pytest.mark.full
def test_a_job_that_waits_for_one_that_would_not_be_begins(shop: PlanShop) -> None:
    first = shop.add()
    second = shop.add(JobTiming(after=(first,)))
    assert _jobs(_ask(shop, without_jobs=(first,)))[f"job {second}"].begin == NOW


@pytest.mark.full
def test_no_windows_may_be_asked_for(shop: PlanShop) -> None:
    shop.policy = Policy(windows=(NIGHT,), time_zone="UTC")
    job = shop.add()
    assert _jobs(_ask(shop))[f"job {job}"].begin != NOW
    assert _jobs(_ask(shop, windows=()))[f"job {job}"].begin == NOW


@pytest.mark.parametrize(
    ("what_if", "code", "named"),
    [
        ({"without_devices": ("cuda:7",)}, "DAEMON-REQUEST-INVALID", "cuda:7; there is cuda:0"),
        ({"without_jobs": (7,)}, "DAEMON-REQUEST-INVALID", "no job 7"),
        ({"devices": (ExtraDevice(like="cuda:7"),)}, "DAEMON-REQUEST-INVALID", "cuda:7"),
        ({"jobs": (ExtraJobs(like=7),)}, "RUN-NOT-FOUND", "no job 7"),
        ({"jobs": (ExtraJobs(like=1, rank=0),)}, "DAEMON-REQUEST-INVALID", "rank is 0"),
        ({"jobs": (ExtraJobs(like=1, batch_size=0),)}, "DAEMON-REQUEST-INVALID", "batch_size is 0"),
        ({"jobs": (ExtraJobs(like=2, rank=8),)}, "DAEMON-REQUEST-INVALID", "has no rank"),
    ],
)
def test_what_does_not_exist_is_refused_by_name(
    shop: PlanShop, what_if: dict[str, Any], code: str, named: str
) -> None:
    shop.add()
    shop.stores.jobs.add(shop.full(), NOW)
    with pytest.raises(SlidepackError, match=named) as told:
        _ask(shop, **what_if)
    assert told.value.report.code == code


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"devices": [{}]}, "either like or name"),
        ({"devices": [{"name": "GTX 480"}]}, "memory_gb"),
        ({"devices": [{"name": "A10", "memory_gb": -1}]}, "memory_gb"),
        ({"devices": [{"name": "A10", "count": 0}]}, "count"),
        ({"devices": [{"name": "A10", "count": 60}, {"name": "A10", "count": 60}]}, "64 devices"),
        ({"jobs": [{"like": 1, "epochs": 1.0, "steps": 2}]}, "epochs and steps"),
        ({"jobs": [{"like": 1, "rows": 0}]}, "rows is 0"),
        ({"jobs": [{"like": 1, "row_tokens": 0.0}]}, "row_tokens"),
        ({"jobs": [{"like": 1, "count": 5000}]}, "count of jobs"),
        ({"jobs": [{"like": 1, "count": 900}, {"like": 1, "count": 900}]}, "1000 jobs"),
        ({"job": []}, "unknown field `job`"),
        ({"windows": [{"days": ["mon"], "start": "25:00", "end": "07:00"}]}, "start"),
    ],
)
def test_what_cannot_be_meant_is_refused(asked: dict[str, Any], named: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=named):
        msgspec.convert(asked, WhatIf)
