"""A second job with the settings of another one, whatever became of that; and these settings."""

import time
from typing import Any, Final

import msgspec

from slidepack.daemon.requests import JobSettings
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.daemon.store.timing import JobTiming
from slidepack.engine.contract.job import FullMethod, JobSpec, LoraMethod

__all__ = ["duplicate", "settings_of_job"]

_LORA_FIELDS: Final = ("rank", "alpha", "dropout", "targets", "rslora", "base_precision")
_FULL_FIELDS: Final = ("moments", "optimizer_engine")


def duplicate(service: Service, job_id: int) -> JobRecord:
    """Queue a new job with the specification of another, at the end of the queue.

    Unlike a retry, the other one may still run, and nothing that waits for it waits for the new
    one. The new one belongs to no sweep, has no deadline and waits for no other job.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-ORIGIN-BROKEN where it continued another job, and what
            that left is gone, MODEL-NOT-FOUND or DATA-NOT-FOUND where that was deleted.
    """
    with service.database.transaction():
        job = service.jobs.get(job_id)
        spec = service.jobs.spec(job_id)
        service.catalogue.require_inputs(spec)
        if spec.continues is not None:
            service.origins.require(spec.continues)
        timing = JobTiming(priority=job.priority, any_time=job.any_time)
        copy = service.jobs.add(spec, time.time(), timing)
    service.changes.bump()
    return copy


def settings_of_job(spec: JobSpec) -> JobSettings:
    """Return the settings that a job was made with; where it had none, what it took for them."""
    usual = JobSettings()
    method, optim, measured = spec.method, spec.optim, spec.eval
    shared = JobSettings(
        name=spec.name,
        lr=optim.lr,
        schedule=optim.schedule,
        warmup_fraction=optim.warmup_fraction,
        weight_decay=optim.weight_decay,
        clip_norm=optim.clip_norm,
        batch_size=spec.batch_size,
        max_seq_len=spec.max_seq_len,
        too_long=spec.too_long,
        epochs=usual.epochs if spec.steps else spec.epochs,
        steps=spec.steps,
        selection_fraction=measured.selection_fraction,
        test_fraction=measured.test_fraction,
        eval_every_steps=measured.every_steps,
        checkpoint_every_steps=spec.checkpoint_every_steps,
        checkpoint_minutes=spec.checkpoint_minutes,
        sample_prompts=measured.sample_prompts,
        judge_rows=measured.judge_rows,
        seed=spec.seed,
        split_seed=measured.split_seed,
    )
    if isinstance(method, LoraMethod):
        found = msgspec.structs.replace(shared, method="lora", **_fields(method, _LORA_FIELDS))
    else:
        found = msgspec.structs.replace(shared, method="full", **_fields(method, _FULL_FIELDS))
    return msgspec.structs.replace(found, lr=None) if found.lr == found.default_lr else found


def _fields(method: LoraMethod | FullMethod, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: getattr(method, name) for name in names}
