"""An ended job again with less, from a real daemon: in all else it stands where that one stood."""

import time

from support.queueing import Farm


def test_it_takes_the_place_of_the_ended_job(served_farm: Farm) -> None:
    tomorrow = time.time() + 86_400
    first = served_farm.queue(steps=9000, batch_size=256, not_before=tomorrow, priority=3)
    served_farm.queue(steps=9000, not_before=tomorrow, after=[first])
    with served_farm.daemon.http() as client:
        answer = client.post(f"/api/v1/jobs/{first}/smaller")
    assert (answer.status_code, answer.json()["code"]) == (409, "RUN-STATE")
    served_farm.act(first, "cancel")
    second = served_farm.act(first, "smaller")["id"]
    before, after = (served_farm.detail(job_id)["spec"] for job_id in (first, second))
    assert before["batch_size"] == 256
    assert after["batch_size"] < 256
    assert after | {"batch_size": 256} == before
    again = served_farm.daemon.job(second)
    assert (again["priority"], again["not_before"]) == (3, tomorrow)
    waiting = next(job for job in served_farm.daemon.api("GET", "/jobs") if second in job["after"])
    for job_id in (waiting["id"], second):
        served_farm.act(job_id, "cancel")
