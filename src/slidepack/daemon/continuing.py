"""Continues an ended job: more epochs, other data, other settings, from what it left."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from slidepack.daemon.changes import Changes
from slidepack.daemon.paths import DataPaths, disk_error
from slidepack.daemon.requests import JobRequest, dataset_ref, timing_of
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.catalogue import Catalogue
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.supervisor.origins import Origins
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import (
    DatasetRef,
    EvalSpec,
    FullMethod,
    JobSpec,
    LoraMethod,
    OptimSpec,
    Schedule,
    TooLong,
)
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.data.rows import clip
from slidepack.engine.origins import Left, find_left, keep_moments, origin_of, require_fit

__all__ = ["ContinueRequest", "Continuing"]

_SUFFIX: Final = ", continued"
_NAME_CHARACTERS: Final = 200
_SEEDS: Final = 1 << 63
_OPTIM: Final = ("lr", "schedule", "warmup_fraction", "weight_decay", "clip_norm")
_OWN: Final = (
    "batch_size",
    "max_seq_len",
    "too_long",
    "checkpoint_every_steps",
    "checkpoint_minutes",
)


class ContinueRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How an ended job is continued; what is left out is as it was.

    The new job begins with what the other one left. Its steps count from 0 and its learning rate
    follows a schedule of its own, warm-up included, over its own length. AdamW's moments are taken
    along where a checkpoint has them: of an adapter for 30 days after its job was completed, of a
    whole model where the job did not come to its end. Else they begin anew, with the weights of the
    result. Held-out rows stay held out, and rows that were in the old data stay on their side.
    """

    name: str = ""
    dataset: int | None = None
    """Id of other rows to train on."""
    held_out: int | None = None
    """Id of other rows to measure."""
    epochs: float | None = None
    steps: int | None = None
    """Either replaces the length that the job had; with neither, it is as long again."""
    weights_only: bool = False
    """AdamW's moments begin anew, though there are some."""
    lr: float | None = None
    """Peak learning rate."""
    schedule: Schedule | None = None
    warmup_fraction: float | None = None
    """0 begins at the full rate."""
    weight_decay: float | None = None
    clip_norm: float | None = None
    batch_size: int | None = None
    max_seq_len: int | None = None
    too_long: TooLong | None = None
    dropout: float | None = None
    """Of an adapter."""
    seed: int | None = None
    """None takes the next one, so that rows come in another order than before."""
    eval_every_steps: int | None = None
    checkpoint_every_steps: int | None = None
    checkpoint_minutes: float | None = None
    sample_prompts: tuple[str, ...] | None = None
    start: Literal["auto", "now", "tonight"] = "auto"
    """As of a job."""
    not_before: float | None = None
    """Unix time in seconds before which it does not start."""
    deadline: float | None = None
    """Unix time in seconds by which it should be done."""
    priority: int = 0
    after: tuple[int, ...] = ()
    """Jobs that must be completed first."""
    after_failure: Literal["hold", "run"] = "hold"
    on_failure: Literal["continue", "stop"] = "continue"


class Continuing:
    """Queues jobs that begin with what another one left."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        catalogue: Catalogue,
        origins: Origins,
        paths: DataPaths,
        changes: Changes,
        tonight: Callable[[float], float],
    ) -> None:
        """Bind the stores.

        Args:
            database: for transactions over several stores.
            jobs: the queue.
            attempts: the tries at its jobs.
            catalogue: models and datasets.
            origins: keeps what jobs go on from.
            paths: the data directory.
            changes: told about every change.
            tonight: when the next window opens, for a moment; both unix time in seconds.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._catalogue = catalogue
        self._origins = origins
        self._paths = paths
        self._changes = changes
        self._tonight = tonight

    def add(self, job_id: int, request: ContinueRequest) -> JobRecord:
        """Queue a job that continues an ended one.

        Raises:
            SlidepackError: RUN-NOT-FOUND, MODEL-NOT-FOUND or DATA-NOT-FOUND; RUN-STATE where the
                job has not ended; RUN-NO-CHECKPOINT where it left nothing; RUN-SPEC-INVALID;
                RUN-CHECKPOINT-OTHER-JOB where the new job does not fit what is there;
                RUN-ORIGIN-BROKEN where that cannot be read.
        """
        self._require_ended(job_id)
        spec = self._freeze(job_id, request)
        origin = spec.continues
        assert origin is not None
        now = time.time()
        timing = timing_of(_when(request), self._tonight(now))
        with self._db.transaction():
            # It may have been deleted while its result was read.
            self._jobs.get(job_id)
            self._catalogue.require_inputs(spec)
            kept = msgspec.structs.replace(spec, continues=self._origins.keep(origin))
            job = self._jobs.add(kept, now, timing)
        self._changes.bump()
        return job

    def can_continue(self, job: JobRecord) -> bool:
        """Return whether a job has ended and left something."""
        try:
            return job.terminal and self._left(job.id) is not None
        except SlidepackError:
            return False

    def _require_ended(self, job_id: int) -> None:
        job = self._jobs.get(job_id)
        if not job.terminal:
            raise SlidepackError(
                "RUN-STATE",
                f"Job {job_id} cannot be continued.",
                why=f"it is {job.state}",
                fix="Wait until it has ended, or cancel it: its last checkpoint stays.",
            )

    def _left(self, job_id: int) -> Left | None:
        folders = [RunFolder(Path(attempt.folder)) for attempt in self._attempts.of(job_id)]
        try:
            return find_left(folders)
        except OSError as error:
            raise disk_error(error, self._paths.jobs) from error

    def _freeze(self, job_id: int, request: ContinueRequest) -> JobSpec:
        parent, left = self._jobs.spec(job_id), self._left(job_id)
        self._catalogue.model(parent.base.model_id)
        origin = origin_of(left, parent, str(job_id), weights_only=request.weights_only)
        method = parent.method
        if left is not None and origin.taken == "state":
            method = keep_moments(method, left)
        try:
            spec = JobSpec(
                **msgspec.structs.asdict(parent)
                | self._changed(parent, request)
                | {"method": _method(method, request), "continues": origin}
            )
        except ValueError as error:
            raise _invalid(str(error)) from error
        return require_fit(parent, spec)

    def _changed(self, parent: JobSpec, request: ContinueRequest) -> dict[str, Any]:
        """Return the fields of a specification that differ from those of the job before.

        Raises:
            ValueError: of values that cannot run.
            SlidepackError: DATA-NOT-FOUND.
        """
        name = request.name.strip() or _next_name(parent.name)
        seed = (parent.seed + 1) % _SEEDS if request.seed is None else request.seed
        changed = {"name": name, "seed": seed, "eval": self._eval(parent, request)}
        if request.dataset is not None:
            changed["dataset"] = self._dataset(request.dataset)
        changed["optim"] = OptimSpec(
            **msgspec.structs.asdict(parent.optim) | _given(request, _OPTIM)
        )
        if request.epochs is not None or request.steps is not None:
            changed |= {"epochs": request.epochs or 0.0, "steps": request.steps or 0}
        return changed | _given(request, _OWN)

    def _eval(self, parent: JobSpec, request: ContinueRequest) -> EvalSpec:
        held = msgspec.structs.asdict(parent.eval)
        if parent.eval.split_seed is None:
            held["split_seed"] = parent.seed
        if request.held_out is not None:
            held["selection"] = self._dataset(request.held_out)
        if request.eval_every_steps is not None:
            held["every_steps"] = request.eval_every_steps
        return EvalSpec(**held | _given(request, ("sample_prompts",)))

    def _dataset(self, dataset_id: int) -> DatasetRef:
        return dataset_ref(self._catalogue.dataset(dataset_id), self._paths)


def _given(request: ContinueRequest, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(request, name)) is not None}


def _method(method: LoraMethod | FullMethod, request: ContinueRequest) -> LoraMethod | FullMethod:
    if request.dropout is None:
        return method
    if isinstance(method, FullMethod):
        raise ValueError("dropout is of adapters, and the job trains every weight")
    return LoraMethod(**msgspec.structs.asdict(method) | {"dropout": request.dropout})


def _when(request: ContinueRequest) -> JobRequest:
    return JobRequest(
        model="",
        dataset=0,
        start=request.start,
        not_before=request.not_before,
        deadline=request.deadline,
        priority=request.priority,
        after=request.after,
        after_failure=request.after_failure,
        on_failure=request.on_failure,
    )


def _next_name(name: str) -> str:
    """Return the name of a job that continues one of this name; of a chain it does not grow."""
    begun = name.removesuffix(_SUFFIX)
    return clip(begun, _NAME_CHARACTERS - len(_SUFFIX)) + _SUFFIX


def _invalid(why: str) -> SlidepackError:
    return SlidepackError(
        "RUN-SPEC-INVALID",
        "The job cannot be continued so.",
        why=why,
        fix="Change the value named.",
    )
