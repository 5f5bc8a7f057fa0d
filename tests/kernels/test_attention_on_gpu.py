"""Attention on a real card, at real sizes: every path against fp64, the compiles, the bits."""

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from slidepack.kernels import AttentionChoice, Segments, attention, choose_attention
from slidepack.kernels.attention_choice import AttentionPath

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")
LENGTHS = (1500, 0, 1, 2048, 547)
"""4,096 tokens, so that nothing is filled up; other rows here are not whole blocks."""
FUSED: AttentionPath = "flex" if torch.version.hip else "varlen"


class Heads(NamedTuple):
    queries: int
    keys: int
    size: int


LLAMA_8B, GEMMA_2_9B, SMALL = Heads(32, 8, 128), Heads(16, 8, 256), Heads(9, 3, 64)


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    """Forget the graphs of other tests: eight of one function are torch's limit."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _segments(*lengths: int) -> Segments:
    bounds = tuple(itertools.accumulate(lengths, initial=0))
    return Segments(bounds=bounds, cu_seqlens=torch.tensor(bounds, dtype=torch.int32, device=GPU))


def _inputs(tokens: int, heads: Heads, dtype: torch.dtype) -> list[Tensor]:
    """Return q, k, v and the weight of each output in the loss."""
    generator = torch.Generator(GPU).manual_seed(0)
    return [
        torch.randn(tokens, count, heads.size, device=GPU, generator=generator).to(dtype)
        for count in (heads.queries, heads.keys, heads.keys, heads.queries)
    ]


def _run(
    inputs: list[Tensor], segments: Segments, choice: AttentionChoice, dtype: torch.dtype
) -> list[Tensor]:
    """Return the output and the gradients of q, k and v."""
    q, k, v = (x.to(dtype, copy=True).requires_grad_() for x in inputs[:3])
    output = attention(q, k, v, segments, choice)
    output.backward(inputs[3].to(dtype))
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return [output.detach(), q.grad, k.grad, v.grad]


def _judge(
    lengths: tuple[int, ...], heads: Heads, choice: AttentionChoice, dtype: torch.dtype
) -> None:
    segments = _segments(*lengths)
    inputs = _inputs(sum(lengths), heads, dtype)
    plain_choice = replace(choice, path="segments", deterministic=False)
    truth = _run(inputs, segments, plain_choice, torch.float64)
    plain = _run(inputs, segments, plain_choice, dtype)
    ours = _run(inputs, segments, choice, dtype)
    # bf16 keeps 8 bits, and both ways round the same sums in another order. In fp32 a sum over
    # 2,048 tokens adds some sqrt(2,048) roundings of 2^-24, and its exponents as many again.
    part = 2**-7 if dtype == torch.bfloat16 else 2**-16
    for name, t, p, o in zip(("output", "dq", "dk", "dv"), truth, plain, ours, strict=True):
        assert o.dtype == dtype
        assert torch.isfinite(o).all(), name
        # Where a token sees itself alone, the gradients of q and k are differences of equal
        # numbers: 0 in truth, and about a rounding of fp32 here.
        largest = max(float(t.abs().max()), 2**-7)
        budget = float((t - p).abs().max()) + part * largest
        assert float((t - o).abs().max()) <= budget, (name, largest)


@pytest.mark.parametrize("deterministic", [False, True], ids=["any-order", "deterministic"])
@pytest.mark.parametrize("window", [None, 512, 1, 4096], ids=str)
@pytest.mark.parametrize("lengths", [LENGTHS, (1,), (0, 1, 0), (130, 1, 1)], ids=str)
def test_flash_attention_within_the_error_budget(
    lengths: tuple[int, ...], window: int | None, deterministic: bool
) -> None:
    choice = choose_attention(GPU, torch.bfloat16, 128, window=window, deterministic=deterministic)
    assert choice.path == FUSED, choice.reason
    _judge(lengths, LLAMA_8B, choice, torch.bfloat16)


def test_flash_attention_takes_another_scale() -> None:
    choice = choose_attention(GPU, torch.bfloat16, 64, scale=0.3, window=100)
    _judge((300, 77), SMALL, choice, torch.bfloat16)


@pytest.mark.parametrize(
    ("heads", "soft_cap", "scale", "dtype"),
    [
        (LLAMA_8B, 5.0, 0.2, torch.bfloat16),
        (GEMMA_2_9B, 50.0, None, torch.bfloat16),
        (LLAMA_8B, None, None, torch.bfloat16),
        (SMALL, 5.0, None, torch.float32),
        (SMALL, None, None, torch.float32),
    ],
    ids=str,
)
def test_flex_within_the_error_budget(
    heads: Heads, soft_cap: float | None, scale: float | None, dtype: torch.dtype
) -> None:
    choice = choose_attention(GPU, dtype, heads.size, soft_cap=soft_cap, scale=scale)
    if soft_cap is not None or dtype == torch.float32:
        assert choice.path == "flex", choice.reason
    choice = replace(choice, path="flex")
    for lengths in (LENGTHS, (1,), (0, 1, 0), (130, 1, 1)):
        for window in (None, 512, 1):
            _judge(lengths, heads, replace(choice, window=window), dtype)


def test_flex_is_compiled_once_for_all_rows_and_windows() -> None:
    choice = choose_attention(GPU, torch.bfloat16, 64, soft_cap=5.0)
    rows = [((500, 0, 1, 800), None), ((4000,), None), ((1,), None), ((128, 128), 64), ((9000,), 7)]
    for number, (lengths, window) in enumerate(rows):
        inputs = _inputs(sum(lengths), SMALL, torch.bfloat16)
        segments = _segments(*lengths)
        chosen = replace(choice, window=window)
        with torch._dynamo.config.patch(error_on_recompile=number > 0):
            _run(inputs, segments, chosen, torch.bfloat16)
    # Passes without gradients have a graph of their own, which is as general.
    for number, (lengths, window) in enumerate(rows):
        q, k, v, _ = _inputs(sum(lengths), SMALL, torch.bfloat16)
        chosen = replace(choice, window=window)
        with torch.no_grad(), torch._dynamo.config.patch(error_on_recompile=number > 0):
            output = attention(q, k, v, _segments(*lengths), chosen)
        assert torch.isfinite(output).all()


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("path", [FUSED, "flex", "segments"])
def test_a_deterministic_backward_pass_gives_the_same_bits(
    path: AttentionPath, soft_cap: float | None
) -> None:
    if path == "varlen" and soft_cap is not None:
        pytest.skip("flash attention has no soft cap")
    segments = _segments(*LENGTHS)
    inputs = _inputs(sum(LENGTHS), LLAMA_8B, torch.bfloat16)
    for window in (None, 512):
        chosen = choose_attention(
            GPU, torch.bfloat16, 128, window=window, soft_cap=soft_cap, deterministic=True
        )
        chosen = replace(chosen, path=path)
        first = _run(inputs, segments, chosen, torch.bfloat16)
        for _ in range(3):
            again = _run(inputs, segments, chosen, torch.bfloat16)
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
        assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.parametrize("path", ["varlen", "flex"])
def test_recomputing_gives_the_same_bits(path: AttentionPath) -> None:
    if path == "varlen" and FUSED != "varlen":
        pytest.skip("torch has it for CUDA only")
    soft_cap = None if path == "varlen" else 5.0
    choice = choose_attention(GPU, torch.bfloat16, 128, soft_cap=soft_cap, deterministic=True)
    assert choice.path == path, choice.reason
    segments = _segments(130, 0, 1, 700)
    q, k, v, _ = _inputs(831, LLAMA_8B, torch.bfloat16)
    with torch.no_grad():
        dropped = attention(q, k, v, segments, choice)
    kept = attention(q.requires_grad_(), k.requires_grad_(), v.requires_grad_(), segments, choice)
    assert torch.equal(dropped, kept)


def test_frozen_keys_and_values_cost_no_gradient() -> None:
    for soft_cap in (None, 5.0):
        choice = choose_attention(GPU, torch.bfloat16, 64, soft_cap=soft_cap, deterministic=True)
        q, k, v, weight = _inputs(300, SMALL, torch.bfloat16)
        output = attention(q.requires_grad_(), k, v, _segments(300), choice)
        output.backward(weight)
        assert q.grad is not None
        assert k.grad is None
        assert v.grad is None
