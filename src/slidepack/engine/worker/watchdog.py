"""Ends a run that has nothing to gain: losses that are no numbers, or worse than guessing."""

import math
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import Warned
from slidepack.engine.worker.eventlog import EventLog

__all__ = ["Watchdog"]

_MAX_BAD_STEPS: Final = 3
_MAX_LOST_STEPS: Final = 20
_MARGIN: Final = 2.0
"""Nats above guessing that a first loss is warned of."""


class Watchdog:
    """Looks at every step of a run."""

    def __init__(
        self,
        lr: float,
        vocab: int,
        events: EventLog,
        *,
        spoils: bool,
        has_known: bool = False,
    ) -> None:
        """Begin before the first step, or go on.

        Args:
            lr: peak learning rate, for the advice.
            vocab: tokens that a guess is among.
            events: where warnings go.
            spoils: whether a step whose gradient is no number changes weights all the same.
            has_known: whether a loss was better than guessing before.
        """
        self._lr = lr
        self._guess = math.log(vocab)
        self._events = events
        self._spoils = spoils
        self._bad_steps = 0
        self._lost_steps = 0
        self.has_known = has_known

    def look(self, step: int, loss: float, norm: float, kept: int) -> None:
        """Judge a step.

        Args:
            step: steps done, this one included.
            loss: its mean loss.
            norm: of its gradient, before clipping.
            kept: step of the last checkpoint.

        Raises:
            SlidepackError: RUN-DIVERGED: no number for several steps in a row (one, where it has
                spoilt the weights), or worse than guessing for many after it was better.
        """
        if not (math.isfinite(loss) and math.isfinite(norm)):
            self._count_bad(step, loss, norm, kept)
            return
        self._bad_steps = 0
        if step == 1 and loss > self._guess + _MARGIN:
            self._warn_of_first(loss)
        self.has_known |= loss < self._guess
        self._lost_steps = self._lost_steps + 1 if loss > self._guess else 0
        if self.has_known and self._lost_steps >= _MAX_LOST_STEPS:
            raise self._diverged(
                f"The loss is worse than guessing since step {step - _MAX_LOST_STEPS + 1}.",
                f"loss {loss:.2f}, guessing among all tokens is {self._guess:.2f}; it was better "
                f"before, and the checkpoint of step {kept} is kept",
            )

    def _count_bad(self, step: int, loss: float, norm: float, kept: int) -> None:
        self._bad_steps += 1
        if self._bad_steps < _MAX_BAD_STEPS and not self._spoils:
            return
        changed = "the weights are spoilt" if self._spoils else "those steps changed nothing"
        raise self._diverged(
            f"The loss is no number since step {step - self._bad_steps + 1}.",
            f"loss {loss}, gradient norm {norm}; {changed}, the checkpoint of step {kept} is kept",
        )

    def _diverged(self, what: str, why: str) -> SlidepackError:
        return SlidepackError(
            "RUN-DIVERGED",
            what,
            why=why,
            fix=f"Try again with a learning rate below {self._lr / 3:.1e}.",
        )

    def _warn_of_first(self, loss: float) -> None:
        self._events.append(
            Warned(
                at=self._events.now(),
                code="RUN-HIGH-LOSS",
                message=f"The first loss is {loss:.2f}, above guessing "
                f"({self._guess + _MARGIN:.2f}): the model or its tokenizer may not fit the data.",
            )
        )
