"""The checkpoints of a run: when one is due, whether it fits, and which is good to go on from."""

import time
from pathlib import Path
from typing import Final

from slidepack.engine.contract.events import Checkpointed
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.lineage import spec_hash
from slidepack.engine.worker.checkpoint import LaneState, save_checkpoint
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.pace import CheckpointPace
from slidepack.engine.worker.room import require_room
from slidepack.engine.worker.trainee import Trainee

__all__ = ["Checkpoints"]

_STATE_BYTES: Final = 64 << 10
"""Of a checkpoint beside its tensors."""


class Checkpoints:
    """Writes a run's checkpoints and reports them."""

    def __init__(
        self,
        folder: Path,
        spec: JobSpec,
        trainee: Trainee,
        events: EventLog,
        disk_floor_bytes: int,
        state: LaneState | None,
    ) -> None:
        """Begin, or go on.

        Args:
            folder: where they go.
            spec: of the job.
            trainee: what is saved.
            events: told of each.
            disk_floor_bytes: what they leave free.
            state: of the checkpoint that the run goes on from.
        """
        self._folder = folder
        self._trainee = trainee
        self._events = events
        self._disk_floor = disk_floor_bytes
        self._pace = CheckpointPace(spec, time.monotonic())
        # A checkpoint of another job may go when that job does.
        own = state is not None and state.spec_hash == spec_hash(spec)
        self._last_step = state.step if state and own else -1
        self._good_step = state.newest_good_step if state else -1

    @property
    def good_step(self) -> int | None:
        """Step of the newest one that was made in good health, of any attempt."""
        return self._good_step if self._good_step >= 0 else None

    def has(self, step: int) -> bool:
        """Return whether there is one of this step."""
        return step == self._last_step

    def is_due(self, step: int, *, evaluated: bool) -> bool:
        """Return whether it is time for one.

        Args:
            step: steps done.
            evaluated: whether the held-out loss of this step was just measured.
        """
        return not self.has(step) and self._pace.is_due(time.monotonic(), step, evaluated=evaluated)

    def save(self, state: LaneState, reason: str) -> None:
        """Write one.

        Raises:
            SlidepackError: DISK-FULL: it does not fit above the disk's floor.
            OSError: the disk refused; the earlier ones stand.
        """
        begun = time.monotonic()
        require_room(
            self._folder,
            self._trainee.checkpoint_bytes + _STATE_BYTES,
            self._disk_floor,
            f"the checkpoint of step {state.step}",
        )
        path = save_checkpoint(self._trainee, state, self._folder)
        ended = time.monotonic()
        self._pace.saved(begun, ended)
        self._last_step = state.step
        self._good_step = state.newest_good_step
        self._events.append(
            Checkpointed(
                at=self._events.now(),
                step=state.step,
                path=str(path),
                seconds=ended - begun,
                reason=reason,
                healthy=state.healthy,
            )
        )
