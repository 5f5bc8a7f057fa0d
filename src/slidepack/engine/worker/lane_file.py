"""The tensors of a lane in a checkpoint: fp32 master and moments, whatever the pool stores."""

from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.contract.job import LORA_TARGETS
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.worker.tensor_file import read_tensors, write_tensors

__all__ = ["lane_bytes", "load_lane", "save_lane"]

_FILE: Final = "lane.safetensors"


def lane_bytes(arena: LoraArena) -> int:
    """Return the bytes of a lane in a checkpoint: its moments, and a master as wide as one."""
    moments = sum(state.exp_avg.nbytes + state.exp_avg_sq.nbytes for state in arena.states())
    return moments + moments // 2


def save_lane(arena: LoraArena, folder: Path) -> str:
    """Write a lane into a checkpoint folder; return the digest of the file.

    Raises:
        OSError: the disk refused.
    """
    tensors = {name: tensor.cpu().contiguous() for name, tensor in _tensors(arena).items()}
    return write_tensors(folder / _FILE, tensors)


def load_lane(arena: LoraArena, folder: Path, digest: str) -> None:
    """Read a lane of the same shape; nothing is changed where that fails.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is damaged, or another lane's.
    """
    read = {name: torch.empty_like(t, device="cpu") for name, t in _tensors(arena).items()}
    if read_tensors(folder / _FILE, read) != digest:
        raise ValueError(f"{_FILE} is damaged (its digest differs)")
    if not torch.equal(read["layout"], _layout(arena)):
        raise ValueError(f"{_FILE} is of an adapter of another rank or other targets")
    arena.set_master(read["master"])
    arena.set_moments(read["exp_avg"], read["exp_avg_sq"])


def _tensors(arena: LoraArena) -> dict[str, Tensor]:
    first, second = arena.moments()
    return {
        "master": arena.master(),
        "exp_avg": first,
        "exp_avg_sq": second,
        "layout": _layout(arena),
    }


def _layout(arena: LoraArena) -> Tensor:
    """Return what the order of the parameters follows from: sizes are rounded up, and may agree."""
    ranks = [arena.method.rank if target in arena.targets else 0 for target in LORA_TARGETS]
    return torch.tensor(ranks, dtype=torch.int16)
