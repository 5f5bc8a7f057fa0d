"""What the API tells of a job's course, and a second job like it, from a real daemon."""

import time
from typing import Any

import httpx
import pytest
from support.queueing import Farm

_SHORT = {"steps": 12, "eval_every_steps": 4, "checkpoint_every_steps": 5}


def _get(farm: Farm, path: str, **query: Any) -> httpx.Response:
    with farm.daemon.http() as client:
        return client.get(f"/api/v1{path}", params=query)


@pytest.mark.full
def test_series_checkpoints_and_first_row_of_a_job(served_farm: Farm) -> None:
    job_id = served_farm.queue(**_SHORT)
    served_farm.finish(job_id)
    every = served_farm.chart(job_id)
    whole = _get(served_farm, f"/jobs/{job_id}/series").json()
    assert whole["total_steps"] == 12
    assert whole["series"]["step"] == list(range(1, 13))
    losses = [row["loss"] for row in every["progress"]]
    assert whole["series"]["loss"]["low"] == whole["series"]["loss"]["high"] == losses
    held = [row["step"] for row in whole["evaluations"] if row["split"] == "selection"]
    assert held == [0, 4, 8, 12]
    part = _get(served_farm, f"/jobs/{job_id}/series", **{"from": 3, "to": 9, "points": 4}).json()
    assert (part["series"]["step"], part["series"]["count"]) == ([3, 5, 7, 9], [1, 3, 2, 1])
    assert part["series"]["loss"]["high"][1] == max(losses[3:6])
    assert [row["step"] for row in part["evaluations"]] == [4, 8]
    saved = _get(served_farm, f"/jobs/{job_id}/checkpoints").json()
    assert saved[0]["step"] == 12
    assert saved[0]["num_bytes"] > 0
    steps = [one["step"] for one in saved]
    assert {5, 10} <= set(steps)
    assert steps == sorted(steps, reverse=True)
    row = _get(served_farm, f"/jobs/{job_id}/first-row").json()
    assert 0 < row["learned"] < row["tokens"]


def test_what_cannot_be_asked_is_refused(served_farm: Farm) -> None:
    job_id = served_farm.queue(steps=9000)
    for query in ({"points": 1}, {"points": 10**6}, {"from": -1}, {"to": "x"}):
        answer = _get(served_farm, f"/jobs/{job_id}/series", **query)
        assert (answer.status_code, answer.json()["code"]) == (400, "DAEMON-REQUEST-INVALID")
    for name in ("series", "checkpoints", "first-row"):
        assert _get(served_farm, f"/jobs/9999/{name}").json()["code"] == "RUN-NOT-FOUND"
    served_farm.act(job_id, "cancel")


def test_a_second_job_is_like_the_first_and_nothing_else_of_it(served_farm: Farm) -> None:
    first = served_farm.queue(steps=9000, seed=77, deadline=time.time() + 9000, priority=3)
    second = served_farm.act(first, "duplicate")["id"]
    specs = [served_farm.detail(job_id)["spec"] for job_id in (first, second)]
    assert specs[0] == specs[1]
    copy = served_farm.daemon.job(second)
    assert (copy["deadline"], copy["priority"], copy["sweep_id"]) == (None, 3, None)
    for job_id in (second, first):
        served_farm.act(job_id, "cancel")
        served_farm.daemon.wait_for(job_id, "cancelled")
    third = served_farm.act(first, "duplicate")["id"]
    assert served_farm.daemon.job(first)["state"] == "cancelled"
    served_farm.act(third, "cancel")
