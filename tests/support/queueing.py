"""Queues jobs on a tiny model at a real daemon, and reads what became of them."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from support.daemons import DaemonProcess
from support.held import has_ended, held
from support.tiny import chat_rows, write_jsonl
from support.waiting import PATIENCE, wait_until

STEPS = 240
"""Long enough that a fast machine is still training when a restarted daemon looks again."""

SETTINGS: dict[str, Any] = {
    "rank": 4,
    "alpha": 8,
    "dropout": 0.1,
    "lr": 1e-3,
    "batch_size": 4,
    "max_seq_len": 128,
    "steps": STEPS,
    "eval_every_steps": 40,
    "checkpoint_every_steps": 7,
    "sample_prompts": ["Name stone number 3"],
    "seed": 5,
}


@dataclass
class Farm:
    """A daemon with a model and a dataset, ready for jobs."""

    daemon: DaemonProcess
    model: str
    dataset: int

    def queue(self, **changes: Any) -> int:
        """Queue a job and return its id."""
        request = SETTINGS | {"model": self.model, "dataset": self.dataset} | changes
        return int(self.daemon.api("POST", "/jobs", json=request)["id"])

    def act(self, job_id: int, action: str) -> Any:
        """Cancel, pause, resume or retry a job."""
        return self.daemon.api("POST", f"/jobs/{job_id}/{action}")

    def reach(self, job_id: int, step: int) -> Any:
        """Wait until a job has done a number of steps and return its record."""

        def reached() -> Any:
            job = self.daemon.job(job_id)
            assert job["ended_at"] is None, job
            return job if job["step"] >= step else None

        return wait_until(reached, what=f"job {job_id} is at step {step}")

    @contextmanager
    def held(self, job_id: int, step: int) -> Iterator[psutil.Process]:
        """Wait until a job has done a number of steps; its worker stands still in the block.

        A short job would else be done before what the test does in the middle of it.
        """
        worker = self.worker(job_id)
        self.reach(job_id, step)
        with held(worker):
            yield worker

    def finish(self, job_id: int, seconds: float = PATIENCE) -> Any:
        """Wait until a job is completed and return its record.

        Args:
            job_id: of the job.
            seconds: that it may take, with all that the queue does before it.
        """
        job = self.daemon.wait_for(job_id, "completed", "failed", "cancelled", seconds=seconds)
        assert job["state"] == "completed", (job, self.daemon.worker_log(job_id))
        return job

    def worker(self, job_id: int) -> psutil.Process:
        """Wait for the job's worker and return its process."""

        def found() -> psutil.Process | None:
            attempts = self.daemon.attempts(job_id)
            pid = attempts[-1]["pid"] if attempts and attempts[-1]["state"] == "live" else None
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid) if pid else None
                # One that was killed stays the attempt's until the daemon has looked.
                return None if process is None or has_ended(process) else process
            return None

        process = wait_until(found, what=f"job {job_id} has a worker")
        assert process is not None
        return process

    def chart(self, job_id: int) -> Any:
        """Return the job's series."""
        return self.daemon.api("GET", f"/jobs/{job_id}/chart")

    def detail(self, job_id: int) -> Any:
        """Return everything about the job."""
        return self.daemon.api("GET", f"/jobs/{job_id}")

    def outcome(self, job_id: int) -> dict[str, object]:
        """Return everything of a result that must not depend on what happened on the way."""
        job = self.daemon.job(job_id)
        adapter = Path(job["result"]) / "adapter"
        summary = json.loads((Path(job["result"]) / "summary.json").read_text())
        chart = self.chart(job_id)
        return {
            "losses": [(r["step"], r["loss"], r["grad_norm"], r["lr"]) for r in chart["progress"]],
            "evaluations": chart["evaluations"],
            "samples": self.detail(job_id)["samples"],
            "summary": {k: summary[k] for k in ("steps", "tokens", "eval_loss_after")},
            "files": {path.name: path.read_bytes() for path in sorted(adapter.iterdir())},
        }

    def states(self, job_id: int) -> list[str]:
        """Return the states that the job went through."""
        return [row["to_state"] for row in self.detail(job_id)["transitions"]]


def make_farm(daemon: DaemonProcess, model: Path, folder: Path, rows: int = 40) -> Farm:
    """Add a model and a dataset to a daemon, which takes no note of other tests' games."""
    daemon.api("POST", "/policy", json={"detect_games": False})
    data = write_jsonl(folder / "data.jsonl", chat_rows(rows))
    return Farm(daemon, daemon.add_model(model), daemon.upload(data))


def kill(process: psutil.Process) -> None:
    """Kill a worker's whole group, as the kernel or a user would, and wait until it is gone.

    One that ends of itself in this moment is no error.
    """
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    wait_until(lambda: has_ended(process))
