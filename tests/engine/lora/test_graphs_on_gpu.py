"""Passes that are recorded and replayed: the same bits as launch by launch."""

from dataclasses import replace
from typing import Any, Final

import msgspec
import pytest
import torch
from support.lanes import LaneRecord, TinyLane, step_all

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.pack import Pack
from slidepack.engine.lora.passes import ResidentPasses
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import random_decoder

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")
# Shorter than a block of keys: flash attention's backward pass then adds up in one order.
LANES: Final = (
    TinyLane(name="all", method=LoraMethod(rank=8), lengths=(50, 31), total_steps=50),
    TinyLane(
        name="dropped",
        method=LoraMethod(rank=128, alpha=64, dropout=0.1, targets=("q_proj", "down_proj")),
        optim=OptimSpec(lr=1e-3, weight_decay=0.1),
        lengths=(12, 60, 7),
        total_steps=50,
    ),
    TinyLane(name="thin", method=LoraMethod(rank=3), lengths=(5,), total_steps=50),
)


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    shape = msgspec.structs.replace(SHAPES["smollm2-135m"], num_layers=3)
    return random_decoder(shape, GPU, torch.bfloat16, seed=0)


def _pack(decoder: Decoder, *, max_tokens: int, exact: int, record: bool) -> Pack:
    attention = layer_attention(decoder.shape, GPU, torch.bfloat16)
    driver = LaneDriver(decoder, attention, ("keep", "recompute", "keep"))
    passes = ResidentPasses(decoder, driver, record=record)
    pack = Pack(decoder, attention, ("keep",) * 3, max_tokens, exact_tokens=exact, passes=passes)
    for lane in LANES:
        pack.join(lane.name, lane.method, lane.seed)
    return pack


def _same(ours: LaneRecord, theirs: LaneRecord) -> bool:
    pairs = zip(ours.tensors, theirs.tensors, strict=True)
    return ours.outcome == theirs.outcome and all(torch.equal(a, b) for a, b in pairs)


def _at(step: int) -> list[TinyLane]:
    """Return the lanes with rows of other lengths in every step."""
    return [
        replace(lane, lengths=tuple(length + step % 5 for length in lane.lengths)) for lane in LANES
    ]


@pytest.mark.parametrize("max_tokens", [256, 128], ids=["one pass", "two passes"])
def test_recorded_passes_give_the_bits_of_launched_ones(decoder: Decoder, max_tokens: int) -> None:
    recorded, launched = (
        _pack(decoder, max_tokens=max_tokens, exact=320, record=record) for record in (True, False)
    )
    for step in range(12):
        lanes = _at(step)
        ours, theirs = (
            step_all(pack, lanes, step, decoder.shape.vocab) for pack in (recorded, launched)
        )
        assert all(_same(a, b) for a, b in zip(ours, theirs, strict=True)), step
        if step == 5:
            # Whoever leaves may move the others.
            for pack in (recorded, launched):
                pack.leave("thin")
                pack.join("thin", LANES[2].method, LANES[2].seed)
    assert recorded.recorded_passes >= 1
    assert launched.recorded_passes == 0


def test_rows_of_many_lengths_need_few_recordings_and_learn_the_same(decoder: Decoder) -> None:
    recorded, launched = (
        _pack(decoder, max_tokens=4096, exact=0, record=record) for record in (True, False)
    )
    lane = replace(LANES[0], lengths=())
    for pack in (recorded, launched):
        pack.leave("dropped")
        pack.leave("thin")
    for step in range(20):
        # Some are longer than a chunk of tokens of the weight gradient's kernel.
        longer = replace(lane, lengths=(2200 + 13 * step, 90 + step, 37))
        ours, theirs = (
            step_all(pack, [longer], step, decoder.shape.vocab)[0] for pack in (recorded, launched)
        )
        mine, its = ours.outcome, theirs.outcome
        assert mine.loss.tokens == its.loss.tokens
        assert mine.loss.mean == pytest.approx(its.loss.mean, rel=2e-3), step
        assert mine.grad_norm == pytest.approx(its.grad_norm, rel=3e-2), step
    assert 1 <= recorded.recorded_passes <= 6


def test_what_cannot_be_recorded_is_launched(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, launched = (
        _pack(decoder, max_tokens=256, exact=320, record=record) for record in (True, False)
    )
    train = LaneDriver.train

    def waiting(driver: LaneDriver, *arguments: Any) -> torch.Tensor:
        if torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()
        return train(driver, *arguments)

    monkeypatch.setattr(LaneDriver, "train", waiting)
    for step in range(4):
        ours, theirs = (
            step_all(pack, LANES, step, decoder.shape.vocab) for pack in (broken, launched)
        )
        assert all(_same(a, b) for a, b in zip(ours, theirs, strict=True)), step
    assert broken.recorded_passes == 0


def test_memory_of_recordings_is_shared(decoder: Decoder) -> None:
    pack = _pack(decoder, max_tokens=8192, exact=0, record=True)
    vocab = decoder.shape.vocab

    def run(length: int) -> int:
        lanes = [replace(LANES[0], lengths=(length,) * 4)]
        for step in range(3):
            step_all(pack, lanes, step, vocab)
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(GPU)

    largest = run(1500)
    after = max(run(length) for length in (200, 400, 600, 800, 1000, 1200, 1500))
    assert pack.recorded_passes >= 6
    assert after <= 1.3 * largest
