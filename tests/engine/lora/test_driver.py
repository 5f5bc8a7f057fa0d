"""A lane's pass: activations, micro-batches, the gradient itself, stops."""

import pytest
import torch
from support.lanes import WHOLE, TinyLane, pack_on, packed_logits, shake, tiny_decoder
from support.packing import random_rows

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loss import LossSum

CPU = torch.device("cpu")
LENGTHS = (9, 30, 4, 17, 1, 12)


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("narrow"), torch.float32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("wide"), torch.float64)


def _lane(*, rank: int = 4, dropout: float = 0.0) -> TinyLane:
    method = LoraMethod(rank=rank, dropout=dropout)
    return TinyLane(name="lane", method=method, lengths=LENGTHS, total_steps=10)


def _gradient(
    decoder: Decoder,
    policies: tuple[ActivationPolicy, ...],
    *,
    max_tokens: int = WHOLE,
    dropout: float = 0.0,
) -> tuple[LossSum, torch.Tensor]:
    lane = _lane(dropout=dropout)
    pack = pack_on(decoder, [lane], activations=policies, max_tokens=max_tokens)
    arena = pack.lanes[lane.name]
    shake(arena)
    outcome = pack.step({lane.name: lane.work(3, decoder.shape.vocab)})[lane.name]
    return outcome.loss, arena.grads.clone()


@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("max_tokens", [WHOLE, 32, 1], ids=["one", "some", "each-row"])
def test_recompute_equals_keep_bit_for_bit(
    narrow: Decoder, dropout: float, max_tokens: int
) -> None:
    kept_loss, kept = _gradient(narrow, ("keep",) * 3, max_tokens=max_tokens, dropout=dropout)
    for policies in (("recompute",) * 3, ("keep", "recompute", "keep")):
        loss, gradient = _gradient(narrow, policies, max_tokens=max_tokens, dropout=dropout)
        assert loss == kept_loss
        assert torch.equal(gradient, kept)
    assert float(kept.abs().sum()) > 0


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_micro_batches_do_not_change_the_gradient(wide: Decoder, dropout: float) -> None:
    whole_loss, whole = _gradient(wide, ("keep",) * 3, dropout=dropout)
    for max_tokens in (32, 1):
        loss, gradient = _gradient(wide, ("keep",) * 3, max_tokens=max_tokens, dropout=dropout)
        assert loss.tokens == whole_loss.tokens
        assert loss.total == pytest.approx(whole_loss.total, rel=1e-12)
        torch.testing.assert_close(gradient, whole, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_gradient_equals_finite_differences(wide: Decoder, dropout: float) -> None:
    lane = _lane(rank=2, dropout=dropout)
    pack = pack_on(wide, [lane], activations=("recompute",) * 3)
    arena = pack.lanes[lane.name]
    shake(arena)
    start = arena.master().clone()
    work = {lane.name: lane.work(0, wide.shape.vocab)}
    pack.step(work)
    generator = torch.Generator().manual_seed(0)
    direction = torch.randn(start.shape, generator=generator, dtype=torch.float64)
    analytic = float(arena.grads @ direction)
    width = 1e-6
    losses = []
    for sign in (1.0, -1.0):
        arena.set_master(start + sign * width * direction)
        losses.append(pack.step(work)[lane.name].loss.mean)
    assert analytic == pytest.approx((losses[0] - losses[1]) / (2 * width), rel=1e-7)


def test_rows_of_a_pack_do_not_see_each_other(wide: Decoder) -> None:
    rows = random_rows(LENGTHS, wide.shape.vocab)
    for row, together in zip(rows, packed_logits(wide, rows), strict=True):
        (alone,) = packed_logits(wide, [row])
        torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


def test_evaluation_uses_no_dropout_and_is_repeatable(narrow: Decoder) -> None:
    losses = []
    for dropout in (0.5, 0.5, 0.0):
        lane = _lane(dropout=dropout)
        pack = pack_on(narrow, [lane])
        shake(pack.lanes[lane.name])
        rows = {lane.name: lane.work(0, narrow.shape.vocab).rows}
        losses += [pack.evaluate(rows), pack.evaluate(rows)]
    assert all(loss == losses[0] for loss in losses)


def test_training_and_evaluation_measure_the_same_loss(wide: Decoder) -> None:
    lane = _lane()
    pack = pack_on(wide, [lane], max_tokens=32)
    shake(pack.lanes[lane.name])
    work = lane.work(0, wide.shape.vocab)
    evaluated = pack.evaluate({lane.name: work.rows})[lane.name]
    trained = pack.step({lane.name: work})[lane.name].loss
    assert trained.tokens == evaluated.tokens == sum(sum(row.supervised[1:]) for row in work.rows)
    assert trained.total == pytest.approx(evaluated.total, rel=1e-13)


class _StopAt:
    """Raises at one of the calls to come."""

    def __init__(self) -> None:
        self.calls_left = 0

    def __call__(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise InterruptedError


def test_a_stop_in_the_middle_of_a_step_leaves_the_lane_alone(narrow: Decoder) -> None:
    lane = _lane()
    work = {lane.name: lane.work(2, narrow.shape.vocab)}
    stop = _StopAt()
    pack = pack_on(narrow, [lane], max_tokens=32, check_stop=stop)
    arena = pack.lanes[lane.name]
    before = arena.master().clone()
    micro_steps = 3
    for call in range(1, 2 * 3 * micro_steps + 1):
        stop.calls_left = call
        with pytest.raises(InterruptedError):
            pack.step(work)
        assert torch.equal(arena.master(), before)
        assert not any(moment.any() for moment in arena.moments())
    # What was abandoned has left nothing in the gradient either.
    stop.calls_left = 0
    undisturbed = pack_on(narrow, [lane], max_tokens=32)
    assert pack.step(work) == undisturbed.step(work)
    assert torch.equal(arena.master(), undisturbed.lanes[lane.name].master())
    assert not torch.equal(arena.master(), before)


def test_unknown_policies_are_refused(narrow: Decoder) -> None:
    choice = layer_attention(narrow.shape, CPU, narrow.dtype)
    with pytest.raises(ValueError, match="2 activation policies for 3 layers"):
        LaneDriver(narrow, choice, ("keep",) * 2)
    with pytest.raises(ValueError, match="offload"):
        LaneDriver(narrow, choice, ("keep", "offload", "keep"))
