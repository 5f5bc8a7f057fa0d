"""`slidepack bench sweep`: how long a sweep takes, against what the planner says beforehand."""

import os
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from slidepack.cli.background import running_daemon
from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.client import DaemonClient
from slidepack.cli.models import add_and_wait
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table
from slidepack.engine.contract.errors import SlidepackError

_DATA: Final = Path(__file__).with_name("demo_data") / "train.jsonl"
_RANKS: Final = (4, 8, 16, 32)
_BATCHES: Final = (1, 2)
_RATES: Final = (5e-4, 2e-4, 1e-4)
_POLL_SECONDS: Final = 0.05
_PATIENCE_SECONDS: Final = 3600.0


def sweep(
    model: Annotated[str, typer.Option(help="Folder of a model; empty takes --shape.")] = "",
    shape: Annotated[str, typer.Option(help="A shape with random weights.")] = "llama-1b",
    data: Annotated[str, typer.Option(help="Data file; empty takes the demo's.")] = "",
    steps: Annotated[int, typer.Option(min=1, help="Of each of the 24 members.")] = 30,
    probe_steps: Annotated[int, typer.Option(min=14, help="Of the sweeps that measure.")] = 26,
    probes: Annotated[int, typer.Option(min=0, max=2, help="How many of them.")] = 2,
    max_seq_len: Annotated[int, typer.Option(min=16, help="Longest row.")] = 512,
    batch_factor: Annotated[int, typer.Option(min=1, help="Times the batch sizes 1 and 2.")] = 1,
    json_output: Json = False,
) -> None:
    """Time a sweep of 24 members through a daemon of its own, and compare it with its plan."""
    with tempfile.TemporaryDirectory(prefix="slidepack-bench-") as folder:
        home = Path(folder)
        source = Path(model) if model else _random_model(home / "random", shape)
        environment = os.environ | {"SLIDEPACK_PORT": "0", "SLIDEPACK_HOME": folder}
        with running_daemon(home, environment) as (client, _child):
            bench = _Bench(client, source, Path(data) if data else _DATA, max_seq_len, batch_factor)
            result = bench.run(steps, probe_steps, probes)
    if json_output:
        print_json(result)
    else:
        print_table(("", ""), result.items())


def _random_model(folder: Path, shape: str) -> Path:
    run_benchmark("model", f"--shape={shape}", f"--to={folder}")
    return folder


class _Bench:
    """Sweeps at one daemon."""

    def __init__(
        self, client: DaemonClient, model: Path, data: Path, max_seq_len: int, batch_factor: int
    ) -> None:
        self._client = client
        self._model = add_and_wait(client, str(model), "", "", quiet=True)["id"]
        self._dataset = client.upload(data)["id"]
        self._max_seq_len = max_seq_len
        self._batches = [batch * batch_factor for batch in _BATCHES]

    def run(self, steps: int, probe_steps: int, probes: int) -> dict[str, Any]:
        """Measure steps with small sweeps, plan the large one, run it."""
        small, large = self._batches
        # As many rows in a step as the sweep's, in fewer lanes; and the fewest.
        rows = len(_RANKS) * len(_RATES) * (small + large)
        grids = [
            {"rank": [_RANKS[0], _RANKS[-1]], "batch_size": [large, rows // 2 - large]},
            {"rank": [8], "batch_size": [small]},
        ]
        for grid in grids[:probes]:
            self._sweep(probe_steps, grid)
            self._wait("the probe")
        self._client.post("/queue/pause", {})
        self._sweep(steps, {"rank": list(_RANKS), "batch_size": self._batches, "lr": list(_RATES)})
        report = self._client.get("/plan")
        begun = time.monotonic()
        self._client.post("/queue/resume", {})
        self._wait("the sweep")
        seconds = time.monotonic() - begun
        plan = report["plan"]
        predicted = plan["open_seconds"]
        return {
            "devices": [device["name"] for device in report["devices"]],
            "members": len(report["jobs"]),
            "steps": steps,
            "tokens_a_step": sum(job["tokens_a_step"] for job in report["jobs"]),
            "predicted_seconds": round(predicted, 2),
            "seconds": round(seconds, 2),
            "error": round(predicted / seconds - 1.0, 4),
            "one_by_one_predicted_seconds": round(plan["one_by_one_seconds"], 2),
            "most_lanes": plan["max_lanes"],
        }

    def _sweep(self, steps: int, grid: dict[str, Any]) -> None:
        self._client.post(
            "/sweeps",
            {
                "model": self._model,
                "dataset": self._dataset,
                "name": f"{steps} steps",
                "fixed": {
                    "steps": steps,
                    "max_seq_len": self._max_seq_len,
                    "eval_every_steps": steps,
                    "checkpoint_minutes": 60.0,
                },
                "grid": grid,
            },
        )

    def _wait(self, what: str) -> None:
        deadline = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < deadline:
            jobs = self._client.get("/jobs")
            failed = [job for job in jobs if job["state"] in ("failed", "cancelled", "paused")]
            if failed:
                raise SlidepackError(
                    "RUN-CRASHED",
                    f"A member of {what} did not end.",
                    why=failed[0]["reason"],
                    fix="Try fewer members' worth of memory: a smaller --max-seq-len.",
                )
            if all(job["state"] == "completed" for job in jobs):
                return
            time.sleep(_POLL_SECONDS)
        raise SlidepackError("RUN-CRASHED", f"{what.capitalize()} did not end within an hour.")
