"""A lane among others equals the same lane alone, whatever the others do."""

import math
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest
import torch
from support.lanes import (
    WHOLE,
    LaneRecord,
    TinyLane,
    largest_difference,
    pack_on,
    record,
    steps_alone,
    tiny_decoder,
)

from slidepack.engine.contract.job import LoraMethod, OptimSpec
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.pack import Pack
from slidepack.engine.model.layers import Decoder
from slidepack.engine.worker.lane_file import load_lane, save_lane

LANES = (
    TinyLane(
        name="wide",
        method=LoraMethod(rank=24, alpha=12, dropout=0.1, targets=("k_proj", "down_proj")),
        optim=OptimSpec(lr=5e-3, warmup_fraction=0.2, weight_decay=0.1),
        lengths=(9, 6),
        total_steps=12,
    ),
    TinyLane(
        name="thin",
        method=LoraMethod(rank=1, alpha=1, rslora=True, targets=("down_proj",)),
        optim=OptimSpec(lr=1e-2, schedule="constant", warmup_fraction=0.0, clip_norm=0.0),
        lengths=(5, 1, 7),
        total_steps=12,
    ),
    TinyLane(
        name="odd",
        method=LoraMethod(rank=3, alpha=5, dropout=0.4, targets=("v_proj", "q_proj", "up_proj")),
        optim=OptimSpec(lr=3e-3, schedule="linear"),
        lengths=(21,),
        total_steps=12,
    ),
    TinyLane(
        name="all",
        method=LoraMethod(rank=8),
        optim=OptimSpec(lr=2e-3, clip_norm=5.0),
        lengths=(3, 11, 2),
        total_steps=12,
    ),
    TinyLane(
        name="narrow",
        method=LoraMethod(rank=5, alpha=40, targets=("o_proj", "gate_proj")),
        optim=OptimSpec(lr=1e-3, schedule="linear", clip_norm=0.5),
        # One token that counts: the head's product alone is that of a vector.
        lengths=(2,),
        total_steps=12,
    ),
)
_SPOILT_FROM = 4
SPOILT = TinyLane(
    name="spoilt",
    method=LoraMethod(rank=4),
    optim=OptimSpec(lr=1e-2),
    lengths=(8,),
    total_steps=1000,
)


@dataclass
class _Wandering:
    """Lanes that come and go at random between two packs, and what became of each step."""

    packs: tuple[Pack, Pack]
    lanes: tuple[TinyLane, ...]
    folder: Path
    vocab: int
    random: Random
    records: dict[str, list[LaneRecord]] = field(default_factory=dict)
    moves: int = 0
    _seats: dict[str, Pack] = field(default_factory=dict)
    _saved: dict[str, tuple[Path, str]] = field(default_factory=dict)

    def run(self) -> None:
        """Train every lane to its end, beside one whose gradient becomes NaN."""
        self.records = {lane.name: [] for lane in self.lanes}
        for pack in self.packs:
            pack.join(SPOILT.name, SPOILT.method, SPOILT.seed)
        turn = 0
        while any(self._left(lane) for lane in self.lanes):
            for lane in self.lanes:
                self._move(lane)
            for pack in self.packs:
                if turn == _SPOILT_FROM:
                    _spoil(pack.lanes[SPOILT.name])
                self._step(pack, turn)
            turn += 1
        assert turn > _SPOILT_FROM

    def _left(self, lane: TinyLane) -> int:
        return lane.total_steps - len(self.records[lane.name])

    def _move(self, lane: TinyLane) -> None:
        pack = self._seats.get(lane.name)
        if pack is None:
            if self._left(lane) and self.random.random() < 0.7:
                self._enter(lane)
        elif not self._left(lane) or self.random.random() < 0.2:
            self.moves += 1
            folder = self.folder / f"{lane.name}-{self.moves}"
            folder.mkdir()
            self._saved[lane.name] = folder, save_lane(pack.lanes[lane.name], folder)
            pack.leave(lane.name)
            del self._seats[lane.name]

    def _enter(self, lane: TinyLane) -> None:
        pack = self._seats[lane.name] = self.random.choice(self.packs)
        arena = pack.join(lane.name, lane.method, lane.seed)
        if lane.name in self._saved:
            load_lane(arena, *self._saved[lane.name])

    def _step(self, pack: Pack, turn: int) -> None:
        chosen = [
            lane
            for lane in self.lanes
            if lane.name in pack.lanes and self._left(lane) and self.random.random() < 0.8
        ]
        if not chosen:
            return
        work = {lane.name: lane.work(len(self.records[lane.name]), self.vocab) for lane in chosen}
        work[SPOILT.name] = SPOILT.work(turn, self.vocab)
        order = self.random.sample(list(work), len(work))
        outcomes = pack.step({name: work[name] for name in order})
        for lane in chosen:
            self.records[lane.name].append(record(pack.lanes[lane.name], outcomes[lane.name]))
        assert math.isnan(outcomes[SPOILT.name].grad_norm) == (turn >= _SPOILT_FROM)


def _spoil(arena: LoraArena) -> None:
    values = arena.master().clone()
    _, _, pair = next(arena.pairs(values))
    pair.b[0, 0] = float("nan")
    arena.set_master(values)


def _wander(
    decoder: Decoder,
    folder: Path,
    lanes: tuple[TinyLane, ...],
    *,
    seed: int,
    max_tokens: int,
    exact_tokens: int,
) -> dict[str, list[LaneRecord]]:
    first, second = (
        pack_on(decoder, max_tokens=max_tokens, exact_tokens=exact_tokens) for _ in range(2)
    )
    wandering = _Wandering((first, second), lanes, folder, decoder.shape.vocab, Random(seed))
    wandering.run()
    assert wandering.moves > len(lanes), "no lane was ever resumed"
    return wandering.records


@pytest.fixture(scope="module")
def narrow(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("narrow"), torch.float32)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    return tiny_decoder(tmp_path_factory.mktemp("wide"), torch.float64)


def _lanes(steps: int) -> tuple[TinyLane, ...]:
    return tuple(replace(lane, total_steps=steps) for lane in LANES)


@pytest.mark.parametrize(("steps", "seed"), [(12, 0), pytest.param(50, 1, marks=pytest.mark.full)])
@pytest.mark.parametrize(
    ("max_tokens", "exact_tokens"), [(96, 100), (44, 48)], ids=["one-row", "micro-batches"]
)
def test_exact_rows_give_the_bits_of_the_lane_alone(
    narrow: Decoder, tmp_path: Path, steps: int, seed: int, max_tokens: int, exact_tokens: int
) -> None:
    sizes = {"max_tokens": max_tokens, "exact_tokens": exact_tokens}
    records = _wander(narrow, tmp_path, _lanes(steps), seed=seed, **sizes)
    for lane in _lanes(steps):
        alone = steps_alone(narrow, lane, **sizes)
        for ours, theirs in zip(records[lane.name], alone, strict=True):
            assert ours.outcome == theirs.outcome
            assert all(map(torch.equal, ours.tensors, theirs.tensors))


@pytest.mark.parametrize(("steps", "seed"), [(6, 0), pytest.param(50, 1, marks=pytest.mark.full)])
@pytest.mark.parametrize("max_tokens", [WHOLE, 44], ids=["one-row", "micro-batches"])
def test_rows_as_long_as_they_are_differ_by_rounding_alone(
    wide: Decoder, tmp_path: Path, steps: int, seed: int, max_tokens: int
) -> None:
    sizes = {"max_tokens": max_tokens, "exact_tokens": 0}
    records = _wander(wide, tmp_path, _lanes(steps), seed=seed, **sizes)
    for lane in _lanes(steps):
        alone = steps_alone(wide, lane, **sizes)
        for ours, theirs in zip(records[lane.name], alone, strict=True):
            assert largest_difference(ours, theirs) <= 1e-12
