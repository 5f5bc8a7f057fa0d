"""Tells once in a run what its steps cost the drives, when a step's time is known."""

import time
from collections.abc import Callable
from typing import Final

from slidepack.engine.contract.plan import NvmePlan
from slidepack.engine.drive_wear import wear_of

__all__ = ["CODE", "WearNotice"]

CODE: Final = "DISK-WEAR"
_FIRST: Final = 1
"""The step that is timed, counted from 0: the one before it also compiles and fills caches."""


class WearNotice:
    """Reports the wear of the drives after the run's second step."""

    def __init__(self, tier: NvmePlan, warn: Callable[[str, str], None]) -> None:
        """Bind the plan.

        Args:
            tier: what is on drives.
            warn: reports a code and a sentence.
        """
        self._tier = tier
        self._warn = warn
        self._known = False
        self._told = False

    def known_from_before(self) -> None:
        """Note that the run goes on from where its state was on drives already."""
        self._known = True

    def after_step(self, begun: float, step: int, total_steps: int) -> None:
        """Report, where that has not been done.

        Args:
            begun: when the step began, by `time.monotonic`.
            step: steps done before it.
            total_steps: of the run.
        """
        if self._told or step < min(_FIRST, total_steps - 1):
            return
        self._told = True
        # An attempt before this one had come as far as here, and told.
        if self._known and step > _FIRST:
            return
        seconds = time.monotonic() - begun
        steps = total_steps if step <= _FIRST else total_steps - step
        self._warn(CODE, wear_of(self._tier, step_seconds=seconds, steps=steps).sentence())
