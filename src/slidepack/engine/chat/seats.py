"""Who sits in the cache: answers that run, and conversations that may go on."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from slidepack.engine.model.kv_cache import KvCache

__all__ = ["Seat", "Seats"]


@dataclass(slots=True)
class Seat:
    """One sequence of the cache."""

    index: int
    voice: str = ""
    held: list[int] = field(default_factory=list)
    """The ids whose keys and values are there."""
    taken: bool = False
    """Whether an answer runs in it."""
    used: int = 0
    """When it was last taken or released."""


class Seats:
    """Gives answers their seats, with as much of their prompt as some seat has read already."""

    def __init__(self, cache: KvCache, count: int) -> None:
        """Begin empty.

        Args:
            cache: with `count` seats or more.
            count: that are given away.
        """
        self._cache = cache
        self._seats = [Seat(index) for index in range(count)]
        self._clock = 0

    def take(self, voice: str, ids: Sequence[int]) -> Seat | None:
        """Return a seat that holds a beginning of `ids`, never all of them; None where all run.

        A conversation that went on stays where it is. One that shares its beginning with others
        (the same system prompt, say) is copied from them.
        """
        free = [seat for seat in self._seats if not seat.taken]
        if not free:
            return None
        shared = {
            seat.index: _common(seat.held, ids) for seat in self._seats if seat.voice == voice
        }
        source = max(shared, key=lambda index: (shared[index], -index), default=None)
        tokens = 0 if source is None else min(shared[source], len(ids) - 1)
        if source is None or not tokens:
            return self._sit(_least_needed(free), voice, [])
        seat = self._seats[source]
        # What would be lost of another conversation is less than half of it.
        if not seat.taken and (2 * tokens >= len(seat.held) or len(free) == 1):
            return self._sit(seat, voice, list(ids[:tokens]))
        target = _least_needed([other for other in free if other is not seat])
        self._cache.copy_start(source, target.index, tokens)
        return self._sit(target, voice, list(ids[:tokens]))

    def release(self, seat: Seat) -> None:
        """Keep what an answer has read for whoever goes on from it."""
        seat.taken = False
        self._touch(seat)

    def discard(self, seat: Seat) -> None:
        """Keep nothing of an answer that gave no numbers."""
        self._cache.clear(seat.index)
        seat.held = []
        self.release(seat)

    def forget(self, voice: str) -> None:
        """Drop what a voice has read; none of its answers runs."""
        for seat in self._seats:
            if seat.voice == voice:
                assert not seat.taken, "its answers are ended first"
                seat.voice, seat.held, seat.used = "", [], 0

    def _sit(self, seat: Seat, voice: str, held: list[int]) -> Seat:
        seat.voice, seat.held, seat.taken = voice, held, True
        self._touch(seat)
        return seat

    def _touch(self, seat: Seat) -> None:
        self._clock += 1
        seat.used = self._clock


def _least_needed(free: Sequence[Seat]) -> Seat:
    """Return an empty seat, or the one that was left the longest time ago."""
    return min(free, key=lambda seat: (bool(seat.held), seat.used))


def _common(held: Sequence[int], ids: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    pairs = zip(held, ids, strict=False)
    return next(
        (place for place, (one, other) in enumerate(pairs) if one != other),
        min(len(held), len(ids)),
    )
