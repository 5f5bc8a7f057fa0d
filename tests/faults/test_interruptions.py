"""Whatever is killed or stopped on the way, a job ends as if nothing had happened."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from faults.conftest import BRIEF_SECONDS
from support.held import Births, has_ended
from support.queueing import STEPS, Farm, kill
from support.waiting import wait_until


def _assert_whole_chart(farm: Farm, job_id: int, steps: int) -> None:
    series = farm.chart(job_id)["progress"]
    assert [row["step"] for row in series] == list(range(1, steps + 1))


def test_daemon_killed_then_worker_killed_gives_the_same_result(farm: Farm) -> None:
    daemon = farm.daemon
    plain = farm.queue()
    tried = farm.queue()
    assert daemon.job(tried)["state"] == "queued"
    farm.finish(plain)
    _assert_whole_chart(farm, plain, STEPS)
    assert farm.states(plain) == ["queued", "starting", "running", "finishing", "completed"]

    with farm.held(tried, 3) as worker:
        daemon.kill()
        assert worker.is_running(), "the worker does not depend on the daemon"
        daemon.start()
        assert farm.worker(tried).pid == worker.pid
    with farm.held(tried, 30):
        assert [a["number"] for a in daemon.attempts(tried)] == [1]
        kill(worker)

    job = farm.finish(tried)
    assert job["error"] is None
    first, second = daemon.attempts(tried)
    assert (first["state"], second["state"]) == ("interrupted", "completed")
    assert 1 < second["first_step"] <= first["last_step"] + 1, "it began at a checkpoint"
    _assert_whole_chart(farm, tried, STEPS)
    assert farm.outcome(tried) == farm.outcome(plain)
    assert "Traceback" not in daemon.log


@pytest.mark.full
def test_pause_resume_and_a_stopped_daemon_change_nothing(farm: Farm) -> None:
    daemon = farm.daemon
    tried = farm.queue()
    waiting = farm.queue()
    with farm.held(tried, 3):
        reason = daemon.job(waiting)["reason"]
        assert reason == f"waits for job {tried} to end"
        asked = farm.act(tried, "pause")
        assert asked["wanted"] == "pause"
    paused = daemon.wait_for(tried, "paused")
    assert paused["wanted"] is None
    assert daemon.attempts(tried)[0]["state"] == "paused"
    assert daemon.attempts(tried)[0]["exit_code"] == 75
    # A paused job lets the next one run.
    farm.worker(waiting)
    assert daemon.job(tried)["state"] == "paused"
    farm.act(waiting, "cancel")

    farm.act(tried, "resume")
    farm.reach(tried, paused["step"] + 3)
    worker = farm.worker(tried)
    assert daemon.stop() == 0
    assert has_ended(worker)
    assert not (daemon.home / "daemon.json").exists()
    daemon.start()
    farm.finish(tried)
    assert [a["state"] for a in daemon.attempts(tried)] == ["paused", "yielded", "completed"]
    assert farm.states(tried) == [
        *("queued", "starting", "running", "pausing", "paused"),
        *("queued", "starting", "running", "yielding", "queued"),
        *("starting", "running", "finishing", "completed"),
    ]
    _assert_whole_chart(farm, tried, STEPS)
    assert "Traceback" not in daemon.log


@pytest.mark.full
def test_cancel_ends_a_job_in_any_state_for_good(farm: Farm) -> None:
    daemon = farm.daemon
    running, queued, paused = farm.queue(steps=5000), farm.queue(), farm.queue()
    farm.act(paused, "pause")
    for job_id in (queued, paused):
        assert farm.act(job_id, "cancel")["state"] == "cancelled"
    worker = farm.worker(running)
    # Right away, while its worker still loads libraries and cannot listen yet.
    farm.act(running, "cancel")
    daemon.wait_for(running, "cancelled")
    assert has_ended(worker)
    assert [daemon.attempts(job_id) for job_id in (queued, paused)] == [[], []]
    for job_id in (running, queued, paused):
        for action in ("cancel", "pause", "resume"):
            with daemon.http() as client:
                refused = client.post(f"/api/v1/jobs/{job_id}/{action}")
            assert (refused.status_code, refused.json()["code"]) == (409, "RUN-STATE")
    again = farm.act(queued, "retry")
    assert again["state"] == "queued"
    assert again["id"] not in (running, queued, paused)
    farm.act(again["id"], "cancel")


def test_a_worker_killed_at_every_start_is_given_up_with_evidence(farm: Farm) -> None:
    # None of them gets so far that it makes a step.
    with Births(farm.daemon, "slidepack.engine.worker") as births:
        job_id = farm.queue()
        for number in range(1, 4):
            worker = births.next()
            wait_until(
                lambda: len(farm.daemon.attempts(job_id)) == number,  # noqa: B023
                what=f"attempt {number} begins",
            )
            assert farm.worker(job_id).pid == worker.pid
            kill(worker)
    job = farm.daemon.wait_for(job_id, "failed")
    assert job["error"]["code"] == "RUN-CRASHED"
    assert "signal 9" in job["error"]["why"]
    assert "slidepack jobs logs" in job["error"]["fix"]
    states = [a["state"] for a in farm.daemon.attempts(job_id)]
    assert states == ["interrupted", "interrupted", "failed"]
    # A retry is another job; what failed stays failed.
    again = farm.act(job_id, "retry")["id"]
    farm.worker(again)
    farm.act(again, "cancel")
    farm.daemon.wait_for(again, "cancelled")
    assert farm.daemon.job(job_id)["state"] == "failed"


@pytest.mark.full
def test_daemons_stopped_while_a_worker_starts_do_not_use_up_its_attempts(farm: Farm) -> None:
    job_id = farm.queue(steps=5000)
    for number in range(1, 5):
        wait_until(
            lambda: len(farm.daemon.attempts(job_id)) == number,  # noqa: B023
            what=f"attempt {number} begins",
        )
        farm.worker(job_id)
        farm.daemon.stop()
        farm.daemon.start()
        assert farm.daemon.job(job_id)["error"] is None
    assert "failed" not in farm.states(job_id)
    farm.act(job_id, "cancel")


def test_a_worker_that_does_not_listen_is_killed(hasty_farm: Farm) -> None:
    job_id = hasty_farm.queue(steps=5000)
    hasty_farm.reach(job_id, 8)
    worker = hasty_farm.worker(job_id)
    os.kill(worker.pid, signal.SIGSTOP)
    hasty_farm.act(job_id, "pause")
    # Asking again gives it no more time.
    for _ in range(3):
        hasty_farm.act(job_id, "pause")
    job = hasty_farm.daemon.wait_for(job_id, "paused")
    told = re.search(r"did not leave and was killed after ([\d.]+) s", job["reason"])
    assert told and float(told[1]) >= 1.0, job["reason"]
    assert "it wrote no last checkpoint" in job["reason"]
    assert has_ended(worker)
    assert "did not leave within 1 s and is killed" in hasty_farm.daemon.log
    checkpoints = Path(hasty_farm.daemon.attempts(job_id)[0]["folder"]) / "checkpoints"
    assert list(checkpoints.glob("step-*"))


@contextmanager
def _beating(pulse: Path) -> Iterator[None]:
    """Show that a worker gets on, whatever holds the test up meanwhile."""
    beat = 'while :; do touch "$0"; sleep 0.1; done'
    with subprocess.Popen(["/bin/sh", "-c", beat, str(pulse)]) as process:
        yield
        process.kill()


def test_a_worker_that_shows_that_it_gets_on_is_not_killed(brief_farm: Farm) -> None:
    farm = brief_farm
    job_id = farm.queue(steps=5000)
    # What it is in the middle of takes longer than the limit.
    with farm.held(job_id, 8) as worker:
        with _beating(Path(farm.daemon.attempts(job_id)[0]["folder"]) / "pulse"):
            farm.act(job_id, "pause")
            time.sleep(2.5 * BRIEF_SECONDS)
        assert worker.is_running()
    farm.daemon.wait_for(job_id, "paused")
    assert farm.daemon.attempts(job_id)[0]["exit_code"] == 75
    assert "is killed" not in farm.daemon.log


@pytest.mark.full
def test_killed_at_many_moments_it_still_gives_the_same_result(farm: Farm) -> None:
    plain = farm.queue()
    farm.finish(plain)
    expected = farm.outcome(plain)
    tried = farm.queue()
    for step in (1, 8, 22, 41):
        farm.reach(tried, step)
        kill(farm.worker(tried))
        if step == 22:
            farm.daemon.kill()
            farm.daemon.start()
    with farm.held(tried, 50):
        farm.act(tried, "pause")
    farm.daemon.wait_for(tried, "paused")
    farm.act(tried, "resume")
    farm.finish(tried)
    _assert_whole_chart(farm, tried, STEPS)
    assert farm.outcome(tried) == expected
