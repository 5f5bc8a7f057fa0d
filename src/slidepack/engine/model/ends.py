"""What comes before the first layer and after the last one, for every driver.

Shapes: `T` packed tokens, `D` model width, `V` vocabulary.
"""

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.kernels import rms_norm


def embed(embedding_VD: Tensor, ids_T: Tensor, shape: ModelShape) -> Tensor:
    """Return the first layer's input, [T, D]: rows of the embedding, scaled where Gemma does.

    Equivalent to transformers' `embed_tokens`. The gradient of a row is that of the result times
    `embedding_scale`.

    Args:
        embedding_VD: [V, D].
        ids_T: [T] int64, each in 0..V-1.
        shape: for the scale.
    """
    rows = embedding_VD[ids_T]
    scale = embedding_scale(shape, embedding_VD.dtype)
    return rows if scale == 1.0 else rows * scale


def embedding_scale(shape: ModelShape, dtype: torch.dtype) -> float:
    """Return the embedding's scale as checkpoints were trained: rounded to fp32, then to `dtype`.

    In bf16 this matters: sqrt(2304) is 48, but sqrt(3584) = 59.87 becomes 59.75.
    """
    return float(torch.tensor(shape.embed_scale, dtype=torch.float32).to(dtype))


def final_hidden(x_TD: Tensor, norm_D: Tensor, shape: ModelShape) -> Tensor:
    """Return the head's input, [T, D]: the last layer's output through the final norm."""
    return rms_norm(x_TD, norm_D, shape.rms_eps, plus_one=shape.norm_plus_one)


def head_logits(hidden_TD: Tensor, head_VD: Tensor, shape: ModelShape) -> Tensor:
    """Return the logits, [T, V], bounded where the family has a soft cap.

    Training does without: `linear_cross_entropy(..., soft_cap=shape.final_soft_cap)`.

    Args:
        hidden_TD: of `final_hidden`.
        head_VD: [V, D].
        shape: for the soft cap.
    """
    logits = torch.nn.functional.linear(hidden_TD, head_VD)
    cap = shape.final_soft_cap
    return logits if cap is None else cap * torch.tanh(logits / cap)
