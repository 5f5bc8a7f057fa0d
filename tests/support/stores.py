"""Stores over a real SQLite file, with no daemon and no torch."""

from dataclasses import dataclass
from multiprocessing import Queue
from pathlib import Path

from slidepack.daemon.states import JobState
from slidepack.daemon.store.attempts import AttemptRecord, AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.packs import PackStore
from slidepack.daemon.store.runlog import RunLog
from slidepack.engine.contract.job import DatasetRef, JobSpec, LoraMethod, ModelRef


@dataclass(frozen=True)
class Stores:
    """One database and what reads and writes it."""

    folder: Path
    database: Database
    jobs: JobStore
    attempts: AttemptStore
    packs: PackStore
    runlog: RunLog

    def add_attempt(self, job_id: int, number: int = 1) -> AttemptRecord:
        """Record an attempt with a folder of its own."""
        folder = self.folder / f"{job_id}-{number}"
        folder.mkdir()
        self.attempts.add(job_id, number, str(folder), f"nonce-{job_id}-{number}", 1.0)
        return self.attempt(job_id, number)

    def attempt(self, job_id: int, number: int = 1) -> AttemptRecord:
        """Return an attempt as the database has it now."""
        return self.attempts.of(job_id)[number - 1]

    def end(self, job_id: int, state: JobState) -> None:
        """End a job, and its live attempt with it."""
        for attempt in self.attempts.of(job_id):
            if attempt.state == "live":
                self.attempts.end(attempt, "failed", 1, 1.0)
        self.jobs.move(job_id, state, state, 1.0)

    def force(self, job_id: int, state: JobState) -> None:
        """Put a job into a state past the state machine."""
        self.database.execute("UPDATE jobs SET state = ? WHERE id = ?", state, job_id)


def open_stores(folder: Path) -> Stores:
    """Open, or create, the database in a folder."""
    database = Database(folder / "slidepack.db")
    return Stores(
        folder,
        database,
        JobStore(database),
        AttemptStore(database),
        PackStore(database),
        RunLog(database),
    )


def plain_spec(name: str = "plain", base: str = "-") -> JobSpec:
    """Return a specification that names files which need not exist."""
    return JobSpec(
        name=name,
        base=ModelRef(model_id="tiny", path="/nowhere", content_hash=base),
        dataset=DatasetRef(dataset_id="1", path="/nowhere/rows.jsonl", content_hash="-"),
        method=LoraMethod(),
        steps=10,
    )


def add_jobs(folder: Path, count: int) -> None:
    """Queue jobs, in a process of their own."""
    stores = open_stores(folder)
    for _ in range(count):
        stores.jobs.add(plain_spec(), 0.0)


def claim_jobs(folder: Path, won: "Queue[list[int]]") -> None:
    """Take queued jobs, in a process of their own, until there are none; say which."""
    stores = open_stores(folder)
    claimed = []
    while True:
        with stores.database.transaction():
            job = next(iter(stores.jobs.queued()), None)
            if job is None:
                break
            stores.jobs.move(job.id, "starting", "claimed", 1.0)
        claimed.append(job.id)
    won.put(claimed)
