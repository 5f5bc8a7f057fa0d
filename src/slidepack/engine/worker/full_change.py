"""What full fine-tuning changed of a model: what it began with is read again, piece by piece."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.load_state import state_tensors
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
    plane: Tensor
    """As the passes read it, and as the result holds it."""
    remainder: Tensor | None


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
    unit = start = 0
    for name, view in state_tensors(shape, state):
        end = start + view.numel()
        remainder = state.states[unit].remainder
        part = None if remainder is None else remainder[start:end]
        yield _Trained(name, tuple(view.shape), view.reshape(-1), part)
        start = end
        if end == state.units[unit].elements:
            unit, start = unit + 1, 0


def _compare(began: Tensor, trained: _Trained) -> tuple[bool, bool]:
    """Return whether the result differs from the beginning, and whether the master does."""
    differs = False
    flat = began.reshape(-1)
    for start in range(0, flat.numel(), _PIECE):
        plane = flat[start : start + _PIECE].float()
        part = slice(start, start + plane.numel())
        if trained.remainder is not None:
            plane, remainder = split_master(plane)
            differs |= not torch.equal(remainder, trained.remainder[part])
        if torch.equal(plane, trained.plane[part]):
            continue
        differs = True
        # No step is too small for a weight that was 0, as biases and unused rows often are.
        if bool(((plane != trained.plane[part]) & (plane != 0)).any()):
            return True, True
    return False, differs
