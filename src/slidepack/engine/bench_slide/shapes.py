"""Shapes of public models, by the names that the benchmarks take."""

from typing import Any, Final

from slidepack.engine.shape import ModelShape, RopeShape

__all__ = ["SHAPES", "TINY", "shape_named"]


def _llama3(factor: float, **sizes: Any) -> ModelShape:
    rope = RopeShape(
        kind="llama3", theta=500000.0, factor=factor, low_freq_factor=1.0, high_freq_factor=4.0
    )
    return ModelShape(
        architecture="LlamaForCausalLM",
        num_kv_heads=8,
        vocab=128256,
        max_positions=131072,
        rms_eps=1e-5,
        rope=rope,
        **sizes,
    )


def _qwen25(layers: int, ffn: int) -> ModelShape:
    return ModelShape(
        architecture="Qwen2ForCausalLM",
        num_layers=layers,
        hidden=5120,
        ffn=ffn,
        num_heads=40,
        num_kv_heads=8,
        head_dim=128,
        vocab=152064,
        max_positions=131072,
        rms_eps=1e-5,
        rope=RopeShape(kind="default", theta=1e6),
        tied_head=False,
        qkv_bias=True,
    )


SHAPES: Final[dict[str, ModelShape]] = {
    "smollm2-135m": ModelShape(
        architecture="LlamaForCausalLM",
        num_layers=30,
        hidden=576,
        ffn=1536,
        num_heads=9,
        num_kv_heads=3,
        head_dim=64,
        vocab=49152,
        max_positions=8192,
        rms_eps=1e-5,
        rope=RopeShape(kind="default", theta=100000.0),
        tied_head=True,
    ),
    "llama-1b": _llama3(
        32.0, num_layers=16, hidden=2048, ffn=8192, num_heads=32, head_dim=64, tied_head=True
    ),
    "llama-3b": _llama3(
        32.0, num_layers=28, hidden=3072, ffn=8192, num_heads=24, head_dim=128, tied_head=True
    ),
    "llama-8b": _llama3(
        8.0, num_layers=32, hidden=4096, ffn=14336, num_heads=32, head_dim=128, tied_head=False
    ),
    "qwen2.5-14b": _qwen25(48, 13824),
    "qwen2.5-32b": _qwen25(64, 27648),
    "mistral-123b": ModelShape(
        architecture="MistralForCausalLM",
        num_layers=88,
        hidden=12288,
        ffn=28672,
        num_heads=96,
        num_kv_heads=8,
        head_dim=128,
        vocab=32768,
        max_positions=131072,
        rms_eps=1e-5,
        rope=RopeShape(kind="default", theta=1e6),
        tied_head=False,
    ),
}
"""SmolLM2, Llama 3.2 (1B, 3B) and 3.1 (8B), Qwen2.5, Mistral Large 2407."""

TINY: Final = ModelShape(
    architecture="Qwen2ForCausalLM",
    num_layers=4,
    hidden=32,
    ffn=48,
    num_heads=4,
    num_kv_heads=2,
    head_dim=8,
    vocab=61,
    max_positions=256,
    rms_eps=1e-5,
    rope=RopeShape(kind="default", theta=1e4),
    tied_head=False,
    qkv_bias=True,
)
"""Of no public model: it runs on a CPU in a test."""


def shape_named(name: str) -> ModelShape:
    """Return a shape of the table, or `tiny`.

    Raises:
        ValueError: there is none of this name.
    """
    shape = TINY if name == "tiny" else SHAPES.get(name)
    if shape is None:
        raise ValueError(f"the shape is {name}; choose among {', '.join(SHAPES)}")
    return shape
