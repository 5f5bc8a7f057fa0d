"""A packed LoRA over a base that slides equals the resident one, bit for bit."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
import torch
from support.full_runs import cache_folder
from support.lanes import LaneRecord, TinyLane, pack_on, step_all, tiny_decoder
from support.packing import random_rows

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.pack import Pack
from slidepack.engine.model.generate import generate_greedy
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.sliding.build_lanes import LaneSlide, SlidingLanes, build_sliding_lanes

LANES = (
    TinyLane(
        name="all",
        method=LoraMethod(rank=3, alpha=5),
        optim=OptimSpec(lr=3e-3),
        lengths=(9, 30, 4),
        total_steps=6,
    ),
    TinyLane(
        name="dropped",
        method=LoraMethod(rank=8, dropout=0.1, targets=("q_proj", "v_proj")),
        optim=OptimSpec(lr=1e-3, clip_norm=0.5),
        lengths=(17, 2),
        total_steps=6,
    ),
    TinyLane(
        name="few",
        method=LoraMethod(rank=1, alpha=1, rslora=True, targets=("down_proj", "gate_proj")),
        optim=OptimSpec(lr=1e-2, weight_decay=0.1, clip_norm=0.0),
        lengths=(5, 5, 60, 7),
        total_steps=6,
    ),
)
PLAIN = (LANES[0], LANES[2])
MAX_TOKENS = 40
EVALUATED = (40, 33, 50, 12)


@pytest.fixture(
    params=[
        torch.bfloat16,
        *(pytest.param(dtype, marks=pytest.mark.full) for dtype in (torch.float32, torch.float64)),
    ],
    ids=str,
)
def decoder(request: pytest.FixtureRequest, tmp_path: Path) -> Decoder:
    return tiny_decoder(tmp_path / "base", request.param)


@pytest.fixture
def sliding() -> Iterator[list[SlidingLanes]]:
    built: list[SlidingLanes] = []
    yield built
    for one in built:
        one.close()


def _slide(
    decoder: Decoder,
    built: list[SlidingLanes],
    *,
    slots: int = 2,
    rows: Literal["device", "host"] = "host",
    max_tokens: int = 200,
    check_stop: Callable[[], None] = lambda: None,
) -> Pack:
    slide = LaneSlide(
        slots=slots,
        rows=rows,
        max_tokens=max_tokens,
        max_micro_tokens=60,
        cpu_threads=1,
        cache=cache_folder(),
    )
    built.append(build_sliding_lanes(decoder, slide, check_stop))
    attention = layer_attention(decoder.shape, decoder.device, decoder.dtype)
    policies: list[ActivationPolicy] = ["recompute"] * decoder.shape.num_layers
    return Pack(decoder, attention, policies, MAX_TOKENS, passes=built[-1].passes)


def _resident(decoder: Decoder) -> Pack:
    return pack_on(decoder, max_tokens=MAX_TOKENS, activations=("recompute",) * 3)


def _run(pack: Pack, decoder: Decoder) -> list[object]:
    """Join, step, leave, join again, evaluate; return everything that was measured."""
    seen: list[object] = []
    vocab = decoder.shape.vocab
    for lane in LANES:
        pack.join(lane.name, lane.method, lane.seed)
    for step in range(4):
        here = [lane for lane in LANES if lane.name in pack.lanes]
        seen += [_exact(record) for record in step_all(pack, here, step, vocab)]
        if step == 1:
            pack.leave("dropped")
        if step == 2:
            pack.join("dropped", LANES[1].method, LANES[1].seed)
        losses = pack.evaluate({name: random_rows(EVALUATED, vocab, seed=1) for name in pack.lanes})
        seen.append(losses)
    return seen


def _exact(record: LaneRecord) -> tuple[object, ...]:
    return (record.outcome, *(tensor.tolist() for tensor in record.tensors))


@pytest.mark.parametrize(("slots", "rows"), [(2, "host"), (3, "device")])
def test_sliding_equals_resident(
    decoder: Decoder,
    sliding: list[SlidingLanes],
    slots: int,
    rows: Literal["device", "host"],
) -> None:
    ours = _run(_slide(decoder, sliding, slots=slots, rows=rows), decoder)
    assert ours == _run(_resident(decoder), decoder)


def test_a_lane_in_the_place_of_another_sees_nothing_of_it(
    decoder: Decoder, sliding: list[SlidingLanes]
) -> None:
    vocab = decoder.shape.vocab
    # Other blocks in the same range: what lies between them was a gradient before.
    guests = [
        TinyLane(
            name=f"guest {rank}",
            method=LoraMethod(rank=rank, targets=targets),
            optim=OptimSpec(lr=1e-2, clip_norm=0.01),
            lengths=(20, 11),
            total_steps=3,
        )
        for rank, targets in ((24, ("up_proj", "o_proj")), (5, ("q_proj",)), (3, ("down_proj",)))
    ]
    seen = []
    for pack in (_slide(decoder, sliding), _resident(decoder)):
        records = []
        for guest in guests:
            pack.join(guest.name, guest.method, guest.seed)
            if "few" not in pack.lanes:
                # It stays behind the guests' range, so that this is used again.
                pack.join("few", LANES[2].method, 1)
            for step in range(2):
                records += step_all(pack, [guest], step, vocab)
            pack.leave(guest.name)
        seen.append([_exact(one) for one in records])
    assert seen[0] == seen[1]


def test_an_evaluation_longer_than_the_room_for_rows_is_cut(
    decoder: Decoder, sliding: list[SlidingLanes]
) -> None:
    pack, resident = _slide(decoder, sliding, max_tokens=60), _resident(decoder)
    losses = []
    for one in (pack, resident):
        one.join("all", LANES[0].method, 1)
        losses.append(one.evaluate({"all": random_rows(EVALUATED, decoder.shape.vocab)}))
    assert losses[0] == losses[1]
    with pytest.raises(ValueError, match="do not fit 60 tokens"):
        step_all(pack, [_long("all")], 0, decoder.shape.vocab)


def _long(name: str) -> TinyLane:
    return TinyLane(name=name, method=LANES[0].method, lengths=(30, 30, 30), total_steps=1)


def test_a_pass_that_is_abandoned_anywhere_changes_nothing(
    decoder: Decoder, sliding: list[SlidingLanes]
) -> None:
    calls, limit = 0, 10**9

    def check() -> None:
        nonlocal calls
        calls += 1
        if calls == limit:
            raise InterruptedError

    pack, resident = _slide(decoder, sliding, check_stop=check), _resident(decoder)
    for one in (pack, resident):
        for lane in PLAIN:
            one.join(lane.name, lane.method, lane.seed)
    vocab = decoder.shape.vocab
    work = {lane.name: lane.work(0, vocab) for lane in PLAIN}
    rows = {lane.name: random_rows(EVALUATED, vocab) for lane in PLAIN}
    abandoned = 0
    runs: tuple[Callable[[], object], ...] = (lambda: pack.evaluate(rows), lambda: pack.step(work))
    for run in runs:
        for stop_at in range(1, 100, 2):
            calls, limit = 0, stop_at
            try:
                run()
            except InterruptedError:
                abandoned += 1
                continue
            break
    # Each pass of a layer asks once: 3 layers, and as many micro-batches as it takes.
    assert abandoned > 10
    for lane in PLAIN:
        # The step that came through in the end is undone.
        pack.leave(lane.name)
        pack.join(lane.name, lane.method, lane.seed)
    limit = 10**9
    assert pack.evaluate(rows) == resident.evaluate(rows)
    ours, theirs = (step_all(one, PLAIN, 0, vocab) for one in (pack, resident))
    assert [_exact(record) for record in ours] == [_exact(record) for record in theirs]


def test_answers_come_from_sliding_lanes(decoder: Decoder, sliding: list[SlidingLanes]) -> None:
    pack, resident = _slide(decoder, sliding), _resident(decoder)
    lane = TinyLane(
        name="all",
        method=LoraMethod(rank=4),
        optim=OptimSpec(lr=0.05, schedule="constant", warmup_fraction=0.0),
        lengths=(20, 20),
        total_steps=9,
    )
    vocab = decoder.shape.vocab
    prompts = [row.ids for row in random_rows((5, 9), vocab, seed=3)]
    answers = []
    for one, base in ((pack, sliding[0].decoder), (resident, decoder)):
        one.join(lane.name, lane.method, lane.seed)
        attention = layer_attention(decoder.shape, decoder.device, decoder.dtype)
        found = []
        for step in range(3):
            step_all(one, [lane], step, vocab)
            for adapters in (one.adapters(("all",)), None):
                found.append(
                    generate_greedy(
                        base,
                        adapters,
                        attention,
                        prompts,
                        max_new_tokens=6,
                        stop_ids=frozenset(),
                    )
                )
        answers.append(found)
    assert answers[0] == answers[1]
    assert answers[0][-1] != answers[0][-2], "the adapter says something else than the base"


def test_an_engine_that_dies_is_heard_of(decoder: Decoder, sliding: list[SlidingLanes]) -> None:
    pack = _slide(decoder, sliding)
    pack.join("all", LANES[0].method, 1)
    step_all(pack, [LANES[0]], 0, decoder.shape.vocab)
    # Its master is of another size than its gradient: no update can be done.
    pool = sliding[0].passes._slots.pools[1]
    pool._tensors["exp_avg"] = torch.zeros(3, dtype=torch.float16)
    with pytest.raises((KeyError, RuntimeError, ValueError)):
        for step in range(1, 3):
            step_all(pack, [LANES[0]], step, decoder.shape.vocab)
