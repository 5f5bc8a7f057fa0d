"""How long rows are in tokens, measured against `max_seq_len`."""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import msgspec

_COVERED_PERCENT: Final = 99
"""Of the rows that a suggested limit holds."""
_STEP: Final = 64
"""Suggested limits are multiples of it, as attention kernels like them."""
_PERCENTS: Final = (50, 90, 95, 99)


class LengthBin(msgspec.Struct, frozen=True):
    """One bar of the histogram."""

    upto: int
    """Rows of this length are in the bar, and shorter ones down to the bar before."""
    rows: int


class LengthReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Lengths of the rows before anything is dropped, cut or split."""

    rows: int
    tokens: int
    longest: int
    quantiles: dict[str, int]
    """`p50`, `p90`, `p95` and `p99`: that share of the rows is no longer."""
    max_seq_len: int
    rows_over: int
    """Rows longer than `max_seq_len`."""
    shortest_over: int
    """Length of the shortest of them; 0 where there is none."""
    tokens_over: int
    """Tokens of those rows behind the limit: what cutting loses."""
    tokens_in_rows_over: int
    """All tokens of those rows: what dropping loses."""
    suggested: int
    """The shortest round limit that holds 99% of the rows."""
    bins: tuple[LengthBin, ...]
    """From short to long, each about twice the one before, up to the longest row."""

    @property
    def share_of_rows_over(self) -> float:
        """Share of the rows that are too long."""
        return self.rows_over / max(self.rows, 1)


def length_report(rows_of: Mapping[int, int], max_seq_len: int) -> LengthReport:
    """Measure lengths against a limit.

    Args:
        rows_of: rows by length, exactly: even 5 GB of text have no more than some ten thousand
            different ones.
        max_seq_len: the limit.
    """
    over = [(length, rows) for length, rows in rows_of.items() if length > max_seq_len]
    return LengthReport(
        rows=sum(rows_of.values()),
        tokens=sum(length * rows for length, rows in rows_of.items()),
        longest=max(rows_of, default=0),
        quantiles={f"p{percent}": _quantile(rows_of, percent) for percent in _PERCENTS},
        max_seq_len=max_seq_len,
        rows_over=sum(rows for _, rows in over),
        shortest_over=min((length for length, _ in over), default=0),
        tokens_over=sum((length - max_seq_len) * rows for length, rows in over),
        tokens_in_rows_over=sum(length * rows for length, rows in over),
        suggested=rounded_limit(_quantile(rows_of, _COVERED_PERCENT)),
        bins=_bins(rows_of),
    )


def rounded_limit(length: int) -> int:
    """Return the shortest round limit that holds rows of a length."""
    return max(_STEP, -(-length // _STEP) * _STEP)


def _quantile(rows_of: Mapping[int, int], percent: int) -> int:
    """Return the length that this share of the rows does not exceed; 0 without rows."""
    wanted = percent * sum(rows_of.values())
    seen = 0
    for length in sorted(rows_of):
        seen += 100 * rows_of[length]
        if seen >= wanted:
            return length
    return 0


def _bins(rows_of: Mapping[int, int]) -> tuple[LengthBin, ...]:
    bins: Counter[int] = Counter()
    for length, rows in rows_of.items():
        bins[1 << max(length - 1, 0).bit_length()] += rows
    return tuple(LengthBin(upto, bins[upto]) for upto in sorted(bins))
