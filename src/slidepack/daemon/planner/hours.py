"""Open hours as one clock: the seconds in which work may run, counted from now."""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence

from slidepack.daemon.planner.tasks import Window

__all__ = ["Hours"]


class Hours:
    """Converts between the wall's seconds and open seconds since `now`."""

    def __init__(self, windows: Sequence[Window], now: float) -> None:
        """Take the windows that are not over; none at all means that work may always run."""
        spans = sorted((max(w.begin, now), w.end) for w in windows if w.end > max(w.begin, now))
        merged: list[tuple[float, float]] = []
        for begin, end in spans:
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        if not windows:
            merged = [(now, math.inf)]
        self.spans = merged
        self._starts: list[float] = []
        total = 0.0
        for begin, end in merged:
            self._starts.append(total)
            total += end - begin
        self.total = total
        """Open seconds that are known of."""
        self.now = now

    @property
    def breaks(self) -> list[float]:
        """Open seconds at which work stops and goes on in a later window."""
        return self._starts[1:]

    def open_seconds(self, instant: float) -> float:
        """Return the open seconds from now until an instant."""
        index = bisect_right(self.spans, (instant, math.inf)) - 1
        if index < 0:
            return 0.0
        begin, end = self.spans[index]
        return self._starts[index] + min(instant, end) - begin

    def begins(self, open_seconds: float) -> float:
        """Return when work begins that has so many open seconds before it."""
        index = bisect_right(self._starts, open_seconds) - 1
        return self._instant(index, open_seconds)

    def ends(self, open_seconds: float) -> float:
        """Return when work ends that has so many open seconds before its end."""
        return self._instant(max(0, bisect_left(self._starts, open_seconds) - 1), open_seconds)

    def pieces(self, begin: float, end: float) -> list[tuple[float, float]]:
        """Return the spans on the wall of work between two counts of open seconds."""
        found = []
        for (opened, closed), start in zip(self.spans, self._starts, strict=True):
            first, last = max(begin, start), min(end, start + closed - opened)
            if first < last:
                found.append((opened + first - start, opened + last - start))
        return found

    def _instant(self, index: int, open_seconds: float) -> float:
        if not self.spans:
            return math.inf
        begin, end = self.spans[index]
        instant = begin + open_seconds - self._starts[index]
        return instant if instant <= end or index == len(self.spans) - 1 else end
