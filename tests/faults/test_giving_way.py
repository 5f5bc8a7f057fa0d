"""The GPU is given back: to a game, at a click, at a window's end; then the run goes on as ever."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.held import has_ended
from support.queueing import STEPS, Farm
from support.waiting import wait_until

_LONG = 100_000
_GAME = "pretend-game"
_PROMISE_SECONDS = 20.0
"""Within which a card must be free again."""


@contextmanager
def _game(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    # A program of that name, as the process list shows it; it ends when its input does.
    program = folder / _GAME
    shutil.copy(shutil.which("cat") or "/bin/cat", program)
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as game:
        yield game


def _policy(farm: Farm, **changes: Any) -> None:
    farm.daemon.api("POST", "/policy", json=changes)


def _notices(farm: Farm) -> list[tuple[str, int]]:
    return [(n["kind"], n["job_id"]) for n in farm.daemon.api("GET", "/notices")]


def test_a_game_gets_the_machine_and_the_run_goes_on_afterwards(
    farm: Farm, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = farm.queue()
    farm.finish(plain)
    _policy(farm, exclusive_apps=[_GAME], pause_after_seconds=0, resume_after_seconds=1)
    tried = farm.queue()
    with ExitStack() as playing:
        # It would be done before the game is seen.
        with farm.held(tried, 5) as worker:
            playing.enter_context(_game(tmp_path))
            farm.daemon.wait_for(tried, "yielding")
        waiting = farm.daemon.wait_for(tried, "queued")
        assert has_ended(worker)
        assert _GAME in waiting["reason"]
        state = farm.daemon.api("GET", "/policy/state")
        assert (state["may_run"], state["hold"]["code"]) == (False, "application")
        (attempt,) = farm.daemon.attempts(tried)
        assert attempt["state"] == "yielded"
        with capsys.disabled():
            sys.stdout.write(f"\nThe worker was gone in {attempt['leave_seconds']:.2f} s.\n")
        assert attempt["leave_seconds"] < _PROMISE_SECONDS
        told = farm.detail(tried)["transitions"][-1]["reason"]
        assert told.startswith("gave way in ")
        assert _GAME in told
    farm.finish(tried)
    assert farm.outcome(tried) == farm.outcome(plain)


def test_a_pause_of_the_queue_outlasts_the_daemon(farm: Farm) -> None:
    running, waiting = farm.queue(), farm.queue(seed=6)
    with farm.held(running, 3):
        farm.daemon.api("POST", "/queue/pause")
        farm.daemon.wait_for(running, "yielding")
    farm.daemon.wait_for(running, "queued")
    farm.daemon.kill()
    farm.daemon.start()
    for job_id in (running, waiting):
        wait_until(lambda: "you paused the queue" in farm.daemon.job(job_id)["reason"])  # noqa: B023
    assert len(farm.daemon.attempts(running)) == 1
    farm.daemon.api("POST", "/queue/resume")
    farm.finish(running)
    farm.finish(waiting)
    assert [row["step"] for row in farm.chart(running)["progress"]] == list(range(1, STEPS + 1))


def test_outside_the_windows_only_what_may_run_at_any_time_runs(farm: Farm) -> None:
    hour = time.localtime(time.time() + 2 * 3600).tm_hour
    window = {
        "days": ["mon", "tue", "wed", "thu", "fri", "sat", "sun"],
        "start": f"{hour:02d}:00",
        "end": f"{hour:02d}:30",
    }
    _policy(farm, windows=[window])
    waiting = farm.queue(steps=8)
    wait_until(lambda: "the window opens" in farm.daemon.job(waiting)["reason"])
    tonight = farm.queue(steps=8, start="tonight")
    assert farm.daemon.job(tonight)["not_before"] > time.time()
    now = farm.queue(steps=8, start="now")
    farm.finish(now)
    assert farm.daemon.attempts(waiting) == farm.daemon.attempts(tonight) == []
    # The window has closed behind a run that is not done soon: it gives way, at the queue's head.
    long = farm.queue(steps=_LONG, start="now")
    farm.reach(long, 3)
    farm.act(long, "pause")
    farm.daemon.wait_for(long, "paused")
    _policy(farm, windows=[])
    farm.finish(waiting)
    farm.act(tonight, "cancel")
    second = farm.queue(steps=_LONG)
    farm.reach(second, 3)
    _policy(farm, windows=[window], finish_within_minutes=0)
    reason = farm.daemon.wait_for(second, "queued")["reason"]
    assert "the window" in reason
    told = [row["reason"] for row in farm.detail(second)["transitions"]]
    assert any("the window has closed" in reason for reason in told)


def test_jobs_come_after_others_and_may_stop_the_queue(farm: Farm) -> None:
    daemon = farm.daemon
    with farm.daemon.paused():
        first = farm.queue(steps=8)
        after_first = farm.queue(steps=8, after=[first])
        # Every row is longer, so it fails once it has begun.
        broken = farm.queue(steps=8, max_seq_len=16)
        after_broken = farm.queue(steps=8, after=[broken])
        anyway = farm.queue(steps=8, after=[broken], after_failure="run")
        urgent = farm.queue(steps=8, priority=5)
    for job_id in (first, after_first, anyway, urgent):
        farm.finish(job_id)
    assert daemon.job(broken)["state"] == "failed"
    held = daemon.wait_for(after_broken, "paused")
    assert f"job {broken}, which it comes after, failed" in held["reason"]
    ends = {job_id: daemon.job(job_id)["ended_at"] for job_id in (first, after_first, urgent)}
    assert ends[first] < ends[after_first]
    assert daemon.job(urgent)["ended_at"] < ends[after_first]
    farm.act(after_broken, "resume")
    farm.finish(after_broken)
    assert ("failed", broken) in _notices(farm)
    assert ("paused", after_broken) in _notices(farm)
    assert ("finished", first) in _notices(farm)

    stopper = farm.queue(steps=8, max_seq_len=16, on_failure="stop")
    behind = farm.queue(steps=8, seed=9)
    failed = daemon.wait_for(stopper, "failed")
    assert failed["error"]["code"] == daemon.job(broken)["error"]["code"]
    wait_until(lambda: f"job {stopper} failed, which was to stop" in daemon.job(behind)["reason"])
    retried = farm.act(stopper, "retry")["id"]
    assert daemon.job(retried)["on_failure"] == "stop"
    farm.act(retried, "cancel")
    daemon.api("POST", "/queue/resume")
    farm.finish(behind)


def test_moving_and_retrying_are_refused_where_they_make_no_sense(farm: Farm) -> None:
    farm.daemon.api("POST", "/queue/pause")
    one, two, three = farm.queue(), farm.queue(), farm.queue()
    with farm.daemon.http() as client:

        def post(path: str, body: Any) -> httpx.Response:
            return client.post(f"/api/v1/jobs/{path}", content=json.dumps(body))

        assert post(f"{three}/move", {"before": one}).is_success
        listed = [job["id"] for job in farm.daemon.api("GET", "/jobs")]
        assert listed == [three, one, two]
        assert post(f"{three}/move", {"before": None}).is_success
        farm.act(two, "cancel")
        cases: tuple[tuple[str, dict[str, Any], str], ...] = (
            (f"{two}/move", {"before": one}, "RUN-STATE"),
            (f"{one}/move", {"before": two}, "RUN-STATE"),
            (f"{one}/move", {"before": 99}, "RUN-NOT-FOUND"),
            (f"{one}/retry", {}, "RUN-STATE"),
            (f"{two}/retry", {"resume": True}, "RUN-NO-CHECKPOINT"),
            (f"{two}/retry", {"lr_factor": 0}, "RUN-SPEC-INVALID"),
            (f"{two}/retry", {"lr_factor": -1}, "RUN-SPEC-INVALID"),
        )
        for path, body, code in cases:
            refused = post(path, body)
            assert refused.json()["code"] == code, (path, body)


def test_a_deleted_job_leaves_nothing_and_none_that_is_needed_is_deleted(farm: Farm) -> None:
    first = farm.queue(steps=8)
    farm.finish(first)
    folder = farm.daemon.home / "jobs" / str(first)
    assert folder.is_dir()
    farm.daemon.api("POST", "/queue/pause")
    waiting = farm.queue(steps=8, after=[first])
    with farm.daemon.http() as client:

        def delete(job_id: int) -> httpx.Response:
            return client.delete(f"/api/v1/jobs/{job_id}")

        for job_id, code in ((waiting, "RUN-STATE"), (first, "RUN-STATE"), (99, "RUN-NOT-FOUND")):
            assert delete(job_id).json()["code"] == code
        assert folder.is_dir()
        farm.act(waiting, "cancel")
        assert delete(first).is_success
        assert delete(first).json()["code"] == "RUN-NOT-FOUND"
        assert farm.daemon.job(waiting)["after"] == []
    wait_until(lambda: not folder.exists(), what="the folder is deleted")
    assert [job["id"] for job in farm.daemon.api("GET", "/jobs")] == [waiting]


def test_a_retry_takes_the_place_of_what_failed(farm: Farm) -> None:
    with farm.daemon.paused():
        failed = farm.queue(steps=8, max_seq_len=16)
        after = farm.queue(steps=8, after=[failed])
    farm.daemon.wait_for(after, "paused")
    farm.daemon.api("POST", "/queue/pause")
    again = farm.act(failed, "retry")["id"]
    held = farm.daemon.job(after)
    assert (held["state"], held["after"]) == ("queued", [again])
    # One that was completed still counts for those behind it.
    farm.daemon.api("POST", "/queue/resume")
    good = farm.queue(steps=8)
    farm.finish(good)
    farm.daemon.api("POST", "/queue/pause")
    behind = farm.queue(steps=8, after=[good])
    farm.act(good, "retry")
    assert farm.daemon.job(behind)["after"] == [good]
