"""Walks over rows in host memory: most are read as they were put, the others come in time."""

from pathlib import Path
from typing import Self

import pytest
import torch
from support.full_runs import CPU, Recipe, cache_folder, family, rows_of, settings_of, state_of
from support.full_walk import capturing
from support.lanes import TinyLane, pack_on, step_all, tiny_decoder
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.lora.pack import Pack
from slidepack.engine.model.batch import PackedBatch, pack_rows
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.build_lanes import LaneSlide, build_sliding_lanes
from slidepack.engine.sliding.rows import GRADIENT, HostRows
from slidepack.engine.sliding.streams import Streams

MICRO = 8
MICRO_TOKENS = 30
SPARED = 1
"""Place of a row that is still on its way to the host when a walk turns."""


class _Recorded(HostRows):
    """Holds a walk to rows that are there, and notes what it got, and how."""

    def __init__(self, shape: ModelShape, dtype: torch.dtype, buffers: int) -> None:
        super().__init__(
            levels=shape.num_layers,
            max_tokens=MICRO * MICRO_TOKENS,
            max_micro_tokens=MICRO_TOKENS,
            width=shape.hidden,
            dtype=dtype,
            device=CPU,
            streams=Streams.of(CPU),
            buffers=buffers,
        )
        self._put: dict[tuple[int, int], Tensor] = {}
        self.reads: list[tuple[int, int]] = []
        self.fetched: list[bool] = []
        self.late: list[tuple[int, int]] = []

    def started(self, micro_tokens: list[int]) -> Self:
        self.__dict__.update(_put={}, reads=[], fetched=[], late=[])
        return self.begin(micro_tokens)

    def put(self, key: tuple[int, int], rows: Tensor) -> None:
        super().put(key, rows)
        self._put[key] = rows
        assert len(self._outgoing) <= len(self._buffers)

    def prefetch(self, key: tuple[int, int]) -> None:
        assert key in self._put, f"{key} is not there"
        super().prefetch(key)

    def get(self, key: tuple[int, int]) -> Tensor:
        if self._find(key) is None and self._find_outgoing(key) is None:
            self.late.append(key)
        found = super().get(key)
        assert torch.equal(found, self._put[key])
        self.reads.append(key)
        self.fetched.append(found.data_ptr() != self._put[key].data_ptr())
        return found

    def drop(self, key: tuple[int, int]) -> None:
        super().drop(key)
        self._put.pop(key, None)

    def fetches(self, level: int, walk: slice) -> int:
        """Return how many of a level's rows were fetched in a part of the reads."""
        both = zip(self.reads[walk], self.fetched[walk], strict=True)
        return sum(fetched for key, fetched in both if key[0] == level)


def _batches(shape: ModelShape, count: int) -> list[PackedBatch]:
    groups = (rows_of(shape, 1) + rows_of(shape, 2))[:count]
    return [pack_rows(group, shape, CPU, torch.float32) for group in groups]


@pytest.mark.parametrize(("count", "buffers"), [(8, 6), (8, 4), (5, 4), (4, 6), (1, 6)])
def test_a_full_step_fetches_what_there_is_no_place_for(count: int, buffers: int) -> None:
    model, shape = family("llama", True)
    state = state_of(model, shape, Recipe())
    batches = _batches(shape, count)
    results, grads = [], []
    rows = _Recorded(shape, torch.float32, buffers)
    for keep_on_host in (False, True):
        driver, capture = capturing(shape, state, Recipe(slots=2))
        if keep_on_host:
            driver._rows = lambda some: rows.started([one.num_tokens for one in some])
        for step in (1, 2):
            result = driver.train_step(batches, settings_of(step, Recipe()), 0.0)
        results.append(result)
        grads.append(capture.grads)
    assert results[0] == results[1]
    assert all(torch.equal(grads[0][unit], grads[1][unit]) for unit in grads[0])

    expected = max(0, count - (buffers - SPARED))
    upwards = slice(0, (shape.num_layers + 1) * count)
    for level in range(shape.num_layers + 1):
        assert rows.fetches(level, upwards) == expected, level
    # The embedding reads layer 0's gradients, and puts none in their place.
    downwards, at_the_end = slice(upwards.stop, -count), slice(-count, None)
    assert rows.fetches(GRADIENT, downwards) == expected * shape.num_layers
    assert rows.fetches(GRADIENT, at_the_end) == max(0, count - buffers)
    if buffers == 6:
        assert rows.late == []


def test_the_order_of_a_full_step_is_that_of_the_levels_alone() -> None:
    model, shape = family("llama", True)
    state = state_of(model, shape, Recipe())
    rows = _Recorded(shape, torch.float32, 6)
    driver, _ = capturing(shape, state, Recipe(slots=2))
    driver._rows = lambda some: rows.started([one.num_tokens for one in some])
    driver.train_step(_batches(shape, 3), settings_of(1, Recipe()), 0.0)
    falling, rising = [2, 1, 0], [0, 1, 2]
    layers = range(shape.num_layers)
    expected = [(level, micro) for level in layers for micro in (falling, rising)[level % 2]]
    top = shape.num_layers
    expected += [(top, micro) for micro in (falling, rising)[top % 2]]
    for level in reversed(layers):
        for micro in (falling, rising)[level % 2]:
            expected += [(level, micro), (GRADIENT, micro)]
    assert rows.reads == expected + [(GRADIENT, micro) for micro in rising]


def test_lanes_find_rows_on_the_way_up_and_the_first_gradients(tmp_path: Path) -> None:
    decoder = tiny_decoder(tmp_path / "base", torch.bfloat16)
    lane = TinyLane(
        name="one", method=LoraMethod(rank=3), lengths=(MICRO_TOKENS,) * MICRO, total_steps=3
    )
    slide = LaneSlide(
        slots=2,
        rows="device",
        max_tokens=MICRO * MICRO_TOKENS,
        max_micro_tokens=MICRO_TOKENS,
        cpu_threads=1,
        cache=cache_folder(),
    )
    lanes = build_sliding_lanes(decoder, slide)
    rows = _Recorded(decoder.shape, torch.bfloat16, 6)
    lanes.passes._rows = lambda sizes: rows.started(list(sizes))
    attention = layer_attention(decoder.shape, CPU, decoder.dtype)
    layers = decoder.shape.num_layers
    policies: list[ActivationPolicy] = ["recompute"] * layers
    try:
        ours = Pack(decoder, attention, policies, MICRO_TOKENS, passes=lanes.passes)
        resident = pack_on(decoder, max_tokens=MICRO_TOKENS, activations=policies)
        for pack in (ours, resident):
            pack.join(lane.name, lane.method, lane.seed)
        for step in range(2):
            (mine,) = step_all(ours, [lane], step, decoder.shape.vocab)
            (its,) = step_all(resident, [lane], step, decoder.shape.vocab)
            assert mine.outcome == its.outcome
            assert all(map(torch.equal, mine.tensors, its.tensors))
    finally:
        lanes.close()
    upwards = slice(0, (layers + 1) * MICRO)
    for level in range(layers + 1):
        assert rows.fetches(level, upwards) == MICRO - (6 - SPARED), level
    assert next(key for key in rows.reads[upwards] if key[0] == layers) == (layers, MICRO - 1)
    last = slice(upwards.stop, upwards.stop + 2 * MICRO)
    assert [key[1] for key in rows.reads[last]][::2] == list(range(MICRO))
    assert rows.fetches(GRADIENT, last) == MICRO - (6 - SPARED)
    assert rows.late == []
