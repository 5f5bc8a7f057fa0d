"""Where a run goes on from: its own newest checkpoint, or what another job left.

A job that continues another begins with what that one left, before its own first step. A job may
also adopt a checkpoint of its own kind and go on in the middle of it, as a rescue does.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import ContinueRef, JobSpec
from slidepack.engine.contract.lineage import differences, fixed_part, misfits, spec_hash
from slidepack.engine.contract.runfolder import RunIdentity
from slidepack.engine.origins import origin_broken
from slidepack.engine.worker.checkpoint import (
    InvalidCheckpointError,
    LaneState,
    load_checkpoint,
    load_tensors,
    read_state,
)
from slidepack.engine.worker.trainee import Trainee

__all__ = ["Origin", "restore"]

_SHOWN: Final = 4


@dataclass(frozen=True, slots=True)
class Origin:
    """What a run goes on from; nothing for a new one."""

    state: LaneState | None = None
    path: str = ""
    adopted: bool = False
    """Whether it is another job's."""


def restore(
    trainee: Trainee,
    identity: RunIdentity,
    spec: JobSpec,
    total_steps: int,
    warn: Callable[[str, str], None],
) -> Origin:
    """Fill what is trained from the checkpoint to go on from; damaged ones are named and passed.

    Raises:
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB, RUN-NO-CHECKPOINT or RUN-ORIGIN-BROKEN: it was to
            go on from what another job left, and cannot. To begin anew would not be what was asked.
    """
    if spec.continues is not None:
        # Also before its own checkpoint is read: what was learned is judged by it in the end, and
        # better to miss it now than then.
        _begin(trainee, spec, spec.continues)
    found = _restore_checkpoint(trainee, identity, spec, total_steps, warn)
    if found.state is not None:
        trainee.carried_steps = found.state.carried_steps
    elif spec.continues is not None:
        return Origin(path=spec.continues.path)
    return found


def _begin(trainee: Trainee, spec: JobSpec, origin: ContinueRef) -> None:
    """Fill what is trained with what another job left.

    Raises:
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB or RUN-ORIGIN-BROKEN.
    """
    carried = 0
    try:
        if origin.kind == "checkpoint":
            state = read_state(Path(origin.path))
            _check_origin(origin, state, spec)
            carried = state.carried_steps + state.step
        trainee.begin_from(origin)
    except InvalidCheckpointError as error:
        raise origin_broken(origin, ValueError(_reason(origin, error))) from error
    except (OSError, ValueError) as error:
        raise origin_broken(origin, error) from error
    trainee.carried_steps = carried if origin.taken == "state" else 0


def _reason(origin: ContinueRef, error: InvalidCheckpointError) -> str:
    """Return what is wrong with a checkpoint, without its path."""
    return str(error).removeprefix(f"{origin.path}: ")


def _check_origin(origin: ContinueRef, state: LaneState, spec: JobSpec) -> None:
    """Check that a checkpoint is the one that was queued, and fits.

    Raises:
        ValueError: it is another one.
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB.
    """
    if state.tensors_hash != origin.digest:
        raise ValueError("it is not the checkpoint that was queued (its digest differs)")
    if not state.fixed:
        raise ValueError("it does not say what it was made with")
    reasons = misfits(state.fixed, fixed_part(spec))
    if reasons:
        raise _other_job(Path(origin.path), _shown(reasons), "Leave these as they were.")


def _restore_checkpoint(
    trainee: Trainee,
    identity: RunIdentity,
    spec: JobSpec,
    total_steps: int,
    warn: Callable[[str, str], None],
) -> Origin:
    own = spec_hash(spec)
    for path in identity.resume_from:
        try:
            return Origin(load_checkpoint(trainee, Path(path), own), path)
        except InvalidCheckpointError as error:
            warn("RUN-CHECKPOINT-CORRUPT", f"A checkpoint is left out: {error}.")
    passed: list[str] = []
    for path in identity.adopt_from:
        try:
            state = _adoptable(Path(path), spec)
            if not state.healthy:
                why = f"{path}: the run was diverging when it was made"
                warn("RUN-CHECKPOINT-UNHEALTHY", f"A checkpoint is left out: {why}.")
                passed.append(why)
                continue
            _check_length(Path(path), state, total_steps)
            load_tensors(trainee, Path(path), state)
            return Origin(state, path, adopted=True)
        except InvalidCheckpointError as error:
            warn("RUN-CHECKPOINT-CORRUPT", f"A checkpoint is left out: {error}.")
            passed.append(str(error))
    if passed:
        raise SlidepackError(
            "RUN-NO-CHECKPOINT",
            "None of the checkpoints that the run was to go on from can be used.",
            why="; ".join(passed),
            fix="Start the job from the beginning.",
        )
    return Origin()


def _adoptable(folder: Path, spec: JobSpec) -> LaneState:
    """Return the state of another job's checkpoint.

    Raises:
        InvalidCheckpointError: it is damaged, or does not say whose it is.
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB.
    """
    state = read_state(folder)
    if not state.fixed:
        raise InvalidCheckpointError(f"{folder}: it does not say what it was made with")
    differing = differences(state.fixed, fixed_part(spec))
    if differing:
        raise _other_job(folder, _shown(differing), "Leave these as they were.")
    return state


def _shown(reasons: list[str]) -> str:
    more = len(reasons) - _SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    return "; ".join(reasons[:_SHOWN]) + rest


def _check_length(folder: Path, state: LaneState, total_steps: int) -> None:
    """Check that there is something left to train.

    Raises:
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB.
    """
    if state.step >= total_steps:
        raise _other_job(
            folder,
            f"it has {state.step} steps behind it, and the job is {total_steps} long",
            "Raise epochs or steps.",
        )


def _other_job(folder: Path, why: str, fix: str) -> SlidepackError:
    return SlidepackError(
        "RUN-CHECKPOINT-OTHER-JOB",
        "The job cannot go on from this checkpoint: it does not fit.",
        why=f"{folder}: {why}",
        fix=f"{fix} Learning rate, schedule, warm-up, length and evaluations may change.",
    )
