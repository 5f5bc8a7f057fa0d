"""The order in which a walk over layers meets the micro-batches of a step, and what comes next.

A layer is walked in the opposite order of the one before, so that the rows which were put last, and
are still on the card, are read first. The order depends on the layer's number and the number of
micro-batches alone: where rows and weights are kept must not change the order of a sum.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from slidepack.engine.sliding.rows import GRADIENT, Rows

__all__ = ["Ahead", "Turn", "fetch_down", "fetch_up", "snake", "turns"]

_PASSES_AHEAD: Final = 2
"""One is not enough: its rows may queue behind a layer's weights for as long as a pass takes."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A pass that comes soon."""

    further: int
    """0 in this layer, 1 in the next one."""
    micro: int
    made: bool
    """Whether it is in the next layer, and what this layer gives it is there already."""


@dataclass(frozen=True, slots=True)
class Turn:
    """One micro-batch's pass of a layer."""

    micro: int
    first: bool
    last: bool
    ahead: tuple[Ahead, ...]
    """The passes that come next."""


def snake(level: int, count: int) -> range:
    """Return the order of the micro-batches at a level, on the way up as on the way down.

    The embedding is level -1, which begins with micro-batch 0, and the head is the level above the
    last layer.
    """
    return range(count) if level % 2 else range(count - 1, -1, -1)


def turns(order: Sequence[int], following: Sequence[int] = ()) -> Iterator[Turn]:
    """Yield the passes of a layer.

    Args:
        order: of its micro-batches.
        following: that of the layer which comes next, if any.
    """
    path = [(0, micro) for micro in order] + [(1, micro) for micro in following]
    for place, micro in enumerate(order):
        behind = order[:place]
        ahead = tuple(
            Ahead(further, other, further == 1 and other in behind)
            for further, other in path[place + 1 : place + 1 + _PASSES_AHEAD]
        )
        yield Turn(micro, place == 0, place == len(order) - 1, ahead)


def fetch_up(rows: Rows, level: int, ahead: Sequence[Ahead]) -> None:
    """Prefetch what the next passes of a forward walk read.

    Args:
        rows: of the step.
        level: of the layer.
        ahead: its `Turn.ahead`.
    """
    for one in ahead:
        if one.further == 0 or one.made:
            rows.prefetch((level + one.further, one.micro))


def fetch_down(rows: Rows, level: int, ahead: Sequence[Ahead], *, is_head: bool = False) -> None:
    """Prefetch what the next passes of a backward walk read: inputs and gradients.

    Args:
        rows: of the step.
        level: of the layer; what follows level 0 reads gradients only.
        ahead: its `Turn.ahead`.
        is_head: whether this is the head, which makes the first gradients.
    """
    for one in ahead:
        if level >= one.further:
            rows.prefetch((level - one.further, one.micro))
        if one.made or (one.further == 0 and not is_head):
            rows.prefetch((GRADIENT, one.micro))
