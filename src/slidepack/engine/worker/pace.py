"""When a checkpoint is due: after so many steps, or after a time and at evaluations. No clock."""

from typing import Final

from slidepack.engine.contract.job import JobSpec

__all__ = ["CheckpointPace"]

_AFTER_EVALUATION: Final = 60.0
"""Seconds that the last checkpoint is old, for an evaluation to bring another."""
_COST_SHARE: Final = 20.0
"""A checkpoint waits for so many times the seconds that the last one took: writing a whole model
takes its time, and no more than a twentieth of the run goes there."""


class CheckpointPace:
    """Spaces the checkpoints of a run."""

    def __init__(self, spec: JobSpec, now: float) -> None:
        """Begin at `now`, in seconds of a clock that never jumps, as all times here."""
        self._every_steps = spec.checkpoint_every_steps
        self._seconds = spec.checkpoint_minutes * 60.0
        self._last = now
        self._cost = 0.0

    def saved(self, begun: float, ended: float) -> None:
        """Record a checkpoint."""
        self._last = ended
        self._cost = ended - begun

    def is_due(self, now: float, step: int, *, evaluated: bool) -> bool:
        """Return whether a checkpoint of this step is due.

        Args:
            now: the time.
            step: steps done.
            evaluated: whether the held-out loss of this step was just measured.
        """
        if self._every_steps:
            return step % self._every_steps == 0
        wanted = min(_AFTER_EVALUATION, self._seconds) if evaluated else self._seconds
        return now - self._last >= max(wanted, _COST_SHARE * self._cost)
