"""How long a step takes, by the tokens and the lanes in it, and how that is learned from samples.

    t(n) = max(floor, alpha * (n + n0)) + epsilon * lanes

A step has a fixed cost that packing shares (launches, reading the weights), a cost for each token
that it does not, and a little for each lane.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Final

import msgspec

__all__ = ["Fit", "Sample", "StepCost", "fit", "prediction_errors"]

_HUBER: Final = 0.05
"""Relative error from which on a sample counts less: steps jitter by some percent."""
_ROUNDS: Final = 8
_IDLE_SHARE: Final = 0.01
"""Weight of the prior against one sample: it decides only what the samples leave open."""


class StepCost(msgspec.Struct, frozen=True, kw_only=True):
    """The cost of a step on one device, base and precision."""

    floor_seconds: float
    """No step is shorter, whatever is in it."""
    token_seconds: float
    """Alpha: of each token."""
    fixed_tokens: float = 0.0
    """n0: what a step costs beside its tokens, as a number of tokens."""
    lane_seconds: float = 0.0
    """Epsilon: of each lane."""

    def __post_init__(self) -> None:
        """Refuse what is no cost."""
        values = (self.floor_seconds, self.token_seconds, self.fixed_tokens, self.lane_seconds)
        if not all(0.0 <= value < math.inf for value in values) or self.token_seconds == 0.0:
            raise ValueError(f"{values} is no cost of a step; use 0 or more, and above 0 a token")

    def seconds(self, tokens: float, lanes: int, slowdown: float = 1.0) -> float:
        """Return the seconds of a step.

        Args:
            tokens: of all lanes together.
            lanes: that take part.
            slowdown: of the part that grows with the tokens, as where layers are recomputed.
        """
        working = self.token_seconds * slowdown * (tokens + self.fixed_tokens)
        return max(self.floor_seconds, working) + self.lane_seconds * lanes

    @property
    def break_even_tokens(self) -> float:
        """Tokens at which a step's tokens cost as much as what it costs anyway."""
        fixed = max(self.floor_seconds, self.token_seconds * self.fixed_tokens)
        return fixed / self.token_seconds

    def scaled(self, factor: float) -> "StepCost":
        """Return the cost of a device that is `1 / factor` times as fast."""
        return StepCost(
            floor_seconds=self.floor_seconds * factor,
            token_seconds=self.token_seconds * factor,
            fixed_tokens=self.fixed_tokens,
            lane_seconds=self.lane_seconds * factor,
        )


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """A step, or the median of some alike."""

    tokens: int
    lanes: int
    seconds: float

    def __post_init__(self) -> None:
        """Refuse what cannot have been measured."""
        if self.tokens < 1 or self.lanes < 1 or not 0.0 < self.seconds < math.inf:
            raise ValueError(
                f"{self.tokens} tokens of {self.lanes} lanes in {self.seconds} s is no step"
            )


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """A cost learned from samples, and how well it tells them."""

    cost: StepCost
    samples: int
    median_error: float
    """Of the samples, relative."""
    worst_error: float


def fit(samples: Sequence[Sample], prior: StepCost) -> Fit:
    """Learn the cost from samples; what they leave open stays as in the prior.

    Outliers count little (Huber's weights on relative errors). Each split of the samples into
    those at the floor and those above is tried, and the one that tells them best is taken.

    Args:
        samples: at least one.
        prior: the cost that was assumed before.

    Raises:
        ValueError: there is no sample.
    """
    if not samples:
        raise ValueError("no sample to fit; time some steps first")
    ratio = statistics.median(
        sample.seconds / prior.seconds(sample.tokens, sample.lanes) for sample in samples
    )
    best = prior.scaled(ratio)
    counts = sorted({sample.tokens for sample in samples})
    if len(counts) > 1:
        candidates = [best, *(_fit_split(samples, best, split) for split in (0, *counts))]
        best = min(candidates, key=lambda cost: _loss(cost, samples))
    errors = prediction_errors(best, samples)
    return Fit(
        cost=best,
        samples=len(samples),
        median_error=statistics.median(errors),
        worst_error=max(errors),
    )


def prediction_errors(cost: StepCost, samples: Sequence[Sample]) -> list[float]:
    """Return how far off the cost is for each sample, relative to what was measured."""
    return [
        abs(cost.seconds(sample.tokens, sample.lanes) / sample.seconds - 1.0) for sample in samples
    ]


def _loss(cost: StepCost, samples: Sequence[Sample]) -> float:
    errors = prediction_errors(cost, samples)
    return sum(
        error * error / 2.0 if error <= _HUBER else _HUBER * (error - _HUBER / 2.0)
        for error in errors
    )


def _fit_split(samples: Sequence[Sample], prior: StepCost, split: int) -> StepCost:
    """Fit with the floor for samples of up to `split` tokens, and the slope for those above."""
    start = [
        prior.floor_seconds,
        prior.token_seconds * prior.fixed_tokens,
        prior.token_seconds,
        prior.lane_seconds,
    ]
    known = _cost_of(start, prior)
    for _ in range(_ROUNDS):
        known = _cost_of(_weighted(samples, start, split, known), prior)
    return known


def _weighted(
    samples: Sequence[Sample], start: list[float], split: int, known: StepCost
) -> list[float]:
    """Solve for floor, fixed part, slope and lanes, with weights by the errors of `known`."""
    scale = [max(value, 1e-12) for value in start]
    rows: list[list[float]] = []
    values: list[float] = []
    for sample, error in zip(samples, prediction_errors(known, samples), strict=True):
        weight = math.sqrt(min(1.0, _HUBER / max(error, 1e-12))) / sample.seconds
        low = sample.tokens <= split
        parts = [float(low), float(not low), (not low) * sample.tokens, sample.lanes]
        rows.append([weight * part * unit for part, unit in zip(parts, scale, strict=True)])
        values.append(weight * sample.seconds)
    for index in range(4):
        rows.append([_IDLE_SHARE * (index == column) for column in range(4)])
        values.append(_IDLE_SHARE * (start[index] > 0.0))
    return [part * unit for part, unit in zip(_non_negative(rows, values), scale, strict=True)]


def _cost_of(parts: list[float], prior: StepCost) -> StepCost:
    floor, fixed, slope, lane = parts
    # A slope of nothing would say that tokens are free: then the prior's stands.
    slope = slope if slope > 1e-3 * prior.token_seconds else prior.token_seconds
    return StepCost(
        floor_seconds=floor,
        token_seconds=slope,
        fixed_tokens=fixed / slope,
        lane_seconds=lane,
    )


def _non_negative(rows: list[list[float]], values: list[float]) -> list[float]:
    """Return the least-squares solution without negative parts, by leaving such parts out."""
    free = list(range(len(rows[0])))
    while True:
        solved = _least_squares([[row[i] for i in free] for row in rows], values)
        negative = [i for i, value in zip(free, solved, strict=True) if value < 0.0]
        if not negative:
            found = dict(zip(free, solved, strict=True))
            return [found.get(i, 0.0) for i in range(len(rows[0]))]
        free = [i for i in free if i not in negative]


def _least_squares(rows: list[list[float]], values: list[float]) -> list[float]:
    """Solve the normal equations; the prior's rows make them regular."""
    size = len(rows[0])
    matrix = [
        [sum(row[i] * row[j] for row in rows) for j in range(size)]
        + [sum(row[i] * value for row, value in zip(rows, values, strict=True))]
        for i in range(size)
    ]
    for i in range(size):
        pivot = max(range(i, size), key=lambda row: abs(matrix[row][i]))
        matrix[i], matrix[pivot] = matrix[pivot], matrix[i]
        for row in range(size):
            if row != i:
                factor = matrix[row][i] / matrix[i][i]
                matrix[row] = [a - factor * b for a, b in zip(matrix[row], matrix[i], strict=True)]
    return [matrix[i][size] / matrix[i][i] for i in range(size)]
