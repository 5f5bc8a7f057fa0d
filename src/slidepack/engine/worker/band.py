"""What is usual for a run: a running median of its gradient norms, and the range of its losses."""

import statistics
from typing import Final

from slidepack.engine.contract.job import Frozen

__all__ = ["Band", "BandState"]

_WINDOW: Final = 50
"""Usual steps that are remembered."""
_FIRST: Final = 5
"""Steps of a run that are usual whatever they are."""
_EXPLODED: Final = 20.0
"""Times the median that a gradient norm is out of the band. Clipped steps of a good run vary by a
factor of three or so; one that diverges passes a hundred."""
_MARGIN: Final = 0.5
"""Nats above every usual loss that a loss is out of the band."""
_PERSISTENT: Final = 20
"""Steps in a row with an exploded norm that end a run. Spikes that pass take a few."""
_CALM: Final = 5
"""Steps in a row within the band after which a run is itself again."""


class BandState(Frozen, frozen=True, kw_only=True):
    """A band as checkpoints keep it."""

    losses: tuple[float, ...] = ()
    norms: tuple[float, ...] = ()
    exploded: tuple[float, ...] = ()
    """Losses of the last steps in a row whose norm was out of the band."""
    calm: int = _CALM


class Band:
    """Learns what is usual, and tells what is not. One lane's; a pack has one for each."""

    def __init__(self, state: BandState) -> None:
        """Begin, or go on."""
        self._losses = list(state.losses)
        self._norms = list(state.norms)
        self._exploded = list(state.exploded)
        self._calm = state.calm

    @property
    def state(self) -> BandState:
        """What a checkpoint keeps."""
        return BandState(
            losses=tuple(self._losses),
            norms=tuple(self._norms),
            exploded=tuple(self._exploded),
            calm=self._calm,
        )

    @property
    def is_calm(self) -> bool:
        """Whether the last steps were within the band."""
        return self._calm >= _CALM

    @property
    def usual_norm(self) -> float:
        """The running median; 0 before the first step."""
        return statistics.median(self._norms) if self._norms else 0.0

    @property
    def explosion(self) -> int:
        """Steps in a row of an explosion of the norm that made the loss worse; 0 where none is.

        A norm that grew while the loss did not is a new usual one (`add`), not a divergence.
        """
        if len(self._exploded) < _PERSISTENT:
            return 0
        # The loss follows the norm; its first steps may still be as usual.
        recent = statistics.fmean(self._exploded[-(_PERSISTENT // 2) :])
        return len(self._exploded) if self._is_worse(recent) else 0

    def break_calm(self) -> None:
        """Count a step that was no number."""
        self._calm = 0

    def add(self, loss: float, norm: float) -> None:
        """Count a step.

        Args:
            loss: its mean loss, a number.
            norm: of its gradient before clipping, a number.
        """
        high = norm > _EXPLODED * self.usual_norm
        if len(self._losses) < _FIRST:
            self._remember(loss, norm)
        elif not high and not self._is_worse(loss):
            self._calm = min(_CALM, self._calm + 1)
            self._remember(loss, norm)
            self._exploded.clear()
        else:
            self._calm = 0
            self._exploded = [*self._exploded, loss] if high else []
            self._give_in(norm)

    def _give_in(self, norm: float) -> None:
        """Take a high norm for the usual one where the loss has not become worse for it."""
        if len(self._exploded) >= _PERSISTENT and not self.explosion:
            self._norms = [norm]
            self._exploded.clear()

    def _is_worse(self, loss: float) -> bool:
        # Later rows are drawn as the earlier ones were, so a range holds.
        return loss > max(self._losses) + _MARGIN

    def _remember(self, loss: float, norm: float) -> None:
        self._losses = [*self._losses[1 - _WINDOW :], loss]
        self._norms = [*self._norms[1 - _WINDOW :], norm]
