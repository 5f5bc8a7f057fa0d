"""Attention over packed rows through torch's FlexAttention, compiled once for every length.

Shapes: `T` packed tokens, `P` the same rounded up to whole blocks, `B` = P / 128 blocks, `N` query
heads, `K` key/value heads, `H` head size.
"""

import functools
from collections.abc import Callable
from typing import Final, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, flex_attention

__all__ = ["FlexBlocks", "attend_blocks", "flex_blocks", "flex_rows"]

BLOCK: Final = 128
"""Tokens of a side of a block of the mask: a multiple of every tile of torch's kernels."""
_MIN_BLOCKS: Final = 2
"""A dimension of size 1 is compiled for that size alone."""


class FlexBlocks(NamedTuple):
    """What the kernels know of one packed row: the mask, and the blocks worth visiting.

    A block is full where every query of it sees every key, and partial where some do. Counts are
    int32 [1, 1, B], indices int32 [1, 1, B, B]: the first `count` of a line are in use.
    """

    first_P: Tensor
    """int32 [P]: the first token that each token sees."""
    partial_keys_count: Tensor
    """Of each block of queries."""
    partial_keys: Tensor
    full_keys_count: Tensor
    full_keys: Tensor
    partial_queries_count: Tensor
    """Of each block of keys: the same blocks from the other side, for the backward pass."""
    partial_queries: Tensor
    full_queries_count: Tensor
    full_queries: Tensor


def flex_blocks(cu_seqlens: Tensor, tokens: int, window: int | None) -> FlexBlocks:
    """Lay out the mask of a packed row, on its device and without waiting for it.

    Args:
        cu_seqlens: int32 [S + 1], where the sequences start and end.
        tokens: T, the last of `cu_seqlens`.
        window: tokens that a token sees, itself among them; None is all before it.
    """
    blocks = max(_MIN_BLOCKS, -(-tokens // BLOCK))
    position = torch.arange(blocks * BLOCK, dtype=torch.int32, device=cu_seqlens.device)
    # The tokens that fill the last block come out as one sequence more.
    sequence = torch.searchsorted(cu_seqlens, position, right=True) - 1
    first_P = cu_seqlens[sequence]
    if window is not None:
        first_P = torch.maximum(first_P, position - (window - 1))
    # Where a token's view begins never goes back along the row, so that the first and the last
    # query of a block tell which keys any of them, and all of them, see.
    earliest, latest = first_P[::BLOCK, None], first_P[BLOCK - 1 :: BLOCK, None]
    queries = torch.arange(blocks, device=cu_seqlens.device)[:, None]
    keys = queries.T
    full = (keys < queries) & (keys * BLOCK >= latest)
    partial = (keys <= queries) & ((keys + 1) * BLOCK > earliest) & ~full
    found = FlexBlocks(
        first_P, *_ordered(partial), *_ordered(full), *_ordered(partial.T), *_ordered(full.T)
    )
    torch._dynamo.maybe_mark_dynamic(first_P, 0)
    for table in found[1:]:
        torch._dynamo.maybe_mark_dynamic(table, list(range(2, table.dim())))
    return found


def _ordered(table: Tensor) -> tuple[Tensor, Tensor]:
    count = table.sum(dim=-1, dtype=torch.int32)
    # Stable, so that the blocks are visited in their order, which the sums depend on. Contiguous,
    # because the kernels read along a line by ones, and a transposed table sorts to another layout.
    index = table.to(torch.int8).argsort(dim=-1, descending=True, stable=True)
    index = index.to(torch.int32, memory_format=torch.contiguous_format)
    return count[None, None], index[None, None]


def flex_rows(
    q_TNH: Tensor,
    k_TKH: Tensor,
    v_TKH: Tensor,
    blocks: FlexBlocks,
    *,
    soft_cap: float | None,
    scale: float | None,
) -> Tensor:
    """Attention of a packed row.

    Args:
        q_TNH: [T, N, H] bf16, fp16 or fp32; H at least 16.
        k_TKH: [T, K, H], K divides N.
        v_TKH: as `k_TKH`.
        blocks: of this row.
        soft_cap: bound of the scores, or None.
        scale: of the scores; None is 1 / sqrt(H).

    Returns:
        [T, N, H].
    """
    tokens, _, head_size = q_TNH.shape
    spare = blocks.first_P.shape[0] - tokens
    q, k, v = (_heads_first(x, spare) for x in (q_TNH, k_TKH, v_TKH))
    compiled = _compiled(
        None if soft_cap is None else float(soft_cap).hex(),
        float(head_size**-0.5 if scale is None else scale).hex(),
    )
    output = compiled(q, k, v, blocks)
    return output[0].transpose(0, 1)[:tokens]


def _heads_first(x_TNH: Tensor, spare: int) -> Tensor:
    """Return [1, N, P, H], with `spare` rows of zeros behind the tokens."""
    x_PNH = torch.nn.functional.pad(x_TNH, (0, 0, 0, 0, 0, spare)) if spare else x_TNH
    row = x_PNH.transpose(0, 1)[None]
    torch._dynamo.maybe_mark_dynamic(row, 2)
    return row


@functools.cache
def _compiled(
    soft_cap: str | None, scale: str
) -> Callable[[Tensor, Tensor, Tensor, FlexBlocks], Tensor]:
    # As texts: a float that differs from an earlier call's turns into a symbol of the graph, which
    # FlexAttention refuses; a text stays a constant.
    def attend(q: Tensor, k: Tensor, v: Tensor, blocks: FlexBlocks) -> Tensor:
        cap = None if soft_cap is None else float.fromhex(soft_cap)
        return attend_blocks(q, k, v, blocks, soft_cap=cap, scale=float.fromhex(scale))

    return torch.compile(attend, fullgraph=True)


def attend_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: FlexBlocks,
    *,
    soft_cap: float | None,
    scale: float,
) -> Tensor:
    """Call FlexAttention; q [1, N, P, H], k and v [1, K, P, H].

    The mask is put together in here, so that what is compiled depends on tensors alone and
    serves every row.
    """
    first_P = blocks.first_P

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= first_P[query])

    def capped(score: Tensor, _batch: Tensor, _head: Tensor, _q: Tensor, _k: Tensor) -> Tensor:
        assert soft_cap is not None
        return soft_cap * torch.tanh(score / soft_cap)

    mask = BlockMask(
        seq_lengths=(q.shape[2], k.shape[2]),
        kv_num_blocks=blocks.partial_keys_count,
        kv_indices=blocks.partial_keys,
        full_kv_num_blocks=blocks.full_keys_count,
        full_kv_indices=blocks.full_keys,
        q_num_blocks=blocks.partial_queries_count,
        q_indices=blocks.partial_queries,
        full_q_num_blocks=blocks.full_queries_count,
        full_q_indices=blocks.full_queries,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=visible,
    )
    output = flex_attention(
        q,
        k,
        v,
        score_mod=None if soft_cap is None else capped,
        block_mask=mask,
        scale=scale,
        enable_gqa=True,
    )
    assert isinstance(output, Tensor)
    return output
