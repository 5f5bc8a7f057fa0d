"""What a user asks for, before it is frozen: requests of the API, the page and the CLI."""

from pathlib import Path
from typing import Final, Literal, get_args, get_origin

import msgspec

from slidepack.daemon.paths import DataPaths
from slidepack.daemon.store.catalogue import Catalogue, DatasetRecord
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    LORA_TARGETS,
    DatasetRef,
    EvalSpec,
    FullMethod,
    JobSpec,
    LoraMethod,
    ModelRef,
    MomentState,
    OptimizerEngine,
    OptimSpec,
    Precision,
    Schedule,
    TooLong,
)
from slidepack.engine.data.rows import clip

_LORA_LR: Final = 2e-4
_FULL_LR: Final = 2e-5


class JobSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to train; every field has a default that suits most."""

    name: str = ""
    method: Literal["lora", "full"] = "lora"
    rank: int = 16
    alpha: int = 32
    dropout: float = 0.0
    targets: tuple[str, ...] = LORA_TARGETS
    rslora: bool = False
    base_precision: Precision = "auto"
    moments: MomentState = "auto"
    """Of a full fine-tuning: how AdamW's moments are stored."""
    optimizer_engine: OptimizerEngine = "auto"
    """Of a full fine-tuning: who updates the weights."""
    lr: float | None = None
    """Peak learning rate; None takes `default_lr`."""
    schedule: Schedule = "cosine"
    warmup_fraction: float = 0.05
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    batch_size: int = 8
    max_seq_len: int = 1024
    too_long: TooLong = "drop"
    """What becomes of longer rows."""
    epochs: float = 3.0
    """Ignored where `steps` is above 0."""
    steps: int = 0
    selection_fraction: float = 0.1
    test_fraction: float = 0.0
    eval_every_steps: int = 0
    checkpoint_every_steps: int = 0
    checkpoint_minutes: float = 10.0
    sample_prompts: tuple[str, ...] = ()
    judge_rows: int = 32
    """Held-out rows that the tuned model is compared with its base by; 0 for none."""
    seed: int = 0
    split_seed: int | None = None
    """Decides which rows are held out; None takes `seed`."""

    @property
    def default_lr(self) -> float:
        """The learning rate that suits the method: every weight wants a tenth of an adapter's."""
        return _LORA_LR if self.method == "lora" else _FULL_LR


class JobRequest(JobSettings, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job to queue."""

    model: str
    """Id of a model."""
    dataset: int
    """Id of a dataset."""
    held_out: int | None = None
    """Id of a dataset that is only measured, never trained; None takes a tenth of the rows."""
    start: Literal["auto", "now", "tonight"] = "auto"
    """`auto` keeps to the policy's windows, `now` does not, `tonight` waits for the next one."""
    not_before: float | None = None
    """Unix time in seconds before which it does not start."""
    deadline: float | None = None
    """Unix time in seconds by which it should be done."""
    priority: int = 0
    after: tuple[int, ...] = ()
    """Jobs that must be completed first."""
    after_failure: Literal["hold", "run"] = "hold"
    on_failure: Literal["continue", "stop"] = "continue"


class RetryRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an ended job is tried again."""

    resume: bool = False
    """Go on from its last good checkpoint instead of from the start."""
    lr_factor: float = 1.0
    """What its learning rate is multiplied by."""


class MoveRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where in the queue a job goes."""

    before: int | None = None
    """Before this job; it takes that job's priority. None is the end of the queue."""


_CHOICES: Final[dict[str, tuple[str, ...]]] = {
    field.name: get_args(field.type)
    for field in msgspec.structs.fields(JobRequest)
    if get_origin(field.type) is Literal
}


def advice(setting: str) -> str:
    """Return what a setting may be, as in `use drop, cut or split`; "" where that is no choice."""
    *first, last = _CHOICES.get(setting, ("",))
    return f"use {', '.join(first)} or {last}" if first else ""


class ModelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model to bring in."""

    source: str
    """A folder or a GGUF file on the daemon's machine, or a hub id."""
    name: str = ""
    revision: str = ""


def timing_of(request: JobRequest, tonight: float) -> JobTiming:
    """Return when a job may run.

    Args:
        request: of the job.
        tonight: unix time in seconds at which the next window opens.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    earliest = [request.not_before] if request.not_before is not None else []
    if request.start == "tonight":
        earliest.append(tonight)
    try:
        return JobTiming(
            priority=request.priority,
            not_before=max(earliest, default=None),
            deadline=request.deadline,
            any_time=request.start == "now",
            after=request.after,
            after_failure=request.after_failure,
            on_failure=request.on_failure,
        )
    except ValueError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job cannot be scheduled so.",
            why=str(error),
            fix="Change the value named.",
        ) from error


def freeze_job(request: JobRequest, catalogue: Catalogue, paths: DataPaths) -> JobSpec:
    """Turn a request into the immutable specification of a job.

    Raises:
        SlidepackError: MODEL-NOT-FOUND, MODEL-NOT-READY, DATA-NOT-FOUND or RUN-SPEC-INVALID.
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
    dataset = catalogue.dataset(request.dataset)
    held_out = None if request.held_out is None else catalogue.dataset(request.held_out)
    base = ModelRef(
        model_id=model.id,
        path=model.path,
        content_hash=model.content_hash,
        revision=model.revision,
        name=model.source if model.kind == "hub" else model.name,
    )
    title = job_title(dataset, base.model_id)
    rows = dataset_ref(dataset, paths)
    return job_spec(
        request, title, base, rows, None if held_out is None else dataset_ref(held_out, paths)
    )


def job_title(dataset: DatasetRecord, model_id: str) -> str:
    """Return the name of a job that was given none."""
    return f"{clip(Path(dataset.name).stem, 100)} on {model_id}"


def job_spec(
    settings: JobSettings,
    title: str,
    base: ModelRef,
    dataset: DatasetRef,
    held_out: DatasetRef | None,
) -> JobSpec:
    """Build a specification.

    Args:
        settings: how to train.
        title: the job's name where the settings have none.
        base: the model.
        dataset: normalised rows.
        held_out: rows that are only measured, or None.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    try:
        return JobSpec(
            name=settings.name.strip() or title,
            base=base,
            dataset=dataset,
            method=_method(settings),
            optim=OptimSpec(
                lr=settings.default_lr if settings.lr is None else settings.lr,
                schedule=settings.schedule,
                warmup_fraction=settings.warmup_fraction,
                weight_decay=settings.weight_decay,
                clip_norm=settings.clip_norm,
            ),
            batch_size=settings.batch_size,
            max_seq_len=settings.max_seq_len,
            too_long=settings.too_long,
            epochs=0.0 if settings.steps else settings.epochs,
            steps=settings.steps,
            eval=EvalSpec(
                selection=held_out,
                selection_fraction=settings.selection_fraction,
                test_fraction=settings.test_fraction,
                every_steps=settings.eval_every_steps,
                sample_prompts=settings.sample_prompts,
                judge_rows=settings.judge_rows,
                split_seed=settings.split_seed,
            ),
            checkpoint_every_steps=settings.checkpoint_every_steps,
            checkpoint_minutes=settings.checkpoint_minutes,
            seed=settings.seed,
        )
    except ValueError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job's settings cannot run.",
            why=str(error),
            fix="Change the value named.",
        ) from error


def with_lr_factor(spec: JobSpec, factor: float) -> JobSpec:
    """Return a specification with another learning rate.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    try:
        # A struct's `replace` checks nothing.
        optim = OptimSpec(**(msgspec.structs.asdict(spec.optim) | {"lr": spec.optim.lr * factor}))
    except ValueError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job cannot be retried so.",
            why=str(error),
            fix="Choose another lr_factor.",
        ) from error
    return msgspec.structs.replace(spec, optim=optim)


def _method(settings: JobSettings) -> LoraMethod | FullMethod:
    if settings.method == "full":
        return FullMethod(moments=settings.moments, optimizer_engine=settings.optimizer_engine)
    return LoraMethod(
        rank=settings.rank,
        alpha=settings.alpha,
        dropout=settings.dropout,
        targets=settings.targets,
        rslora=settings.rslora,
        base_precision=settings.base_precision,
    )


def dataset_ref(dataset: DatasetRecord, paths: DataPaths) -> DatasetRef:
    """Return a dataset as specifications name it, pinned by content."""
    return DatasetRef(
        dataset_id=str(dataset.id),
        path=str(paths.dataset(dataset.id) / "rows.jsonl"),
        content_hash=dataset.report.content_hash,
        mapping=dataset.form,
    )
