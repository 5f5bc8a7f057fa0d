"""GGUF files written from Hugging Face folders by the `gguf` package, apart from our own exporter.

What llama.cpp's converter does is told here again, from its documented names and conventions.
"""

import json
import math
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf.constants import MODEL_ARCH, MODEL_ARCH_NAMES
from gguf.tensor_mapping import get_tensor_name_map
from safetensors.torch import load_file

ARCHITECTURES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "llama",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3",
}


def write_as_gguf(
    folder: Path, path: Path, kind: str = "F32", extra: dict[str, Any] | None = None
) -> Path:
    """Write a model without a tokenizer, its matrices stored as `kind`."""
    config = json.loads((folder / "config.json").read_text())
    architecture = ARCHITECTURES[config["architectures"][0]]
    writer = gguf.GGUFWriter(path, architecture)
    _add_sizes(writer, config, architecture)
    for key, value in (extra or {}).items():
        add_value(writer, key, value)
    (arch,) = [arch for arch in MODEL_ARCH if MODEL_ARCH_NAMES[arch] == architecture]
    names = get_tensor_name_map(arch, config["num_hidden_layers"])
    if (config.get("rope_parameters") or {}).get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", _divisors(config))
    for name, tensor in load_file(folder / "model.safetensors").items():
        if name == "lm_head.weight" and config["tie_word_embeddings"]:
            continue
        values = tensor.float().numpy()
        if architecture == "llama" and name.endswith("q_proj.weight"):
            values = _neighbours(values, config["num_attention_heads"])
        if architecture == "llama" and name.endswith("k_proj.weight"):
            values = _neighbours(values, config["num_key_value_heads"])
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            values = values + 1
        stored_name = names.get_name(name, (".weight", ".bias"))
        assert stored_name is not None
        stored = gguf.GGMLQuantizationType[kind if values.ndim == 2 else "F32"]
        data = values if stored.name == "F32" else gguf.quantize(values, stored)
        writer.add_tensor(stored_name, data, raw_dtype=stored)
    finish(writer)
    return path


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Add a key of the type that fits a Python value."""
    match value:
        case bool():
            writer.add_bool(key, value)
        case int():
            writer.add_uint32(key, value)
        case float():
            writer.add_float32(key, value)
        case list():
            writer.add_array(key, value)
        case _:
            writer.add_string(key, str(value))


def finish(writer: gguf.GGUFWriter) -> None:
    """Write everything that was added."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any], architecture: str) -> None:
    heads = config["num_attention_heads"]
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    if head_dim != config["hidden_size"] // heads:
        writer.add_key_length(head_dim)
        writer.add_value_length(head_dim)
    if architecture.startswith("gemma"):
        writer.add_sliding_window(config["sliding_window"])
    if architecture == "gemma2":
        writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
        writer.add_final_logit_softcapping(config["final_logit_softcapping"])
    ropes = config["rope_parameters"]
    rope = ropes.get("full_attention", ropes)
    writer.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])


def _neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    half = len(rows) // heads // 2
    return rows.reshape(heads, 2, half, -1).swapaxes(1, 2).reshape(rows.shape)


def _divisors(config: dict[str, Any]) -> np.ndarray:
    rope = config["rope_parameters"]
    size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    old, factor = rope["original_max_position_embeddings"], rope["factor"]
    low, high = rope["low_freq_factor"], rope["high_freq_factor"]
    found: list[float] = []
    for index in range(0, size, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (index / size)
        if wavelength < old / high:
            found.append(1.0)
        elif wavelength > old / low:
            found.append(factor)
        else:
            smooth = (old / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / factor + smooth))
    return np.array(found, dtype=np.float32)
