"""Llama 3.1's stretching of rotary frequencies, which llama.cpp keeps as a tensor of divisors."""

import math
from typing import Final

import numpy as np
import numpy.typing as npt

from slidepack.engine.families.rope import RopeShape

__all__ = ["rope_factors", "stretched_rope"]

_PUBLISHED: Final = (4.0, 8192)
"""High frequency factor and original context of the published models; their low one is 1."""
_TOLERANCE: Final = 1e-4
"""Converters compute the divisors from frequencies in fp32."""


def rope_factors(rope: RopeShape, head_dim: int) -> npt.NDArray[np.float32]:
    """Return by what llama.cpp divides each rotary frequency, fp32 [head_dim / 2]."""
    turns = rope.original_max_position * _turns_a_token(rope.theta, head_dim)
    blend = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    blend = np.clip(blend, 0.0, 1.0)
    return (1.0 / ((1.0 - blend) / rope.factor + blend)).astype(np.float32)


def stretched_rope(
    divisors: npt.NDArray[np.float32], theta: float, head_dim: int
) -> RopeShape | None:
    """Return the parameters that give these divisors, or None where none do.

    Low and high frequency factor and original context may all be scaled alike without a change;
    those whose low factor is 1 are returned, as in every published model.

    Args:
        divisors: fp32 [head_dim / 2], by which the frequencies are divided.
        theta: rotary base.
        head_dim: rows in a head.
    """
    largest = float(divisors.max())
    if not 1.0 - _TOLERANCE <= float(divisors.min()) <= largest < math.inf:
        return None
    if largest <= 1.0 + _TOLERANCE:
        return RopeShape(kind="default", theta=theta)
    short = round(largest, 3)
    factor = short if math.isclose(short, largest, rel_tol=1e-6) else largest
    for high, original in _candidates(divisors, factor, _turns_a_token(theta, head_dim)):
        rope = RopeShape(
            kind="llama3",
            theta=theta,
            factor=factor,
            low_freq_factor=1.0,
            high_freq_factor=high,
            original_max_position=original,
        )
        if np.allclose(rope_factors(rope, head_dim), divisors, rtol=_TOLERANCE, atol=0.0):
            return rope
    return None


def _candidates(
    divisors: npt.NDArray[np.float32], factor: float, turns: npt.NDArray[np.float64]
) -> list[tuple[float, int]]:
    """Return pairs of high frequency factor and original context worth a try.

    Between the two bounds, the blend is linear in the turns a token:
    blend = (original * turns - 1) / (high - 1).
    """
    found = [_PUBLISHED]
    blend = (1.0 / divisors - 1.0 / factor) / (1.0 - 1.0 / factor)
    (between,) = np.nonzero((blend > _TOLERANCE) & (blend < 1.0 - _TOLERANCE))
    kept = turns[blend >= 1.0 - _TOLERANCE]
    if len(between) > 1:
        first, last = between[0], between[-1]
        slope = (blend[first] - blend[last]) / (turns[first] - turns[last])
        offset = blend[first] - slope * turns[first]
        if offset < 0 < slope:
            high = float(1.0 - 1.0 / offset)
            originals = round(float(slope) * (high - 1.0))
            found += [(round(high, 3), originals), (high, originals)]
    elif len(between) == 1:
        high = _PUBLISHED[0]
        original = (float(blend[between[0]]) * (high - 1.0) + 1.0) / float(turns[between[0]])
        found.append((high, round(original)))
    elif len(kept):
        found.append((_PUBLISHED[0], math.ceil(_PUBLISHED[0] / float(kept.min()))))
    return [(high, original) for high, original in found if high > 1.0 and original > 0]


def _turns_a_token(theta: float, head_dim: int) -> npt.NDArray[np.float64]:
    exponents = np.arange(0, head_dim, 2, dtype=np.float64) / head_dim
    turns: npt.NDArray[np.float64] = 1.0 / (2 * math.pi * theta**exponents)
    return turns
