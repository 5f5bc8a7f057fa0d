import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from support.head_loss import torch_head_loss
from torch import Tensor

from slidepack import kernels
from slidepack.kernels import (
    AdamWState,
    Segments,
    adamw,
    adamw_scalars,
    add_rms_norm,
    attention,
    choose_attention,
    dequantise_nf4,
    gated,
    join_master,
    linear_cross_entropy,
    quantise_nf4,
    rms_norm,
    rope,
    split_master,
    squared_norm,
)
from slidepack.kernels.linear_cross_entropy import IGNORED
from slidepack.kernels.reference import geglu_ref, rms_norm_ref, rope_ref

CPU = torch.device("cpu")


def _normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=dtype)


def _segments(*lengths: int) -> Segments:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return Segments(bounds=tuple(bounds), cu_seqlens=torch.tensor(bounds, dtype=torch.int32))


def test_rms_norm_equals_torch() -> None:
    x, weight = _normal(9, 33), _normal(33, seed=1)
    theirs = torch.nn.functional.rms_norm(x, (33,), weight, 1e-6)
    torch.testing.assert_close(rms_norm_ref(x, weight, 1e-6), theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lengths", [(7,), (1, 1, 5), (3, 64, 2)])
@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 4), (6, 2), (3, 1)])
def test_attention_equals_a_masked_softmax(
    lengths: tuple[int, ...], heads: int, kv_heads: int
) -> None:
    tokens = sum(lengths)
    q = _normal(tokens, heads, 8)
    k = _normal(tokens, kv_heads, 8, seed=1)
    v = _normal(tokens, kv_heads, 8, seed=2)
    segments = _segments(*lengths)
    ours = attention(q, k, v, segments, choose_attention(CPU, torch.float64, 12))
    owner = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))
    position = torch.arange(tokens)
    visible = (owner[:, None] == owner[None]) & (position[None] <= position[:, None])
    group = heads // kv_heads
    for head in range(heads):
        scores = q[:, head] @ k[:, head // group].T / 8**0.5
        weights = scores.masked_fill(~visible, float("-inf")).softmax(-1)
        theirs = weights @ v[:, head // group]
        torch.testing.assert_close(ours[:, head], theirs, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("tokens", [1, 5, pytest.param(700, marks=pytest.mark.full)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_linear_cross_entropy_within_the_error_budget(
    tokens: int, dtype: torch.dtype, soft_cap: float | None
) -> None:
    # A vocabulary large enough that 700 tokens need several chunks of logits.
    vocab, width = 60_001, 16
    hidden = _normal(tokens, width).to(dtype)
    head = (_normal(vocab, width, seed=1) * 0.3).to(dtype)
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(0, vocab, (tokens,), generator=generator)
    labels[::7] = IGNORED
    weights = torch.rand(tokens, generator=generator)

    truth, plain = (
        torch_head_loss(hidden, head, labels, weights, soft_cap, kind)
        for kind in (torch.float64, dtype)
    )
    ours = linear_cross_entropy(
        hidden, head, labels, weights_S=weights, soft_cap=soft_cap, head_grad=True
    )
    assert ours.hidden_grad is not None
    assert ours.head_grad is not None
    assert ours.hidden_grad.dtype == dtype
    assert ours.head_grad.dtype == torch.promote_types(dtype, torch.float32)
    # The truth in fp64 is itself rounded, once for each term of a sum over the vocabulary.
    slack = vocab**0.5 if dtype == torch.float64 else 4.0
    rounding = slack * torch.finfo(dtype).eps
    for t, p, o in zip(truth, plain, ours, strict=True):
        budget = (t - p).abs().max() + rounding * t.abs().max()
        assert o is not None
        assert (t - o.double()).abs().max() <= budget
    frozen = linear_cross_entropy(hidden, head, labels, weights_S=weights, soft_cap=soft_cap)
    assert frozen.head_grad is None
    assert frozen.hidden_grad is not None
    assert torch.equal(frozen.hidden_grad, ours.hidden_grad)


def test_nothing_counted_gives_zero_and_no_tokens_give_nothing() -> None:
    hidden, head = _normal(3, 8), _normal(10, 8)
    ignored = linear_cross_entropy(hidden, head, torch.full((3,), IGNORED), head_grad=True)
    assert all(not part.any() for part in ignored if part is not None)
    empty = linear_cross_entropy(hidden[:0], head, torch.zeros(0, dtype=torch.int64))
    assert empty.losses.shape == (0,)
    assert empty.hidden_grad is not None
    assert empty.hidden_grad.shape == (0, 8)


def test_partial_rotation_leaves_the_rest_alone() -> None:
    q, cos, sin = _normal(5, 2, 12), _normal(5, 8, seed=1), _normal(5, 8, seed=2)
    turned, _ = rope(q, q, cos, sin)
    assert torch.equal(turned[..., 8:], q[..., 8:])
    assert torch.equal(turned[..., :8], rope_ref(q[..., :8], cos, sin))


def test_split_master_is_exact() -> None:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000,), generator=generator)
    values = bits.to(torch.int32).view(torch.float32)
    # The two values next to each rounding tie, of both signs, are among them.
    ties = (torch.arange(-300, 300, dtype=torch.int32) << 16) + 0x8000
    edges = torch.cat([ties - 1, ties, ties + 1]).view(torch.float32)
    for x in (values[torch.isfinite(values)], edges[torch.isfinite(edges)]):
        plane, remainder = split_master(x)
        assert torch.equal(join_master(plane, remainder).view(torch.int32), x.view(torch.int32))
        finite = torch.isfinite(plane)
        nearest = x.bfloat16()
        # Half up instead of half to even: at most one unit away, and only at a tie.
        assert (plane[finite].float() - nearest[finite].float()).abs().max() <= (
            nearest[finite].float().abs().max() * 2**-7
        )


@pytest.mark.parametrize(("moments", "tolerance"), [("fp32", 1e-6), ("bf16", 2e-2), ("int8", 1e-1)])
def test_adamw_states_stay_near_torch(moments: str, tolerance: float) -> None:
    """The first twenty steps of a quadratic, as a share of the way that torch's AdamW goes."""
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(3000, generator=generator)
    judge = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.AdamW([judge], lr=1e-2, weight_decay=0.01)
    plane, remainder = split_master(start)
    if moments == "int8":
        state = AdamWState(
            plane,
            remainder,
            torch.zeros(3000, dtype=torch.int8),
            torch.zeros(3000, dtype=torch.uint8),
            torch.zeros(3),
            torch.zeros(3),
        )
    else:
        dtype = torch.float32 if moments == "fp32" else torch.bfloat16
        zeros = torch.zeros(3000, dtype=dtype)
        state = AdamWState(plane, remainder, zeros, zeros.clone())
    for step in range(1, 21):
        noise = torch.randn(3000, generator=generator)
        judge.grad = judge.detach() + 0.1 * noise
        grad = join_master(state.master, remainder) + 0.1 * noise
        optimizer.step()
        scalars = adamw_scalars(
            torch.tensor(step),
            torch.tensor(1.0),
            lr=1e-2,
            beta1=0.9,
            beta2=0.999,
            weight_decay=0.01,
        )
        adamw(grad, state, scalars, beta1=0.9, beta2=0.999, eps=1e-8)
    way = float((judge.detach() - start).norm())
    error = float((join_master(state.master, remainder) - judge.detach()).norm())
    assert error <= tolerance * way


def test_nf4_takes_the_nearest_level_and_keeps_the_scale() -> None:
    values = _normal(1000, dtype=torch.float32)
    packed, scales = quantise_nf4(values)
    back = dequantise_nf4(packed, scales, (1000,), torch.float32)
    blocks = torch.nn.functional.pad(values, (0, 24)).view(-1, 64)
    assert torch.equal(scales, blocks.abs().amax(1))
    # Neighbouring levels are at most 0.304 apart, so nothing is further than half of that away.
    assert ((back - values).abs() <= 0.153 * scales.repeat_interleave(64)[:1000]).all()
    again, same = quantise_nf4(back)
    assert torch.equal(again, packed)
    assert torch.equal(same, scales)


def test_geglu_equals_torch() -> None:
    gate, up = _normal(3, 5), _normal(3, 5, seed=1)
    theirs = torch.nn.functional.gelu(gate, approximate="tanh") * up
    assert torch.equal(geglu_ref(gate, up), theirs)


def _zeros(*size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.zeros(size, dtype=dtype)


def _refused(function: Callable[..., Any], *arguments: Any, names: list[str], **named: Any) -> Any:
    """A call that must fail, and what its message must name: all that contradict each other."""
    return pytest.param(
        function, arguments, named, names, id=f"{function.__name__}-{'-'.join(names)}"
    )


def _refused_head(*arguments: Tensor, names: list[str], **named: Any) -> Any:
    return _refused(linear_cross_entropy, *arguments, names=names, **named)


def _refused_adamw(*names: str, grad: Tensor | None = None, **fields: Any) -> Any:
    """Four elements of 8-bit state, whole but for the fields given."""
    state: dict[str, Any] = {
        "master": _zeros(4, dtype=torch.bfloat16),
        "remainder": _zeros(4, dtype=torch.int16),
        "exp_avg": _zeros(4, dtype=torch.int8),
        "exp_avg_sq": _zeros(4, dtype=torch.uint8),
        "exp_avg_scale": _zeros(1),
        "exp_avg_sq_scale": _zeros(1),
        "scalars": _zeros(4),
    } | fields
    scalars = state.pop("scalars")
    betas = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}
    grad = _zeros(4) if grad is None else grad
    return _refused(adamw, grad, AdamWState(**state), scalars, names=list(names), **betas)


def _refused_nf4(*names: str, packed: Tensor, count: int, scales: Tensor | None = None) -> Any:
    scales = _zeros(1) if scales is None else scales
    return _refused(dequantise_nf4, packed, scales, (count,), torch.float32, names=list(names))


B16, I16, I32, U8 = torch.bfloat16, torch.int16, torch.int32, torch.uint8
X, W = _zeros(4, 8), _zeros(8)
Q, KV, TABLE = _zeros(4, 4, 8), _zeros(4, 2, 8), _zeros(4, 8)
HEAD, LABELS = _zeros(10, 8), _zeros(4, dtype=torch.int64)
CHOICE = choose_attention(CPU, torch.float32, 8)
REFUSED = [
    _refused(rms_norm, X, W[:7], 1e-5, names=["(4, 8)", "(7,)"]),
    _refused(rms_norm, X[None], W, 1e-5, names=["(1, 4, 8)", "(8,)"]),
    _refused(rms_norm, X, W.bfloat16(), 1e-5, names=["float32", "bfloat16"]),
    _refused(rms_norm, _zeros(1, 32769), _zeros(32769), 1e-5, names=["32769", "32768"]),
    _refused(add_rms_norm, X, X, W[:7], 1e-5, names=["(4, 8)", "(7,)"]),
    _refused(add_rms_norm, X, X[:3], W, 1e-5, names=["(4, 8)", "(3, 8)"]),
    _refused(add_rms_norm, X, X.bfloat16(), W, 1e-5, names=["float32", "bfloat16"]),
    _refused(gated, X, X[:, :7], names=["(4, 8)", "(4, 7)"]),
    _refused(gated, X, X.bfloat16(), names=["float32", "bfloat16"]),
    _refused(gated, W, W, names=["gate is (8,)", "up is (8,)"]),
    _refused(gated, X, X, "relu", names=["relu", "silu", "gelu_tanh"]),
    _refused(rope, Q, KV[:3], TABLE, TABLE, names=["(4, 4, 8)", "(3, 2, 8)"]),
    _refused(rope, Q, KV[..., :6], TABLE, TABLE, names=["(4, 4, 8)", "(4, 2, 6)"]),
    _refused(rope, Q, X, TABLE, TABLE, names=["(4, 4, 8)", "(4, 8)"]),
    _refused(rope, Q, KV.bfloat16(), TABLE, TABLE, names=["float32", "bfloat16"]),
    _refused(rope, Q, KV, TABLE[:3], TABLE[:3], names=["(3, 8)", "(4, 4, 8)"]),
    _refused(rope, Q, KV, TABLE, TABLE[:, :6], names=["(4, 8)", "(4, 6)"]),
    _refused(rope, Q, KV, TABLE[:, :5], TABLE[:, :5], names=["(4, 5)", "(4, 4, 8)"]),
    _refused(rope, Q, KV, TABLE[:, :0], TABLE[:, :0], names=["(4, 0)", "(4, 4, 8)"]),
    _refused(rope, Q, KV, _zeros(4, 10), _zeros(4, 10), names=["(4, 10)", "(4, 4, 8)"]),
    _refused(rope, Q, KV, TABLE[0], TABLE[0], names=["(8,)", "(4, 4, 8)"]),
    _refused(rope, Q, KV, TABLE.bfloat16(), TABLE.bfloat16(), names=["bfloat16", "float32"]),
    _refused(attention, Q, KV, KV[:3], _segments(4), CHOICE, names=["(4, 2, 8)", "(3, 2, 8)"]),
    _refused(attention, Q[:3], KV, KV, _segments(3), CHOICE, names=["(3, 4, 8)", "(4, 2, 8)"]),
    _refused(attention, Q[:, :3], KV, KV, _segments(4), CHOICE, names=["(4, 3, 8)", "(4, 2, 8)"]),
    _refused(attention, Q, KV, KV, _segments(3), CHOICE, names=["end at 3", "4 tokens"]),
    _refused_head(X, HEAD[:, :7], LABELS, names=["(4, 8)", "(10, 7)"]),
    _refused_head(X, HEAD.bfloat16(), LABELS, names=["float32", "bfloat16"]),
    _refused_head(X, HEAD, LABELS[:2], names=["(2,)", "(4,)"]),
    _refused_head(X, HEAD, LABELS.int(), names=["int32", "int64"]),
    _refused_head(X, HEAD, LABELS, names=["(2,)", "(4,)"], weights_S=_zeros(2)),
    _refused_adamw("(5,)", "(4,)", master=_zeros(5, dtype=B16), grad=_zeros(4)),
    _refused_adamw("(2, 2)", "(4,)", grad=_zeros(2, 2)),
    _refused_adamw("gradient is torch.float64", "int8", grad=_zeros(4, dtype=torch.float64)),
    _refused_adamw("gradient is torch.float32", "float16", exp_avg=_zeros(4, dtype=torch.float16)),
    _refused_adamw("master", "float32", "bfloat16", master=_zeros(4)),
    _refused_adamw("master", "bfloat16", "float32", remainder=None),
    _refused_adamw("remainder", "int32", "int16", remainder=_zeros(4, dtype=I32)),
    _refused_adamw("remainder", "(3,)", "(4,)", remainder=_zeros(3, dtype=I16)),
    _refused_adamw("exp_avg_sq", "float32", "uint8", exp_avg_sq=_zeros(4)),
    _refused_adamw("exp_avg_scale", "missing", "(1,)", exp_avg_scale=None),
    _refused_adamw("exp_avg_sq_scale", "(2,)", "(1,)", exp_avg_sq_scale=_zeros(2)),
    _refused_adamw("float32", "int8", "scales", exp_avg=_zeros(4), exp_avg_sq=_zeros(4)),
    _refused_adamw("scalars", "(3,)", "(4,)", scalars=_zeros(3)),
    _refused_adamw("scalars", "float64", "float32", scalars=_zeros(4, dtype=torch.float64)),
    _refused(
        adamw_scalars,
        _zeros(1),
        _zeros(),
        names=["(1,)", "()"],
        lr=1.0,
        beta1=0.9,
        beta2=0.9,
        weight_decay=0.0,
    ),
    _refused(squared_norm, X, names=["(4, 8)", "[n]"]),
    _refused(squared_norm, LABELS, names=["int64", "float"]),
    _refused(split_master, W.double(), names=["float64", "float32"]),
    _refused(join_master, W.bfloat16(), _zeros(7, dtype=I16), names=["(8,)", "(7,)"]),
    _refused(join_master, W, _zeros(8, dtype=I16), names=["float32", "int16"]),
    _refused(join_master, W.bfloat16(), _zeros(8, dtype=I32), names=["bfloat16", "int32"]),
    _refused(quantise_nf4, _zeros(3), names=["3 elements"]),
    _refused_nf4("(2,)", "(3,)", packed=_zeros(2, dtype=U8), count=3),
    _refused_nf4("int16", "(4,)", packed=_zeros(2, dtype=I16), count=4),
    _refused_nf4("(3,)", "128 elements", packed=_zeros(64, dtype=U8), count=128, scales=_zeros(3)),
    _refused_nf4(
        "bfloat16", "4 elements", packed=_zeros(2, dtype=U8), count=4, scales=_zeros(1, dtype=B16)
    ),
]
UNCHECKED = {"adamw_ref", "lora_ref", "choose_attention", "upload"} | {
    # Theirs are in test_lora.py, test_lora_padding.py, test_lora_dropout.py, test_lane_adamw.py.
    *("lora_linear", "lora_tables", "padded_tables", "dropout_tables"),
    *("lane_adamw", "block_squares"),
}
"""Plain forms, whose operations refuse by themselves, and what takes every value."""


@pytest.mark.parametrize(("function", "arguments", "named", "names"), REFUSED)
def test_refusals_name_what_contradicts(
    function: Callable[..., Any], arguments: Any, named: dict[str, Any], names: list[str]
) -> None:
    with pytest.raises(ValueError) as refusal:
        function(*arguments, **named)
    for name in names:
        assert name in str(refusal.value)


def test_every_public_function_refuses_something() -> None:
    public = {name: getattr(kernels, name) for name in kernels.__all__}
    functions = {name for name, what in public.items() if inspect.isfunction(what)}
    assert functions - UNCHECKED == {param.values[0].__name__ for param in REFUSED}
