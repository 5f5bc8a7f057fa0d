"""A lane's seat in a pack: its run folder, and where it is between reading its data and its end."""

import contextlib
import logging
import os
import time
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import Failed, Yielded
from slidepack.engine.contract.job import LoraMethod, ModelRef, OptimSpec
from slidepack.engine.contract.pack import LaneRef
from slidepack.engine.contract.plan import RunPlan
from slidepack.engine.contract.runfolder import RunFolder
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.lora.pack import LaneStep
from slidepack.engine.memory import run_precision
from slidepack.engine.memory_lora import base_format
from slidepack.engine.shape import ModelShape
from slidepack.engine.worker.attempt import Attempt
from slidepack.engine.worker.dataset import EncodedData
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.lock import take_lock
from slidepack.engine.worker.stopping import StopFlag
from slidepack.engine.worker.trainee import LoraTrainee
from slidepack.engine.worker.trainer import Trainer

__all__ = ["Seat"]

logger = logging.getLogger("slidepack.worker")


class Seat:
    """One lane of a pack."""

    def __init__(self, ref: LaneRef, stop: StopFlag) -> None:
        """Take the lane's run folder.

        Raises:
            SlidepackError: RUN-FOLDER-BUSY.
            OSError: the disk refused.
        """
        self.ref = ref
        self.folder = RunFolder(Path(ref.folder))
        self._stop = stop
        self._open = contextlib.ExitStack()
        self._open.callback(os.close, take_lock(self.folder.lock))
        try:
            self.events = self._open.enter_context(EventLog(self.folder.events))
        except OSError:
            self._open.close()
            raise
        self._opened: Attempt | None = None
        self._data: EncodedData | None = None
        self._trainee: LoraTrainee | None = None
        self._trainer: Trainer | None = None

    def read_input(self, tokenizer: ChatTokenizer) -> None:
        """Read the lane's input files.

        Raises:
            SlidepackError: RUN-FOLDER-BROKEN.
        """
        self._opened = Attempt(self.folder, self.events, self._stop, tokenizer)

    @property
    def _attempt(self) -> Attempt:
        assert self._opened is not None
        return self._opened

    @property
    def method(self) -> LoraMethod:
        """The lane's method; `check` has seen that it is this one."""
        method = self._attempt.spec.method
        assert isinstance(method, LoraMethod)
        return method

    @property
    def optim(self) -> OptimSpec:
        """The lane's optimizer."""
        return self._attempt.spec.optim

    @property
    def seed(self) -> int:
        """The lane's seed."""
        return self._attempt.spec.seed

    @property
    def trainer(self) -> Trainer:
        """What counts the lane's steps, once it has begun."""
        assert self._trainer is not None
        return self._trainer

    def step_tokens(self, shape: ModelShape) -> int:
        """Return the most tokens of a step."""
        spec = self._attempt.spec
        return spec.batch_size * min(spec.max_seq_len, shape.max_positions)

    @property
    def steps_done(self) -> int:
        """Whole steps so far; 0 before it has begun."""
        return 0 if self._trainer is None else self._trainer.step

    @property
    def is_untouched(self) -> bool:
        """Whether the lane still computes what its base does: its B begins at zero."""
        return self.steps_done == 0 and self._attempt.spec.continues is None

    def check(self, base: ModelRef, plan: RunPlan, shape: ModelShape) -> None:
        """Check that the lane can share the pack's passes.

        Args:
            base: of the pack.
            plan: of its passes.
            shape: of the base.

        Raises:
            SlidepackError: RUN-PACK-MISMATCH.
        """
        spec = self._attempt.spec
        if not isinstance(spec.method, LoraMethod):
            raise _mismatch("it trains every weight, and a pack shares a frozen base")
        if spec.base.content_hash != base.content_hash:
            raise _mismatch(f"its base is {spec.base.model_id}, the pack's is {base.model_id}")
        wanted = (run_precision(spec, plan.device), base_format(spec.method))
        if wanted != (plan.precision, plan.base_format):
            raise _mismatch(
                f"it wants a base in {' '.join(wanted)}, the pack's is in {plan.precision} "
                f"{plan.base_format}"
            )
        longest = min(spec.max_seq_len, shape.max_positions)
        if longest > plan.micro_batch_tokens:
            raise _mismatch(
                f"its rows may have {longest} tokens, a pass of the pack at most "
                f"{plan.micro_batch_tokens}"
            )

    def read_data(self, shape: ModelShape) -> None:
        """Tokenise the lane's rows; may run beside the others' steps.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the errors of `Attempt.read_data`.
        """
        self._data = self._attempt.read_data(shape)

    def begin(self, trainee: LoraTrainee, plan: RunPlan) -> None:
        """Go on from the newest checkpoint, or from the start.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the errors of `Attempt.trainer`.
        """
        assert self._data is not None
        self._trainee = trainee
        self._trainer = self._attempt.trainer(trainee, self._data, plan.precision)
        self._trainer.begin()

    def next_step(self, ahead: int = 0) -> LaneStep:
        """Return the lane's next step, or one that comes so many after it.

        Raises:
            SlidepackError: DATA-NO-USABLE-ROWS.
        """
        assert self._trainee is not None
        spec, trainer = self._attempt.spec, self.trainer
        return LaneStep(
            rows=trainer.next_rows(ahead),
            optim=spec.optim,
            step=trainer.step + ahead,
            total_steps=self.trainer.total_steps,
            seed=spec.seed,
            carried_steps=self._trainee.carried_steps,
        )

    def finish(self, plan: RunPlan) -> None:
        """Write the result; the lane is done.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: the errors of `Attempt.finish`.
            OSError: the disk refused.
        """
        assert self._trainee is not None
        assert self._data is not None
        trainer = self.trainer
        trainer.save_unless_saved("end of training")
        loss_after = trainer.conclude()
        self._attempt.finish(trainer, self._trainee, self._data, plan, loss_after)
        self.close()

    def leave(self, reason: str) -> None:
        """Checkpoint the last whole step, and end the attempt so that it can be resumed.

        Raises:
            SlidepackError: DISK-FULL.
            OSError: the disk refused the checkpoint; the earlier ones stand.
        """
        begun = time.monotonic()
        if self._trainer is not None:
            self._trainer.save_unless_saved(reason)
        # One lane may be asked to leave, and all of them may.
        seconds = max(self._stop.seconds, time.monotonic() - begun)
        self.events.append(Yielded(at=self.events.now(), reason=reason, seconds=seconds))
        self.close()

    def fail(self, error: SlidepackError) -> bool:
        """End the attempt with an error; return whether the lane's own events tell of it."""
        logger.error("lane %s: %s", self.ref.lane, error)
        try:
            with self._open:
                self.events.append(Failed(at=self.events.now(), error=error.report))
        except OSError as disk:
            logger.error("lane %s: its failure could not be recorded: %s", self.ref.lane, disk)
            return False
        return True

    def close(self) -> None:
        """Give the run folder back."""
        self._open.close()


def _mismatch(why: str) -> SlidepackError:
    return SlidepackError(
        "RUN-PACK-MISMATCH",
        "The job cannot share the pack's passes.",
        why=why,
        fix="Start it in a pack of its own kind, or alone.",
    )
