"""Checkpoints: written aside, made durable, renamed; the newest valid one is resumed from."""

import shutil
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.job import Frozen
from slidepack.engine.contract.runfolder import finished_checkpoints, fsync_folder, write_atomic
from slidepack.engine.worker.trainee import Trainee

_KEPT: Final = 2
_STATE: Final = "state.json"


class LaneState(Frozen, frozen=True, kw_only=True):
    """Everything of a run that is not a tensor."""

    step: int
    """Optimizer steps done."""
    total_steps: int
    spec_hash: str
    """sha256 of the job specification that made it."""
    eval_loss_before: float | None
    seconds: float
    """Training time so far."""
    tokens: int
    evaluated_step: int = -1
    """The last step whose held-out loss was measured; a stop may come before it is."""
    has_known: bool = False
    """Whether a loss was better than guessing."""
    tensors_hash: str = ""
    """Digest of the tensor files; filled in by `save_checkpoint`."""


class InvalidCheckpointError(Exception):
    """A checkpoint folder that cannot be resumed from; the message says why."""


def save_checkpoint(trainee: Trainee, state: LaneState, checkpoints: Path) -> Path:
    """Write a checkpoint durably and keep the last two.

    A crash at any moment leaves the earlier checkpoints whole; an unfinished one has a name that
    is never resumed from.

    Raises:
        OSError: the disk refused; nothing was replaced.
    """
    final = checkpoints / f"step-{state.step:08d}"
    temporary = checkpoints / f".{final.name}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    try:
        complete = msgspec.structs.replace(state, tensors_hash=trainee.save(temporary))
        write_atomic(temporary / _STATE, msgspec.json.encode(complete))
        if final.exists():
            shutil.rmtree(final)
        temporary.rename(final)
        fsync_folder(checkpoints)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in finished_checkpoints(checkpoints)[_KEPT:]:
        shutil.rmtree(old)
    return final


def load_checkpoint(trainee: Trainee, folder: Path, spec_hash: str) -> LaneState:
    """Fill what is trained from a checkpoint and return its state.

    Raises:
        InvalidCheckpointError: a file is missing, damaged, or belongs to another job; what is
            trained is as it was before the first step.
    """
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=LaneState)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidCheckpointError(f"{folder}: {error}") from error
    if state.spec_hash != spec_hash:
        raise InvalidCheckpointError(f"{folder}: it belongs to another job specification")
    try:
        trainee.load(folder, state.tensors_hash)
    except (OSError, ValueError) as error:
        raise InvalidCheckpointError(f"{folder}: {error}") from error
    return state
