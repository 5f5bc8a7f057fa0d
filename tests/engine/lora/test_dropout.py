"""Dropout of a lane: which elements, in which step, whoever shares the row."""

from dataclasses import replace

import pytest
import torch
from support.lanes import WHOLE, TinyLane, pack_on, shake, tiny_decoder
from support.packing import random_rows

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.lora.lanes import step_seed
from slidepack.engine.lora.rows import lane_row, micro_steps
from slidepack.engine.model.layers import Decoder
from slidepack.kernels.lora.dropout import keep_mask

CPU = torch.device("cpu")
SITES = range(12)
WIDTH = 48


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("dropout"), torch.float32)


def _lane(rate: float) -> TinyLane:
    return TinyLane(
        name="lane", method=LoraMethod(rank=4, dropout=rate), lengths=(20, 9), total_steps=9
    )


def _mask(
    decoder: Decoder, rate: float, *, seed: int = 3, step: int = 0, max_tokens: int = WHOLE
) -> torch.Tensor:
    """Return what a lane's step keeps at all sites, [sites, T, WIDTH]."""
    adapters = pack_on(decoder, [_lane(rate)]).adapters(("lane",))
    masks = []
    for pieces in micro_steps([random_rows((60, 4, 33), decoder.shape.vocab)], max_tokens):
        row = lane_row(pieces, [1], decoder.shape, CPU, torch.float32)
        dropout = adapters.dropout(row, [step_seed(seed, step)])
        assert dropout is not None
        rows = slice(row.bounds[0], row.bounds[1])
        masks.append(torch.stack([keep_mask(dropout, 0, rows, s, WIDTH) for s in SITES]))
    return torch.cat(masks, dim=1)


@pytest.mark.parametrize("rate", [0.05, 0.1, 0.5, 0.9])
def test_the_share_that_is_kept(decoder: Decoder, rate: float) -> None:
    kept = _mask(decoder, rate).double()
    # Six standard deviations of a mean of independent draws.
    deviation = (rate * (1.0 - rate)) ** 0.5
    for part in (kept, *kept, *kept.unbind(1), *kept.unbind(2)):
        bound = 6.0 * deviation / part.numel() ** 0.5
        assert abs(float(part.mean()) - (1.0 - rate)) <= bound


def test_steps_lanes_sites_and_tokens_draw_masks_of_their_own(decoder: Decoder) -> None:
    kept = _mask(decoder, 0.5)
    others = [_mask(decoder, 0.5, step=1), _mask(decoder, 0.5, seed=4), kept.roll(1, dims=0)]
    others += [kept.roll(shift, dims=1) for shift in (1, 60, 64)]
    for other in others:
        # Independent masks agree on half of the elements.
        assert abs(float((kept == other).double().mean()) - 0.5) <= 0.02


@pytest.mark.parametrize("max_tokens", [64, 1])
def test_the_mask_does_not_depend_on_the_micro_batches(decoder: Decoder, max_tokens: int) -> None:
    assert torch.equal(_mask(decoder, 0.3), _mask(decoder, 0.3, max_tokens=max_tokens))


def _loss(decoder: Decoder, rate: float, step: int) -> float:
    """Return the loss of a step, with the same rows and weights whatever its number."""
    lane = _lane(rate)
    pack = pack_on(decoder, [lane])
    shake(pack.lanes[lane.name])
    vocab = decoder.shape.vocab
    work = replace(lane.work(step, vocab), rows=lane.work(0, vocab).rows)
    return pack.step({lane.name: work})[lane.name].loss.total


def test_the_loss_of_a_step_repeats_and_that_of_the_next_step_differs(decoder: Decoder) -> None:
    losses = [_loss(decoder, 0.3, step) for step in range(4)]
    assert losses == [_loss(decoder, 0.3, step) for step in range(4)]
    assert len(set(losses)) == len(losses)
    bare = {_loss(decoder, 0.0, step) for step in range(4)}
    assert len(bare) == 1
    assert not bare & set(losses)
