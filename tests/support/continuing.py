"""Jobs that continue others: their specifications, and runs that end in what is to be compared."""

import json
from pathlib import Path
from typing import Any

import msgspec

from slidepack.engine.contract.events import Failed
from slidepack.engine.contract.job import DatasetRef, EvalSpec, FullMethod, JobSpec, OptimSpec
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.origins import find_left, keep_moments, origin_of, require_fit
from support.full_worker import events_of
from support.runs import dataset_ref, make_run
from support.tiny import chat_rows

STEADY = OptimSpec(lr=2e-3, schedule="constant", warmup_fraction=0.0)


def like_rows(folder: Path, count: int = 8) -> tuple[DatasetRef, DatasetRef]:
    """Return rows that are all alike, so that their order says nothing, and others to measure."""
    return (
        dataset_ref(folder, chat_rows(1) * count, "alike"),
        dataset_ref(folder, chat_rows(40)[30:], "others"),
    )


def alike_spec(folder: Path, spec: JobSpec, **changes: Any) -> JobSpec:
    """Return a job on rows that are all alike."""
    rows, others = like_rows(folder)
    held = EvalSpec(selection=others, sample_tokens=4, every_steps=100)
    values = {"dataset": rows, "eval": held, "optim": STEADY, "checkpoint_every_steps": 100}
    return msgspec.structs.replace(spec, **(values | changes))


def continued(
    *attempts: RunFolder, weights_only: bool = False, job: str = "7", **changes: Any
) -> JobSpec:
    """Return a job that continues another with the same settings but for these changes."""
    parent = attempts[-1].read_spec()
    left = find_left(attempts)
    origin = origin_of(left, parent, job, weights_only=weights_only)
    values = {"method": parent.method} | changes
    if origin.taken == "state":
        assert left is not None
        values["method"] = keep_moments(values["method"], left)
    seed = parent.seed if parent.eval.split_seed is None else parent.eval.split_seed
    held = msgspec.structs.replace(parent.eval, split_seed=seed)
    child = msgspec.structs.replace(
        parent, **({"name": "goes on", "eval": held, "continues": origin} | values)
    )
    return require_fit(parent, child)


def make_run_as(
    root: Path,
    spec: JobSpec,
    *,
    precision: str = "fp32",
    moments: str = "fp32",
    resume_from: tuple[str, ...] = (),
) -> RunFolder:
    """Create a run folder whose plan stores a full fine-tuning's state so."""
    folder = make_run(root, spec, attempt=1 + bool(resume_from), resume_from=resume_from)
    if isinstance(spec.method, FullMethod):
        plan = json.loads(folder.plan.read_text())
        plan["precision"] = precision
        plan["full"]["moments"] = moments
        folder.plan.write_text(json.dumps(plan))
    return folder


def tensors_of(checkpoint: Path) -> dict[str, bytes]:
    """Return a checkpoint's tensor files: weights and moments."""
    files = {path.name: path.read_bytes() for path in checkpoint.glob("*.safetensors")}
    assert files
    return files


def result_weights(run: RunFolder) -> bytes:
    """Return the weights that a run left as its result."""
    (path,) = run.result.glob("*/*.safetensors")
    return path.read_bytes()


def error_of(run: RunFolder) -> Failed:
    """Return how a run failed."""
    last = events_of(run)[-1]
    assert isinstance(last, Failed), last
    return last
