"""Checkpoints: written aside, made durable, renamed; the newest valid one is resumed from."""

import errno
import hashlib
import os
import shutil
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from slidepack.engine.contract.job import Frozen
from slidepack.engine.contract.runfolder import finished_checkpoints, fsync_folder, write_atomic
from slidepack.engine.lora.arena import LoraArena

_KEPT: Final = 2
_TENSORS: Final = "lane.safetensors"
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
    tensors_hash: str = ""
    """sha256 of the tensor file; filled in by `save_checkpoint`."""


class InvalidCheckpointError(Exception):
    """A checkpoint folder that cannot be resumed from; the message says why."""


def save_checkpoint(arena: LoraArena, state: LaneState, checkpoints: Path) -> Path:
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
        tensors = temporary / _TENSORS
        _save_tensors(arena, tensors)
        complete = msgspec.structs.replace(state, tensors_hash=_file_hash(tensors))
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


def load_checkpoint(arena: LoraArena, folder: Path, spec_hash: str) -> LaneState:
    """Fill the arena from a checkpoint and return its state.

    Raises:
        InvalidCheckpointError: a file is missing, damaged, or belongs to another job; the arena is
            unchanged.
    """
    try:
        state = msgspec.json.decode((folder / _STATE).read_bytes(), type=LaneState)
        found = _file_hash(folder / _TENSORS)
    except (OSError, msgspec.DecodeError) as error:
        raise InvalidCheckpointError(f"{folder}: {error}") from error
    if found != state.tensors_hash:
        raise InvalidCheckpointError(f"{folder}: {_TENSORS} is damaged (its sha256 differs)")
    if state.spec_hash != spec_hash:
        raise InvalidCheckpointError(f"{folder}: it belongs to another job specification")
    try:
        tensors = load_file(folder / _TENSORS)
    except (SafetensorError, OSError) as error:
        raise InvalidCheckpointError(f"{folder}: {error}") from error
    for name, target in _arena_tensors(arena).items():
        if name not in tensors or tensors[name].shape != target.shape:
            raise InvalidCheckpointError(f"{folder}: {name} is missing or has another size")
    with torch.no_grad():
        for name, target in _arena_tensors(arena).items():
            target.copy_(tensors[name])
    return state


def _arena_tensors(arena: LoraArena) -> dict[str, torch.Tensor]:
    return {
        "params": arena.params,
        "exp_avg": arena.exp_avg,
        "exp_avg_sq": arena.exp_avg_sq,
    }


def _save_tensors(arena: LoraArena, path: Path) -> None:
    try:
        save_file({name: tensor.cpu() for name, tensor in _arena_tensors(arena).items()}, path)
    except SafetensorError as error:
        # The library wraps the system's error in words; callers tell a full disk by its number.
        full = "No space left" in str(error)
        raise OSError(errno.ENOSPC if full else errno.EIO, str(error)) from error
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
