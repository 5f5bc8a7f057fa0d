"""A queue whose jobs share workers: whoever dies or leaves, no lane is lost and none is changed."""

import random
import time
from typing import Any, Final

import psutil
import pytest
from support.queueing import Farm, kill
from support.waiting import wait_until

STEPS: Final = 30
SEEDS: Final = 3


def _queue(farm: Farm, count: int, **changes: Any) -> list[int]:
    return [
        farm.queue(
            **{"steps": STEPS, "seed": number % SEEDS, "rank": 2 + 2 * (number % SEEDS)} | changes
        )
        for number in range(count)
    ]


def _alone(farm: Farm) -> list[dict[str, object]]:
    """Return what each kind of job gives when nobody else trains."""
    expected = []
    for number in range(SEEDS):
        job_id = farm.queue(steps=STEPS, seed=number, rank=2 + 2 * number)
        farm.finish(job_id)
        expected.append(farm.outcome(job_id))
    return expected


def _pids(farm: Farm, job_ids: list[int]) -> set[int]:
    found = (farm.daemon.attempts(job_id) for job_id in job_ids)
    return {attempts[-1]["pid"] for attempts in found if attempts}


def _queue_together(farm: Farm, count: int) -> list[int]:
    """Queue jobs of which none begins before the last is there, so that all share a worker."""
    with farm.daemon.paused():
        job_ids = _queue(farm, count)
    wait_until(lambda: all(_pids(farm, [job_id]) - {None} for job_id in job_ids), what="all begin")
    assert len(_pids(farm, job_ids)) == 1, "all of them share a worker"
    return job_ids


@pytest.mark.full
def test_jobs_share_a_worker_and_give_what_they_give_alone(packing_farm: Farm) -> None:
    expected = _alone(packing_farm)
    job_ids = _queue_together(packing_farm, 5)
    for number, job_id in enumerate(job_ids):
        packing_farm.finish(job_id)
        assert packing_farm.outcome(job_id) == expected[number % SEEDS]
    assert len(packing_farm.daemon.workers()) == 0 or wait_until(
        lambda: not packing_farm.daemon.workers(), what="the pack's worker has left"
    )


def test_lanes_are_cancelled_paused_and_join_while_the_others_go_on(packing_farm: Farm) -> None:
    staying, cancelled, paused = (
        packing_farm.queue(steps=5000, rank=rank, seed=rank) for rank in (2, 4, 6)
    )
    for job_id in (staying, cancelled, paused):
        packing_farm.reach(job_id, 3)
    pids = _pids(packing_farm, [staying, cancelled, paused])
    assert len(pids) == 1
    packing_farm.act(cancelled, "cancel")
    packing_farm.act(paused, "pause")
    packing_farm.daemon.wait_for(cancelled, "cancelled")
    stopped = packing_farm.daemon.wait_for(paused, "paused")
    assert psutil.pid_exists(next(iter(pids))), "the others' worker went on"
    packing_farm.reach(staying, packing_farm.daemon.job(staying)["step"] + 3)
    packing_farm.act(paused, "resume")
    joined = packing_farm.queue(steps=5000, rank=8)
    packing_farm.reach(joined, 3)
    resumed = packing_farm.reach(paused, stopped["step"] + 1)
    assert resumed["step"] > stopped["step"]
    assert _pids(packing_farm, [staying, joined, paused]) == pids
    first = packing_farm.daemon.attempts(paused)[1]["first_step"]
    assert first == stopped["step"] + 1, "it went on where it was paused"
    for job_id in (staying, joined, paused):
        packing_farm.act(job_id, "cancel")
    for job_id in (staying, joined, paused):
        packing_farm.daemon.wait_for(job_id, "cancelled")
    wait_until(lambda: not packing_farm.daemon.workers(), what="nobody is left")
    for job_id in (staying, joined):
        assert "Stopping as asked" in packing_farm.daemon.worker_log(job_id), "the pack's log"


def test_a_restarted_daemon_finds_its_pack_again(packing_farm: Farm) -> None:
    job_ids = _queue(packing_farm, 3, steps=5000)
    packing_farm.reach(job_ids[-1], 2)
    pids = _pids(packing_farm, job_ids)
    packing_farm.daemon.kill()
    packing_farm.daemon.start()
    joined = packing_farm.queue(steps=5)
    packing_farm.finish(joined)
    assert _pids(packing_farm, [*job_ids, joined]) == pids
    for job_id in job_ids:
        assert [a["number"] for a in packing_farm.daemon.attempts(job_id)] == [1]


def test_a_job_that_kills_its_worker_at_every_start_takes_no_other_with_it(
    packing_farm: Farm,
) -> None:
    # A stop of the whole pack before anybody has made a step, as by a lack of memory.
    job_ids = _queue(packing_farm, 3, steps=120)
    for _ in range(2):
        kill(packing_farm.worker(job_ids[0]))
        wait_until(lambda: _died(packing_farm, job_ids[0]), what="the death is noticed")
    for job_id in job_ids:
        packing_farm.finish(job_id)


def _died(farm: Farm, job_id: int) -> bool:
    attempts = farm.daemon.attempts(job_id)
    return bool(attempts) and attempts[-1]["state"] != "live"


def _survive(farm: Farm, jobs: int, strikes: int, seed: int) -> None:
    expected = _alone(farm)
    job_ids = _queue_together(farm, jobs)
    rng = random.Random(seed)
    for _ in range(strikes):
        moment = time.monotonic() + rng.uniform(0.2, 2.5)
        wait_until(lambda until=moment: time.monotonic() >= until, what="the moment has come")  # type: ignore[misc]  # bound now
        if all(farm.daemon.job(job_id)["state"] == "completed" for job_id in job_ids):
            # A fast machine is done before all have struck.
            job_ids += _queue(farm, SEEDS)
        workers, target = farm.daemon.workers(), rng.choice(("worker", "daemon", "both"))
        if target != "worker":
            farm.daemon.kill()
        if target != "daemon":
            for worker in workers:
                kill(worker)
        if target != "worker":
            farm.daemon.start()
    for job_id in job_ids:
        # One that died last may come after all the others.
        job = farm.finish(job_id, seconds=600.0)
        assert job["error"] is None
        assert farm.outcome(job_id) == expected[farm.detail(job_id)["spec"]["seed"]], job_id
        done = [a for a in farm.daemon.attempts(job_id) if a["state"] == "completed"]
        assert len(done) == 1
    assert "Traceback" not in farm.daemon.log


def test_killed_packs_lose_no_lane(packing_farm: Farm) -> None:
    _survive(packing_farm, jobs=6, strikes=3, seed=1)


@pytest.mark.full
def test_packs_killed_at_many_moments_lose_no_lane(packing_farm: Farm) -> None:
    _survive(packing_farm, jobs=12, strikes=6, seed=2)
