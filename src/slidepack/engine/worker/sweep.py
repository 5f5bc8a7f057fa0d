"""Lanes that belong to a sweep: judged at each rung, and ended where they are behind.

Each lane's run folder says where it is judged, so one pack may hold lanes of several sweeps, and
a sweep's lanes may be in several packs.
"""

from dataclasses import dataclass
from pathlib import Path

from slidepack.engine.contract.sweep import Halving
from slidepack.engine.lora.halving import Rungs
from slidepack.engine.worker.seat import Seat

__all__ = ["Sweep"]


@dataclass(frozen=True, slots=True)
class _Judged:
    """Where a seated lane is judged."""

    halving: Halving
    rungs: Rungs


class Sweep:
    """Successive halving over the seats of a pack; lanes of no sweep are left alone."""

    def __init__(self) -> None:
        """Begin with no lane."""
        self._lanes: dict[str, _Judged] = {}

    def resume(self, seat: Seat) -> None:
        """Go on with what a lane was judged before; end it where it has come to its last rung.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        lane = seat.ref.lane
        self._lanes.pop(lane, None)
        found = seat.folder.read_sweep()
        if found is None:
            return
        judged = _Judged(found.halving, Rungs.restored(found.halving, Path(found.rungs)))
        self._lanes[lane] = judged
        self._end_if_stopped(seat, judged)

    def wants_evaluation(self, seat: Seat) -> bool:
        """Return whether a lane has come to where it is judged, or ends."""
        judged = self._lanes.get(seat.ref.lane)
        return judged is not None and (
            _new_rung(seat, judged.rungs) > 0 or _stops_at(seat, judged.rungs) > 0
        )

    def judge(self, seat: Seat, loss: float) -> None:
        """End a lane that is behind the others.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
            OSError: the disk refused the results.
        """
        judged = self._lanes.get(seat.ref.lane)
        if judged is None or seat.trainer.is_done:
            return
        rung = _new_rung(seat, judged.rungs)
        if rung:
            judged.rungs.judge(seat.ref.lane, rung, loss)
        self._end_if_stopped(seat, judged)

    def _end_if_stopped(self, seat: Seat, judged: _Judged) -> None:
        rung = _stops_at(seat, judged.rungs)
        if not rung or seat.trainer.is_done:
            return
        place, among = judged.rungs.place(seat.ref.lane, rung)
        seat.trainer.end_early(
            f"After {seat.trainer.samples} samples its held-out loss is number {place} of {among}, "
            f"and one of {judged.halving.eta} goes on."
        )


def _new_rung(seat: Seat, rungs: Rungs) -> int:
    """Return the rung that a lane has come to and was not judged at; 0 where there is none."""
    rung = rungs.reached(seat.trainer.samples)
    return rung if rung > rungs.measured(seat.ref.lane) else 0


def _stops_at(seat: Seat, rungs: Rungs) -> int:
    """Return the rung at which a lane was told to end, once it stands there; else 0.

    One that died between the judgement and its end may go on from an earlier checkpoint.
    """
    rung = rungs.stopped_at(seat.ref.lane)
    return rung if rungs.reached(seat.trainer.samples) >= rung else 0
