"""Checkpoints: written aside, made durable, renamed; the newest valid one is resumed from."""

import shutil
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.job import Frozen
from slidepack.engine.contract.judgement import Voices
from slidepack.engine.contract.runfolder import (
    KEPT,
    finished_checkpoints,
    fsync_folder,
    write_atomic,
)
from slidepack.engine.worker.trainee import Trainee
from slidepack.engine.worker.watchdog import Vitals

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
    """Of older versions, before there were `vitals`: whether a loss was better than guessing."""
    fixed: dict[str, str] = msgspec.field(default_factory=dict)
    """What may not differ in a job that adopts it (`engine.contract.lineage.fixed_part`)."""
    healthy: bool = True
    """Whether the last losses and norms were numbers, and as usual, when it was made."""
    good_step: int = -1
    """Step of the newest healthy checkpoint of the run before this one; -1 for none."""
    eval_rows: int = 0
    """Rows that `eval_loss_before` was measured on; 0 where it does not say."""
    vitals: Vitals | None = None
    """What the watchdog knew."""
    first_losses: tuple[float, ...] = ()
    """Training losses of the run's first steps."""
    last_losses: tuple[float, ...] = ()
    """Of its last ones."""
    tensors_hash: str = ""
    """Digest of the tensor files; filled in by `save_checkpoint`."""
    judged: Voices = Voices()
    """What the base, and what the run began with, made of the rows that it is judged by."""
    carried_steps: int = 0
    """Steps that AdamW's moments had seen before the first of these, in jobs that it continues."""

    @property
    def newest_good_step(self) -> int:
        """Step of the newest healthy checkpoint, this one included; -1 for none."""
        return self.step if self.healthy else self.good_step


class InvalidCheckpointError(Exception):
    """A checkpoint folder that cannot be resumed from; the message says why."""


def save_checkpoint(trainee: Trainee, state: LaneState, checkpoints: Path) -> Path:
    """Write a checkpoint durably; keep the last two, and the newest that is healthy.

    A crash at any moment leaves the earlier checkpoints whole; an unfinished one has a name that
    is never resumed from. With state on drives no more than two are kept: the room for them is
    taken before the start, and a healthy one is worth more than the last but one.

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
    _remove_old(finished_checkpoints(checkpoints), exact=trainee.keeps_exactly)
    return final


def _remove_old(newest_first: list[Path], *, exact: bool) -> None:
    """Remove all but the last two, and the newest one to go on from after a divergence.

    Args:
        newest_first: all there are.
        exact: keep two and no more; that one takes the place of the last but one.
    """
    good = next((path for path in newest_first if _is_healthy(path)), None)
    kept = newest_first[:KEPT]
    if good is not None and good not in kept:
        kept = [*kept[: KEPT - exact], good]
    for old in newest_first:
        if old not in kept:
            shutil.rmtree(old)


def _is_healthy(folder: Path) -> bool:
    try:
        return read_state(folder).healthy
    except InvalidCheckpointError:
        return False


def load_checkpoint(trainee: Trainee, folder: Path, spec_hash: str) -> LaneState:
    """Fill what is trained from a checkpoint and return its state.

    Raises:
        InvalidCheckpointError: a file is missing, damaged, or belongs to another job; what is
            trained is as it was before the first step.
    """
    state = read_state(folder)
    if state.spec_hash != spec_hash:
        raise InvalidCheckpointError(f"{folder}: it belongs to another job specification")
    load_tensors(trainee, folder, state)
    return state


def read_state(folder: Path) -> LaneState:
    """Return a checkpoint's state.

    Raises:
        InvalidCheckpointError: it is missing or damaged.
    """
    try:
        return msgspec.json.decode((folder / _STATE).read_bytes(), type=LaneState)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidCheckpointError(f"{folder}: {error}") from error


def load_tensors(trainee: Trainee, folder: Path, state: LaneState) -> None:
    """Fill what is trained from a checkpoint's tensors.

    Raises:
        InvalidCheckpointError: a file is missing or damaged, or does not fit; what is trained is
            as it was before the first step.
    """
    try:
        trainee.load(folder, state.tensors_hash)
    except (OSError, ValueError) as error:
        raise InvalidCheckpointError(f"{folder}: {error}") from error
