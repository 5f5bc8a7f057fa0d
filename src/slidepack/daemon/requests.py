"""What a user asks for, before it is frozen: requests of the API, the page and the CLI."""

from pathlib import Path
from typing import Literal

import msgspec

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.catalogue import Catalogue, DatasetRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    LORA_TARGETS,
    DatasetRef,
    EvalSpec,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    OptimSpec,
    Precision,
    Schedule,
)
from slidepack.engine.data.rows import clip


class JobRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to queue. Every field but model and dataset has a default that suits most."""

    model: str
    """Id of a model."""
    dataset: int
    """Id of a dataset."""
    held_out: int | None = None
    """Id of a dataset that is only measured, never trained; None takes a tenth of the rows."""
    name: str = ""
    method: Literal["lora", "full"] = "lora"
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = LORA_TARGETS
    rslora: bool = False
    base_precision: Precision = "auto"
    lr: float = 2e-4
    schedule: Schedule = "cosine"
    warmup_fraction: float = 0.05
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    batch_size: int = 8
    max_seq_len: int = 1024
    epochs: float = 3.0
    """Ignored where `steps` is above 0."""
    steps: int = 0
    selection_fraction: float = 0.1
    test_fraction: float = 0.0
    eval_every_steps: int = 0
    checkpoint_every_steps: int = 0
    sample_prompts: tuple[str, ...] = ()
    seed: int = 0


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to bring in."""

    source: str
    """A folder or a GGUF file on the daemon's machine, or a hub id."""
    name: str = ""
    revision: str = ""


def freeze_job(request: JobRequest, catalogue: Catalogue, paths: DataPaths) -> JobSpec:
    """Turn a request into the immutable specification of a job.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-READY, DATA-NOT-FOUND, RUN-METHOD-UNSUPPORTED
            or RUN-SPEC-INVALID.
    """
    model = catalogue.model(request.model)
    if model.state != "ready":
        detail = model.error.line() if model.error else f"{model.stage or 'waiting'}"
        raise SlidepackError(
            "MODEL-NOT-READY",
            f"The model {model.id} cannot be used {'yet' if model.state == 'importing' else ''}.",
            why=f"it is {model.state}: {detail}",
            fix="Wait until it is ready, or add it again.",
        )
    if request.method == "full":
        raise SlidepackError(
            "RUN-METHOD-UNSUPPORTED",
            "Full fine-tuning is not built yet.",
            why="method is full",
            fix="Use LoRA for now.",
        )
    dataset = catalogue.dataset(request.dataset)
    held_out = None if request.held_out is None else catalogue.dataset(request.held_out)
    base = ModelRef(
        model_id=model.id,
        path=model.path,
        content_hash=model.content_hash,
        revision=model.revision,
        name=model.source if model.kind == "hub" else model.name,
    )
    try:
        return _spec(request, base, dataset, held_out, paths)
    except ValueError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job's settings cannot run.",
            why=str(error),
            fix="Change the value named.",
        ) from error


def _spec(
    request: JobRequest,
    base: ModelRef,
    dataset: DatasetRecord,
    held_out: DatasetRecord | None,
    paths: DataPaths,
) -> JobSpec:
    method: LoraMethod | FullMethod = LoraMethod(
        rank=request.rank,
        alpha=request.alpha,
        dropout=request.dropout,
        targets=request.targets,
        rslora=request.rslora,
        base_precision=request.base_precision,
    )
    return JobSpec(
        name=request.name.strip() or f"{clip(Path(dataset.name).stem, 100)} on {base.model_id}",
        base=base,
        dataset=_dataset_ref(dataset, paths),
        method=method,
        optim=OptimSpec(
            lr=request.lr,
            schedule=request.schedule,
            warmup_fraction=request.warmup_fraction,
            weight_decay=request.weight_decay,
            clip_norm=request.clip_norm,
        ),
        batch_size=request.batch_size,
        max_seq_len=request.max_seq_len,
        epochs=0.0 if request.steps else request.epochs,
        steps=request.steps,
        eval=EvalSpec(
            selection=None if held_out is None else _dataset_ref(held_out, paths),
            selection_fraction=request.selection_fraction,
            test_fraction=request.test_fraction,
            every_steps=request.eval_every_steps,
            sample_prompts=request.sample_prompts,
        ),
        checkpoint_every_steps=request.checkpoint_every_steps,
        seed=request.seed,
    )


def _dataset_ref(dataset: DatasetRecord, paths: DataPaths) -> DatasetRef:
    return DatasetRef(
        dataset_id=str(dataset.id),
        path=str(paths.dataset(dataset.id) / "rows.jsonl"),
        content_hash=dataset.report.content_hash,
        mapping=dataset.form,
    )
