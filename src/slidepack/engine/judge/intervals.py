"""95% intervals and exact tests for figures of a few rows, without numpy or scipy."""

import math
from collections.abc import Sequence
from statistics import NormalDist
from typing import Final

__all__ = ["Z95", "clustered_mean", "clustered_share", "mcnemar", "paired_difference", "wilson"]

Z95: Final = NormalDist().inv_cdf(0.975)
"""1.96: 95% of a normal distribution lies within so many deviations of its mean."""

Interval = tuple[float, float]


def wilson(successes: float, trials: float, z: float = Z95) -> Interval:
    """Return the score interval of a share.

    E. B. Wilson, Probable Inference, the Law of Succession, and Statistical Inference, J. Am.
    Stat. Assoc. 22 (1927): the shares q with |p - q| <= z sqrt(q (1 - q) / n).

    Args:
        successes: 0 to `trials`; no whole number where `trials` is an effective size.
        trials: above 0.
        z: deviations of the normal distribution.
    """
    share, square = successes / trials, z * z
    middle = (share + square / (2 * trials)) / (1 + square / trials)
    spread = share * (1 - share) / trials + square / (4 * trials * trials)
    half = z * math.sqrt(spread) / (1 + square / trials)
    # The ends are exact where nothing, or everything, succeeded.
    low = 0.0 if successes <= 0 else max(0.0, middle - half)
    return low, 1.0 if successes >= trials else min(1.0, middle + half)


def paired_difference(both: int, gained: int, lost: int, neither: int, z: float = Z95) -> Interval:
    """Return the interval of the difference of two shares on the same rows.

    R. G. Newcombe, Improved confidence intervals for the difference between binomial proportions
    based on paired data, Stat. Med. 17 (1998), method 10: Wilson's intervals of the two shares,
    joined with the correlation of the pairs.

    Args:
        both: rows right in both.
        gained: rows right in the second only.
        lost: rows right in the first only.
        neither: rows right in none.
        z: deviations of the normal distribution.

    Returns:
        Of the second share less the first.
    """
    rows = both + gained + lost + neither
    second, first = (both + gained) / rows, (both + lost) / rows
    low_2, high_2 = wilson(both + gained, rows, z)
    low_1, high_1 = wilson(both + lost, rows, z)
    phi = _phi(both, gained, lost, neither)

    def joined(one: float, other: float) -> float:
        return math.sqrt(max(0.0, one * one - 2 * phi * one * other + other * other))

    difference = second - first
    return (
        difference - joined(second - low_2, high_1 - first),
        difference + joined(high_2 - second, first - low_1),
    )


def _phi(both: int, gained: int, lost: int, neither: int) -> float:
    """Return the correlation of the pairs, with method 10's continuity correction."""
    product = (both + gained) * (lost + neither) * (both + lost) * (gained + neither)
    if not product:
        return 0.0
    cross = both * neither - gained * lost
    corrected = max(0.0, cross - (both + gained + lost + neither) / 2) if cross > 0 else cross
    return corrected / math.sqrt(product)


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact two-sided p of McNemar's test, which is the sign test.

    Q. McNemar, Note on the sampling error of the difference between correlated proportions or
    percentages, Psychometrika 12 (1947): under chance alone, a pair that differs goes either way
    with probability 1/2. p = min(1, 2 P[Binomial(gained + lost, 1/2) <= min(gained, lost)]).
    """
    differing = gained + lost
    tail = sum(math.comb(differing, count) for count in range(min(gained, lost) + 1))
    return float(min(1.0, 2 * tail / 2**differing))


def clustered_mean(totals: Sequence[float], counts: Sequence[int]) -> tuple[float, Interval | None]:
    """Return sum(totals) / sum(counts) over rows, and its interval.

    There is none for less than two rows, and where all rows show the same: a normal interval of no
    width would claim to know it exactly. A ratio of sums: tokens of a row are not independent, rows
    are. W. G. Cochran, Sampling Techniques (1977), 6.4: variance
    m / (m - 1) sum((t - R c)^2) / (sum c)^2 for m rows, and a normal interval.
    """
    mean = sum(totals) / sum(counts)
    variance = _ratio_variance(totals, counts, mean)
    if not variance:
        return mean, None
    half = Z95 * math.sqrt(variance)
    return mean, (mean - half, mean + half)


def clustered_share(right: Sequence[int], counts: Sequence[int]) -> tuple[float, Interval]:
    """Return the share of tokens that are right, and Wilson's interval of it.

    The trials are as many as independent tokens would have to be for the variance that the rows
    show (L. Kish's design effect), at most as many as there are. Where all or none are right, the
    rows show no variance: each row then counts once.
    """
    tokens = sum(counts)
    share = sum(right) / tokens
    variance = _ratio_variance(right, counts, share)
    effective = float(len(counts))
    if variance and 0.0 < share < 1.0:
        effective = min(float(tokens), share * (1.0 - share) / variance)
    return share, wilson(share * effective, effective)


def _ratio_variance(totals: Sequence[float], counts: Sequence[int], ratio: float) -> float | None:
    rows = len(counts)
    if rows < 2:
        return None
    squares = sum((total - ratio * count) ** 2 for total, count in zip(totals, counts, strict=True))
    return float(rows / (rows - 1) * squares / sum(counts) ** 2)
