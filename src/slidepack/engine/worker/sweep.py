"""Members of a sweep: judged at each rung, and ended where they are behind.

Each member's run folder says where it is judged, so one pack may hold lanes of several sweeps, a
sweep's lanes may be in several packs, and a run that has its worker to itself is judged with them.
"""

from pathlib import Path
from typing import Protocol

from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.contract.sweep import Halving
from slidepack.engine.lora.halving import Rungs
from slidepack.engine.worker.seat import Seat

__all__ = ["Member", "Sweep"]


class Judged(Protocol):
    """What trains a member (`Trainer`)."""

    @property
    def samples(self) -> int:
        """Rows trained on so far."""
        ...

    @property
    def is_done(self) -> bool:
        """Whether every step is done."""
        ...

    def end_early(self, why: str) -> None:
        """Let this step be the last one."""
        ...


class Member:
    """A member of a sweep, wherever it trains."""

    def __init__(self, name: str, halving: Halving, rungs: Rungs) -> None:
        """Bind where it is judged.

        Args:
            name: of the member among the others; its job's id.
            halving: how few go on.
            rungs: what was measured of all.
        """
        self._name = name
        self._halving = halving
        self._rungs = rungs

    @classmethod
    def of(cls, folder: RunFolder, name: str) -> "Member | None":
        """Return the member that a run folder belongs to; None where it is in no sweep.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        found = folder.read_sweep()
        if found is None:
            return None
        return cls(name, found.halving, Rungs.restored(found.halving, Path(found.rungs)))

    def wants_evaluation(self, trainer: Judged) -> bool:
        """Return whether it has come to where it is judged, or ends."""
        return self._new_rung(trainer) > 0 or self._stops_at(trainer) > 0

    def judge(self, trainer: Judged, loss: float) -> None:
        """End it where it is behind the others.

        Args:
            trainer: of the member.
            loss: on held-out rows, after the step that was done last.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
            OSError: the disk refused the results.
        """
        if trainer.is_done:
            return
        rung = self._new_rung(trainer)
        if rung:
            self._rungs.judge(self._name, rung, loss)
        self.end_if_stopped(trainer)

    def end_if_stopped(self, trainer: Judged) -> None:
        """End it where it has come to the rung at which it was told to."""
        rung = self._stops_at(trainer)
        if not rung or trainer.is_done:
            return
        place, among = self._rungs.place(self._name, rung)
        trainer.end_early(
            f"After {trainer.samples} samples its held-out loss is number {place} of {among}, "
            f"and one of {self._halving.eta} goes on."
        )

    def _new_rung(self, trainer: Judged) -> int:
        """Return the rung that it has come to and was not judged at; 0 where there is none."""
        rung = self._rungs.reached(trainer.samples)
        return rung if rung > self._rungs.measured(self._name) else 0

    def _stops_at(self, trainer: Judged) -> int:
        """Return the rung at which it was told to end, once it stands there; else 0.

        One that died between the judgement and its end may go on from an earlier checkpoint.
        """
        rung = self._rungs.stopped_at(self._name)
        return rung if self._rungs.reached(trainer.samples) >= rung else 0


class Sweep:
    """Successive halving over the seats of a pack; lanes of no sweep are left alone."""

    def __init__(self) -> None:
        """Begin with no lane."""
        self._members: dict[str, Member] = {}

    def resume(self, seat: Seat) -> None:
        """Go on with what a lane was judged before; end it where it has come to its last rung.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        lane = seat.ref.lane
        self._members.pop(lane, None)
        member = Member.of(seat.folder, lane)
        if member is not None:
            self._members[lane] = member
            member.end_if_stopped(seat.trainer)

    def wants_evaluation(self, seat: Seat) -> bool:
        """Return whether a lane has come to where it is judged, or ends."""
        member = self._members.get(seat.ref.lane)
        return member is not None and member.wants_evaluation(seat.trainer)

    def judge(self, seat: Seat, loss: float) -> None:
        """End a lane that is behind the others.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
            OSError: the disk refused the results.
        """
        member = self._members.get(seat.ref.lane)
        if member is not None:
            member.judge(seat.trainer, loss)
