"""Writes a lane as a PEFT adapter folder, which PEFT, vLLM and llama.cpp's converter accept."""

import os
from pathlib import Path
from typing import Any

import msgspec
from safetensors.torch import save_file

from slidepack.engine.contract.runfolder import fsync_folder, write_atomic
from slidepack.engine.lora.arena import LoraArena

__all__ = ["adapter_config", "module_path", "write_peft_folder"]

_MODULE = {"q_proj": "self_attn", "k_proj": "self_attn", "v_proj": "self_attn"} | {
    "o_proj": "self_attn",
    "gate_proj": "mlp",
    "up_proj": "mlp",
    "down_proj": "mlp",
}


def write_peft_folder(arena: LoraArena, base_model: str, folder: Path) -> None:
    """Write `adapter_config.json` and `adapter_model.safetensors` (fp32) into `folder`.

    Args:
        arena: the trained lane.
        base_model: what `base_model_name_or_path` says; a path or a hub id.
        folder: created; must not exist.

    Raises:
        OSError: the disk refused.
    """
    folder.mkdir(parents=True)
    tensors = {}
    for layer, target, pair in arena.named_pairs():
        prefix = f"base_model.model.{module_path(layer, target)}"
        tensors[f"{prefix}.lora_A.weight"] = pair.a.detach().float().cpu().contiguous()
        tensors[f"{prefix}.lora_B.weight"] = pair.b.detach().float().cpu().contiguous()
    weights = folder / "adapter_model.safetensors"
    save_file(tensors, weights, metadata={"format": "pt"})
    with weights.open("rb") as file:
        os.fsync(file.fileno())
    config = msgspec.json.encode(adapter_config(arena, base_model))
    write_atomic(folder / "adapter_config.json", msgspec.json.format(config, indent=2))
    fsync_folder(folder)


def module_path(layer: int, target: str) -> str:
    """Return the path of a linear in the base model, by PEFT's name of the target."""
    return f"model.layers.{layer}.{_MODULE[target]}.{target}"


def adapter_config(arena: LoraArena, base_model: str) -> dict[str, Any]:
    """Return `adapter_config.json`.

    `rank_pattern` and `alpha_pattern` stay empty: vLLM ignores them without a word.
    """
    method = arena.method
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base_model,
        "r": method.rank,
        "lora_alpha": method.alpha,
        "lora_dropout": method.dropout,
        "target_modules": list(arena.targets),
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
        "use_rslora": method.rslora,
        "use_dora": False,
        "modules_to_save": None,
        "init_lora_weights": True,
        "rank_pattern": {},
        "alpha_pattern": {},
    }
