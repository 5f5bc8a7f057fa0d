"""Turns the sizes and settings in a GGUF file into a `config.json`."""

from typing import Any, Final

from slidepack.engine.families.gguf_table import GGUF_FAMILIES, GgufFamily, scored_size
from slidepack.engine.families.table import FAMILIES, Family
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.gguf_refusals import refuse_others, refuse_variants
from slidepack.engine.importer.gguf_rope import read_rope

__all__ = ["read_config"]

_MODEL_TYPES: Final = {"gemma3": "gemma3_text"}
"""Of `transformers`, where it has another name than llama.cpp."""
_ACTIVATIONS: Final = {"silu": "silu", "gelu_tanh": "gelu_pytorch_tanh"}
_EPSILONS: Final = {"llama": 1e-5}
_EPSILON: Final = 1e-6
_WINDOWS: Final = {"gemma2": 4096}
"""llama.cpp's, where a file names none."""
_OLLAMA_CAP: Final = 30.0


def read_config(gguf: GgufFile) -> dict[str, Any]:
    """Return the `config.json` of the model in the file.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED for another architecture or a variant that the engine
            does not compute, MODEL-NOT-A-MODEL for an adapter or another part of a model,
            MODEL-BROKEN for missing sizes.
    """
    refuse_others(gguf)
    refuse_variants(gguf)
    architecture, written = next(
        (name, family) for name, family in GGUF_FAMILIES.items() if family.name == gguf.architecture
    )
    family = FAMILIES[architecture]
    config = _sizes(gguf)
    config |= {
        "architectures": [architecture],
        "model_type": _MODEL_TYPES.get(written.name, written.name),
        "tie_word_embeddings": "output.weight" not in gguf.tensors,
        family.activation_field: _ACTIVATIONS[family.activation],
        "attention_bias": False,
        "torch_dtype": "float32",
    }
    if written.name == "llama":
        config["mlp_bias"] = False
    config |= read_rope(gguf, family, written, config["head_dim"])
    config |= _windows(gguf, written, config)
    if family.query_scalar is not None:
        config |= _scores(gguf, family, written, config)
    for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding")):
        token = gguf.integer(f"tokenizer.ggml.{key}_token_id")
        if token is not None:
            config[f"{name}_token_id"] = token
    return config


def _sizes(gguf: GgufFile) -> dict[str, Any]:
    prefix = gguf.architecture
    embedding = gguf.tensors.get("token_embd.weight")
    if embedding is None:
        raise broken(gguf.path, "it has no token_embd.weight")
    heads = _size(gguf, "attention.head_count")
    hidden = _size(gguf, "embedding_length")
    head_dim = gguf.integer(f"{prefix}.attention.key_length") or hidden // heads
    for name in ("attention.value_length", "rope.dimension_count"):
        found = gguf.integer(f"{prefix}.{name}") or head_dim
        if found != head_dim:
            raise unsupported(gguf.path, f"{prefix}.{name} is {found}, its heads are {head_dim}")
    layers = _size(gguf, "block_count")
    if layers > len(gguf.tensors):
        raise broken(gguf.path, f"{layers} layers in {len(gguf.tensors)} tensors")
    epsilon = gguf.number(f"{prefix}.attention.layer_norm_rms_epsilon")
    return {
        "hidden_size": hidden,
        "intermediate_size": _size(gguf, "feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": gguf.integer(f"{prefix}.attention.head_count_kv") or heads,
        "head_dim": head_dim,
        "rms_norm_eps": epsilon or _EPSILONS.get(prefix, _EPSILON),
        "max_position_embeddings": _size(gguf, "context_length"),
        "vocab_size": int(embedding.shape[-1]),
    }


def _windows(gguf: GgufFile, written: GgufFamily, config: dict[str, Any]) -> dict[str, Any]:
    prefix, layers = gguf.architecture, config["num_hidden_layers"]
    window = gguf.integer(f"{prefix}.attention.sliding_window") or _WINDOWS.get(prefix)
    if not written.window_pattern:
        # Within as many tokens as a window is long, it makes no difference; all that is kept here.
        most = config["max_position_embeddings"]
        return {"max_position_embeddings": min(most, window)} if window else {}
    if window is None:
        raise broken(gguf.path, f"{prefix}.attention.sliding_window is missing")
    key = f"{prefix}.attention.sliding_window_pattern"
    sliding = gguf.flags(key)
    if sliding is None:
        every = gguf.integer(key) or written.window_pattern
        sliding = [(layer + 1) % every != 0 for layer in range(layers)]
    if len(sliding) != layers:
        raise broken(gguf.path, f"{key} has {len(sliding)} values for {layers} layers")
    names = ["sliding_attention" if slides else "full_attention" for slides in sliding]
    return {"sliding_window": window, "layer_types": names}


def _scores(
    gguf: GgufFile, family: Family, written: GgufFamily, config: dict[str, Any]
) -> dict[str, Any]:
    scored = scored_size(
        written,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        head_dim=config["head_dim"],
    )
    caps = {"attn": family.attention_soft_cap, "final": family.final_soft_cap}
    found: dict[str, float | None] = {}
    for part, default in caps.items():
        value = gguf.number(f"{gguf.architecture}.{part}_logit_softcapping")
        found[part] = default if value is None else (value or None)
    # Ollama's first converter wrote this cap into files of Gemma 3, which has none.
    converted_by_ollama = gguf.number(f"{gguf.architecture}.rope.global.freq_base") is not None
    if caps["final"] is None and found["final"] == _OLLAMA_CAP and converted_by_ollama:
        found["final"] = None
    if caps["attn"] is None and found["attn"] is not None:
        raise unsupported(
            gguf.path, f"{gguf.architecture}.attn_logit_softcapping is {found['attn']:g}"
        )
    return {
        "query_pre_attn_scalar": scored,
        "attn_logit_softcapping": found["attn"],
        "final_logit_softcapping": found["final"],
    }


def _size(gguf: GgufFile, name: str) -> int:
    key = f"{gguf.architecture}.{name}"
    value = gguf.integer(key)
    if value is None or value < 1:
        raise broken(gguf.path, f"{key} is {'missing' if value is None else value}")
    return value
