"""Whether llama.cpp computes a model as the trainer does."""

import math

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.families.gguf_table import (
    GGUF_FAMILIES,
    LOCAL_THETA,
    GgufFamily,
    scored_size,
)
from slidepack.engine.shape import ModelShape

__all__ = ["context_length", "gguf_family"]


def gguf_family(shape: ModelShape) -> GgufFamily:
    """Return the architecture under which llama.cpp computes exactly this model.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED: another family, or a variant that llama.cpp would compute
            otherwise without a word.
    """
    family = GGUF_FAMILIES.get(shape.architecture)
    if family is None:
        raise _unsupported(f"its architecture is {shape.architecture}")
    why = _difference(shape, family)
    if why is not None:
        raise _unsupported(f"{shape.architecture}: {why}")
    return family


def context_length(shape: ModelShape, family: GgufFamily) -> int:
    """Return how many tokens the file allows.

    llama.cpp knows no window for some architectures that have one: within as many tokens as the
    window is long, it makes no difference, so that is all that the file allows.
    """
    windows = [window for window in shape.layer_windows if window is not None]
    if windows and not family.window_pattern:
        return min(shape.max_positions, *windows)
    return shape.max_positions


def _difference(shape: ModelShape, family: GgufFamily) -> str | None:
    """Return what llama.cpp would compute otherwise, or None."""
    if shape.rope.kind == "llama3" and not family.long_rope:
        return "llama.cpp stretches rotary frequencies one by one for Llama only"
    if shape.final_soft_cap is not None and not family.final_soft_cap:
        return "llama.cpp knows no soft cap of its logits"
    if shape.final_soft_cap is None and family.final_soft_cap:
        return "llama.cpp always bounds its logits"
    if shape.attention_soft_cap is None and family.attention_soft_cap:
        return "llama.cpp always bounds its scores"
    if family.always_tied and not shape.tied_head:
        return "llama.cpp takes the embedding for its head"
    if family.window_pattern:
        return _windows_differ(shape, family.window_pattern) or _scale_differs(shape, family)
    return None


def _windows_differ(shape: ModelShape, pattern: int) -> str | None:
    windows = [shape.window_of(layer) for layer in range(shape.num_layers)]
    slides = [window is not None for window in windows]
    if slides != [(layer + 1) % pattern != 0 for layer in range(shape.num_layers)]:
        return f"llama.cpp gives a window to all layers but every {pattern}th"
    if len({window for window in windows if window is not None}) > 1:
        return "its windows differ in length"
    local = shape.sliding_rope
    if local is not None and (local.kind != "default" or local.theta != LOCAL_THETA):
        return f"llama.cpp rotates layers with a window by a base of {LOCAL_THETA:g}"
    return None


def _scale_differs(shape: ModelShape, family: GgufFamily) -> str | None:
    size = scored_size(
        family,
        layers=shape.num_layers,
        hidden=shape.hidden,
        heads=shape.num_heads,
        head_dim=shape.head_dim,
    )
    scale = size**-0.5 if shape.attention_scale is None else shape.attention_scale
    if not math.isclose(scale, size**-0.5, rel_tol=1e-6):
        return f"llama.cpp scales its scores by 1 / sqrt({size}) (query_pre_attn_scalar)"
    return None


def _unsupported(why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This model cannot be written as a GGUF file.",
        why=why,
        fix="Export it as merged or peft; GGUF files are written for these architectures, as they "
        f"were published: {', '.join(GGUF_FAMILIES)}.",
    )
