from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import pytest

HIDDEN, HEADS, KV_HEADS, FFN, LAYERS, VOCAB = 64, 4, 2, 96, 2, 40


def _tiny_tensors(seed: int = 0, tied: bool = False) -> dict[str, np.ndarray]:
    """The tensors of a tiny Llama under GGUF names, rows of q and k in whatever order."""
    random = np.random.default_rng(seed)
    kv_width = HIDDEN * KV_HEADS // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "token_embd.weight": (VOCAB, HIDDEN),
        "output_norm.weight": (HIDDEN,),
    }
    if not tied:
        shapes["output.weight"] = (VOCAB, HIDDEN)
    for layer in range(LAYERS):
        shapes |= {
            f"blk.{layer}.attn_norm.weight": (HIDDEN,),
            f"blk.{layer}.attn_q.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.attn_k.weight": (kv_width, HIDDEN),
            f"blk.{layer}.attn_v.weight": (kv_width, HIDDEN),
            f"blk.{layer}.attn_output.weight": (HIDDEN, HIDDEN),
            f"blk.{layer}.ffn_norm.weight": (HIDDEN,),
            f"blk.{layer}.ffn_gate.weight": (FFN, HIDDEN),
            f"blk.{layer}.ffn_up.weight": (FFN, HIDDEN),
            f"blk.{layer}.ffn_down.weight": (HIDDEN, FFN),
        }
    return {name: random.standard_normal(s).astype(np.float32) for name, s in shapes.items()}


def _tiny_gguf(
    path: Path,
    *,
    architecture: str = "llama",
    tensors: dict[str, np.ndarray] | None = None,
    kind: gguf.GGMLQuantizationType = gguf.GGMLQuantizationType.F32,
    pre: str = "gpt-2",
    model: str = "gpt2",
    extra: dict[str, object] | None = None,
    tokens: list[str] | None = None,
) -> Path:
    """Write a small sound GGUF file, or one with a single thing wrong."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(128)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(5000.0)
    writer.add_tokenizer_model(model)
    writer.add_tokenizer_pre(pre)
    names = tokens or ["<|end|>", "<tool>", *[chr(97 + i) for i in range(26)], "ab", "abc"]
    writer.add_token_list(names)
    writer.add_token_types([3, 4] + [1] * (len(names) - 2))
    writer.add_token_merges(["a b", "ab c"])
    writer.add_eos_token_id(0)
    for key, value in (extra or {}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, str(value))
    for name, value in (_tiny_tensors() if tensors is None else tensors).items():
        if value.ndim == 1 or kind == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(name, value)
        else:
            quantised = gguf.quantize(value, kind)
            writer.add_tensor(name, quantised, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="session")
def tiny_tensors() -> Callable[..., dict[str, np.ndarray]]:
    return _tiny_tensors


@pytest.fixture(scope="session")
def tiny_gguf() -> Callable[..., Path]:
    return _tiny_gguf
