"""A pack's promises beside its numbers: who is here, what fails, what a failure leaves."""

import contextlib
import functools
import math

import pytest
import torch
from support.lanes import (
    WHOLE,
    FullPool,
    LaneRecord,
    TinyLane,
    pack_on,
    record,
    shake,
    step_all,
    tiny_decoder,
)

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.driver import LaneDriver
from slidepack.engine.lora.pack import Pack
from slidepack.engine.lora.passes import ResidentPasses
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import random_decoder

OPTIM = OptimSpec(lr=3e-3, warmup_fraction=0.0)
LANES = (
    TinyLane(
        name="a",
        method=LoraMethod(rank=3, alpha=5),
        optim=OPTIM,
        lengths=(9, 4),
        total_steps=6,
    ),
    TinyLane(
        name="b",
        method=LoraMethod(rank=8, targets=("q_proj", "down_proj")),
        optim=OPTIM,
        lengths=(17,),
        total_steps=6,
    ),
)
LATE = TinyLane(name="late", method=LoraMethod(rank=24), optim=OPTIM, lengths=(5,), total_steps=6)


@pytest.fixture(scope="module")
def decoder(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("pack"), torch.float32)


def _same(ours: list[LaneRecord], theirs: list[LaneRecord]) -> bool:
    return all(
        a.outcome == b.outcome and all(map(torch.equal, a.tensors, b.tensors))
        for a, b in zip(ours, theirs, strict=True)
    )


def test_a_lane_that_comes_and_goes_changes_nothing_for_the_others(decoder: Decoder) -> None:
    vocab = decoder.shape.vocab
    pack, undisturbed = pack_on(decoder, LANES), pack_on(decoder, LANES)
    for step in range(6):
        if step in (2, 4):
            # The pool grows, and everything in it moves.
            pack.join(LATE.name, LATE.method, LATE.seed)
        if step in (3, 5):
            pack.leave(LATE.name)
        assert _same(step_all(pack, LANES, step, vocab), step_all(undisturbed, LANES, step, vocab))


@pytest.mark.parametrize("guess", ["right", "another-lane", "another-step", "before-a-join"])
def test_rows_that_are_prepared_change_nothing(decoder: Decoder, guess: str) -> None:
    vocab = decoder.shape.vocab
    pack, undisturbed = pack_on(decoder, LANES), pack_on(decoder, LANES)
    for step in range(4):
        prepared = LANES[:1] if guess == "another-lane" else LANES
        ahead = 2 if guess == "another-step" else 1
        guessed = {lane.name: lane.work(step + ahead, vocab) for lane in prepared}
        outcomes = pack.step(
            {lane.name: lane.work(step, vocab) for lane in LANES},
            functools.partial(pack.prepare, guessed),
        )
        ours = [record(pack.lanes[lane.name], outcomes[lane.name]) for lane in LANES]
        assert _same(ours, step_all(undisturbed, LANES, step, vocab))
        if guess == "before-a-join" and step == 1:
            pack.join(LATE.name, LATE.method, LATE.seed)


def _pack_in_a_pool(decoder: Decoder) -> tuple[Pack, FullPool]:
    attention = layer_attention(decoder.shape, decoder.device, decoder.dtype)
    passes = ResidentPasses(decoder, LaneDriver(decoder, attention, ("keep",) * 3))
    pool = FullPool(decoder.device, decoder.dtype)
    passes.pool = pool
    return Pack(decoder, attention, ("keep",) * 3, WHOLE, passes=passes), pool


@pytest.mark.parametrize("missing", ["weights", "grads", "exp_avg_sq"])
def test_a_join_without_room_leaves_the_pack_as_it_was(decoder: Decoder, missing: str) -> None:
    vocab = decoder.shape.vocab
    pack, pool = _pack_in_a_pool(decoder)
    undisturbed, other_pool = _pack_in_a_pool(decoder)
    for one in (undisturbed, pack):
        for lane in LANES:
            one.join(lane.name, lane.method, lane.seed)
    for step in range(6):
        if step in (0, 2):
            pool.missing = missing
            with pytest.raises(torch.OutOfMemoryError):
                pack.join(LATE.name, LATE.method, LATE.seed)
            pool.missing = ""
            assert list(pack.lanes) == ["a", "b"]
            assert pool.num_bytes == other_pool.num_bytes
        assert _same(step_all(pack, LANES, step, vocab), step_all(undisturbed, LANES, step, vocab))
    pack.join(LATE.name, LATE.method, LATE.seed)
    assert list(pack.lanes) == ["a", "b", "late"]


def test_a_join_that_cannot_begin_leaves_the_pack_as_it_was(
    decoder: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    vocab = decoder.shape.vocab
    pack, pool = _pack_in_a_pool(decoder)
    for lane in LANES:
        pack.join(lane.name, lane.method, lane.seed)
    undisturbed = pack_on(decoder, LANES)
    before = pool.num_bytes
    for step in range(4):
        if step == 1:
            with monkeypatch.context() as patched, pytest.raises(torch.OutOfMemoryError):
                patched.setattr(LoraArena, "set_master", _no_room)
                pack.join(LATE.name, LATE.method, LATE.seed)
            assert list(pack.lanes) == ["a", "b"]
            assert pool.num_bytes == before
        assert _same(step_all(pack, LANES, step, vocab), step_all(undisturbed, LANES, step, vocab))


def _no_room(arena: LoraArena, values: torch.Tensor) -> None:
    raise torch.OutOfMemoryError


@pytest.mark.parametrize("missing", ["weights", "grads", "exp_avg_sq"])
def test_a_leave_without_room_to_move_the_others_changes_nothing_for_them(
    decoder: Decoder, missing: str
) -> None:
    vocab = decoder.shape.vocab
    pack, pool = _pack_in_a_pool(decoder)
    for lane in (*LANES, LATE):
        pack.join(lane.name, lane.method, lane.seed)
    undisturbed = pack_on(decoder, LANES)
    for step in range(4):
        if step == 1:
            pool.missing = missing
            with contextlib.suppress(torch.OutOfMemoryError):
                pack.leave(LATE.name)
            pool.missing = ""
            assert list(pack.lanes) == ["a", "b"]
        assert _same(step_all(pack, LANES, step, vocab), step_all(undisturbed, LANES, step, vocab))


class _Failing:
    """Runs out of memory at one of the calls to come."""

    def __init__(self) -> None:
        self.calls_left = 0

    def __call__(self) -> None:
        self.calls_left -= 1
        if self.calls_left == 0:
            raise torch.OutOfMemoryError


@pytest.mark.parametrize("call", [1, 6, 7, 12], ids=["first", "backward", "second", "last"])
def test_a_step_that_fails_changes_no_lane_and_can_be_done_again(
    decoder: Decoder, call: int
) -> None:
    vocab = decoder.shape.vocab
    failing = _Failing()
    # Two micro-batches of three layers, each passed twice.
    pack = pack_on(decoder, LANES, max_tokens=17, check_stop=failing)
    undisturbed = pack_on(decoder, LANES, max_tokens=17)
    assert _same(step_all(pack, LANES, 0, vocab), step_all(undisturbed, LANES, 0, vocab))
    failing.calls_left = call
    before = [arena.master().clone() for arena in pack.lanes.values()]
    with pytest.raises(torch.OutOfMemoryError):
        step_all(pack, LANES, 1, vocab)
    assert all(
        torch.equal(arena.master(), master)
        for arena, master in zip(pack.lanes.values(), before, strict=True)
    )
    assert _same(step_all(pack, LANES, 1, vocab), step_all(undisturbed, LANES, 1, vocab))


def test_lanes_that_a_step_does_not_name_are_left_alone(decoder: Decoder) -> None:
    vocab = decoder.shape.vocab
    pack = pack_on(decoder, (*LANES, LATE))
    step_all(pack, (*LANES, LATE), 0, vocab)
    arena = pack.lanes["b"]
    before = [tensor.clone() for tensor in (arena.master(), *arena.moments())]
    assert set(pack.step({lane.name: lane.work(1, vocab) for lane in (LATE, LANES[0])})) == {
        "late",
        "a",
    }
    assert all(map(torch.equal, before, (arena.master(), *arena.moments())))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_gradient_that_is_no_number_changes_nothing(
    decoder: Decoder, dtype: torch.dtype, bad: float
) -> None:
    vocab = decoder.shape.vocab
    base = random_decoder(decoder.shape, decoder.device, dtype, seed=0)
    pack = pack_on(base, LANES)
    step_all(pack, LANES, 0, vocab)
    arena = pack.lanes["a"]
    healthy = arena.master().clone()
    spoilt = healthy.clone()
    spoilt[0] = bad
    arena.set_master(spoilt)
    before = [tensor.clone() for tensor in arena.moments()]
    spoilt_before = arena.master().clone()
    (outcome, _) = (one.outcome for one in step_all(pack, LANES, 1, vocab))
    assert not math.isfinite(outcome.grad_norm)
    assert torch.equal(arena.master().nan_to_num(), spoilt_before.nan_to_num())
    assert all(map(torch.equal, arena.moments(), before))
    # The next gradient has nothing of it.
    arena.set_master(healthy)
    (outcome, _) = (one.outcome for one in step_all(pack, LANES, 2, vocab))
    assert math.isfinite(outcome.grad_norm)
    assert arena.is_finite()
    assert not torch.equal(arena.master(), healthy)


def test_evaluation_gives_each_lane_its_own_loss(decoder: Decoder) -> None:
    lanes = (*LANES, LATE)
    rows = {lane.name: lane.work(0, decoder.shape.vocab).rows for lane in lanes}

    def shaken(*chosen: TinyLane) -> Pack:
        pack = pack_on(decoder, chosen, max_tokens=20, exact_tokens=21)
        for arena in pack.lanes.values():
            shake(arena)
        return pack

    together = shaken(*lanes).evaluate(rows)
    for lane in lanes:
        assert shaken(lane).evaluate({lane.name: rows[lane.name]})[lane.name] == together[lane.name]
    assert len({loss.mean for loss in together.values()}) == len(lanes)


def test_a_lane_joins_once(decoder: Decoder) -> None:
    pack = pack_on(decoder, LANES)
    with pytest.raises(ValueError, match="a is in the pack already"):
        pack.join("a", LATE.method, 0)
    pack.leave("a")
    assert list(pack.lanes) == ["b"]
    pack.join("a", LATE.method, 0)
    assert list(pack.lanes) == ["b", "a"]


def test_a_pack_that_is_left_by_all_holds_nothing(decoder: Decoder) -> None:
    pack, pool = _pack_in_a_pool(decoder)
    for lane in LANES:
        pack.join(lane.name, lane.method, lane.seed)
    step_all(pack, LANES, 0, decoder.shape.vocab)
    for lane in LANES:
        pack.leave(lane.name)
    assert pool.num_bytes == 0


@pytest.mark.parametrize("exact_tokens", [1, 63])
def test_exact_rows_without_room_for_a_micro_batch_are_refused(
    decoder: Decoder, exact_tokens: int
) -> None:
    with pytest.raises(ValueError, match="use 64 or more"):
        pack_on(decoder, max_tokens=64, exact_tokens=exact_tokens)
