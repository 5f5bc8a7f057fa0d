"""Reads a PEFT folder that a run wrote back into a lane: the weights, without AdamW's moments."""

import hashlib
from pathlib import Path
from typing import Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load

from slidepack.engine.export.peft import module_path
from slidepack.engine.lora.arena import LoraArena

__all__ = ["load_adapter"]

_WEIGHTS: Final = "adapter_model.safetensors"


class _Config(msgspec.Struct, frozen=True):
    """The part of `adapter_config.json` that gives the weights their sizes and their meaning."""

    r: int
    lora_alpha: float
    target_modules: list[str]
    use_rslora: bool = False


def load_adapter(arena: LoraArena, folder: Path, digest: str) -> None:
    """Fill a lane with the adapter in a PEFT folder; nothing is changed where that fails.

    Args:
        arena: of the same rank, scale and linears.
        folder: with `adapter_config.json` and `adapter_model.safetensors`.
        digest: sha256 of the weights' file.

    Raises:
        OSError: a file cannot be read.
        ValueError: the weights are damaged, or another lane's.
    """
    _check_config(arena, folder)
    data = (folder / _WEIGHTS).read_bytes()
    if hashlib.sha256(data).hexdigest() != digest:
        raise ValueError(f"{_WEIGHTS} is damaged or was changed (its digest differs)")
    try:
        tensors = load(data)
    except SafetensorError as error:
        raise ValueError(f"{_WEIGHTS}: {error}") from error
    flat = torch.zeros_like(arena.master(), device="cpu")
    for layer, target, pair in arena.pairs(flat):
        prefix = f"base_model.model.{module_path(layer, target)}"
        for name, place in (("lora_A", pair.a), ("lora_B", pair.b)):
            found = tensors.pop(f"{prefix}.{name}.weight", None)
            if found is None or found.shape != place.shape:
                raise ValueError(f"{_WEIGHTS} has no {prefix}.{name} of {tuple(place.shape)}")
            place.copy_(found)
    if tensors:
        raise ValueError(f"{_WEIGHTS} holds more than the adapter: {min(tensors)}")
    arena.set_master(flat)


def _check_config(arena: LoraArena, folder: Path) -> None:
    path, method = folder / "adapter_config.json", arena.method
    try:
        config = msgspec.json.decode(path.read_bytes(), type=_Config)
    except msgspec.DecodeError as error:
        raise ValueError(f"{path.name}: {error}") from error
    found = (config.r, config.lora_alpha, config.use_rslora, sorted(config.target_modules))
    wanted = (method.rank, method.alpha, method.rslora, sorted(method.targets))
    if found != wanted:
        raise ValueError(f"{path.name} is of rank, alpha, rslora and linears {found}, not {wanted}")
