"""Jobs with run folders on the disk and in a real database, and the retention over them."""

import json
import os
from pathlib import Path

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.supervisor.origins import Origins
from slidepack.daemon.supervisor.retention import Retention
from slidepack.engine.contract.runfolder import RunFolder
from support.stores import Stores, open_stores, plain_spec

Layout = list[list[bool | None]]
"""Attempt by attempt: whether each checkpoint is healthy; None for one that is broken."""


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Shop:
    """Jobs with run folders, and the retention over them."""

    def __init__(self, home: Path) -> None:
        self.paths = DataPaths(home)
        self.paths.create()
        self.stores: Stores = open_stores(home)
        self.clock = Clock()
        self.today = 365 * 86_400.0
        self.retention = self.restart()

    def restart(self, attempts: AttemptStore | None = None) -> Retention:
        """Return the retention of a daemon that has just started."""
        self.retention = Retention(
            database=self.stores.database,
            jobs=self.stores.jobs,
            attempts=attempts or self.stores.attempts,
            runlog=self.stores.runlog,
            folder=self.paths.jobs,
            origins=Origins(self.stores.database, self.paths.origins),
            monotonic=self.clock,
            now=lambda: self.today,
        )
        return self.retention

    def job(self, layout: Layout, state: JobState = "running", adopts: int | None = None) -> int:
        """Make a job whose last attempt is live unless it has ended or waits."""
        job_id = self.stores.jobs.add(plain_spec(), 0.0, adopts=adopts).id
        for number, checkpoints in enumerate(layout, 1):
            folder = RunFolder(self.paths.attempt(job_id, number))
            self.stores.attempts.add(job_id, number, str(folder.root), f"{job_id}-{number}", 1.0)
            folder.checkpoints.mkdir(parents=True)
            for step, healthy in enumerate(checkpoints, 1):
                write_checkpoint(folder.checkpoints / f"step-{step:08d}", healthy)
            if number < len(layout) or state != "running":
                self.stores.attempts.end(self._attempt(job_id, number), "yielded", 0, 2.0)
        self.set(job_id, state)
        return job_id

    def _attempt(self, job_id: int, number: int) -> AttemptRecord:
        return self.stores.attempt(job_id, number)

    def set(self, job_id: int, state: JobState) -> None:
        """Put a job into a state, with all that goes with it."""
        self.stores.force(job_id, state)
        if state in ("completed", "failed", "cancelled"):
            self.stores.database.execute("UPDATE jobs SET ended_at = 9.0 WHERE id = ?", job_id)
            for attempt in self.stores.attempts.of(job_id):
                if attempt.state == "live":
                    self.stores.attempts.end(attempt, "failed", 0, 9.0)
        if state == "completed":
            number = len(self.stores.attempts.of(job_id))
            result = RunFolder(self.paths.attempt(job_id, number)).result
            result.mkdir()
            (result / "summary.json").write_text("{}")
            self.stores.jobs.set_result(job_id, str(result))

    def left(self, job_id: int) -> list[str]:
        """Return what is in the checkpoint folders, as `attempt/step`."""
        return [
            f"{attempt.number}/{name.removeprefix('step-').lstrip('0')}"
            for attempt in self.stores.attempts.of(job_id)
            for name in sorted(os.listdir(RunFolder(Path(attempt.folder)).checkpoints))
        ]


def write_checkpoint(folder: Path, healthy: bool | None) -> None:
    folder.mkdir()
    (folder / "lane.safetensors").write_bytes(b"tensors")
    state: dict[str, object] = {"step": 1, "spec_hash": "x"}
    # Healthy ones of older versions do not say so.
    if healthy is False:
        state["healthy"] = False
    (folder / "state.json").write_text("{" if healthy is None else json.dumps(state))
