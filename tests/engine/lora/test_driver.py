from pathlib import Path

import pytest
import torch
from support.judges import tiny_llama
from support.packing import packed, random_rows

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder
from slidepack.engine.sliding.driver import Driver, LossSum

CPU = torch.device("cpu")
LENGTHS = (9, 30, 4, 17, 1, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("driver")
    tiny_llama(target, kv_heads=2, tied=False)
    return target


def _gradient(
    decoder: Decoder,
    policies: tuple[ActivationPolicy, ...],
    *,
    max_tokens: int = 1 << 20,
    dropout: float = 0.0,
) -> tuple[LossSum, torch.Tensor]:
    arena = LoraArena(decoder.shape, LoraMethod(rank=4, dropout=dropout), CPU, decoder.dtype)
    arena.initialise(3)
    with torch.no_grad():
        # B is zero at the start, which would hide every gradient of A.
        arena.params.add_(0.05)
    driver = Driver(decoder, arena, layer_attention(decoder.shape, CPU, decoder.dtype), policies)
    rows = random_rows(LENGTHS, decoder.shape.vocab)
    loss = driver.train_step(packed(decoder, rows, max_tokens), (7, 0))
    return loss, arena.grads


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("max_tokens", [1 << 20, 32, 1], ids=["one", "some", "each-row"])
def test_recompute_equals_keep_bit_for_bit(folder: Path, dropout: float, max_tokens: int) -> None:
    decoder = load_decoder(folder, CPU, torch.float32)
    kept_loss, kept = _gradient(decoder, ("keep",) * 3, max_tokens=max_tokens, dropout=dropout)
    for policies in (("recompute",) * 3, ("keep", "recompute", "keep")):
        loss, gradient = _gradient(decoder, policies, max_tokens=max_tokens, dropout=dropout)
        assert loss == kept_loss
        assert torch.equal(gradient, kept)
    assert float(kept.abs().sum()) > 0


def test_micro_batches_do_not_change_the_gradient(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.float64)
    whole_loss, whole = _gradient(decoder, ("keep",) * 3)
    for max_tokens in (32, 1):
        loss, gradient = _gradient(decoder, ("keep",) * 3, max_tokens=max_tokens)
        assert loss.tokens == whole_loss.tokens
        assert loss.total == pytest.approx(whole_loss.total, rel=1e-12)
        torch.testing.assert_close(gradient, whole, rtol=1e-10, atol=1e-13)


def test_gradient_equals_finite_differences(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.float64)
    arena = LoraArena(decoder.shape, LoraMethod(rank=2), CPU, torch.float64)
    arena.initialise(3)
    with torch.no_grad():
        arena.params.add_(0.05)
    driver = Driver(
        decoder, arena, layer_attention(decoder.shape, CPU, decoder.dtype), ("recompute",) * 3
    )
    batches = packed(decoder, random_rows((9, 14), decoder.shape.vocab))
    driver.train_step(batches, (0, 0))
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(arena.params.shape, generator=generator, dtype=torch.float64)
    analytic = float(arena.grads @ direction)
    width = 1e-5
    losses = []
    for sign in (1.0, -1.0):
        with torch.no_grad():
            arena.params.add_(direction, alpha=sign * width)
        losses.append(driver.evaluate(batches).mean)
        with torch.no_grad():
            arena.params.add_(direction, alpha=-sign * width)
    assert analytic == pytest.approx((losses[0] - losses[1]) / (2 * width), rel=1e-6)


def test_rows_of_a_pack_do_not_see_each_other(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.float64)
    driver = Driver(
        decoder, None, layer_attention(decoder.shape, CPU, decoder.dtype), ("keep",) * 3
    )
    rows = random_rows(LENGTHS, decoder.shape.vocab)
    (together,) = packed(decoder, rows)
    logits = driver.logits(together)
    for index, row in enumerate(rows):
        (alone,) = packed(decoder, [row])
        start, end = together.segments.bounds[index : index + 2]
        torch.testing.assert_close(logits[start:end], driver.logits(alone), rtol=0, atol=1e-12)


def test_evaluation_uses_no_dropout_and_is_repeatable(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.float32)
    arena = LoraArena(decoder.shape, LoraMethod(rank=4, dropout=0.5), CPU)
    arena.initialise(3)
    with torch.no_grad():
        arena.params.add_(0.05)
    driver = Driver(
        decoder, arena, layer_attention(decoder.shape, CPU, decoder.dtype), ("keep",) * 3
    )
    batches = packed(decoder, random_rows(LENGTHS, decoder.shape.vocab))
    assert driver.evaluate(batches) == driver.evaluate(batches)


def test_a_stop_in_the_middle_of_a_step_leaves_the_parameters_alone(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.float32)
    arena = LoraArena(decoder.shape, LoraMethod(rank=4), CPU)
    arena.initialise(3)
    before = arena.params.clone()
    rows = random_rows(LENGTHS, decoder.shape.vocab)
    batches = packed(decoder, rows, max_tokens=32)
    calls = 0
    for stop_at in range(1, 6 * len(batches) + 1):
        calls = 0

        def check(limit: int = stop_at) -> None:
            nonlocal calls
            calls += 1
            if calls == limit:
                raise InterruptedError

        choice = layer_attention(decoder.shape, CPU, decoder.dtype)
        driver = Driver(decoder, arena, choice, ("keep",) * 3, check)
        with pytest.raises(InterruptedError):
            driver.train_step(batches, (0, 0))
        assert torch.equal(arena.params, before)


def test_unknown_policies_are_refused(folder: Path) -> None:
    decoder = load_decoder(folder, CPU, torch.float32)
    choice = layer_attention(decoder.shape, CPU, decoder.dtype)
    with pytest.raises(ValueError, match="2 activation policies for 3 layers"):
        Driver(decoder, None, choice, ("keep",) * 2)
    with pytest.raises(ValueError, match="offload"):
        Driver(decoder, None, choice, ("keep", "offload", "keep"))
