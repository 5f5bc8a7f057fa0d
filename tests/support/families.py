"""Tiny random models of every family, by `transformers`, in sizes that fit nothing evenly."""

from pathlib import Path
from typing import Any, Final

import torch
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.auto.modeling_auto import AutoModelForCausalLM

WINDOW: Final = 7
VOCAB: Final = 301
SIZES: Final[dict[str, Any]] = {
    "hidden_size": 60,
    "intermediate_size": 75,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "vocab_size": VOCAB,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 1,
}
LLAMA3_ROPE: Final = {
    "rope_theta": 5000.0,
    "rope_type": "llama3",
    "factor": 4.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
PATTERN: Final = ["sliding_attention", "sliding_attention", "full_attention"]


def family_config(name: str, *, tied: bool = False) -> PreTrainedConfig:
    """Return the tiny configuration of a family, a key of `FAMILY_NAMES`."""
    sizes = SIZES | {"tie_word_embeddings": tied}
    heads = sizes | {"head_dim": 14}
    gemma = heads | {"sliding_window": WINDOW, "query_pre_attn_scalar": 23}
    theta = {"rope_theta": 3000.0, "rope_type": "default"}
    match name:
        case "llama":
            return LlamaConfig(**sizes, rope_parameters=theta)
        case "llama3":
            return LlamaConfig(**heads, rope_parameters=LLAMA3_ROPE)
        case "mistral":
            return MistralConfig(**heads, sliding_window=None)
        case "mistral-window":
            return MistralConfig(**sizes, sliding_window=WINDOW)
        case "qwen2":
            return Qwen2Config(**sizes)
        case "qwen2-window":
            return Qwen2Config(
                **sizes, use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1
            )
        case "qwen3":
            return Qwen3Config(**heads, rope_parameters=theta)
        case "gemma2":
            return Gemma2Config(**gemma, attn_logit_softcapping=2.0, final_logit_softcapping=3.0)
        case "gemma3":
            return Gemma3TextConfig(**gemma, layer_types=PATTERN)
        case "gemma3-linear":
            ropes = {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 9000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 500.0},
            }
            return Gemma3TextConfig(**gemma, layer_types=PATTERN, rope_parameters=ropes)
    raise KeyError(name)


FAMILY_NAMES: Final = (
    "llama",
    "llama3",
    "mistral",
    "mistral-window",
    "qwen2",
    "qwen2-window",
    "qwen3",
    "gemma2",
    "gemma3",
    "gemma3-linear",
)


def tiny_family(
    folder: Path,
    name: str,
    *,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
) -> PreTrainedModel:
    """Save a random model of a family into `folder` and return it, ready to judge."""
    torch.manual_seed(seed)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(family_config(name, tied=tied))
    plus_one = name.startswith("gemma")
    with torch.no_grad():
        for path, parameter in model.named_parameters():
            # As they are made, norms do nothing and biases are zero: neither would be seen.
            if "norm" in path:
                parameter.uniform_(-0.5 if plus_one else 0.5, 0.5 if plus_one else 1.5)
            elif path.endswith("bias"):
                parameter.normal_(0.0, 0.5)
    # Not a judge in bf16: this rounds the rotary frequencies too, which loading does not.
    torch.nn.Module.to(model, dtype)
    model.eval()
    model.save_pretrained(folder)
    return model
