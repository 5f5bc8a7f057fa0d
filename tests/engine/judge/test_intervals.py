"""Intervals and tests against their definitions, by brute force."""

import itertools
import math
from fractions import Fraction

import pytest

from slidepack.engine.judge.intervals import (
    Z95,
    clustered_mean,
    clustered_share,
    mcnemar,
    paired_difference,
    wilson,
)


def test_95_percent_of_a_normal_distribution_lie_between() -> None:
    assert math.erf(Z95 / math.sqrt(2)) == pytest.approx(0.95, abs=1e-12)


@pytest.mark.parametrize(("right", "rows"), [(0, 1), (1, 1), (0, 30), (12, 30), (29, 30), (7, 100)])
def test_wilsons_interval_is_where_the_score_test_does_not_reject(right: int, rows: int) -> None:
    low, high = wilson(right, rows)

    def rejects(share: float) -> bool:
        return abs(right / rows - share) > Z95 * math.sqrt(share * (1 - share) / rows)

    step = 1e-6
    assert low == 0.0 if right == 0 else rejects(low - step)
    assert high == 1.0 if right == rows else rejects(high + step)
    inside = (low + step + (high - low - 2 * step) * part / 50 for part in range(51))
    assert not any(rejects(share) for share in inside)


def test_wilsons_interval_is_the_published_one() -> None:
    # R. G. Newcombe, Two-sided confidence intervals for the single proportion, Stat. Med. 17
    # (1998), table I, method 3.
    for (right, rows), (low, high) in {
        (81, 263): (0.2553, 0.3662),
        (15, 148): (0.0624, 0.1605),
        (0, 20): (0.0, 0.1611),
        (1, 29): (0.0061, 0.1718),
    }.items():
        assert wilson(right, rows) == pytest.approx((low, high), abs=5e-5)


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (1, 0), (13, 0), (9, 3), (3, 9), (5, 5)])
def test_p_is_the_share_of_coin_tosses_that_are_no_more_even(gained: int, lost: int) -> None:
    differing = gained + lost
    as_far = sum(
        abs(2 * sum(tosses) - differing) >= abs(gained - lost)
        for tosses in itertools.product((0, 1), repeat=differing)
    )
    assert mcnemar(gained, lost) == pytest.approx(float(Fraction(as_far, 2**differing)), rel=1e-12)


def _cells(rows: int) -> list[tuple[int, int, int, int]]:
    sizes = range(rows + 1)
    found = itertools.product(sizes, sizes, sizes)
    return [(a, b, c, rows - a - b - c) for a, b, c in found if a + b + c <= rows]


@pytest.mark.parametrize(
    "shares", [(0.25, 0.25, 0.25, 0.25), (0.1, 0.5, 0.1, 0.3), (0.6, 0.3, 0.05, 0.05)]
)
def test_the_paired_interval_covers_the_true_difference_in_95_of_100_draws(
    shares: tuple[float, float, float, float],
) -> None:
    rows, truth = 20, shares[1] - shares[2]
    covered = 0.0
    for cells in _cells(rows):
        ways = math.factorial(rows) // math.prod(math.factorial(cell) for cell in cells)
        chance = ways * math.prod(p**n for p, n in zip(shares, cells, strict=True))
        low, high = paired_difference(*cells)
        covered += chance * (low <= truth <= high)
    assert 0.93 < covered < 0.99


def test_the_paired_interval_turns_round_with_its_sides() -> None:
    low, high = paired_difference(5, 7, 2, 6)
    assert paired_difference(5, 2, 7, 6) == pytest.approx((-high, -low), abs=1e-12)
    assert low < 0.25 < high
    # The nearer the pairs are to agreeing by chance, the less pairing tells.
    loose = paired_difference(10, 10, 0, 0)
    assert paired_difference(10, 0, 0, 10)[1] - paired_difference(10, 0, 0, 10)[0] < (
        loose[1] - loose[0]
    )


def test_rows_of_one_token_are_counted_as_a_share_and_its_standard_error() -> None:
    hits = [1, 0, 0, 1, 1, 1, 0, 1]
    mean, interval = clustered_mean(hits, [1] * 8)
    half = Z95 * math.sqrt(sum((hit - 5 / 8) ** 2 for hit in hits) / 7 / 8)
    assert mean == 5 / 8
    assert interval == pytest.approx((5 / 8 - half, 5 / 8 + half))


def test_tokens_of_a_row_that_go_together_count_less() -> None:
    spread, packed = [2] * 20, [4, 0] * 10
    share, (low, high) = clustered_share(spread, [4] * 20)
    same, (packed_low, packed_high) = clustered_share(packed, [4] * 20)
    assert share == same == 0.5
    assert (low, high) != (packed_low, packed_high)
    assert (low, high) == clustered_share([2] * 20, [4] * 20)[1]
    # All four tokens of a row agree: they are worth one.
    assert (packed_low, packed_high) == pytest.approx(wilson(9.5, 19), abs=1e-9)


def test_no_interval_is_claimed_of_what_shows_no_spread() -> None:
    assert clustered_mean([1.5], [3]) == (0.5, None)
    assert clustered_mean([1.5, 3.0], [3, 6]) == (0.5, None)
    # Each row counts once.
    assert clustered_share([4, 4], [4, 4]) == (1.0, wilson(2, 2))
