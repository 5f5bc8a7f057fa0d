"""FlexAttention's mask, scores and compiles, as far as a CPU shows them."""

import pytest
import torch
from support.attention_rows import dense_attention, qkv, segments_of, visible_in_row
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask

from slidepack.kernels.attention_flex import BLOCK, attend_blocks, flex_rows

ROWS = [((300,), None), ((100, 0, 1, 200, 83), 17), ((5,), None), ((128, 256, 1), 1), ((700,), 130)]


@pytest.mark.parametrize(("lengths", "window"), ROWS, ids=str)
def test_flex_blocks_equal_those_of_torch(lengths: tuple[int, ...], window: int | None) -> None:
    blocks = segments_of(*lengths).flex_blocks(window)
    padded = blocks.first_P.shape[0]
    assert padded % BLOCK == 0
    assert padded >= sum(lengths)

    def visible(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (key >= blocks.first_P[query])

    position = torch.arange(padded)
    mask = visible(position, position, position[:, None], position[None])
    tokens = sum(lengths)
    assert torch.equal(mask[:tokens, :tokens], visible_in_row(lengths, window))
    assert not mask[:tokens, tokens:].any()
    assert mask.any(dim=1).all()
    theirs = create_block_mask(visible, None, None, padded, padded, device="cpu", BLOCK_SIZE=BLOCK)
    tables = (
        (theirs.kv_num_blocks, theirs.kv_indices),
        (theirs.full_kv_num_blocks, theirs.full_kv_indices),
        (theirs.q_num_blocks, theirs.q_indices),
        (theirs.full_q_num_blocks, theirs.full_q_indices),
    )
    pairs = zip(blocks[1::2], blocks[2::2], strict=True)
    for (count, index), (their_count, their_index) in zip(pairs, tables, strict=True):
        assert their_count is not None
        assert their_index is not None
        assert count.dtype == index.dtype == torch.int32
        # Their kernels take it for granted.
        assert count.is_contiguous()
        assert index.is_contiguous()
        assert torch.equal(count, their_count)
        for line, used in enumerate(count[0, 0].tolist()):
            assert torch.equal(index[0, 0, line, :used], their_index[0, 0, line, :used])


def test_flex_blocks_are_made_once_a_window() -> None:
    segments = segments_of(20, 30)
    whole = segments.flex_blocks(None)
    assert segments.flex_blocks(None) is whole
    assert segments.flex_blocks(30) is whole
    assert segments.flex_blocks(4) is segments.flex_blocks(4)
    assert segments.flex_blocks(4) is not whole


@pytest.mark.parametrize(("soft_cap", "scale"), [(None, 0.3), (2.0, 0.2)])
def test_flex_scores_equal_the_dense_formula(soft_cap: float | None, scale: float) -> None:
    lengths = (100, 0, 1, 155)
    q, k, v = qkv(256, 4, 2, 16)
    blocks = segments_of(*lengths).flex_blocks(17)
    q4, k4, v4 = (x.transpose(0, 1)[None] for x in (q, k, v))
    output = attend_blocks(q4, k4, v4, blocks, soft_cap=soft_cap, scale=scale)
    expected = dense_attention(q, k, v, visible_in_row(lengths, 17), soft_cap=soft_cap, scale=scale)
    torch.testing.assert_close(output[0].transpose(0, 1), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.full
def test_flex_is_compiled_once_for_all_rows_and_windows() -> None:
    torch._dynamo.reset()
    for number, (lengths, window) in enumerate(ROWS):
        q, k, v = qkv(sum(lengths), 4, 2, 24, torch.float32)
        blocks = segments_of(*lengths).flex_blocks(window)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            output = flex_rows(q, k, v, blocks, soft_cap=2.0, scale=None)
        expected = dense_attention(q, k, v, visible_in_row(lengths, window), soft_cap=2.0)
        torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
    # Another cap and scale are constants of a graph of their own.
    q, k, v = qkv(5, 4, 2, 24, torch.float32)
    output = flex_rows(q, k, v, segments_of(5).flex_blocks(None), soft_cap=3.0, scale=0.5)
    expected = dense_attention(q, k, v, visible_in_row((5,), None), soft_cap=3.0, scale=0.5)
    torch.testing.assert_close(output, expected, rtol=1e-5, atol=1e-5)
