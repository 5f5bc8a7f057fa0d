"""Attention on the CPU against a dense masked formula, and the choice of a path."""

import pytest
import torch
from support.attention_rows import dense_attention, normal, qkv, segments_of, visible_in_row
from transformers.masking_utils import sliding_window_causal_mask_function
from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

from slidepack.kernels import AttentionChoice, Segments, attention, choose_attention
from slidepack.kernels.attention_choice import AttentionPath, pick_path
from slidepack.kernels.attention_reference import attention_ref, visible_ref

CPU = torch.device("cpu")
F64, F32, BF16, F16 = torch.float64, torch.float32, torch.bfloat16, torch.float16


@pytest.mark.parametrize(
    ("soft_cap", "scale"), [(None, None), (None, 0.3), (2.0, None), (2.0, 0.3)], ids=str
)
@pytest.mark.parametrize("window", [None, 1, 4, 1000], ids=str)
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("lengths", [(7,), (1,), (1, 1, 5), (0, 3, 0, 33, 2, 0)], ids=str)
def test_forward_and_gradients_equal_a_dense_formula(
    lengths: tuple[int, ...],
    heads: int,
    kv_heads: int,
    window: int | None,
    soft_cap: float | None,
    scale: float | None,
) -> None:
    choice = choose_attention(CPU, F64, 5, window=window, soft_cap=soft_cap, scale=scale)
    assert choice.path == "segments"
    inputs = qkv(sum(lengths), heads, kv_heads, 5)
    weight = normal(sum(lengths), heads, 5, seed=3)
    ours = [x.clone().requires_grad_() for x in inputs]
    output = attention(ours[0], ours[1], ours[2], segments_of(*lengths), choice)
    (output * weight).sum().backward()
    theirs = [x.clone().requires_grad_() for x in inputs]
    expected = dense_attention(
        theirs[0],
        theirs[1],
        theirs[2],
        visible_in_row(lengths, window),
        soft_cap=soft_cap,
        scale=scale,
    )
    (expected * weight).sum().backward()
    torch.testing.assert_close(output, expected, rtol=1e-10, atol=1e-12)
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("window", [None, 2])
def test_gradcheck(window: int | None, soft_cap: float | None) -> None:
    choice = choose_attention(CPU, F64, 3, window=window, soft_cap=soft_cap, scale=0.4)
    segments = segments_of(1, 0, 4)
    inputs = [x.requires_grad_() for x in qkv(5, 4, 2, 3)]
    assert torch.autograd.gradcheck(lambda q, k, v: attention(q, k, v, segments, choice), inputs)


@pytest.mark.parametrize("soft_cap", [None, 2.0])
@pytest.mark.parametrize("dtype", [F32, BF16], ids=str)
def test_narrow_dtypes_keep_their_dtype_and_precision(
    dtype: torch.dtype, soft_cap: float | None
) -> None:
    lengths = (40, 1, 23)
    q, k, v = qkv(64, 4, 2, 16, dtype)
    choice = choose_attention(CPU, dtype, 16, window=9, soft_cap=soft_cap)
    output = attention(q, k, v, segments_of(*lengths), choice)
    assert output.dtype == dtype
    truth = dense_attention(
        q.double(), k.double(), v.double(), visible_in_row(lengths, 9), soft_cap=soft_cap
    )
    # A score is below 8 and rounded once, which moves its weight by as much: 8 half-units.
    assert (truth - output).abs().max() <= 8 * torch.finfo(dtype).eps * truth.abs().max()


def test_sequences_do_not_see_each_other() -> None:
    q, k, v = qkv(12, 2, 1, 4)
    choice = choose_attention(CPU, F64, 4, window=3, soft_cap=2.0)
    packed = attention(q, k, v, segments_of(5, 0, 7), choice)
    alone = attention(q[5:], k[5:], v[5:], segments_of(7), choice)
    assert torch.equal(packed[5:], alone)


def test_a_row_without_tokens() -> None:
    q, k, v = qkv(0, 4, 2, 8)
    for segments in (segments_of(), segments_of(0, 0)):
        assert attention(q, k, v, segments, choose_attention(CPU, F64, 8)).shape == (0, 4, 8)


@pytest.mark.parametrize("window", [1, 3, 8, 50])
def test_the_window_is_that_of_transformers(window: int) -> None:
    position = torch.arange(8)
    theirs = sliding_window_causal_mask_function(window)(0, 0, position[:, None], position[None])
    assert torch.equal(visible_ref(8, window, CPU), theirs)


class _Pairs(torch.nn.Module):
    num_key_value_groups = 2


@pytest.mark.parametrize("window", [None, 3])
def test_soft_cap_and_scale_are_those_of_gemma_2(window: int | None) -> None:
    q, k, v = qkv(9, 4, 2, 8)
    mask = torch.zeros(9, 9, dtype=F64).masked_fill(~visible_in_row((9,), window), -torch.inf)
    theirs, _ = eager_attention_forward(
        _Pairs(),
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        mask[None, None],
        scaling=224**-0.5,
        softcap=0.5,
    )
    choice = choose_attention(CPU, F64, 8, window=window, soft_cap=0.5, scale=224**-0.5)
    ours = attention(q, k, v, segments_of(9), choice)
    # Theirs takes its softmax in fp32.
    torch.testing.assert_close(ours, theirs[0], rtol=1e-6, atol=1e-6)


def test_a_deterministic_choice_changes_nothing_on_a_cpu() -> None:
    inputs = qkv(9, 4, 2, 8)
    segments = segments_of(4, 5)
    outputs = [
        attention(*inputs, segments, choose_attention(CPU, F64, 8, deterministic=deterministic))
        for deterministic in (False, True)
    ]
    assert torch.equal(*outputs)


@pytest.mark.parametrize(
    ("dtype", "head_size", "soft_cap", "capability", "is_rocm", "path", "words"),
    [
        (BF16, 128, None, None, False, "segments", "a CPU has no variable-length kernel"),
        (BF16, 128, None, (9, 0), False, "varlen", "torch's variable-length flash attention"),
        (F16, 256, None, (8, 6), False, "varlen", "flash"),
        (BF16, 256, 50.0, (9, 0), False, "flex", "it has no soft cap"),
        (F32, 64, None, (9, 0), False, "flex", "it does not take torch.float32"),
        (BF16, 128, None, (9, 4), True, "flex", "torch has it for CUDA only"),
        (BF16, 128, 50.0, (10, 3), True, "flex", "torch has it for CUDA only"),
        (F64, 64, None, (9, 0), False, "segments", "FlexAttention: it does not take torch.float64"),
        (F16, 64, None, (7, 5), False, "segments", "it needs capability 8.0, not 7.5"),
        (BF16, 12, None, (9, 0), False, "segments", "heads of a multiple of 8 up to 256, not 12"),
        (BF16, 320, None, (9, 0), False, "segments", "up to 256, not 320"),
        (BF16, 8, 50.0, (9, 0), False, "segments", "FlexAttention: it needs heads of 16"),
    ],
    ids=str,
)
def test_the_path_and_its_reason(
    dtype: torch.dtype,
    head_size: int,
    soft_cap: float | None,
    capability: tuple[int, int] | None,
    is_rocm: bool,
    path: AttentionPath,
    words: str,
) -> None:
    picked, reason = pick_path(dtype, head_size, soft_cap, capability=capability, is_rocm=is_rocm)
    assert picked == path
    assert words in reason


def test_a_choice_keeps_what_was_asked_for() -> None:
    assert choose_attention(
        CPU, BF16, 64, window=7, soft_cap=50.0, scale=0.1, deterministic=True
    ) == AttentionChoice(
        path="segments",
        window=7,
        soft_cap=50.0,
        scale=0.1,
        deterministic=True,
        reason="a CPU has no variable-length kernel",
    )


def test_values_that_mean_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="a window of 0 tokens"):
        choose_attention(CPU, F32, 8, window=0)
    with pytest.raises(ValueError, match=r"a soft cap of 0\.0"):
        choose_attention(CPU, F32, 8, soft_cap=0.0)
    with pytest.raises(ValueError, match=r"a scale of -1\.0"):
        choose_attention(CPU, F32, 8, scale=-1.0)
    offsets = torch.tensor([0, 3], dtype=torch.int32)
    with pytest.raises(ValueError, match=r"the bounds \(1, 3\) do not rise from 0"):
        Segments(bounds=(1, 3), cu_seqlens=offsets)
    with pytest.raises(ValueError, match=r"the bounds \(0, 3, 2\) do not rise"):
        Segments(bounds=(0, 3, 2), cu_seqlens=offsets)
    with pytest.raises(ValueError, match=r"cu_seqlens \(2,\) torch.int64 must be \(2,\) torch.int"):
        Segments(bounds=(0, 3), cu_seqlens=offsets.long())


def test_errors_name_shapes_and_dtypes() -> None:
    choice = choose_attention(CPU, F64, 8)
    q, k, v = qkv(4, 4, 2, 8)
    for bad in ((q, k[:3], v), (q, k, v[..., :4]), (q[:, :3], k, v), (q[:, 0], k, v)):
        with pytest.raises(ValueError, match=r"q \(4, .*torch.float64, k .*v .* do not fit"):
            attention(*bad, segments_of(4), choice)
    with pytest.raises(ValueError, match=r"v \(4, 2, 8\) torch.float32 do not fit"):
        attention(q, k, v.float(), segments_of(4), choice)
    with pytest.raises(ValueError, match="the segments end at 3, the row has 4 tokens"):
        attention(q, k, v, segments_of(3), choice)


def test_the_reference_equals_torch() -> None:
    q, k, v = qkv(11, 6, 2, 8)
    theirs = torch.nn.functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None],
        k.transpose(0, 1)[None],
        v.transpose(0, 1)[None],
        is_causal=True,
        enable_gqa=True,
    )
    ours = attention_ref(q, k, v)
    torch.testing.assert_close(ours, theirs[0].transpose(0, 1), rtol=1e-10, atol=1e-12)
