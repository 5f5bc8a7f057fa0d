"""What full fine-tuning changed of a model: what it began with is read again, piece by piece."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.load_state import sized_places
from slidepack.engine.sliding.state import TrainState
from slidepack.engine.worker.learning import Change
from slidepack.kernels import split_master

__all__ = ["Source", "compare_with_start"]

Source = Callable[[str, tuple[int, ...]], Tensor]
"""Returns a tensor of what training began with, by its name in the model and its size."""

_PIECE: Final = 1 << 20
"""Elements that are compared at once: the largest tensor may be a gigabyte, and the first of its
pieces mostly tell."""


@dataclass(frozen=True, slots=True)
class _Trained:
    """A tensor of the trained state, flat."""

    name: str
    size: tuple[int, ...]
    state: TrainState
    unit: int
    start: int
    """First element in the unit."""

    def part(self, start: int, stop: int) -> tuple[Tensor, Tensor | None]:
        """Return some of its elements as the passes read them and as the result holds them, and
        the remainders where the master is split."""
        return self.state.master(self.unit, self.start + start, self.start + stop)


def compare_with_start(
    read: Source, shape: ModelShape, state: TrainState, check_stop: Callable[[], None]
) -> Change:
    """Compare trained weights with those that training began with.

    A step may be too small for the precision of the result, and still count in the master: norms
    often are. Such a tensor has moved, but where nothing else did, the result is what it began as.

    Args:
        read: of the base, or of what another job left.
        shape: sizes.
        state: trained, with no update under way.
        check_stop: may raise between two tensors.

    Raises:
        SlidepackError: MODEL-BROKEN: the base is not what it was.
    """
    still: list[str] = []
    modules, shows = 0, False
    for trained in _tensors(shape, state):
        check_stop()
        differs, master_differs = _compare(read(trained.name, trained.size), trained)
        modules += 1
        shows |= differs
        if not master_differs:
            still.append(trained.name)
    return Change(modules=modules, still=tuple(still), shows=shows)


def _tensors(shape: ModelShape, state: TrainState) -> Iterator[_Trained]:
    for name, size, (unit, start, _) in sized_places(shape):
        yield _Trained(name, size, state, unit, start)


def _compare(began: Tensor, trained: _Trained) -> tuple[bool, bool]:
    """Return whether the result differs from the beginning, and whether the master does."""
    differs = False
    flat = began.reshape(-1)
    for start in range(0, flat.numel(), _PIECE):
        plane = flat[start : start + _PIECE].float()
        now, rest = trained.part(start, start + plane.numel())
        if rest is not None:
            plane, remainder = split_master(plane)
            differs |= not torch.equal(remainder, rest)
        if torch.equal(plane, now):
            continue
        differs = True
        # No step is too small for a weight that was 0, as biases and unused rows often are.
        if bool(((plane != now) & (plane != 0)).any()):
            return True, True
    return False, differs
