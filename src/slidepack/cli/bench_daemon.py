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
from slidepack.cli.bench_jobs import add_ended, cpu_seconds, wait_until_settled
from slidepack.cli.client import DaemonClient
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.database import Database

_REQUESTS: Final = 200


def daemon(
    jobs: Annotated[int, typer.Option(min=0, help="Finished jobs in the database.")] = 10_000,
    seconds: Annotated[float, typer.Option(min=1.0, help="Time to watch it idle.")] = 30.0,
    json_output: Json = False,
) -> None:
    """Time the daemon's start, its idling and its list of jobs, in a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="slidepack-bench-") as folder:
        home = Path(folder)
        paths = DataPaths(home)
        paths.create()
        add_ended(Database(paths.database), paths, jobs)
        result = _measure(home, seconds)
    result = {"jobs": jobs, **result}
    if json_output:
        print_json(result)
    else:
        print_table(("", ""), result.items())


def _measure(home: Path, seconds: float) -> dict[str, Any]:
    environment = os.environ | {"SLIDEPACK_PORT": "0"}
    begun = time.monotonic()
    with running_daemon(home, environment) as (client, child):
        started = time.monotonic() - begun
        assert child is not None
        process = psutil.Process(child.pid)
        wait_until_settled(client)
        before, watched = cpu_seconds(process), time.monotonic()
        time.sleep(seconds)
        used = cpu_seconds(process) - before
        idle = used / (time.monotonic() - watched)
        times = [_list_seconds(client) for _ in range(_REQUESTS)]
        return {
            "start_seconds": round(started, 3),
            "idle_percent_of_a_core": round(100 * idle, 2),
            "resident_mb": round(process.memory_info().rss / 1e6, 1),
            "list_ms_median": round(1e3 * statistics.median(times), 1),
            "list_ms_p95": round(1e3 * statistics.quantiles(times, n=20)[-1], 1),
        }


def _list_seconds(client: DaemonClient) -> float:
    begun = time.monotonic()
    client.get("/jobs")
    return time.monotonic() - begun
