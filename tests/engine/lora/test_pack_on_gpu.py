"""Packs on a real card in bf16: a lane equals its solo run, sliding equals resident."""

import statistics
import sys
from dataclasses import replace
from typing import Final

import msgspec
import pytest
import torch
from support.full_runs import cache_folder
from support.lanes import (
    LaneRecord,
    TinyLane,
    largest_difference,
    pack_on,
    step_all,
    steps_alone,
)

from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.pack import Pack
from slidepack.engine.lora.passes import ResidentPasses
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder, layer_over
from slidepack.engine.model.loading import random_decoder
from slidepack.engine.model.nf4_layers import Nf4Layers
from slidepack.engine.sliding.build_lanes import LaneSlide, build_sliding_lanes

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU on this machine"),
]
GPU = torch.device("cuda:0")
STEPS: Final = 50
# Shorter than a block of keys: flash attention's backward pass then adds up in one order.
LANES: Final = (
    TinyLane(name="all", method=LoraMethod(rank=8), lengths=(50, 31), total_steps=STEPS),
    TinyLane(
        name="wide",
        method=LoraMethod(rank=128, alpha=64, dropout=0.1, targets=("q_proj", "down_proj")),
        optim=OptimSpec(lr=1e-3, weight_decay=0.1),
        lengths=(12, 60, 7),
        total_steps=STEPS,
    ),
    TinyLane(
        name="thin",
        method=LoraMethod(rank=1, alpha=1, rslora=True, targets=("v_proj", "up_proj")),
        optim=OptimSpec(lr=1e-2, clip_norm=0.0),
        lengths=(5,),
        total_steps=STEPS,
    ),
    TinyLane(
        name="odd",
        method=LoraMethod(rank=3, alpha=5, targets=("o_proj", "gate_proj", "k_proj")),
        optim=OptimSpec(lr=2e-3, schedule="linear", clip_norm=0.1),
        lengths=(40, 40),
        total_steps=STEPS,
    ),
    TinyLane(
        name="dropped",
        method=LoraMethod(rank=24, dropout=0.4),
        optim=OptimSpec(lr=5e-4, schedule="constant"),
        lengths=(33, 3, 21),
        total_steps=STEPS,
    ),
)
MAX_TOKENS: Final = 128
EXACT: Final = 192


@pytest.fixture(scope="module")
def decoder() -> Decoder:
    shape = msgspec.structs.replace(SHAPES["smollm2-135m"], num_layers=3)
    return random_decoder(shape, GPU, torch.bfloat16, seed=0)


def _same(ours: LaneRecord, theirs: LaneRecord) -> bool:
    pairs = zip(ours.tensors, theirs.tensors, strict=True)
    return ours.outcome == theirs.outcome and all(torch.equal(a, b) for a, b in pairs)


def test_a_lane_in_a_pack_is_the_lane_alone_bit_for_bit(decoder: Decoder) -> None:
    vocab = decoder.shape.vocab
    pack = pack_on(decoder, LANES, max_tokens=MAX_TOKENS, exact_tokens=EXACT)
    together = [step_all(pack, LANES, step, vocab) for step in range(STEPS)]
    for number, lane in enumerate(LANES):
        alone = steps_alone(decoder, lane, max_tokens=MAX_TOKENS, exact_tokens=EXACT)
        wrong = [step for step in range(STEPS) if not _same(together[step][number], alone[step])]
        assert not wrong, f"{lane.name} differs from step {wrong[0]} on"


def test_joins_and_leaves_change_no_bit_of_the_others(decoder: Decoder) -> None:
    vocab = decoder.shape.vocab
    pack = pack_on(decoder, LANES[:2], max_tokens=MAX_TOKENS, exact_tokens=EXACT)
    alone = steps_alone(decoder, LANES[0], max_tokens=MAX_TOKENS, exact_tokens=EXACT)
    for step in range(20):
        if step in (4, 9, 13):
            guest = LANES[2 + step % 3]
            if guest.name in pack.lanes:
                pack.leave(guest.name)
            else:
                pack.join(guest.name, guest.method, guest.seed)
        here = [lane for lane in LANES if lane.name in pack.lanes]
        records = step_all(pack, here, step, vocab)
        assert _same(records[0], alone[step]), step


def test_without_padding_a_lane_stays_within_the_band_of_seeds(decoder: Decoder) -> None:
    vocab = decoder.shape.vocab
    pack = pack_on(decoder, LANES, max_tokens=MAX_TOKENS)
    together = [step_all(pack, LANES, step, vocab) for step in range(STEPS)]
    for number, lane in enumerate(LANES):
        alone = steps_alone(decoder, lane, max_tokens=MAX_TOKENS)
        # Another name is another seed, of the first values and the rows.
        other = steps_alone(decoder, replace(lane, name=f"{lane.name}'"), max_tokens=MAX_TOKENS)
        losses = [run[-10:] for run in (alone, other)]
        deviation = statistics.mean(
            abs(records[number].outcome.loss.mean - one.outcome.loss.mean)
            for records, one in zip(together[-10:], losses[0], strict=True)
        )
        band = statistics.mean(
            abs(one.outcome.loss.mean - two.outcome.loss.mean)
            for one, two in zip(*losses, strict=True)
        )
        sys.stdout.write(f"{lane.name}: deviation {deviation:.6f}, seeds {band:.6f}\n")
        assert deviation < 0.5 * band


@pytest.mark.parametrize("rows", ["host", "device"])
def test_sliding_lanes_equal_resident_ones(decoder: Decoder, rows: str) -> None:
    shape = decoder.shape
    host = [layer_over(layer.flat.cpu().pin_memory(), shape) for layer in decoder.layers]
    base = Decoder(shape, decoder.embedding, host, decoder.final_norm, decoder.head)
    slide = LaneSlide(
        slots=2,
        rows="host" if rows == "host" else "device",
        max_tokens=400,
        max_micro_tokens=MAX_TOKENS,
        cpu_threads=2,
        cache=cache_folder(),
    )
    sliding = build_sliding_lanes(base, slide)
    policies: tuple[ActivationPolicy, ...] = ("recompute",) * 3
    attention = layer_attention(shape, GPU, torch.bfloat16)
    ours = Pack(base, attention, policies, MAX_TOKENS, passes=sliding.passes)
    # Rows as long as they are, as those of the sliding walk: recorded ones are filled up.
    resident = ResidentPasses(decoder, LaneDriver(decoder, attention, policies), record=False)
    theirs = Pack(decoder, attention, policies, MAX_TOKENS, passes=resident)
    try:
        for pack in (ours, theirs):
            for lane in LANES:
                pack.join(lane.name, lane.method, lane.seed)
        for step in range(10):
            pairs = zip(
                step_all(ours, LANES, step, shape.vocab),
                step_all(theirs, LANES, step, shape.vocab),
                strict=True,
            )
            for mine, its in pairs:
                assert mine.outcome.loss == its.outcome.loss, step
                # The squares of a layer are added up by another launch.
                assert mine.outcome.grad_norm == pytest.approx(its.outcome.grad_norm, rel=1e-12)
        records = [step_all(pack, LANES, 10, shape.vocab) for pack in (ours, theirs)]
        assert max(largest_difference(a, b) for a, b in _on_cpu(*records)) <= 1e-5
    finally:
        sliding.close()


def _on_cpu(
    ours: list[LaneRecord], theirs: list[LaneRecord]
) -> list[tuple[LaneRecord, LaneRecord]]:
    def moved(one: LaneRecord) -> LaneRecord:
        master, first, second = (tensor.cpu() for tensor in one.tensors)
        return LaneRecord(master, first, second, one.outcome)

    return [(moved(a), moved(b)) for a, b in zip(ours, theirs, strict=True)]


@pytest.mark.parametrize("policy", ["keep", "recompute"])
def test_a_4_bit_base_trains_as_the_widened_one(decoder: Decoder, policy: ActivationPolicy) -> None:
    shape = decoder.shape
    narrow = Nf4Layers(shape, GPU, torch.bfloat16)
    for layer in decoder.layers:
        room = layer_over(narrow.room(shape.layer_params), shape)
        room.flat.copy_(layer.flat)
        narrow.keep(room)
    four = Decoder(
        shape, decoder.embedding, narrow, decoder.final_norm, decoder.head, narrow.refetch
    )
    widened = [
        replace(
            layer,
            qkv=layer.qkv.clone(),
            o=layer.o.clone(),
            gate_up=layer.gate_up.clone(),
            down=layer.down.clone(),
        )
        for layer in narrow
    ]
    wide = Decoder(shape, decoder.embedding, widened, decoder.final_norm, decoder.head)
    packs = [pack_on(one, LANES, max_tokens=256, activations=(policy,) * 3) for one in (four, wide)]
    for step in range(5):
        ours, theirs = (step_all(pack, LANES, step, shape.vocab) for pack in packs)
        assert all(_same(a, b) for a, b in zip(ours, theirs, strict=True)), step
