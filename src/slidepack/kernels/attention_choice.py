"""Which of the existing paths computes attention, and why.

Shapes: `H` head size.
"""

from dataclasses import dataclass
from typing import Final, Literal

import torch

__all__ = ["AttentionChoice", "AttentionPath", "choose_attention", "pick_path"]

AttentionPath = Literal["varlen", "flex", "segments"]

_HEAD_MULTIPLE: Final = 8
_MAX_HEAD: Final = 256
_FLEX_MIN_HEAD: Final = 16
"""Triton's matrix product takes no shorter side."""
_FLASH_DTYPES: Final = (torch.bfloat16, torch.float16)
_FLEX_DTYPES: Final = (torch.bfloat16, torch.float16, torch.float32)
_MIN_CAPABILITY: Final = (8, 0)


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionChoice:
    """What attention computes, which path runs, and why."""

    path: AttentionPath
    """`varlen`: torch's flash attention for sequences of any length. `flex`: FlexAttention.
    `segments`: one sequence after the other."""
    window: int | None = None
    """Tokens that a token sees, itself among them; None is all before it."""
    soft_cap: float | None = None
    """Bound of the scores (Gemma 2), or None."""
    scale: float | None = None
    """Of the scores; None is 1 / sqrt(H)."""
    deterministic: bool = False
    """The backward pass gives the same bits every time."""
    reason: str

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            ValueError: a window below 1, or a soft cap or a scale that is not positive.
        """
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window of {self.window} tokens: it holds the token itself")
        if self.soft_cap is not None and self.soft_cap <= 0:
            raise ValueError(f"a soft cap of {self.soft_cap}: it must be above 0")
        if self.scale is not None and self.scale <= 0:
            raise ValueError(f"a scale of {self.scale}: it must be above 0")


def choose_attention(
    device: torch.device,
    dtype: torch.dtype,
    head_size: int,
    *,
    window: int | None = None,
    soft_cap: float | None = None,
    scale: float | None = None,
    deterministic: bool = False,
) -> AttentionChoice:
    """Choose the path for a device, a dtype and what a model's attention computes.

    Args:
        device: where the tensors will be.
        dtype: of queries, keys and values.
        head_size: H.
        window: tokens that a token sees, itself among them; None is all before it.
        soft_cap: bound of the scores, soft_cap · tanh(scores / soft_cap), or None.
        scale: of the scores; None is 1 / sqrt(H).
        deterministic: whether the backward pass must give the same bits every time.

    Raises:
        ValueError: a window below 1, or a soft cap or a scale that is not positive.
    """
    on_gpu = device.type == "cuda"
    path, reason = pick_path(
        dtype,
        head_size,
        soft_cap,
        capability=torch.cuda.get_device_capability(device) if on_gpu else None,
        is_rocm=torch.version.hip is not None,
    )
    if deterministic and on_gpu:
        how = {
            "varlen": "flash attention's deterministic backward pass",
            "flex": "its backward pass adds in a fixed order",
            "segments": "plain products in place of fused ones, for a deterministic backward pass",
        }
        reason = f"{reason}; {how[path]}"
    return AttentionChoice(
        path=path,
        window=window,
        soft_cap=soft_cap,
        scale=scale,
        deterministic=deterministic,
        reason=reason,
    )


def pick_path(
    dtype: torch.dtype,
    head_size: int,
    soft_cap: float | None,
    *,
    capability: tuple[int, int] | None,
    is_rocm: bool,
) -> tuple[AttentionPath, str]:
    """Return the path and the reason for it.

    Args:
        dtype: of queries, keys and values.
        head_size: H.
        soft_cap: bound of the scores, or None.
        capability: compute capability of the GPU; None is a CPU.
        is_rocm: whether torch is built for AMD's GPUs.
    """
    if capability is None:
        return "segments", "a CPU has no variable-length kernel"
    old_card = None
    if capability < _MIN_CAPABILITY and not is_rocm:
        old_card = f"it needs capability 8.0, not {capability[0]}.{capability[1]}"
    odd_head = None
    if head_size % _HEAD_MULTIPLE or head_size > _MAX_HEAD:
        odd_head = f"it takes heads of a multiple of {_HEAD_MULTIPLE} up to {_MAX_HEAD}"
        odd_head = f"{odd_head}, not {head_size}"
    no_flash = (
        ("torch has it for CUDA only" if is_rocm else old_card)
        or odd_head
        or (None if dtype in _FLASH_DTYPES else f"it does not take {dtype}")
        or (None if soft_cap is None else "it has no soft cap")
    )
    if no_flash is None:
        return "varlen", "torch's variable-length flash attention"
    no_flex = (
        old_card
        or odd_head
        or (None if dtype in _FLEX_DTYPES else f"it does not take {dtype}")
        or (None if head_size >= _FLEX_MIN_HEAD else f"it needs heads of {_FLEX_MIN_HEAD}")
    )
    if no_flex is None:
        return "flex", f"FlexAttention; not flash attention: {no_flash}"
    return "segments", f"not flash attention: {no_flash}; not FlexAttention: {no_flex}"
