"""A job that ran out of memory, again with settings that take less of it."""

from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.hardware import Waiting, machine_now
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.memory import Machine
from slidepack.engine.memory_advice import Advice, advise
from slidepack.engine.shape import read_shape

__all__ = ["retry_smaller", "smaller_spec"]

_SHORTEST: Final = 16
"""Tokens of a row that a job may have at least."""


def retry_smaller(service: Service, job_id: int) -> JobRecord:
    """Queue an ended job anew with fewer rows a step, or shorter ones where it has one a step.

    What waits for the ended job waits for the new one from now on.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended, RUN-SPEC-INVALID where
            nothing smaller is left to try, RUN-ORIGIN-BROKEN where what it continued is gone,
            and those of the model's folder.
    """
    service.queue.require_retryable(job_id)
    spec = service.jobs.spec(job_id)
    machine = machine_now(service.hardware.report(), whole=True, device=service.settings.device)
    return service.queue.retry_with(job_id, smaller_spec(spec, _advice(spec, machine)))


def smaller_spec(spec: JobSpec, advice: Advice | None) -> JobSpec:
    """Return a specification that takes less memory.

    Args:
        spec: of the job that ran out of memory.
        advice: what the memory model holds for possible; None where it cannot say. It has been
            wrong already, so what it allows is halved at least.

    Raises:
        SlidepackError: RUN-SPEC-INVALID where nothing smaller is left to try.
    """
    rows, tokens = spec.batch_size // 2, spec.max_seq_len // 2
    if advice is not None:
        rows = min(rows, spec.batch_size if advice.largest_batch is None else advice.largest_batch)
        tokens = min(tokens, spec.max_seq_len if advice.largest_seq is None else advice.largest_seq)
    # Rows that do not fit one at a time must be shorter; the number a step is no help then.
    if rows >= 1 and (advice is None or advice.largest_batch is not None):
        return msgspec.structs.replace(spec, batch_size=rows)
    if tokens >= _SHORTEST and (advice is None or advice.largest_seq is not None):
        return msgspec.structs.replace(spec, max_seq_len=tokens)
    raise SlidepackError(
        "RUN-SPEC-INVALID",
        "Nothing smaller is left to try.",
        why=f"it has {spec.batch_size} rows a step of at most {spec.max_seq_len} tokens",
        fix="Choose a smaller model, or a LoRA over a base in nf4.",
    )


def _advice(spec: JobSpec, machine: Machine | Waiting) -> Advice | None:
    if isinstance(machine, Waiting):
        return None
    return advise(spec, read_shape(Path(spec.base.path)), machine)
