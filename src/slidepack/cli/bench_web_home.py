"""A data directory as after months of use, with one job that trains: for `slidepack bench web`."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slidepack.cli.bench_jobs import add_ended, job_spec
from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobStore
from slidepack.daemon.store.timing import JobTiming
from slidepack.daemon.supervisor.run_folders import new_nonce
from slidepack.daemon.supervisor.worker_process import (
    current_boot_id,
    start_ticks,
    worker_environment,
)
from slidepack.engine.contract.job import JobSpec, ModelRef
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.data.report import DataReport
from slidepack.engine.data.rows import CompletionRow, encode_row
from slidepack.engine.importer.contract import ImportResult

__all__ = ["BenchHome", "fill", "training_job"]

_WORKER: Final = "slidepack.cli.bench_web_worker"
_LONG_STEPS: Final = 1_000_000
"""Of the job that trains: more than are done here."""
_ROWS: Final = 1000
_LATER_SECONDS: Final = 86_400.0
"""After which the jobs may begin that wait: none does while this measures."""
_MODEL: Final[dict[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 576,
    "intermediate_size": 1536,
    "num_hidden_layers": 30,
    "num_attention_heads": 9,
    "num_key_value_heads": 3,
    "vocab_size": 49_152,
    "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-5,
    "rope_theta": 100_000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": True,
}
_PARAMETERS: Final = 134_515_008


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchHome:
    """What is in the directory."""

    paths: DataPaths
    base: ModelRef
    rows: str
    long_job: int
    """An ended job with a long series."""


def fill(home: Path, *, ended: int, waiting: int, points: int) -> BenchHome:
    """Store jobs in a new data directory.

    Args:
        home: the directory.
        ended: jobs that are completed.
        waiting: jobs that wait for tomorrow.
        points: steps of one more job that is completed.
    """
    paths = DataPaths(home)
    paths.create()
    database = Database(paths.database)
    base = _add_model(paths, database)
    rows = _add_dataset(paths, database)
    add_ended(database, paths, ended, base=base)
    (long_job,) = add_ended(database, paths, 1, steps=points, base=base)
    jobs, now = JobStore(database), time.time()
    with database.transaction():
        for number in range(waiting):
            jobs.add(
                job_spec(number, 20, base, rows), now, JobTiming(not_before=now + _LATER_SECONDS)
            )
    return BenchHome(paths=paths, base=base, rows=rows, long_job=long_job)


@contextmanager
def training_job(home: BenchHome, rate: float) -> Iterator[int]:
    """Store a job that trains in a process that tells `rate` steps a second; yield its id.

    A daemon that starts within the block finds this process as it finds any worker.
    """
    database = Database(home.paths.database)
    jobs, attempts = JobStore(database), AttemptStore(database)
    now, spec = time.time(), job_spec(0, _LONG_STEPS, home.base, home.rows)
    job = jobs.add(spec, now, JobTiming(not_before=now + _LATER_SECONDS))
    jobs.move(job.id, "starting", "its turn", now)
    folder, nonce = RunFolder(home.paths.attempt(job.id, 1)), new_nonce()
    _write_folder(folder, spec, RunIdentity(job_id=str(job.id), attempt=1, nonce=nonce))
    attempts.add(job.id, 1, str(folder.root), nonce, now, device="cpu")
    worker = subprocess.Popen(
        [sys.executable, "-P", "-m", _WORKER, str(folder.root), str(rate)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=worker_environment(nonce),
        # As a worker: what ends its group must end nothing else.
        start_new_session=True,
    )
    try:
        attempts.set_process(
            job.id, 1, pid=worker.pid, started=start_ticks(worker.pid), boot_id=current_boot_id()
        )
        yield job.id
    finally:
        worker.terminate()
        worker.wait()


def _add_model(paths: DataPaths, database: Database) -> ModelRef:
    catalogue = Catalogue(database)
    model = catalogue.add_model("Model", "folder", "/nowhere", "", 0.0)
    folder = paths.models / model.id
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(_MODEL))
    catalogue.model_ready(
        model.id,
        ImportResult(
            path=str(folder),
            content_hash="-",
            stamp="-",
            architecture=_MODEL["architectures"][0],
            params=_PARAMETERS,
            bytes=2 * _PARAMETERS,
            license="",
            revision="",
        ),
    )
    return ModelRef(model_id=model.id, path=str(folder), content_hash="-")


def _add_dataset(paths: DataPaths, database: Database) -> str:
    catalogue = Catalogue(database)
    number = catalogue.reserve_dataset("rows.jsonl", 100 * _ROWS, "-", 0.0)
    report = DataReport(
        family="completion",
        rows=_ROWS,
        accepted=_ROWS,
        rejected=0,
        reasons={},
        ignored_columns=(),
        content_hash="-",
    )
    catalogue.set_dataset_report(number, report)
    folder = paths.dataset(number)
    folder.mkdir()
    rows = folder / "rows.jsonl"
    row = encode_row(CompletionRow(line=1, prompt="What is a river?", completion="Water."))
    rows.write_bytes(row * _ROWS)
    return str(rows)


def _write_folder(folder: RunFolder, spec: JobSpec, identity: RunIdentity) -> None:
    layers = _MODEL["num_hidden_layers"]
    plan = RunPlan(
        device="cpu",
        precision="fp32",
        layer_weights=("device",) * layers,
        layer_activations=("keep",) * layers,
        optimizer_state="device",
        cpu_threads=len(os.sched_getaffinity(0)),
        micro_batch_tokens=8192,
        predicted_device_bytes=0,
        predicted_host_bytes=1_000_000_000,
        predicted_disk_bytes=0,
        reason="a benchmark",
    )
    folder.create(spec, plan, identity)
