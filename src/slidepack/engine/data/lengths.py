"""How long rows are in tokens, measured against `max_seq_len`."""

from collections import Counter
from typing import Final

import msgspec

_COVERED: Final = 0.99
"""Share of the rows that a suggested limit holds."""
_STEP: Final = 64
"""Suggested limits are multiples of it, as attention kernels like them."""
_SHORTEST_LIMIT: Final = 64
_QUANTILES: Final = (0.5, 0.9, 0.95, 0.99)


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

    @property
    def share_of_tokens_over(self) -> float:
        """Share of all tokens that stand behind the limit."""
        return self.tokens_over / max(self.tokens, 1)


class LengthHistogram:
    """Counts rows by length, as they stream by.

    Lengths are kept exactly: even 5 GB of text have no more than some ten thousand different ones.
    """

    def __init__(self) -> None:
        """Start empty."""
        self._rows: Counter[int] = Counter()

    def add(self, length: int, rows: int = 1) -> None:
        """Count rows of a length."""
        self._rows[length] += rows

    def merge(self, other: dict[int, int]) -> None:
        """Count rows that were counted elsewhere."""
        self._rows.update(other)

    def counts(self) -> dict[int, int]:
        """Return rows by length."""
        return dict(self._rows)

    def quantile(self, share: float) -> int:
        """Return the length that this share of the rows does not exceed; 0 without rows."""
        wanted = share * self._rows.total()
        seen = 0
        for length in sorted(self._rows):
            seen += self._rows[length]
            if seen >= wanted:
                return length
        return 0

    def report(self, max_seq_len: int) -> LengthReport:
        """Measure the lengths against a limit."""
        over = [(length, n) for length, n in self._rows.items() if length > max_seq_len]
        return LengthReport(
            rows=self._rows.total(),
            tokens=sum(length * n for length, n in self._rows.items()),
            longest=max(self._rows, default=0),
            quantiles={f"p{round(100 * share)}": self.quantile(share) for share in _QUANTILES},
            max_seq_len=max_seq_len,
            rows_over=sum(n for _, n in over),
            tokens_over=sum((length - max_seq_len) * n for length, n in over),
            tokens_in_rows_over=sum(length * n for length, n in over),
            suggested=max(_SHORTEST_LIMIT, _rounded_up(self.quantile(_COVERED))),
            bins=self._bins(),
        )

    def _bins(self) -> tuple[LengthBin, ...]:
        bins: Counter[int] = Counter()
        for length, rows in self._rows.items():
            bins[1 << max(length - 1, 0).bit_length()] += rows
        return tuple(LengthBin(upto, bins[upto]) for upto in sorted(bins))


def _rounded_up(length: int) -> int:
    return -(-length // _STEP) * _STEP
