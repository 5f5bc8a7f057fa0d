"""Jobs that never ran, as the benchmarks of the daemon put them into its database."""

import time
from typing import Final

import psutil

from slidepack.cli.client import DaemonClient
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.engine.contract.events import Finished, Progress
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef

__all__ = ["add_ended", "cpu_seconds", "job_spec", "progress_event", "wait_until_settled"]

_NOWHERE: Final = ModelRef(model_id="model", path="/nowhere", content_hash="-")
_SETTLE_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.1


def job_spec(
    number: int, steps: int, base: ModelRef = _NOWHERE, rows: str = "/nowhere/rows.jsonl"
) -> JobSpec:
    """Return a LoRA job on dataset 1, whose normalised rows are in the file `rows`."""
    return JobSpec(
        name=f"job {number}",
        base=base,
        dataset=DatasetRef(dataset_id="1", path=rows, content_hash="-"),
        method=LoraMethod(),
        steps=steps,
    )


def progress_event(step: int, total_steps: int, at: float) -> Progress:
    """Return what a worker tells of a step that was done at `at`, in unix seconds."""
    return Progress(
        at=at,
        step=step,
        total_steps=total_steps,
        loss=2.0 / step,
        grad_norm=1.0,
        lr=1e-4,
        tokens=1000,
        supervised_tokens=500,
        tokens_per_second=1000.0,
        eta_seconds=float(total_steps - step),
    )


def add_ended(
    database: Database,
    paths: DataPaths,
    count: int,
    *,
    steps: int = 20,
    base: ModelRef = _NOWHERE,
) -> list[int]:
    """Store completed jobs with all that their workers would have reported; return their ids.

    Args:
        database: of a daemon that does not run.
        paths: of its data directory.
        count: of jobs.
        steps: of each.
        base: the model that they trained.
    """
    jobs, attempts, runlog = JobStore(database), AttemptStore(database), RunLog(database)
    added = []
    with database.transaction():
        for number in range(count):
            job = jobs.add(job_spec(number, steps, base), float(number))
            jobs.move(job.id, "starting", "planned", number + 1.0)
            attempts.add(job.id, 1, str(paths.attempt(job.id, 1)), f"nonce-{job.id}", number + 1.0)
            (attempt,) = attempts.of(job.id)
            events = [progress_event(step, steps, float(step)) for step in range(1, steps + 1)]
            runlog.ingest(attempt, [*events, _finished(steps)], 1)
            attempts.end(attempt, "completed", 0, number + 2.0)
            jobs.move(job.id, "completed", "done", number + 2.0)
            added.append(job.id)
    return added


def wait_until_settled(client: DaemonClient) -> None:
    """Wait until torch was asked what it can use: that is work of the start."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while client.get("/hardware")["software"] is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def cpu_seconds(process: psutil.Process) -> float:
    """Return the CPU time that a process, and its children that have ended, took so far."""
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _finished(steps: int) -> Finished:
    return Finished(
        at=1.0,
        steps=steps,
        result="/nowhere/result",
        eval_loss_before=2.0,
        eval_loss_after=1.0,
        seconds=1.0,
        tokens_per_second=1000.0,
        peak_host_bytes=1,
        peak_device_bytes=0,
    )
