"""Causal attention over packed rows: a choice among existing paths, not a kernel.

Shapes: `T` packed tokens, `N` query heads, `K` key/value heads, `H` head size.
"""

import itertools
from dataclasses import dataclass
from typing import Final, Literal

import torch
from torch import Tensor
from torch.nn.attention.varlen import varlen_attn

__all__ = ["AttentionChoice", "Segments", "attention", "choose_attention"]

_FLASH_HEAD_MULTIPLE: Final = 8
_FLASH_MAX_HEAD: Final = 256


@dataclass(frozen=True, kw_only=True, slots=True)
class AttentionChoice:
    """Which path runs, and why."""

    path: Literal["varlen", "segments"]
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Where each sequence of a packed row starts and ends."""

    bounds: tuple[int, ...]
    """S + 1 offsets on the host: sequence i is tokens bounds[i] to bounds[i + 1]."""
    cu_seqlens: Tensor
    """The same offsets, int32 [S + 1], on the device."""

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max(end - start for start, end in itertools.pairwise(self.bounds))


def choose_attention(device: torch.device, dtype: torch.dtype, head_size: int) -> AttentionChoice:
    """Choose the path for a device, a dtype and a head size."""
    if device.type != "cuda":
        return AttentionChoice(path="segments", reason="a CPU has no variable-length kernel")
    if dtype not in (torch.bfloat16, torch.float16):
        return AttentionChoice(path="segments", reason=f"flash attention does not take {dtype}")
    if torch.version.hip is not None:
        return AttentionChoice(path="segments", reason="variable-length attention needs CUDA")
    major, minor = torch.cuda.get_device_capability(device)
    if major < 8:
        return AttentionChoice(
            path="segments", reason=f"flash attention needs capability 8.0, not {major}.{minor}"
        )
    if head_size % _FLASH_HEAD_MULTIPLE or head_size > _FLASH_MAX_HEAD:
        return AttentionChoice(
            path="segments",
            reason=f"flash attention takes heads of a multiple of {_FLASH_HEAD_MULTIPLE} "
            f"up to {_FLASH_MAX_HEAD}, not {head_size}",
        )
    return AttentionChoice(path="varlen", reason="torch's variable-length flash attention")


def attention(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, segments: Segments, choice: AttentionChoice
) -> Tensor:
    """Causal attention within each sequence of a packed row; grouped key/value heads.

    Equivalent to `F.scaled_dot_product_attention(q, k, v, is_causal=True)` for each sequence
    alone: no token sees another sequence.

    Args:
        q_TNH: [T, N, H].
        k_TKH: [T, K, H], K divides N.
        v_TKH: as `k_TKH`.
        segments: bounds of the sequences; the last one is T.
        choice: the path to take.

    Returns:
        [T, N, H].

    Raises:
        ValueError: the shapes do not fit.
    """
    tokens, heads, _ = q_TNH.shape
    if k_TKH.shape != v_TKH.shape or k_TKH.shape[0] != tokens or heads % k_TKH.shape[1]:
        raise ValueError(
            f"q {tuple(q_TNH.shape)}, k {tuple(k_TKH.shape)}, v {tuple(v_TKH.shape)} do not fit"
        )
    if segments.bounds[-1] != tokens:
        raise ValueError(f"the segments end at {segments.bounds[-1]}, the row has {tokens} tokens")
    group = heads // k_TKH.shape[1]
    if group > 1:
        k_TKH = k_TKH.repeat_interleave(group, dim=1)
        v_TKH = v_TKH.repeat_interleave(group, dim=1)
    if choice.path == "varlen":
        return _varlen(q_TNH, k_TKH, v_TKH, segments)
    return _per_segment(q_TNH, k_TKH, v_TKH, segments)


def _varlen(q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, segments: Segments) -> Tensor:
    longest = segments.longest
    cu_seqlens = segments.cu_seqlens
    output = varlen_attn(
        q_TNH, k_TNH, v_TNH, cu_seqlens, cu_seqlens, longest, longest, window_size=(-1, 0)
    )
    assert isinstance(output, Tensor)
    return output


def _per_segment(q_TNH: Tensor, k_TNH: Tensor, v_TNH: Tensor, segments: Segments) -> Tensor:
    outputs = []
    for start, end in itertools.pairwise(segments.bounds):
        q, k, v = (x[start:end].transpose(0, 1)[None] for x in (q_TNH, k_TNH, v_TNH))
        output = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)
