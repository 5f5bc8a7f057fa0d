"""Rows between the layers: whatever the order of the calls, the last rows put come back."""

import pytest
import torch
from torch import Tensor

from slidepack.engine.sliding.rows import DeviceRows, HostRows, Rows
from slidepack.engine.sliding.streams import Streams

CPU = torch.device("cpu")
LEVELS, WIDTH = 3, 4
SIZES = (5, 1, 7, 3)


def _host_rows(*, buffers: int = 6, max_tokens: int = 20, max_micro_tokens: int = 8) -> HostRows:
    return HostRows(
        levels=LEVELS,
        max_tokens=max_tokens,
        max_micro_tokens=max_micro_tokens,
        width=WIDTH,
        dtype=torch.float32,
        device=CPU,
        streams=Streams.of(CPU),
        buffers=buffers,
    )


def _make(kind: str) -> Rows:
    return DeviceRows() if kind == "device" else _host_rows(buffers=2).begin(SIZES)


def _values(key: tuple[int, int], version: int = 0) -> Tensor:
    level, micro = key
    generator = torch.Generator().manual_seed(1000 * version + 10 * (level + 1) + micro)
    return torch.randn(SIZES[micro], WIDTH, generator=generator)


KEYS = [(level, micro) for level in range(LEVELS + 1) for micro in range(len(SIZES))]


@pytest.mark.parametrize("kind", ["device", "host"])
def test_rows_of_different_sizes_come_back(kind: str) -> None:
    rows = _make(kind)
    for key in KEYS:
        rows.put(key, _values(key))
    for key in reversed(KEYS):
        rows.prefetch(key)
        assert torch.equal(rows.get(key), _values(key)), key
        rows.rest(key)
    for key in KEYS:
        assert torch.equal(rows.get(key), _values(key)), key
        rows.drop(key)


@pytest.mark.parametrize("kind", ["device", "host"])
def test_a_prefetch_before_a_put_is_not_returned(kind: str) -> None:
    rows = _make(kind)
    for key in KEYS:
        rows.put(key, _values(key))
    for key in KEYS[:4]:
        # These are in host memory only by now, so that this fills a buffer.
        rows.prefetch(key)
        rows.put(key, _values(key, version=1))
        for other in KEYS[-4:]:
            # Puts the copy just made behind the last few, which are still at hand.
            rows.put(other, _values(other))
        assert torch.equal(rows.get(key), _values(key, version=1))
        rows.rest(key)


def test_a_step_that_was_abandoned_keeps_no_buffer() -> None:
    rows = _host_rows(buffers=2).begin(SIZES)
    for key in KEYS:
        rows.put(key, _values(key))
    for key in ((0, 2), (0, 3)):
        rows.get(key)
    # The next step has fewer micro-batches: nothing takes the place of those that were read.
    rows.begin(SIZES[:1])
    for level in range(LEVELS + 1):
        rows.put((level, 0), _values((level, 0), version=1))
    assert torch.equal(rows.get((0, 0)), _values((0, 0), version=1))
    assert torch.equal(rows.get((1, 0)), _values((1, 0), version=1))


@pytest.mark.parametrize("kind", ["device", "host"])
def test_the_gradient_takes_the_place_of_the_last_output(kind: str) -> None:
    rows = _make(kind)
    for key in KEYS:
        rows.put(key, _values(key))
    for micro in range(len(SIZES)):
        assert torch.equal(rows.get((LEVELS, micro)), _values((LEVELS, micro)))
        rows.drop((LEVELS, micro))
        rows.put((-1, micro), _values((-1, micro)))
    for version in (1, 2):
        for micro in range(len(SIZES)):
            assert torch.equal(rows.get((-1, micro)), _values((-1, micro), version - 1))
            assert torch.equal(rows.get((1, micro)), _values((1, micro)))
            rows.drop((-1, micro))
            rows.rest((1, micro))
            rows.put((-1, micro), _values((-1, micro), version))
    for key in KEYS[: -len(SIZES)]:
        assert torch.equal(rows.get(key), _values(key))
        rows.drop(key)


def test_rows_are_kept_in_host_memory_not_as_they_were_put() -> None:
    rows = _host_rows(buffers=2).begin(SIZES)
    put = {key: _values(key) for key in KEYS}
    for key, value in put.items():
        rows.put(key, value)
    for value in list(put.values())[:4]:
        # Their copies are long done; the memory is the walk's again.
        value.fill_(torch.nan)
    for key in KEYS[:4]:
        assert torch.equal(rows.get(key), _values(key))
        rows.rest(key)


def test_a_prefetch_without_a_free_buffer_does_nothing() -> None:
    rows = _host_rows(buffers=2).begin(SIZES)
    for key in KEYS:
        rows.put(key, _values(key))
    held = [rows.get((0, 0)), rows.get((0, 2))]
    rows.prefetch((0, 3))
    assert torch.equal(held[0], _values((0, 0)))
    assert torch.equal(held[1], _values((0, 2)))
    rows.drop((0, 0))
    assert torch.equal(rows.get((0, 3)), _values((0, 3)))
    assert torch.equal(held[1], _values((0, 2)))


def test_get_takes_a_prefetched_buffer_before_one_that_is_read() -> None:
    rows = _host_rows(buffers=2).begin(SIZES)
    for key in KEYS:
        rows.put(key, _values(key))
    held = rows.get((0, 0))
    rows.prefetch((0, 1))
    assert torch.equal(rows.get((0, 2)), _values((0, 2)))
    assert torch.equal(held, _values((0, 0)))


def test_nothing_of_a_step_is_seen_in_the_next() -> None:
    rows = _host_rows(buffers=2)
    for version in range(3):
        rows.begin(SIZES)
        for key in KEYS:
            rows.put(key, _values(key, version))
        for key in KEYS[:6]:
            rows.get(key)
            rows.prefetch(key)
            rows.drop(key)
        rows.prefetch((0, 0))
    # Another cut of the tokens: places begin elsewhere.
    rows.begin((2, 8))
    two, eight = torch.ones(2, WIDTH), torch.full((8, WIDTH), 8.0)
    for level in range(LEVELS + 1):
        rows.put((level, 0), two + level)
        rows.put((level, 1), eight + level)
    for level in range(LEVELS + 1):
        for micro, value in enumerate((two, eight)):
            assert torch.equal(rows.get((level, micro)), value + level)
            rows.drop((level, micro))


def test_rows_that_come_next_stay_as_they_were_put() -> None:
    rows = _host_rows(buffers=4).begin(SIZES)
    put = {key: _values(key) for key in KEYS[:12]}
    for key in KEYS[:4]:
        rows.put(key, put[key])
    # Level 0's first one would be the first to go.
    rows.prefetch((0, 0))
    for key in KEYS[4:7]:
        rows.put(key, put[key])
    assert rows.get((0, 0)).data_ptr() == put[0, 0].data_ptr()
    rows.rest((0, 0))
    rows.put((1, 3), put[1, 3])
    assert rows.get((0, 0)).data_ptr() != put[0, 0].data_ptr()
    assert torch.equal(rows.get((0, 0)), put[0, 0])


def test_rows_that_were_read_go_before_those_that_were_not() -> None:
    rows = _host_rows(buffers=4).begin(SIZES)
    put = {key: _values(key) for key in KEYS}
    for key in KEYS[:4]:
        rows.put(key, put[key])
    rows.rest((0, 1))
    rows.put((1, 0), put[1, 0])
    assert rows.get((0, 0)).data_ptr() == put[0, 0].data_ptr()
    assert rows.get((0, 1)).data_ptr() != put[0, 1].data_ptr()
    rows.rest((0, 1))
    # Put just now, it may still be on its way: those that are done go before it.
    rows.rest((1, 0))
    rows.put((1, 1), put[1, 1])
    assert rows.get((0, 0)).data_ptr() != put[0, 0].data_ptr()
    assert rows.get((1, 0)).data_ptr() == put[1, 0].data_ptr()


def test_what_has_been_free_for_longest_is_filled_first() -> None:
    rows = _host_rows(buffers=3).begin(SIZES)
    for key in KEYS:
        rows.put(key, _values(key))
    one, two, three = (rows.get((0, micro)).data_ptr() for micro in range(3))
    for micro in (1, 2, 0):
        rows.rest((0, micro))
    assert [rows.get((1, micro)).data_ptr() for micro in range(3)] == [two, three, one]


@pytest.mark.parametrize(
    ("sizes", "words"),
    [((8, 8, 5), "do not fit 20 tokens"), ((9,), "8 at a time"), ((3, 9), "8 at a time")],
    ids=["step", "micro-batch", "second"],
)
def test_too_many_tokens_are_refused(sizes: tuple[int, ...], words: str) -> None:
    rows = _host_rows()
    with pytest.raises(ValueError, match=words):
        rows.begin(sizes)
    rows.begin((8, 8, 4)).put((0, 2), torch.ones(4, WIDTH))
    assert rows.get((0, 2)).eq(1).all()


@pytest.mark.parametrize("seed", range(20))
def test_no_order_of_calls_returns_stale_rows(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    buffers = 2 + pick(4)
    rows = _host_rows(buffers=buffers).begin(SIZES)
    keys = KEYS[: -len(SIZES)]
    truth: dict[tuple[int, int], Tensor] = {}
    read: dict[tuple[int, int], Tensor] = {}
    for version in range(600):
        key = keys[pick(len(keys))]
        match pick(4):
            case 0 if key not in read:
                truth[key] = _values(key, version)
                rows.put(key, truth[key])
            case 1 if key in truth:
                rows.prefetch(key)
            case 2 if key in truth and len(read) < buffers:
                read[key] = rows.get(key)
            case 3 if read:
                done = list(read)[pick(len(read))]
                read.pop(done)
                if pick(2):
                    rows.rest(done)
                else:
                    rows.drop(done)
        for one, found in read.items():
            assert torch.equal(found, truth[one])
