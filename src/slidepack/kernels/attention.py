"""Causal attention over packed rows: a choice among existing paths, not a kernel.

Shapes: `T` packed tokens, `N` query heads, `K` key/value heads, `H` head size.
"""

import itertools
from dataclasses import dataclass, field

import torch
from torch import Tensor

from slidepack.kernels.attention_choice import AttentionChoice, choose_attention
from slidepack.kernels.attention_flex import FlexBlocks, flex_blocks, flex_rows
from slidepack.kernels.attention_reference import attention_ref, visible_ref
from slidepack.kernels.deterministic import deterministic_backward

__all__ = ["AttentionChoice", "Segments", "attention", "choose_attention"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Segments:
    """Where each sequence of a packed row starts and ends."""

    bounds: tuple[int, ...]
    """S + 1 offsets on the host: sequence i is tokens bounds[i] to bounds[i + 1]."""
    cu_seqlens: Tensor
    """The same offsets, int32 [S + 1], on the device."""
    _blocks: dict[int | None, FlexBlocks] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    """By window; every layer of the row uses the same."""

    def __post_init__(self) -> None:
        """Check what the host can.

        Raises:
            ValueError: bounds that do not rise from 0, or offsets of another form than theirs.
        """
        if self.bounds[:1] != (0,) or any(a > b for a, b in itertools.pairwise(self.bounds)):
            raise ValueError(f"the bounds {self.bounds} do not rise from 0")
        shape, dtype = tuple(self.cu_seqlens.shape), self.cu_seqlens.dtype
        if shape != (len(self.bounds),) or dtype != torch.int32:
            raise ValueError(
                f"cu_seqlens {shape} {dtype} must be ({len(self.bounds)},) torch.int32"
            )

    @property
    def longest(self) -> int:
        """Tokens of the longest sequence."""
        return max((end - start for start, end in itertools.pairwise(self.bounds)), default=0)

    def flex_blocks(self, window: int | None) -> FlexBlocks:
        """Return the blocks that FlexAttention visits, made on the first call for a window."""
        if window is not None and window >= self.longest:
            window = None
        if window not in self._blocks:
            self._blocks[window] = flex_blocks(self.cu_seqlens, self.bounds[-1], window)
        return self._blocks[window]


def attention(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, segments: Segments, choice: AttentionChoice
) -> Tensor:
    """Causal attention within each sequence of a packed row; grouped key/value heads.

    Equivalent to `attention_ref` for each sequence alone (without window, soft cap and scale:
    `F.scaled_dot_product_attention(q, k, v, is_causal=True)`): no token sees another sequence.

    Args:
        q_TNH: [T, N, H], in a dtype that the path takes.
        k_TKH: [T, K, H], K divides N; same dtype.
        v_TKH: as `k_TKH`.
        segments: bounds of the sequences, empty ones allowed; the last one is T.
        choice: the path to take, and what to compute.

    Returns:
        [T, N, H] in the dtype of `q_TNH`.

    Raises:
        ValueError: the shapes, the dtypes or the segments do not fit.
    """
    inputs = (q_TNH, k_TKH, v_TKH)
    fits = (
        q_TNH.dim() == k_TKH.dim() == 3
        and k_TKH.shape == v_TKH.shape
        and (k_TKH.shape[0], k_TKH.shape[2]) == (q_TNH.shape[0], q_TNH.shape[2])
        and q_TNH.shape[1] % max(k_TKH.shape[1], 1) == 0
        and q_TNH.dtype == k_TKH.dtype == v_TKH.dtype
    )
    if not fits:
        forms = (f"{n} {tuple(x.shape)} {x.dtype}" for n, x in zip("qkv", inputs, strict=True))
        raise ValueError(f"{', '.join(forms)} do not fit")
    tokens = q_TNH.shape[0]
    if segments.bounds[-1] != tokens:
        raise ValueError(f"the segments end at {segments.bounds[-1]}, the row has {tokens} tokens")
    if tokens == 0:
        return q_TNH.clone()
    if choice.path == "flex":
        blocks = segments.flex_blocks(choice.window)
        return flex_rows(*inputs, blocks, soft_cap=choice.soft_cap, scale=choice.scale)
    if choice.path == "segments":
        return _per_segment(*inputs, segments, choice)
    if choice.deterministic:
        return deterministic_backward(lambda q, k, v: _varlen(q, k, v, segments, choice), *inputs)
    return _varlen(*inputs, segments, choice)


def _varlen(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, segments: Segments, choice: AttentionChoice
) -> Tensor:
    # With it comes torch's compiler: a second of every start, also where another path is taken.
    from torch.nn.attention.varlen import varlen_attn  # noqa: PLC0415  # see above

    assert choice.soft_cap is None
    longest = segments.longest
    cu_seqlens = segments.cu_seqlens
    window = choice.window
    # Plain causal attention has a faster kernel than a window that hides nothing.
    before = -1 if window is None or window >= longest else window - 1
    # torch 2.11 takes no grouped heads here.
    group = q_TNH.shape[1] // k_TKH.shape[1]
    output = varlen_attn(
        q_TNH,
        k_TKH.repeat_interleave(group, dim=1) if group > 1 else k_TKH,
        v_TKH.repeat_interleave(group, dim=1) if group > 1 else v_TKH,
        cu_seqlens,
        cu_seqlens,
        longest,
        longest,
        scale=choice.scale,
        window_size=(before, 0),
    )
    assert isinstance(output, Tensor)
    return output


def _per_segment(
    q_TNH: Tensor, k_TKH: Tensor, v_TKH: Tensor, segments: Segments, choice: AttentionChoice
) -> Tensor:
    # torch's fused attention has no soft cap, and on a GPU a backward pass that adds in any order.
    plain = choice.soft_cap is not None or (choice.deterministic and q_TNH.is_cuda)
    group = q_TNH.shape[1] // k_TKH.shape[1]
    outputs = []
    for start, end in itertools.pairwise(segments.bounds):
        if start == end:
            continue
        q, k, v = (x[start:end] for x in (q_TNH, k_TKH, v_TKH))
        window = choice.window
        if window is not None and window >= end - start:
            window = None
        if plain:
            outputs.append(
                attention_ref(q, k, v, window=window, soft_cap=choice.soft_cap, scale=choice.scale)
            )
            continue
        if group > 1:
            k, v = (x.repeat_interleave(group, dim=1) for x in (k, v))
        visible = None if window is None else visible_ref(end - start, window, q.device)
        output = torch.nn.functional.scaled_dot_product_attention(
            q.transpose(0, 1)[None],
            k.transpose(0, 1)[None],
            v.transpose(0, 1)[None],
            attn_mask=visible,
            is_causal=visible is None,
            scale=choice.scale,
        )
        outputs.append(output[0].transpose(0, 1))
    return torch.cat(outputs)
