"""For how long a pack makes no step because of its lanes, so that the planner need not guess."""

import contextlib
import time
from collections import defaultdict
from collections.abc import Iterator

__all__ = ["HeldUp"]


class HeldUp:
    """Adds up, by lane, the time in which all others wait for it.

    Until the first lane has joined nobody waits: what that one measures of the base, and what its
    passes compile, is part of the pack's start, and those that join later find it done.
    """

    def __init__(self) -> None:
        """Begin with nothing."""
        self._begun = False
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def begin(self) -> None:
        """Charge lanes from now on."""
        self._begun = True

    @contextlib.contextmanager
    def by(self, *lanes: str) -> Iterator[None]:
        """Charge these lanes with the time of the block, each with its part."""
        begun = time.monotonic()
        charged = self._begun
        yield
        for lane in lanes if charged else ():
            self._seconds[lane] += (time.monotonic() - begun) / len(lanes)

    def take(self, lane: str) -> float:
        """Return a lane's seconds, and forget them."""
        return round(self._seconds.pop(lane, 0.0), 4)
