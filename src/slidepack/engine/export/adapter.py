"""Reads a trained adapter back from its PEFT folder."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import LORA_TARGETS, LoraMethod
from slidepack.engine.export.peft import module_path
from slidepack.engine.shape import ModelShape

__all__ = ["Adapter", "LowRank", "file_hashes", "read_adapter"]

_PLAIN: Final[dict[str, tuple[object, ...]]] = {
    "peft_type": ("LORA",),
    "bias": ("none",),
    "use_dora": (False, None),
    "fan_in_fan_out": (False, None),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
}
"""Fields that change what an adapter computes, with the values that leave it plain."""
_BLOCK_BYTES: Final = 4 << 20


@dataclass(frozen=True, slots=True)
class LowRank:
    """What an adapter adds to one matrix: scale · B · A."""

    a: Tensor
    """[R, in], fp32."""
    b: Tensor
    """[out, R], fp32."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A whole adapter in host memory."""

    method: LoraMethod
    pairs: Mapping[str, LowRank]
    """By the name of the weight that it changes, as in the model's own files."""

    @property
    def num_bytes(self) -> int:
        """Size of its tensors."""
        return sum(pair.a.nbytes + pair.b.nbytes for pair in self.pairs.values())


def read_adapter(folder: Path, shape: ModelShape) -> Adapter:
    """Read `adapter_config.json` and `adapter_model.safetensors`.

    Args:
        folder: of the adapter.
        shape: of the base that it was trained on.

    Raises:
        SlidepackError: RUN-FOLDER-BROKEN: a file is missing or damaged, a tensor is not finite,
            does not fit the base or has no place; the adapter is of a kind that is not written
            here.
    """
    method = _read_method(folder)
    path = folder / "adapter_model.safetensors"
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise _broken(folder, f"{path.name}: {error}") from error
    pairs: dict[str, LowRank] = {}
    for layer in range(shape.num_layers):
        for target in method.targets:
            module = module_path(layer, target)
            out, width = shape.linear_shape(target)
            pairs[f"{module}.weight"] = LowRank(
                a=_take(folder, tensors, f"{module}.lora_A.weight", (method.rank, width)),
                b=_take(folder, tensors, f"{module}.lora_B.weight", (out, method.rank)),
            )
    if tensors:
        raise _broken(folder, f"{next(iter(tensors))} has no place in the base model")
    return Adapter(method, pairs)


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the sha256, in hex, of every file directly in a folder, by name.

    Raises:
        OSError: a file cannot be read.
    """
    found: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        if path.is_file():
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while block := file.read(_BLOCK_BYTES):
                    digest.update(block)
            found[path.name] = digest.hexdigest()
    return found


def _read_method(folder: Path) -> LoraMethod:
    path = folder / "adapter_config.json"
    try:
        config: dict[str, Any] = msgspec.json.decode(path.read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError) as error:
        raise _broken(folder, f"{path.name}: {error}") from error
    for field, plain in _PLAIN.items():
        if field in config and config[field] not in plain:
            raise _broken(folder, f"{path.name}: {field} is {config[field]!r}")
    named = config.get("target_modules")
    try:
        return LoraMethod(
            rank=config["r"],
            alpha=config["lora_alpha"],
            targets=tuple(target for target in LORA_TARGETS if target in set(named or ())),
            rslora=bool(config.get("use_rslora")),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _broken(folder, f"{path.name}: {error!r}") from error


def _take(folder: Path, tensors: dict[str, Tensor], name: str, size: tuple[int, int]) -> Tensor:
    key = f"base_model.model.{name}"
    found = tensors.pop(key, None)
    if found is None:
        raise _broken(folder, f"the tensor {key} is missing")
    if tuple(found.shape) != size:
        raise _broken(folder, f"{key} is {tuple(found.shape)}, the base wants {size}")
    if not bool(torch.isfinite(found).all()):
        raise _broken(folder, f"{key} holds values that are not finite")
    return found.float()


def _broken(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "RUN-FOLDER-BROKEN",
        "The adapter cannot be read.",
        why=f"{folder}: {why}",
        fix="Check that it is the result of this base model; train again if its files are damaged.",
    )
