"""A pack whose lanes are a sweep: judges them at each rung, and ends those that are behind."""

from pathlib import Path

from slidepack.engine.contract.pack import Halving
from slidepack.engine.lora.halving import Rungs
from slidepack.engine.worker.seat import Seat

__all__ = ["Sweep"]


class Sweep:
    """Successive halving over the seats of a pack; without a specification it judges nobody."""

    def __init__(self, spec: Halving | None, path: Path) -> None:
        """Go on with the results of earlier attempts.

        Args:
            spec: where the rungs are; None for a pack that is no sweep.
            path: file that keeps the results.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        self._spec = spec
        self._rungs = None if spec is None else Rungs.restored(spec, path)

    def wants_evaluation(self, seat: Seat) -> bool:
        """Return whether a lane has reached a rung that it was not judged at."""
        return self._new_rung(seat) > 0

    def judge(self, seat: Seat, loss: float) -> None:
        """End a lane that is behind the others.

        Raises:
            OSError: the disk refused the results.
        """
        rung = self._new_rung(seat)
        if self._rungs is None or not rung or seat.trainer.is_done:
            return
        if not self._rungs.judge(seat.ref.lane, rung, loss):
            self._end(seat, rung)

    def resume(self, seat: Seat) -> None:
        """End a lane that was judged before, and did not come to its end."""
        if self._rungs is None or seat.trainer.is_done:
            return
        rung = self._rungs.stopped_at(seat.ref.lane)
        if rung:
            self._end(seat, rung)

    def _end(self, seat: Seat, rung: int) -> None:
        assert self._rungs is not None
        assert self._spec is not None
        place, among = self._rungs.place(seat.ref.lane, rung)
        seat.trainer.end_early(
            f"After {seat.trainer.samples} samples its held-out loss is number {place} of {among}, "
            f"and one of {self._spec.eta} goes on."
        )

    def _new_rung(self, seat: Seat) -> int:
        if self._rungs is None:
            return 0
        rung = self._rungs.reached(seat.trainer.samples)
        return rung if rung > self._rungs.measured(seat.ref.lane) else 0
