"""Ends a run that has nothing to gain: losses that are no numbers, or worse than guessing, and
gradients that explode. It also tells which checkpoints are good to go on from."""

import math
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import Warned
from slidepack.engine.contract.job import Frozen
from slidepack.engine.worker.band import Band, BandState
from slidepack.engine.worker.eventlog import EventLog

__all__ = ["Vitals", "Watchdog", "advice"]

_MAX_BAD_STEPS: Final = 3
_MAX_LOST_STEPS: Final = 20
_DOUBTFUL_STEPS: Final = 5
"""Steps in a row worse than guessing after which a checkpoint is no good one. A model that knows
next to nothing yet is worse now and then."""
_MARGIN: Final = 2.0
"""Nats above guessing that a first loss is warned of."""
_GENTLER: Final = 3.0
"""Divides the learning rate of a run that diverged."""


class Vitals(Frozen, frozen=True, kw_only=True):
    """What a watchdog knows, as checkpoints keep it."""

    has_known: bool = False
    """Whether a loss was better than guessing."""
    bad_steps: int = 0
    """Steps in a row that were no numbers."""
    lost_steps: int = 0
    """Steps in a row that were worse than guessing."""
    band: BandState = BandState()


class Watchdog:
    """Looks at every step of a run."""

    def __init__(
        self,
        lr: float,
        vocab: int,
        events: EventLog,
        *,
        spoils: bool,
        vitals: Vitals | None = None,
    ) -> None:
        """Begin before the first step, or go on.

        Args:
            lr: peak learning rate, for the advice.
            vocab: tokens that a guess is among.
            events: where warnings go.
            spoils: whether a step whose gradient is no number changes weights all the same.
            vitals: of the checkpoint that is gone on from.
        """
        known = vitals or Vitals()
        self._lr = lr
        self._guess = math.log(vocab)
        self._events = events
        self._spoils = spoils
        self._has_known = known.has_known
        self._bad_steps = known.bad_steps
        self._lost_steps = known.lost_steps
        self._band = Band(known.band)

    @property
    def vitals(self) -> Vitals:
        """What a checkpoint keeps."""
        return Vitals(
            has_known=self._has_known,
            bad_steps=self._bad_steps,
            lost_steps=self._lost_steps,
            band=self._band.state,
        )

    @property
    def is_healthy(self) -> bool:
        """Whether a checkpoint made now is good to go on from.

        A run diverges for a while before it is called diverged.
        """
        lost = self._has_known and self._lost_steps >= _DOUBTFUL_STEPS
        return not self._bad_steps and not lost and self._band.is_calm

    def look(self, step: int, loss: float, norm: float, good: int | None) -> None:
        """Judge a step.

        Args:
            step: steps done, this one included.
            loss: its mean loss.
            norm: of its gradient, before clipping.
            good: step of the newest checkpoint that was made in good health, if there is one.

        Raises:
            SlidepackError: RUN-DIVERGED: no number for several steps in a row (one, where it has
                spoilt the weights), worse than guessing for many after it was better, or a
                gradient norm far above its running median for many while the loss is worse.
        """
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._band.break_calm()
            self._count_bad(step, loss, norm, good)
            return
        self._bad_steps = 0
        if step == 1:
            self._judge_first(loss)
        self._has_known |= loss < self._guess
        self._lost_steps = self._lost_steps + 1 if loss > self._guess else 0
        usual = self._band.usual_norm
        self._band.add(loss, norm)
        if self._has_known and self._lost_steps >= _MAX_LOST_STEPS:
            raise self._diverged(
                f"The loss is worse than guessing since step {step - self._lost_steps + 1}.",
                f"loss {loss:.2f}, guessing among all tokens is {self._guess:.2f}; it was better "
                "before",
                good,
            )
        exploded = self._band.explosion
        if exploded:
            raise self._diverged(
                f"The gradient explodes since step {step - exploded + 1}.",
                f"its norm is {norm:.3g}, usual was {usual:.3g}; the loss has risen to {loss:.2f}",
                good,
            )

    def _count_bad(self, step: int, loss: float, norm: float, good: int | None) -> None:
        self._bad_steps += 1
        if self._bad_steps < _MAX_BAD_STEPS and not self._spoils:
            return
        changed = "the weights are spoilt" if self._spoils else "those steps changed nothing"
        raise self._diverged(
            f"The loss is no number since step {step - self._bad_steps + 1}.",
            f"loss {loss}, gradient norm {norm}; {changed}",
            good,
        )

    def _diverged(self, what: str, why: str, good: int | None) -> SlidepackError:
        kept = "no good checkpoint was made before"
        if good is not None:
            kept = f"the good checkpoint of step {good} is kept"
        return SlidepackError(
            "RUN-DIVERGED", what, why=f"{why}; {kept}", fix=advice(self._lr, good)
        )

    def _judge_first(self, loss: float) -> None:
        if loss > self._guess + _MARGIN:
            self._warn(
                "RUN-HIGH-LOSS",
                f"The first loss is {loss:.2f}, above guessing "
                f"({self._guess + _MARGIN:.2f}): the model or its tokenizer may not fit the data.",
            )
        elif loss <= 0.0:
            self._warn(
                "RUN-ZERO-LOSS",
                "The first loss is 0: the model knows these answers already, or the answers hold "
                "nothing to learn. Look at a few rows with `slidepack data check`.",
            )

    def _warn(self, code: str, message: str) -> None:
        self._events.append(Warned(at=self._events.now(), code=code, message=message))


def advice(lr: float, good: int | None) -> str:
    """Return what to do about a run that diverged.

    Args:
        lr: its peak learning rate.
        good: step of its newest good checkpoint, if there is one.
    """
    gentler = f"a learning rate below {lr / _GENTLER:.1e}"
    if good is None:
        return f"Try again with {gentler}."
    return f"Go on from the checkpoint of step {good} with {gentler}."
