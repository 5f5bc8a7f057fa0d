import pytest
import torch
from torch import Tensor

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
    lora_ref,
    quantise_nf4,
    rms_norm,
    rope,
    split_master,
)
from slidepack.kernels.linear_cross_entropy import IGNORED
from slidepack.kernels.reference import (
    geglu_ref,
    rms_norm_ref,
    rope_ref,
    swiglu_ref,
)

CPU = torch.device("cpu")


def _normal(*size: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, generator=generator, dtype=dtype)


def _segments(*lengths: int) -> Segments:
    bounds = [0]
    for length in lengths:
        bounds.append(bounds[-1] + length)
    return Segments(bounds=tuple(bounds), cu_seqlens=torch.tensor(bounds, dtype=torch.int32))


def test_gradients_of_the_references() -> None:
    x = _normal(5, 8).requires_grad_()
    weight = _normal(8, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda a, b: rms_norm_ref(a, b, 1e-5), (x, weight))
    gate, up = _normal(3, 7).requires_grad_(), _normal(3, 7, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(swiglu_ref, (gate, up))
    q = _normal(4, 2, 6).requires_grad_()
    cos, sin = _normal(4, 6, seed=2), _normal(4, 6, seed=3)
    assert torch.autograd.gradcheck(lambda t: rope_ref(t, cos, sin), (q,))
    a, b = _normal(2, 8, seed=4).requires_grad_(), _normal(5, 2, seed=5).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, a, b: lora_ref(x, a, b, 0.7), (x, a, b))


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


def test_attention_refuses_what_does_not_fit() -> None:
    choice = choose_attention(CPU, torch.float64, 12)
    q, k = _normal(4, 3, 8), _normal(4, 2, 8)
    with pytest.raises(ValueError, match="do not fit"):
        attention(q, k, k, _segments(4), choice)
    with pytest.raises(ValueError, match="end at 3"):
        attention(q, _normal(4, 3, 8), _normal(4, 3, 8), _segments(3), choice)


@pytest.mark.parametrize("soft_cap", [None, 5.0])
@pytest.mark.parametrize("tokens", [1, 5, 700])
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

    def torch_way(in_dtype: torch.dtype) -> list[Tensor]:
        x = hidden.to(in_dtype, copy=True).requires_grad_()
        w = head.to(in_dtype, copy=True).requires_grad_()
        wide = (x @ w.T).to(torch.promote_types(in_dtype, torch.float32))
        if soft_cap is not None:
            wide = soft_cap * torch.tanh(wide / soft_cap)
        losses = torch.nn.functional.cross_entropy(wide, labels, reduction="none")
        losses = losses * weights.to(wide.dtype)
        losses.sum().backward()
        assert x.grad is not None
        assert w.grad is not None
        return [losses.detach().double(), x.grad.double(), w.grad.double()]

    truth, plain = torch_way(torch.float64), torch_way(dtype)
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


def test_linear_cross_entropy_names_what_is_wrong() -> None:
    hidden, head = _normal(3, 8), _normal(10, 8)
    labels = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\(10, 7\)"):
        linear_cross_entropy(hidden, _normal(10, 7), labels)
    with pytest.raises(ValueError, match="float32"):
        linear_cross_entropy(hidden, head.float(), labels)
    with pytest.raises(ValueError, match="int32"):
        linear_cross_entropy(hidden, head, labels.int())
    with pytest.raises(ValueError, match=r"not \(3,\) int64"):
        linear_cross_entropy(hidden, head, labels[:2])
    with pytest.raises(ValueError, match=r"weights are \(2,\)"):
        linear_cross_entropy(hidden, head, labels, weights_S=torch.ones(2))


def test_public_functions_name_wrong_shapes_and_dtypes() -> None:
    x, weight = _normal(4, 8), _normal(8)
    with pytest.raises(ValueError, match=r"\(7,\)"):
        rms_norm(x, _normal(7), 1e-5)
    with pytest.raises(ValueError, match="float32"):
        rms_norm(x, weight.float(), 1e-5)
    with pytest.raises(ValueError, match=r"residual is \(3, 8\)"):
        add_rms_norm(x, x[:3], weight, 1e-5)
    with pytest.raises(ValueError, match="up is"):
        gated(x, x[:, :7])
    q, cos = _normal(4, 2, 8), _normal(4, 8)
    with pytest.raises(ValueError, match="k is"):
        rope(q, _normal(3, 2, 8), cos, cos)
    with pytest.raises(ValueError, match=r"cos is \(4, 10\)"):
        rope(q, q, _normal(4, 10), _normal(4, 10))
    with pytest.raises(ValueError, match="packed in pairs"):
        quantise_nf4(torch.zeros(3))
    with pytest.raises(ValueError, match="packed is"):
        dequantise_nf4(torch.zeros(2, dtype=torch.uint8), torch.ones(1), (3,), torch.float32)


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
