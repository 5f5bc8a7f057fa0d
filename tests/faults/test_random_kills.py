"""A queue under fire: whoever dies at whatever moment, nothing is lost and nothing runs twice."""

import random
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

import psutil
import pytest
from support.queueing import Farm, kill
from support.waiting import wait_until

SEEDS: Final = 4
"""Jobs of one seed are the same job, and must end with the same bits."""
STEPS: Final = 60
_LIVE: Final = frozenset({"starting", "running", "pausing", "yielding", "finishing"})


@dataclass
class Strikes:
    """Kills at moments that a seed chooses."""

    farm: Farm
    rng: random.Random
    done: int = 0

    def strike(self) -> None:
        """Wait for a random moment, then kill the daemon, the worker, or both as a power cut."""
        moment = time.monotonic() + self.rng.uniform(0.0, 2.5)
        wait_until(lambda: time.monotonic() >= moment, what="the moment has come")
        target = self.rng.choice(("worker", "worker", "daemon", "both"))
        worker = None if target == "daemon" else self._worker()
        if target != "worker":
            self.farm.daemon.kill()
        if worker is not None:
            kill(worker)
        if target != "worker":
            self.farm.daemon.start()
        self.done += 1

    def _worker(self) -> psutil.Process | None:
        """Return the worker of this moment, unless its job would be given up without it."""
        for job in self.farm.daemon.api("GET", "/jobs"):
            if job["state"] in _LIVE and not self._is_on_its_last_try(job):
                attempts = self.farm.daemon.attempts(job["id"])
                pid = attempts[-1]["pid"] if attempts else None
                if pid and attempts[-1]["state"] == "live":
                    with suppress(psutil.NoSuchProcess):
                        return psutil.Process(pid)
        return None

    def _is_on_its_last_try(self, job: Any) -> bool:
        # Three deaths in a row without a step end a job, as another test shows.
        best, fruitless = 0, 0
        for attempt in self.farm.daemon.attempts(job["id"])[:-1]:
            gained = (attempt["last_step"] or 0) > best
            best = max(best, attempt["last_step"] or 0)
            fruitless = 0 if gained or attempt["state"] != "interrupted" else fruitless + 1
        return fruitless >= 2 and job["step"] <= best


def _queue(farm: Farm, count: int, begin: int = 0) -> list[int]:
    return [
        farm.queue(steps=STEPS, seed=number % SEEDS, eval_every_steps=20)
        for number in range(begin, begin + count)
    ]


def _survive(farm: Farm, jobs: int, strikes: int, seed: int) -> None:
    expected = []
    for job_id in _queue(farm, SEEDS):
        farm.finish(job_id)
        expected.append(farm.outcome(job_id))
    job_ids = _queue(farm, jobs)
    under_fire = Strikes(farm, random.Random(seed))
    while under_fire.done < strikes:
        if all(farm.daemon.job(job_id)["state"] == "completed" for job_id in job_ids):
            # A fast machine is done before all have struck.
            job_ids += _queue(farm, SEEDS, begin=len(job_ids))
        under_fire.strike()
    for number, job_id in enumerate(job_ids):
        # One that died last may come after all the others.
        job = farm.finish(job_id, seconds=600.0)
        assert job["error"] is None
        states = farm.states(job_id)
        assert states.count("completed") == 1
        assert "failed" not in states
        attempts = farm.daemon.attempts(job_id)
        assert [a["state"] for a in attempts].count("completed") == 1
        assert attempts[-1]["state"] == "completed"
        assert [a["number"] for a in attempts] == list(range(1, len(attempts) + 1))
        series = farm.chart(job_id)["progress"]
        assert [row["step"] for row in series] == list(range(1, STEPS + 1))
        assert farm.outcome(job_id) == expected[number % SEEDS], job_id
    assert "Traceback" not in farm.daemon.log


@pytest.mark.quick
def test_five_deaths_change_nothing(farm: Farm) -> None:
    _survive(farm, jobs=2, strikes=5, seed=20261130)


@pytest.mark.full
@pytest.mark.timeout(2700)
def test_a_hundred_deaths_in_a_queue_of_twenty_change_nothing(farm: Farm) -> None:
    _survive(farm, jobs=20, strikes=100, seed=1)
