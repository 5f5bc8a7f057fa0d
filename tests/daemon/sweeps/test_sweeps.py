"""Sweeps in the queue: all members or none, added to, cancelled, deleted, judged."""

from pathlib import Path
from typing import Any

import pytest
from support.sweep_shop import NIGHT, SweepShop

from slidepack.daemon.requests import RetryRequest
from slidepack.daemon.sweeps.request import MembersRequest
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.contract.sweep import Halving

GRID = {"lr": [1e-4, 2e-4], "rank": [8, 16]}
HALVING = Halving(first_samples=8, eta=2)


def test_every_member_is_a_job_in_the_queue(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(name="first", grid=GRID, fixed={"steps": 5}, priority=3)
    jobs = sweep_shop.stores.jobs.queued()
    assert [job.id for job in jobs] == list(queued.jobs)
    assert [job.name for job in jobs][:2] == ["first lr=1e-4 rank=8", "first lr=1e-4 rank=16"]
    assert {(job.sweep_id, job.priority, job.model_id) for job in jobs} == {
        (queued.sweep_id, 3, sweep_shop.model)
    }
    assert queued.merged == 0
    for spec in sweep_shop.specs(queued):
        assert isinstance(spec.method, LoraMethod)
        assert (spec.steps, spec.eval.test_fraction, spec.eval.split_seed) == (5, 0.1, 0)


def test_equal_members_share_a_job(sweep_shop: SweepShop) -> None:
    # 2e-4 is what no rate at all stands for.
    queued = sweep_shop.add(members=({"lr": 2e-4}, {"lr": None}, {"lr": 1e-4}))
    first, same, other = queued.jobs
    assert first == same != other
    assert queued.merged == 1
    assert len(sweep_shop.stores.jobs.queued()) == 2


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"grid": {"rank": [8, 0]}}, "RUN-SPEC-INVALID", "rank is 0"),
        ({"grid": {"lr": [1e-4, 5.0]}}, "RUN-SPEC-INVALID", "lr is 5.0"),
        ({"grid": {"rank": [8]}, "priority": 1000}, "RUN-SPEC-INVALID", "priority is 1000"),
        ({"grid": {"rank": [8]}, "held_out": 99}, "DATA-NOT-FOUND", "no dataset 99"),
        (
            {"grid": {"rank": [8]}, "fixed": {"selection_fraction": 0.0}},
            "RUN-SPEC-INVALID",
            "chosen by their loss on held-out rows",
        ),
    ],
)
def test_a_sweep_that_is_refused_leaves_nothing(
    sweep_shop: SweepShop, fields: dict[str, Any], code: str, said: str
) -> None:
    with pytest.raises(SlidepackError) as caught:
        sweep_shop.add(**fields)
    assert caught.value.report.code == code
    assert said in str(caught.value)
    assert sweep_shop.stores.jobs.list_jobs() == []
    assert sweep_shop.sweeps.list_sweeps() == []


def test_a_disk_that_refuses_in_the_middle_leaves_nothing(sweep_shop: SweepShop) -> None:
    sweep_shop.stores.database.execute(
        "CREATE TRIGGER refuse BEFORE INSERT ON jobs WHEN NEW.name LIKE '%rank=32' "
        "BEGIN SELECT RAISE(ABORT, 'refused'); END"
    )
    with pytest.raises(Exception, match="refused"):
        sweep_shop.add(grid={"rank": [8, 16, 32]})
    assert sweep_shop.stores.jobs.list_jobs() == []
    assert sweep_shop.store.list_sweeps() == []


def test_tonight_holds_for_every_member(sweep_shop: SweepShop) -> None:
    sweep_shop.add(grid=GRID, start="tonight")
    assert {job.not_before for job in sweep_shop.stores.jobs.queued()} == {NIGHT}


def test_a_held_out_file_is_what_members_are_chosen_by(sweep_shop: SweepShop) -> None:
    held_out = sweep_shop.add_dataset("held.jsonl")
    queued = sweep_shop.add(grid=GRID, held_out=held_out, fixed={"selection_fraction": 0.0})
    for spec in sweep_shop.specs(queued):
        assert spec.eval.selection is not None
        assert spec.eval.selection.dataset_id == str(held_out)


def test_members_are_added_to_a_sweep(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(name="first", members=({"rank": 8},), fixed={"steps": 5})
    request = MembersRequest(members=({"rank": 8}, {"rank": 4}))
    more = sweep_shop.sweeps.add_members(queued.sweep_id, request)
    assert more.jobs[0] == queued.jobs[0]
    assert more.merged == 1
    assert sweep_shop.stores.jobs.get(more.jobs[1]).name == "first rank=4"
    assert [spec.steps for spec in sweep_shop.specs(more)] == [5, 5]
    assert len(sweep_shop.sweeps.show(queued.sweep_id).members) == 2


def test_a_sweep_grows_to_its_limit_and_no_further(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid={"seed": list(range(499))})
    two = MembersRequest(members=({"seed": 1000}, {"seed": 1001}))
    with pytest.raises(SlidepackError, match="it would have 501 members"):
        sweep_shop.sweeps.add_members(queued.sweep_id, two)
    assert len(sweep_shop.stores.jobs.queued()) == 499
    with pytest.raises(SlidepackError, match="There is no sweep 9"):
        sweep_shop.sweeps.add_members(9, two)


def test_cancelling_ends_those_that_have_not_ended(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid=GRID)
    alone = sweep_shop.add(grid={"rank": [2]})
    done, running, *_ = queued.jobs
    sweep_shop.end(done)
    sweep_shop.stores.force(running, "running")
    sweep_shop.sweeps.cancel(queued.sweep_id)
    jobs = [sweep_shop.stores.jobs.get(job_id) for job_id in queued.jobs]
    assert [job.state for job in jobs] == ["completed", "running", "cancelled", "cancelled"]
    assert jobs[1].wanted == "cancel"
    assert sweep_shop.stores.jobs.get(alone.jobs[0]).state == "queued"
    with pytest.raises(SlidepackError, match="There is no sweep 9"):
        sweep_shop.sweeps.cancel(9)


def test_a_sweep_is_deleted_once_its_members_have_ended(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid=GRID, halving=HALVING)
    other = sweep_shop.add(grid=GRID)
    for job_id in queued.jobs[:3]:
        sweep_shop.end(job_id)
    sweep_shop.judge(queued.jobs[0], 1.0)
    with pytest.raises(SlidepackError, match=f"job {queued.jobs[3]} is queued"):
        sweep_shop.sweeps.remove(queued.sweep_id)
    assert len(sweep_shop.sweeps.show(queued.sweep_id).members) == 4
    sweep_shop.sweeps.cancel(queued.sweep_id)
    sweep_shop.sweeps.remove(queued.sweep_id)
    sweep_shop.retention.work()
    assert [sweep.id for sweep in sweep_shop.sweeps.list_sweeps()] == [other.sweep_id]
    assert [job.id for job in sweep_shop.stores.jobs.list_jobs()] == list(other.jobs)
    assert not sweep_shop.folder_of(queued.sweep_id).exists()
    assert not any((sweep_shop.paths.jobs / str(job_id)).exists() for job_id in queued.jobs)


def test_a_member_that_another_job_needs_keeps_its_sweep(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid=GRID)
    for job_id in queued.jobs:
        sweep_shop.end(job_id)
    sweep_shop.job([], "queued", adopts=queued.jobs[2])
    with pytest.raises(SlidepackError, match=f"Job {queued.jobs[2]} cannot be deleted"):
        sweep_shop.sweeps.remove(queued.sweep_id)
    assert len(sweep_shop.sweeps.show(queued.sweep_id).members) == 4


def test_a_retried_member_stays_in_its_sweep(sweep_shop: SweepShop) -> None:
    queued = sweep_shop.add(grid=GRID)
    sweep_shop.end(queued.jobs[0], "failed")
    again = sweep_shop.queue.retry(queued.jobs[0], RetryRequest())
    assert again.sweep_id == queued.sweep_id
    assert again.id in [row.job_id for row in sweep_shop.sweeps.show(queued.sweep_id).members]


def test_a_run_folder_says_where_its_lane_is_judged(sweep_shop: SweepShop, tmp_path: Path) -> None:
    judged, other = (sweep_shop.add(grid=GRID, halving=HALVING) for _ in range(2))
    free = sweep_shop.add(grid=GRID)
    alone = sweep_shop.job([], "queued")
    found = []
    for job_id in (*judged.jobs[:2], other.jobs[0], free.jobs[0], alone):
        folder = RunFolder(tmp_path / "runs" / str(job_id))
        folder.root.mkdir(parents=True)
        sweep_shop.lanes.put(job_id, folder)
        found.append(folder.read_sweep())
    one, two, apart, *none = found
    assert one == two
    assert none == [None, None]
    assert one is not None
    assert apart is not None
    assert one.halving == HALVING
    assert Path(one.rungs).is_absolute()
    assert one.rungs != apart.rungs
