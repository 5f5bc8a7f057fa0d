"""A job that ran out of memory, again with settings that take less of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from slidepack.daemon.hardware import Waiting, machine_now
from slidepack.daemon.service import Service
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.memory import GIB, Machine, plan_run
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["Taken", "retry_smaller", "smaller_spec"]

_SHORTEST: Final = 16
"""Tokens of a row that a job may have at least."""
_LESS: Final = 0.9
"""Of what the job before took by its plan: the memory model has been wrong by about so much."""


class Taken(NamedTuple):
    """What a plan takes, in bytes."""

    vram: int
    """0 where there is no card."""
    ram: int

    def words(self) -> str:
        """Return it as a phrase."""
        vram = f"{self.vram / GIB:.1f} GiB of VRAM and " if self.vram else ""
        return f"{vram}{self.ram / GIB:.1f} GiB of RAM"


def retry_smaller(service: Service, job_id: int) -> JobRecord:
    """Queue an ended job anew with fewer rows a step, or shorter ones where that takes less memory.

    What waits for the ended job waits for the new one from now on.

    Raises:
        SlidepackError: RUN-NOT-FOUND, RUN-STATE where it has not ended, RUN-SPEC-INVALID where
            nothing smaller takes less, RUN-ORIGIN-BROKEN where what it continued is gone,
            MODEL-NOT-FOUND, DATA-NOT-FOUND, and those of the model's folder.
    """
    job = service.queue.require_retryable(job_id)
    spec = service.jobs.spec(job_id)
    machine = machine_now(service.hardware.report(), whole=True, device=service.settings.device)
    if isinstance(machine, Waiting):
        return service.queue.retry_with(job_id, smaller_spec(spec, None))
    shape = read_shape(Path(spec.base.path))
    of_ram = job.error is not None and job.error.code.startswith("RAM-")

    def taken(changed: JobSpec) -> Taken | None:
        return _taken(changed, shape, machine)

    return service.queue.retry_with(job_id, smaller_spec(spec, taken, of_ram=of_ram))


def smaller_spec(
    spec: JobSpec, taken: Callable[[JobSpec], Taken | None] | None, *, of_ram: bool = False
) -> JobSpec:
    """Return a specification that takes less memory, as close to the old one as it may be.

    Fewer rows a step are no help where a run takes them in smaller portions anyway; then rows get
    shorter.

    Args:
        spec: of the job that ran out of memory.
        taken: what a specification takes by its plan, None where it does not fit; None as a whole
            where nobody knows the machine, and less is a guess.
        of_ram: whether it was RAM of which there was too little.

    Raises:
        SlidepackError: RUN-SPEC-INVALID where nothing smaller takes less.
    """
    before = None if taken is None else taken(spec)
    for smaller in _candidates(spec):
        if taken is None:
            return smaller
        after = taken(smaller)
        if after is not None and (before is None or _is_less(after, before, of_ram=of_ram)):
            return smaller
    hardly = "" if before is None else f"; it takes {before.words()}, most of it for the model"
    raise SlidepackError(
        "RUN-SPEC-INVALID",
        "Nothing smaller is left to try.",
        why=f"it has {spec.batch_size} rows a step of at most {spec.max_seq_len} tokens{hardly}",
        fix="Close other programs and start it again as it is, choose a smaller model, or a LoRA "
        "over a base in nf4.",
    )


def _candidates(spec: JobSpec) -> Iterator[JobSpec]:
    rows, tokens = spec.batch_size // 2, spec.max_seq_len // 2
    while rows >= 1:
        yield msgspec.structs.replace(spec, batch_size=rows)
        rows //= 2
    while tokens >= _SHORTEST:
        yield msgspec.structs.replace(spec, max_seq_len=tokens)
        tokens //= 2


def _is_less(after: Taken, before: Taken, *, of_ram: bool) -> bool:
    if of_ram or not before.vram:
        return after.ram <= _LESS * before.ram
    return after.vram <= _LESS * before.vram


def _taken(spec: JobSpec, shape: ModelShape, machine: Machine) -> Taken | None:
    try:
        plan = plan_run(spec, shape, machine)
    except SlidepackError:
        return None
    return Taken(plan.predicted_device_bytes, plan.predicted_host_bytes)
