"""The order in which a walk over layers meets the rows of a step."""

from collections.abc import Iterator
from typing import Final

__all__ = ["rows_ahead"]

_PASSES_AHEAD: Final = 2
"""One is not enough: its rows may queue behind a layer's weights for as long as a pass takes."""


def rows_ahead(micro: int, count: int) -> Iterator[tuple[int, int]]:
    """Yield what the passes after this one need, where it is there already.

    Args:
        micro: the micro-batch that passes now.
        count: micro-batches of the step.

    Yields:
        (layers further on, micro-batch).
    """
    for ahead in range(micro + 1, micro + 1 + _PASSES_AHEAD):
        if ahead < count:
            yield 0, ahead
        elif ahead - count < micro:
            yield 1, ahead - count
