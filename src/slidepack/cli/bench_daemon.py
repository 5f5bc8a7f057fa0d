"""`slidepack bench daemon`: what the daemon costs while it has nothing to do."""

import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import psutil
import typer

from slidepack.cli.background import running_daemon
from slidepack.cli.client import DaemonClient
from slidepack.cli.output import print_json, print_table
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.engine.contract.events import Finished, Progress
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef

_STEPS: Final = 20
_REQUESTS: Final = 200
_SETTLE_SECONDS: Final = 90.0
_POLL_SECONDS: Final = 0.1


def daemon(
    jobs: Annotated[int, typer.Option(min=0, help="Finished jobs in the database.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time to watch it idle.")] = 30.0,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Time the daemon's start, its idling and its list of jobs, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="slidepack-bench-") as folder:
        home = Path(folder)
        _fill(home, jobs)
        result = _measure(home, seconds)
    result = {"jobs": jobs, **result}
    if json_output:
        print_json(result)
    else:
        print_table(("", ""), result.items())


def _fill(home: Path, count: int) -> None:
    paths = DataPaths(home)
    paths.create()
    database = Database(paths.database)
    jobs, attempts, runlog = JobStore(database), AttemptStore(database), RunLog(database)
    with database.transaction():
        for number in range(count):
            job = jobs.add(_spec(number), float(number))
            jobs.move(job.id, "starting", "planned", number + 1.0)
            attempts.add(job.id, 1, str(paths.attempt(job.id, 1)), f"nonce-{number}", number + 1.0)
            (attempt,) = attempts.of(job.id)
            events = [_progress(step) for step in range(1, _STEPS + 1)]
            runlog.ingest(attempt, [*events, _finished()], 1)
            attempts.end(attempt, "completed", 0, number + 2.0)
            jobs.move(job.id, "completed", "done", number + 2.0)


def _measure(home: Path, seconds: float) -> dict[str, Any]:
    environment = os.environ | {"SLIDEPACK_PORT": "0"}
    begun = time.monotonic()
    with running_daemon(home, environment) as (client, child):
        started = time.monotonic() - begun
        assert child is not None
        process = psutil.Process(child.pid)
        _wait_until_settled(client)
        before, watched = _cpu_seconds(process), time.monotonic()
        time.sleep(seconds)
        used = _cpu_seconds(process) - before
        idle = used / (time.monotonic() - watched)
        times = [_list_seconds(client) for _ in range(_REQUESTS)]
        return {
            "start_seconds": round(started, 3),
            "idle_percent_of_a_core": round(100 * idle, 2),
            "resident_mb": round(process.memory_info().rss / 1e6, 1),
            "list_ms_median": round(1e3 * statistics.median(times), 1),
            "list_ms_p95": round(1e3 * statistics.quantiles(times, n=20)[-1], 1),
        }


def _wait_until_settled(client: DaemonClient) -> None:
    """Wait until torch was asked what it can use: that is work of the start."""
    deadline = time.monotonic() + _SETTLE_SECONDS
    while client.get("/hardware")["software"] is None and time.monotonic() < deadline:
        time.sleep(_POLL_SECONDS)


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _list_seconds(client: DaemonClient) -> float:
    begun = time.monotonic()
    client.get("/jobs")
    return time.monotonic() - begun


def _spec(number: int) -> JobSpec:
    return JobSpec(
        name=f"job {number}",
        base=ModelRef(model_id="model", path="/nowhere", content_hash="-"),
        dataset=DatasetRef(dataset_id="1", path="/nowhere/rows.jsonl", content_hash="-"),
        method=LoraMethod(),
        steps=_STEPS,
    )


def _progress(step: int) -> Progress:
    return Progress(
        at=float(step),
        step=step,
        total_steps=_STEPS,
        loss=2.0 / step,
        grad_norm=1.0,
        lr=1e-4,
        tokens=1000,
        supervised_tokens=500,
        tokens_per_second=1000.0,
        eta_seconds=float(_STEPS - step),
    )


def _finished() -> Finished:
    return Finished(
        at=1.0,
        steps=_STEPS,
        result="/nowhere/result",
        eval_loss_before=2.0,
        eval_loss_after=1.0,
        seconds=1.0,
        tokens_per_second=1000.0,
        peak_host_bytes=1,
        peak_device_bytes=0,
    )
