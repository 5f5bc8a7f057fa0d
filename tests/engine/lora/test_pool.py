"""Ranges of the pool: where they are put, what they keep, what they take."""

import itertools

import pytest
import torch
from support.lanes import FullPool

from slidepack.engine.lora.pool import LanePool

CPU = torch.device("cpu")
DTYPES = pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16], ids=["fp64", "fp32", "bf16"]
)


class _Range:
    """A range with values of its own in every tensor."""

    def __init__(self, pool: LanePool, size: int, seed: int) -> None:
        self.pool, self.size = pool, size
        self.start = pool.take(size)
        generator = torch.Generator().manual_seed(seed)
        self.values = [
            torch.randint(-99, 99, (size,), generator=generator).to(tensor.dtype)
            for tensor in self.tensors
        ]
        for tensor, values in zip(self.tensors, self.values, strict=True):
            tensor.copy_(values)

    @property
    def tensors(self) -> list[torch.Tensor]:
        state = self.pool.state(self.start, self.size)
        grads = self.pool.grads[self.start : self.start + self.size]
        found = [state.master, state.exp_avg, state.exp_avg_sq, grads]
        return found if state.remainder is None else [*found, state.remainder]

    def is_whole(self) -> bool:
        return all(map(torch.equal, self.tensors, self.values))


@DTYPES
def test_the_others_keep_their_values_while_ranges_come_and_go(dtype: torch.dtype) -> None:
    pool = LanePool(CPU, dtype)
    generator = torch.Generator().manual_seed(0)
    resident: list[_Range] = []
    for turn in range(60):
        leaves, size = torch.randint(0, 12, (2,), generator=generator).tolist()
        if leaves < len(resident):
            pool.give_back(resident.pop(leaves).start)
        resident.append(_Range(pool, 16 * (1 + size), seed=turn))
        assert all(one.is_whole() for one in resident)
        places = sorted((one.start, one.start + one.size) for one in resident)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(places))
        assert pool.grads.numel() >= places[-1][1]
    for one in resident:
        pool.give_back(one.start)
    assert pool.num_bytes == 0


@DTYPES
def test_a_range_begins_at_zero_where_another_one_was(dtype: torch.dtype) -> None:
    pool = LanePool(CPU, dtype)
    first, second = _Range(pool, 32, seed=1), _Range(pool, 16, seed=2)
    pool.give_back(first.start)
    start = pool.take(32)
    assert start == first.start
    assert not any(tensor.any() for tensor in first.tensors)
    assert second.is_whole()


def test_gaps_are_reused_and_the_end_is_given_back() -> None:
    pool = LanePool(CPU, torch.float32)
    starts = [pool.take(size) for size in (32, 64, 16)]
    assert starts == [0, 32, 96]
    whole = pool.num_bytes
    pool.give_back(32)
    assert pool.num_bytes == whole
    assert [pool.take(size) for size in (16, 48)] == [32, 48]
    assert pool.num_bytes == whole
    assert pool.take(16) == 112
    pool.give_back(96)
    pool.give_back(112)
    assert pool.grads.numel() == 96


def test_a_gap_that_is_too_small_is_left_alone() -> None:
    pool = LanePool(CPU, torch.float32)
    first, kept = pool.take(32), _Range(pool, 16, seed=1)
    pool.give_back(first)
    assert pool.take(48) == 48
    assert pool.take(32) == 0
    assert kept.is_whole()


@pytest.mark.parametrize(
    ("dtype", "each"), [(torch.bfloat16, 16), (torch.float32, 16), (torch.float64, 32)]
)
def test_bytes_of_a_parameter(dtype: torch.dtype, each: int) -> None:
    pool = LanePool(CPU, dtype)
    assert pool.num_bytes == 0
    pool.take(160)
    pool.take(32)
    assert pool.num_bytes == 192 * each


def test_the_passes_read_weights_that_want_a_gradient() -> None:
    pool = LanePool(CPU, torch.bfloat16)
    for _ in range(2):
        pool.take(16)
        assert pool.weights.requires_grad
        assert pool.weights.dtype == torch.bfloat16
        assert pool.grads.dtype == torch.float32
        assert not pool.grads.requires_grad


@pytest.mark.parametrize("missing", ["weights", "exp_avg", "exp_avg_sq"])
def test_a_pool_that_cannot_grow_is_as_it_was(missing: str) -> None:
    pool = FullPool(CPU, torch.bfloat16)
    first, second = _Range(pool, 32, seed=1), _Range(pool, 16, seed=2)
    before = pool.num_bytes
    pool.missing = missing
    with pytest.raises(torch.OutOfMemoryError):
        pool.take(64)
    assert pool.num_bytes == before
    assert first.is_whole()
    assert second.is_whole()
    pool.missing = ""
    assert pool.take(64) == 48


class _Card(LanePool):
    """Has room for so many bytes."""

    room = 0

    def _empty(self, name: str, elements: int) -> torch.Tensor:
        tensor = super()._empty(name, elements)
        if elements and self.num_bytes + tensor.nbytes > self.room:
            raise torch.OutOfMemoryError
        return tensor


@DTYPES
def test_a_pool_grows_whole_or_not_at_all_whatever_room_there_is(dtype: torch.dtype) -> None:
    outcomes = set()
    for more in range(0, 16 * 1024, 128):
        pool = _Card(CPU, dtype)
        pool.room = 1 << 20
        ranges = [_Range(pool, 64, seed=1), _Range(pool, 32, seed=2)]
        before = pool.num_bytes
        pool.room = before + more
        try:
            pool.take(160)
        except torch.OutOfMemoryError:
            outcomes.add("as it was")
            assert pool.num_bytes == before
        else:
            outcomes.add("grown")
        assert all(one.is_whole() for one in ranges)
        assert pool.grads.shape == pool.weights.shape
    assert outcomes == {"as it was", "grown"}


@DTYPES
def test_ranges_that_were_expected_do_not_move_the_others(dtype: torch.dtype) -> None:
    pool = LanePool(CPU, dtype)
    first = _Range(pool, 32, seed=0)
    pool.reserve(3 * 64)
    assert first.is_whole()
    where = pool.weights.data_ptr()
    more = [_Range(pool, 64, seed=seed) for seed in range(1, 4)]
    assert pool.weights.data_ptr() == where
    assert all(one.is_whole() for one in (first, *more))
    # Room that nobody took is given back with the last range.
    pool.reserve(1024)
    for one in reversed(more):
        pool.give_back(one.start)
    assert pool.grads.numel() == 32
    assert first.is_whole()


def test_room_that_is_not_there_is_not_reserved() -> None:
    pool = FullPool(CPU, torch.float32)
    first = _Range(pool, 32, seed=0)
    pool.missing = "exp_avg"
    pool.reserve(64)
    assert first.is_whole()
    assert pool.grads.numel() == 32
