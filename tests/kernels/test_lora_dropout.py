"""Dropout of the adapters' input: the generator, its mask, and gradients through it."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from support.lora_cases import Lane, LoraCase, draw
from support.lora_judges import assert_close, assert_equal, drop_ones, expected, kept_of
from torch import Tensor

from slidepack.kernels import LoraDropout, dropout_tables
from slidepack.kernels.lora.dropout import drop, keep_mask
from slidepack.kernels.lora.philox import philox

F64 = torch.float64
SITE = 3
LANES = (
    Lane(key=0, ranks=(4, 2), tokens=23, rate=0.5),
    Lane(key=1, ranks=(0, 3), tokens=7, rate=0.0),
    Lane(key=2, ranks=(130, 8), tokens=31, rate=0.25),
    Lane(key=3, ranks=(1, 1), tokens=1, rate=0.1),
)
PACK = LoraCase(name="pack", in_width=22, part_widths=(9, 6), lanes=LANES, dropout=True)
EXACT = replace(PACK, integers=True)
"""A sum in another order is the same: only another mask or another token would not be."""


@pytest.mark.parametrize(
    ("seed", "counters", "words"),
    [
        (0, [0] * 4, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
        (2**64 - 1, [2**32 - 1] * 4, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
        (
            0x299F31D0A4093822,
            [0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344],
            "d16cfe09 94fdcceb 5001e420 24126ea1",
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_known_answers(seed: int, counters: list[int], words: str) -> None:
    """The vectors of philox4x32-10 in Random123's `kat_vectors`."""
    column, row, more_of_row = (np.array([word], dtype=np.uint64) for word in counters[:3])
    found = philox(seed, column, row, more_of_row, counters[3])
    assert " ".join(f"{word:08x}" for word in found[0, 0]) == words
    assert " ".join(f"{word:08x}" for word in _philox_ref(seed, tuple(counters))) == words


def _philox_ref(seed: int, counter: tuple[int, ...]) -> list[int]:
    """The published rounds, one counter at a time."""
    c0, c1, c2, c3 = counter
    k0, k1 = seed % 2**32, seed >> 32
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = b >> 32 ^ c1 ^ k0, b % 2**32, a >> 32 ^ c3 ^ k1, a % 2**32
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return [c0, c1, c2, c3]


@pytest.mark.parametrize("width", [1, 4, 10, 403])
def test_a_feature_takes_one_of_the_four_words_of_its_block(width: int) -> None:
    """The layout that a checkpoint's resumed run depends on."""
    draws = random.Random(width)
    for rate in (1e-9, 0.5, 1 - 2**-53):
        seed, site = draws.randrange(2**63), draws.randrange(2**31)
        samples, positions = ([draws.randrange(2**31) for _ in range(5)] for _ in range(2))
        kept = keep_mask(_dropout(seed, rate, samples, positions), 0, slice(1, 5), site, width)
        for row in range(1, 5):
            blocks = range(-(-width // 4))
            counters = [(block, positions[row], samples[row], site) for block in blocks]
            words = [word for counter in counters for word in _philox_ref(seed, counter)][:width]
            assert kept[row - 1].tolist() == [word >= int(rate * 2**32) for word in words]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_mask_in_stretches_is_the_mask(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dropout = _dropout(5, 0.5, [3] * 61, list(range(61)))
    whole = keep_mask(dropout, 0, slice(0, 61), SITE, 22)
    monkeypatch.setattr("slidepack.kernels.lora.dropout._COUNTERS", 50)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert torch.equal(keep_mask(dropout, 0, slice(0, 61), SITE, 22), whole)


def _dropout(seed: int, rate: float, samples: list[int], positions: list[int]) -> LoraDropout:
    counters = [torch.tensor(values, dtype=torch.int32) for values in (samples, positions)]
    return dropout_tables([seed], [rate], *counters)


def _mask(*, seed: int = 1, sample: int = 0, position: int = 0, site: int = 0) -> Tensor:
    dropout = _dropout(seed, 0.5, [sample], [position])
    return keep_mask(dropout, 0, slice(0, 1), site, 256)


def test_every_key_makes_another_mask() -> None:
    masks = [
        _mask(),
        _mask(seed=2),
        _mask(seed=1 + 2**32),
        _mask(sample=1),
        _mask(position=1),
        _mask(site=1),
        _mask(position=2**20),
    ]
    assert torch.equal(_mask(), masks[0])
    for first in range(len(masks)):
        for second in range(first):
            # Of 256 elements half differ, 8 at random either way.
            differing = int((masks[first] ^ masks[second]).sum())
            assert abs(differing - 128) < 4 * 8, (first, second)


@pytest.mark.parametrize("rate", [0.0, 1e-4, 0.05, 0.5, 0.9])
def test_the_rate_is_kept(rate: float) -> None:
    tokens, width = 500, 403
    samples = [token // 10 for token in range(tokens)]
    positions = [token % 10 for token in range(tokens)]
    kept = keep_mask(_dropout(7, rate, samples, positions), 0, slice(0, tokens), SITE, width)
    sigma = (rate * (1 - rate)) ** 0.5
    # All elements, then those of each feature: at 4 sigma, 1 of 16,000 is outside; 6 for them all.
    count = tokens * width
    assert abs(float(kept.double().mean()) - (1 - rate)) <= 4 * sigma / count**0.5
    by_feature = kept.double().mean(dim=0) - (1 - rate)
    assert float(by_feature.abs().max()) <= 6 * max(sigma / tokens**0.5, 1 / tokens * (rate > 0))


@pytest.mark.parametrize("index", range(4))
def test_a_lane_in_a_pack_is_the_lane_alone(index: int) -> None:
    packed, alone = draw(EXACT).row(F64), draw(EXACT.alone(index)).row(F64)
    assert packed.dropout is not None
    assert alone.dropout is not None
    rows = packed.tables.rows(index)
    assert torch.equal(
        keep_mask(packed.dropout, index, rows, SITE, 22),
        keep_mask(alone.dropout, 0, alone.tables.rows(0), SITE, 22),
    )
    assert_equal([packed.run(fused=False)[index]], alone.run(fused=False))


def test_two_micro_batches_drop_what_one_drops() -> None:
    whole = draw(EXACT).row(F64).run(fused=False)
    # Cut within a sample; the second half comes in another order of lanes.
    first = replace(EXACT, lanes=tuple(replace(lane, end=lane.tokens // 2) for lane in LANES))
    rest = [replace(lane, first=lane.tokens // 2) for lane in LANES]
    second = replace(EXACT, lanes=tuple(reversed(rest)))
    halves = [draw(half).row(F64).run(fused=False) for half in (first, second)]
    for lane, early, late in zip(whole, halves[0], reversed(halves[1]), strict=True):
        for name, tensor in lane.items():
            joined = (
                torch.cat((early[name], late[name]))
                if name in ("y", "dx")
                else early[name] + late[name]
            )
            assert torch.equal(joined, tensor), name


def test_gradients_equal_autograd_of_the_masked_formula() -> None:
    row = draw(PACK).row(F64)
    ours = row.run(fused=False)
    assert_close(ours, expected(row), 1e-13)
    undropped = draw(replace(PACK, dropout=False)).row(F64).run(fused=False)
    assert not torch.equal(ours[0]["a0"], undropped[0]["a0"])
    # Another linear of the model drops other elements.
    elsewhere = draw(replace(PACK, site=SITE + 1)).row(F64).run(fused=False)
    assert not torch.equal(ours[0]["a0"], elsewhere[0]["a0"])


def test_a_lane_without_dropout_is_untouched_by_its_neighbours() -> None:
    with_dropout = draw(PACK).row(F64).run(fused=False)
    without = draw(replace(PACK, dropout=False)).row(F64).run(fused=False)
    assert_equal([with_dropout[1]], [without[1]])


def test_the_three_operations_drop_the_same() -> None:
    lanes = tuple(replace(lane, ranks=(1,)) for lane in LANES)
    row = draw(replace(PACK, part_widths=(4,), lanes=lanes)).row(F64)
    kept = kept_of(row)
    for found, true in zip(drop_ones(row, fused=False), kept, strict=True):
        assert torch.equal(found, true)


@pytest.mark.parametrize("most", [0, 60, 1 << 20], ids=["none", "some", "all"])
def test_masks_that_are_kept_change_nothing(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slidepack.kernels.lora.dropout._KEPT_BYTES", most)
    row = draw(PACK).row(F64)
    assert row.dropout is not None
    ones = torch.ones_like(row.x)
    for last in (False, False, True):
        for index in range(len(LANES)):
            rows = row.tables.rows(index)
            found = drop(ones[rows], row.dropout, index, rows, SITE, last=last)
            assert torch.equal(found, keep_mask(row.dropout, index, rows, SITE, 22).to(F64))
        assert sum(bits.nbytes for bits in row.dropout._kept.values()) <= most
        assert bool(row.dropout._kept) == (most > 0 and not last)


def test_a_row_that_is_filled_anew_has_masks_of_its_own() -> None:
    dropout = _dropout(5, 0.5, [3] * 61, list(range(61)))
    ones, rows = torch.ones(61, 22), slice(0, 61)
    for refilled in (dropout.positions, dropout.seeds, dropout.samples):
        before = drop(ones, dropout, 0, rows, SITE)
        refilled.copy_(refilled + 1)
        found = drop(ones, dropout, 0, rows, SITE)
        assert not torch.equal(found, before)
        assert torch.equal(found, keep_mask(dropout, 0, rows, SITE, 22).to(ones.dtype))


@pytest.mark.parametrize("rate", [-0.1, 1.0, float("nan")])
def test_a_rate_that_is_none_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 1\)"):
        _dropout(0, rate, [0], [0])
