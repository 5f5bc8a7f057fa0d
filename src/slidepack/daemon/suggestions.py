"""Well-known open models that can be fetched from the hub, so that an empty list has a first step.

Only what is public for everybody who asks, and whose sizes its own `config.json` states.
"""

from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.engine.shape import ModelShape, shape_from_config

__all__ = ["SUGGESTIONS", "Suggestion"]

_BYTES_EACH: Final = 2
"""Of a parameter: all of them are published in bf16."""


class Suggestion(msgspec.Struct, frozen=True, kw_only=True):
    """A model on the hub."""

    hub_id: str
    license: str
    """As the model's page on the hub states it."""
    good_for: str
    """In a few words."""
    shape: ModelShape

    @property
    def params(self) -> int:
        """Parameters; a tied head counts once."""
        return self.shape.total_params

    @property
    def bytes(self) -> int:
        """Of its weights, which are nearly all that is downloaded."""
        return self.params * _BYTES_EACH


def _model(
    hub_id: str,
    architecture: str,
    good_for: str,
    *,
    hidden: int,
    ffn: int,
    layers: int,
    heads: int,
    kv_heads: int,
    vocab: int,
    positions: int,
    **more: Any,
) -> Suggestion:
    config: dict[str, Any] = {
        "architectures": [architecture],
        "hidden_size": hidden,
        "intermediate_size": ffn,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "vocab_size": vocab,
        "max_position_embeddings": positions,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
    }
    return Suggestion(
        hub_id=hub_id,
        license="apache-2.0",
        good_for=good_for,
        shape=shape_from_config(config | more, Path(hub_id)),
    )


def _smollm(name: str, good_for: str, **sizes: int) -> Suggestion:
    return _model(
        f"HuggingFaceTB/SmolLM2-{name}-Instruct",
        "LlamaForCausalLM",
        good_for,
        vocab=49_152,
        positions=8192,
        **sizes,
    )


def _qwen2(name: str, good_for: str, **more: Any) -> Suggestion:
    hub_id = f"Qwen/Qwen2.5-{name}-Instruct"
    return _model(hub_id, "Qwen2ForCausalLM", good_for, positions=32_768, **more)


def _qwen3(name: str, good_for: str, **more: Any) -> Suggestion:
    return _model(
        f"Qwen/Qwen3-{name}",
        "Qwen3ForCausalLM",
        good_for,
        vocab=151_936,
        positions=40_960,
        head_dim=128,
        kv_heads=8,
        **more,
    )


SUGGESTIONS: Final[tuple[Suggestion, ...]] = (
    _smollm("135M", "a first try", hidden=576, ffn=1536, layers=30, heads=9, kv_heads=3),
    _smollm("360M", "short answers", hidden=960, ffn=2560, layers=32, heads=15, kv_heads=5),
    _qwen2(
        "0.5B",
        "short answers, many languages",
        **{"hidden": 896, "ffn": 4864, "layers": 24, "heads": 14, "kv_heads": 2},
        vocab=151_936,
    ),
    _qwen3("0.6B", "reasoning, small", hidden=1024, ffn=3072, layers=28, heads=16),
    _qwen2(
        "1.5B",
        "all-round, many languages",
        **{"hidden": 1536, "ffn": 8960, "layers": 28, "heads": 12, "kv_heads": 2},
        vocab=151_936,
    ),
    _smollm("1.7B", "English all-round", hidden=2048, ffn=8192, layers=24, heads=32, kv_heads=32),
    _qwen3("1.7B", "reasoning", hidden=2048, ffn=6144, layers=28, heads=16),
    _qwen3("4B", "reasoning, strong for its size", hidden=2560, ffn=9728, layers=36, heads=32),
    _qwen2(
        "7B",
        "all-round",
        **{"hidden": 3584, "ffn": 18_944, "layers": 28, "heads": 28, "kv_heads": 4},
        vocab=152_064,
        tie_word_embeddings=False,
    ),
    _qwen3(
        "8B",
        "reasoning",
        **{"hidden": 4096, "ffn": 12_288, "layers": 36, "heads": 32},
        tie_word_embeddings=False,
    ),
    _qwen2(
        "14B",
        "all-round, large",
        **{"hidden": 5120, "ffn": 13_824, "layers": 48, "heads": 40, "kv_heads": 8},
        vocab=152_064,
        tie_word_embeddings=False,
    ),
    _qwen3(
        "14B",
        "reasoning, large",
        **{"hidden": 5120, "ffn": 17_408, "layers": 40, "heads": 40},
        tie_word_embeddings=False,
    ),
)
"""The smallest first."""
