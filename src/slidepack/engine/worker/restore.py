"""Where a run goes on from: its own newest checkpoint, or a good one of another job."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.lineage import differences, fixed_part, spec_hash
from slidepack.engine.contract.runfolder import RunIdentity
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
        SlidepackError: RUN-CHECKPOINT-OTHER-JOB or RUN-NO-CHECKPOINT: another job's checkpoints
            were to be gone on from, and none can be. To begin anew would not be what was asked.
    """
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
        more = len(differing) - _SHOWN
        rest = f"; and {more} more" if more > 0 else ""
        raise _other_job(folder, "; ".join(differing[:_SHOWN]) + rest, "Leave these as they were.")
    return state


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
