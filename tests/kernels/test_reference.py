import pytest
import torch
from torch import Tensor

from slidepack.kernels import (
    Segments,
    attention,
    choose_attention,
    linear_cross_entropy,
    lora_ref,
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


@pytest.mark.parametrize("tokens", [1, 5, 700])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_linear_cross_entropy_within_the_error_budget(tokens: int, dtype: torch.dtype) -> None:
    # A vocabulary large enough that 700 tokens need several chunks of logits.
    vocab, width = 60_001, 16
    hidden = _normal(tokens, width).to(dtype)
    head = (_normal(vocab, width, seed=1) * 0.3).to(dtype)
    labels = torch.randint(0, vocab, (tokens,), generator=torch.Generator().manual_seed(2))

    def torch_way(in_dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        x = hidden.to(in_dtype, copy=True).requires_grad_()
        logits = x @ head.to(in_dtype).T
        wide = logits.to(torch.promote_types(in_dtype, torch.float32))
        losses = torch.nn.functional.cross_entropy(wide, labels, reduction="none")
        losses.sum().backward()
        assert x.grad is not None
        return losses.detach().double(), x.grad.double()

    true_losses, true_grad = torch_way(torch.float64)
    torch_losses, torch_grad = torch_way(dtype)
    losses, grad = linear_cross_entropy(hidden, head, labels, backward=True)
    assert grad is not None
    assert grad.dtype == dtype
    # The truth in fp64 is itself rounded, once for each term of a sum over the vocabulary.
    slack = vocab**0.5 if dtype == torch.float64 else 4.0
    rounding = slack * torch.finfo(dtype).eps
    budget = (true_losses - torch_losses).abs().max() + rounding * true_losses.abs().max()
    assert (true_losses - losses).abs().max() <= budget
    # Probabilities are rounded to the input's dtype before the second product, as autograd does.
    budget = (true_grad - torch_grad).abs().max() + rounding * true_grad.abs().max()
    assert (true_grad - grad.double()).abs().max() <= budget
    only, none = linear_cross_entropy(hidden, head, labels, backward=False)
    assert none is None
    assert torch.equal(only, losses)


def test_linear_cross_entropy_names_what_is_wrong() -> None:
    hidden, head = _normal(3, 8), _normal(10, 8)
    labels = torch.zeros(3, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"\(10, 7\)"):
        linear_cross_entropy(hidden, _normal(10, 7), labels, backward=False)
    with pytest.raises(ValueError, match="float32"):
        linear_cross_entropy(hidden, head.float(), labels, backward=False)
    with pytest.raises(ValueError, match="int32"):
        linear_cross_entropy(hidden, head, labels.int(), backward=False)
    with pytest.raises(ValueError, match=r"not \(3,\) int64"):
        linear_cross_entropy(hidden, head, labels[:2], backward=False)
