"""Builds run folders and runs the worker as a real process."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from slidepack.engine.contract.events import AnyEvent, decode_event
from slidepack.engine.contract.job import DatasetRef, EvalSpec, JobSpec, LoraMethod, ModelRef
from slidepack.engine.contract.runfolder import RunFolder, RunIdentity
from slidepack.engine.data.check import check_file
from slidepack.engine.memory import Machine, plan_run
from slidepack.engine.shape import read_shape
from support.tiny import chat_rows, save_tiny_model, write_jsonl
from support.waiting import PATIENCE

MACHINE = Machine(device="cpu", device_free_bytes=0, ram_available_bytes=8 << 30, cpu_threads=1)


def dataset_ref(folder: Path, rows: list[dict[str, object]], name: str = "data") -> DatasetRef:
    """Check rows as the daemon does and return the reference."""
    folder.mkdir(parents=True, exist_ok=True)
    source = write_jsonl(folder / f"{name}.jsonl", rows)
    normalised = folder / f"{name}-rows.jsonl"
    report = check_file(source, normalised, folder / f"{name}-rejects.jsonl")
    return DatasetRef(
        dataset_id=name, path=str(normalised), content_hash=report.content_hash, mapping="chat"
    )


def tiny_spec(folder: Path, **changes: Any) -> JobSpec:
    """Return a spec over a tiny model and dataset made in `folder`."""
    model = folder / "model"
    if not model.exists():
        save_tiny_model(model)
    values: dict[str, Any] = {
        "name": "tiny",
        "base": ModelRef(model_id="tiny", path=str(model), content_hash="-"),
        "dataset": dataset_ref(folder, chat_rows(40)),
        "method": LoraMethod(rank=4, alpha=8, dropout=0.1),
        "batch_size": 4,
        "max_seq_len": 128,
        "steps": 8,
        "checkpoint_every_steps": 2,
        "eval": EvalSpec(selection_fraction=0.2, sample_tokens=8, every_steps=4),
        "seed": 3,
    }
    return JobSpec(**(values | changes))


def make_run(
    root: Path, spec: JobSpec, *, attempt: int = 1, resume_from: tuple[str, ...] = ()
) -> RunFolder:
    """Create a run folder for a spec."""
    folder = RunFolder(root)
    plan = plan_run(spec, read_shape(Path(spec.base.path)), MACHINE)
    identity = RunIdentity(job_id="job", attempt=attempt, nonce="n", resume_from=resume_from)
    folder.create(spec, plan, identity)
    return folder


def start_worker(folder: RunFolder) -> subprocess.Popen[bytes]:
    """Start the worker on a run folder."""
    with folder.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "slidepack.engine.worker", str(folder.root)],
            stdout=log,
            stderr=log,
            env=os.environ | {"SLIDEPACK_NONCE": "n", "OMP_WAIT_POLICY": "PASSIVE"},
        )


def run_worker(folder: RunFolder) -> int:
    """Run the worker to its end and return the exit code."""
    return start_worker(folder).wait(timeout=PATIENCE)


def events_of(folder: RunFolder) -> list[AnyEvent]:
    """Return all events of a run."""
    if not folder.events.exists():
        return []
    return [decode_event(line) for line in folder.events.read_bytes().splitlines()]
