"""The page of the queue and what it asks of the API: several jobs at once, places, times."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.daemons import DaemonProcess
from support.queueing import Farm, make_farm

NEVER = 4e9
"""A time until which the jobs of these tests wait."""


@pytest.fixture(scope="module")
def farm(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Farm]:
    folder = tmp_path_factory.mktemp("queue")
    daemon = DaemonProcess(folder / "home")
    daemon.start()
    try:
        yield make_farm(daemon, tiny_model, folder)
    finally:
        daemon.clean_up()


@pytest.fixture
def jobs(farm: Farm) -> Iterator[list[int]]:
    """Four jobs that wait; cancelled afterwards."""
    made = [
        farm.queue(name=f"<b>{name}", not_before=NEVER) for name in ("one", "two", "six", "ten")
    ]
    yield made
    waiting = [job["id"] for job in farm.daemon.api("GET", "/jobs") if job["ended_at"] is None]
    if waiting:
        act(farm, "cancel", waiting)


def act(farm: Farm, action: str, jobs: list[int]) -> Any:
    return farm.daemon.api("POST", "/queue/act", json={"action": action, "jobs": jobs})


def order(farm: Farm) -> list[int]:
    return [job["id"] for job in farm.daemon.api("GET", "/jobs") if job["ended_at"] is None]


def refusal(farm: Farm, path: str, body: object) -> tuple[int, str]:
    with farm.daemon.http() as client:
        answer = client.post(f"/api/v1{path}", json=body)
    return answer.status_code, answer.json()["code"]


def page(farm: Farm, path: str) -> str:
    with farm.daemon.http() as client:
        answer = client.get(path)
    assert answer.is_success, answer.text
    return answer.text


@pytest.mark.full
def test_several_jobs_are_acted_on_and_each_answers_for_itself(farm: Farm, jobs: list[int]) -> None:
    first, second, third, _ = jobs
    paused = act(farm, "pause", [first, second])
    assert [(one["id"], one["job"]["state"]) for one in paused] == [
        (first, "paused"),
        (second, "paused"),
    ]
    again = act(farm, "pause", [second, 99_999, third])
    assert [one["error"] and one["error"]["code"] for one in again] == [
        "RUN-STATE",
        "RUN-NOT-FOUND",
        None,
    ]
    assert farm.daemon.job(third)["state"] == "paused", "what one refuses stops no other"
    assert {one["job"]["state"] for one in act(farm, "resume", [first, second])} == {"queued"}
    copies = [one["job"]["id"] for one in act(farm, "duplicate", [first, second])]
    assert order(farm)[-2:] == copies
    act(farm, "cancel", copies)
    retried = [one["job"]["id"] for one in act(farm, "retry", copies)]
    assert all(farm.daemon.job(job)["state"] == "queued" for job in retried)
    assert [one["error"] for one in act(farm, "delete", copies)] == [None, None]
    with farm.daemon.http() as client:
        assert client.get(f"/api/v1/jobs/{copies[0]}").status_code == 404
    assert refusal(farm, "/queue/act", {"action": "pause", "jobs": []}) == (422, "RUN-SPEC-INVALID")
    twice = {"action": "pause", "jobs": [first, first]}
    assert refusal(farm, "/queue/act", twice) == (422, "RUN-SPEC-INVALID")
    unknown = {"action": "explode", "jobs": [first]}
    assert refusal(farm, "/queue/act", unknown) == (400, "DAEMON-REQUEST-INVALID")


@pytest.mark.full
def test_several_jobs_are_moved_all_or_none(farm: Farm, jobs: list[int]) -> None:
    first, second, third, fourth = jobs
    farm.daemon.api("POST", "/queue/move", json={"jobs": [fourth, second], "before": first})
    assert order(farm) == [fourth, second, first, third]
    act(farm, "cancel", [third])
    body: dict[str, object] = {"jobs": [second, third], "before": None}
    assert refusal(farm, "/queue/move", body) == (409, "RUN-STATE")
    body = {"jobs": [second, first], "before": first}
    assert refusal(farm, "/queue/move", body) == (422, "RUN-SPEC-INVALID")
    assert order(farm) == [fourth, second, first], "nothing of it was done"
    farm.daemon.api("POST", "/queue/move", json={"jobs": [fourth], "before": None})
    assert order(farm) == [second, first, fourth]
    farm.daemon.api("POST", "/queue/move", json={"jobs": [fourth, first], "first": True})
    assert order(farm) == [fourth, first, second]
    farm.daemon.api("POST", "/queue/move", json={"jobs": [fourth], "first": True})
    assert order(farm) == [fourth, first, second]
    everyone = {"jobs": [second, first, fourth], "first": True}
    assert farm.daemon.api("POST", "/queue/move", json=everyone)
    assert order(farm) == [fourth, first, second]
    body = {"jobs": [second], "first": True, "before": first}
    assert refusal(farm, "/queue/move", body) == (422, "RUN-SPEC-INVALID")


def test_a_jobs_time_and_priority_can_be_changed(farm: Farm, jobs: list[int]) -> None:
    first, second, *_ = jobs

    def change(**values: object) -> Any:
        return farm.daemon.api("POST", f"/jobs/{second}/reschedule", json=values)

    assert change(priority=7)["priority"] == 7
    assert order(farm)[0] == second
    assert change()["not_before"] == NEVER, "what is left out stays"
    # It may begin at once, and is changed further before it does.
    with farm.daemon.paused():
        before = time.time()
        tonight = change(start="tonight")
        assert tonight["not_before"] >= before
        assert not tonight["any_time"]
        held = change(start="now", not_before=NEVER, deadline=NEVER + 60)
    assert (held["any_time"], held["not_before"], held["deadline"]) == (True, NEVER, NEVER + 60)
    assert held["priority"] == 7
    free = change(start="auto", not_before=NEVER, deadline=None)
    assert (free["any_time"], free["deadline"]) == (False, None)
    path = f"/jobs/{second}/reschedule"
    assert refusal(farm, path, {"priority": 101}) == (422, "RUN-SPEC-INVALID")
    assert refusal(farm, path, {"deadline": 5.0}) == (422, "RUN-SPEC-INVALID")
    assert refusal(farm, path, {"state": "completed"}) == (400, "DAEMON-REQUEST-INVALID")
    act(farm, "cancel", [first])
    assert refusal(farm, f"/jobs/{first}/reschedule", {"priority": 1}) == (409, "RUN-STATE")


def test_the_page_lists_filters_and_says_why_jobs_wait(farm: Farm, jobs: list[int]) -> None:
    _, second, _, fourth = jobs
    act(farm, "pause", [second])
    act(farm, "cancel", [fourth])
    whole = page(farm, "/queue")
    assert [f'id="entry-{job}"' in whole for job in jobs] == [True] * 4
    assert "<b>one" not in whole
    assert "&lt;b&gt;one" in whole
    assert 'class="grip"' in whole
    assert "not before" in whole
    paused = page(farm, "/queue?show=paused")
    assert [f'id="entry-{job}"' in paused for job in jobs] == [False, True, False, False]
    assert 'class="grip"' not in paused, "an order that is not all seen is not changed"
    named = page(farm, "/queue/parts/waiting?q=SIX")
    assert [f'id="entry-{job}"' in named for job in jobs] == [False, False, True, False]
    ended = page(farm, "/queue/parts/ended?show=cancelled")
    assert f'id="entry-{fourth}"' in ended
    assert "Nothing that has ended matches" in page(farm, "/queue/parts/ended?q=nowhere")
    assert page(farm, "/queue?waiting=99999&ended=99999"), "a page behind the last is no error"
    for bad in ("show=everything", "waiting=0", "open=x", "q=" + "a" * 300, "ended=" + "9" * 30):
        with farm.daemon.http() as client:
            assert client.get(f"/queue?{bad}").status_code == 400, bad


def test_a_sweep_is_one_entry_that_unfolds(farm: Farm, jobs: list[int]) -> None:
    request = {
        "model": farm.model,
        "dataset": farm.dataset,
        "name": "Rates",
        "not_before": NEVER,
        "members": [{"lr": 1e-4}, {"lr": 2e-4}, {"lr": 3e-4}],
    }
    sweep = farm.daemon.api("POST", "/sweeps", json=request)
    number, members = sweep["sweep_id"], sweep["jobs"]
    folded = page(farm, "/queue/parts/waiting")
    assert "3 jobs" in folded
    assert f'href="/sweeps/{number}"' in folded
    assert [f'id="entry-{job}"' in folded for job in members] == [False] * 3
    unfolded = page(farm, f"/queue/parts/waiting?open={number}")
    assert [f'id="entry-{job}"' in unfolded for job in members] == [True] * 3
    assert [f'id="entry-{job}"' in unfolded for job in jobs] == [True] * 4
