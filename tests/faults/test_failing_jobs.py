"""A job that cannot run says why, with a code, and the next one runs."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from support.queueing import Farm
from support.tiny import chat_rows, write_jsonl
from support.waiting import wait_until


def test_failing_jobs_do_not_stop_the_queue(farm: Farm, tiny_model: Path, tmp_path: Path) -> None:
    daemon = farm.daemon
    models = {}
    for name in ("touched", "gone"):
        folder = Path(shutil.copytree(tiny_model, tmp_path / name))
        models[name] = (daemon.add_model(folder), folder)
    dataset = daemon.upload(write_jsonl(tmp_path / "other.jsonl", chat_rows(30)))
    # None begins before all is as it is meant to be.
    with farm.daemon.paused():
        diverging = farm.queue(lr=1.0, weight_decay=1e30, schedule="constant", warmup_fraction=0.0)
        touched = farm.queue(model=models["touched"][0])
        gone = farm.queue(model=models["gone"][0])
        edited = farm.queue(dataset=dataset)
        good = farm.queue(steps=2)

        with (models["touched"][1] / "config.json").open("a") as config:
            config.write("\n")
        shutil.rmtree(models["gone"][1])
        with (daemon.home / "datasets" / str(dataset) / "rows.jsonl").open("ab") as rows:
            rows.write(b"{}\n")
    farm.finish(good)
    # The touched files are read beside the queue, which goes on meanwhile.
    for job_id in (diverging, touched, edited):
        daemon.wait_for(job_id, "failed")

    jobs: dict[int, Any] = {job["id"]: job for job in daemon.api("GET", "/jobs")}
    codes = {job_id: (job["error"] or {}).get("code") for job_id, job in jobs.items()}
    assert codes == {
        diverging: "RUN-DIVERGED",
        touched: "MODEL-CHANGED",
        gone: None,
        edited: "DATA-CHANGED",
        good: None,
    }
    for job_id in (diverging, touched, edited):
        assert jobs[job_id]["state"] == "failed"
        error = jobs[job_id]["error"]
        assert error["why"]
        assert error["fix"]
        assert error["what"] in jobs[job_id]["reason"]
    # It may be on a drive that is not there yet.
    wait_until(lambda: str(models["gone"][1]) in daemon.job(gone)["reason"])
    assert daemon.job(gone)["state"] == "queued"
    assert daemon.attempts(touched) == daemon.attempts(gone) == [], "no worker was started in vain"
    assert "Traceback" not in daemon.log


def test_a_run_that_diverged_goes_on_from_its_last_good_checkpoint(farm: Farm) -> None:
    # The learning rate rises until it is too high.
    diverging = farm.queue(
        lr=1.0,
        warmup_fraction=1.0,
        clip_norm=0,
        alpha=100_000,
        dropout=0,
        steps=80,
        checkpoint_every_steps=1,
        eval_every_steps=1000,
    )
    failed = farm.daemon.wait_for(diverging, "failed")
    assert failed["error"]["code"] == "RUN-DIVERGED"
    how = {"resume": True, "lr_factor": 1 / 3}
    rescued = farm.daemon.api("POST", f"/jobs/{diverging}/retry", json=how)["id"]
    assert farm.daemon.job(rescued)["adopts"] == diverging
    farm.daemon.wait_for(rescued, "completed", "failed")
    (attempt,) = farm.daemon.attempts(rescued)
    assert 1 < attempt["first_step"] <= failed["step"] + 1
    before = {row["step"]: row for row in farm.chart(diverging)["progress"]}
    after = farm.chart(rescued)["progress"]
    assert after[0]["step"] == attempt["first_step"]
    assert after[0]["lr"] == pytest.approx(before[attempt["first_step"]]["lr"] / 3)
    # It began from good weights, on the rows that came next.
    assert after[0]["loss"] == before[attempt["first_step"]]["loss"]
