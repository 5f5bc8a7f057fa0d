"""The training loop: step, report, evaluate, checkpoint, obey."""

import math
import time
from collections.abc import Sequence
from typing import Final, Literal, Protocol

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import (
    ControlDone,
    Evaluated,
    PhaseChanged,
    Progress,
    Warned,
)
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.contract.judgement import Voices
from slidepack.engine.contract.lineage import fixed_part, spec_hash
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.optimizer import learning_rate
from slidepack.engine.model.loss import LossSum
from slidepack.engine.worker.checkpoint import LaneState
from slidepack.engine.worker.clock import RunClock
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.dataset import EncodedData
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.learning import LossTrail
from slidepack.engine.worker.order import RowOrder
from slidepack.engine.worker.saving import Checkpoints
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError
from slidepack.engine.worker.trainee import Trainee
from slidepack.engine.worker.watchdog import Vitals, Watchdog

_EVALUATIONS_PER_RUN: Final = 10
_SHOWN_LINES: Final = 5
_NOTHING: Final = Voices()


class Judge(Protocol):
    """Judges a run against the others of its sweep (`worker.sweep.Member`)."""

    def wants_evaluation(self, trainer: "Trainer") -> bool:
        """Return whether it has come to where it is judged, or ends."""
        ...

    def judge(self, trainer: "Trainer", loss: float) -> None:
        """End it where it is behind the others by its held-out loss."""
        ...

    def end_if_stopped(self, trainer: "Trainer") -> None:
        """End it where it was told to before."""
        ...


class Trainer:
    """Trains; every result leaves as an event or a checkpoint."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        trainee: Trainee,
        data: EncodedData,
        total_steps: int,
        state: LaneState | None,
        events: EventLog,
        control: ControlReader,
        stop: StopFlag,
        checkpoints: Checkpoints,
        judged: Voices = _NOTHING,
    ) -> None:
        """Bind everything a run needs.

        `state` is what a resumed run goes on from, `judged` what was measured before its first
        step.
        """
        self._spec = spec
        self._trainee = trainee
        self._data = data
        self._events = events
        self._control = control
        self._stop = stop
        self._checkpoints = checkpoints
        self.judged = judged
        self.total_steps = total_steps
        self.step = state.step if state else 0
        self.tokens = state.tokens if state else 0
        # A job that adopts a checkpoint may measure other rows than the one that made it.
        same_rows = state is not None and state.eval_rows in (0, len(data.selection))
        self.eval_loss_before = state.eval_loss_before if state and same_rows else None
        self._evaluated_step = state.evaluated_step if state and same_rows else -1
        self.clock = RunClock(state.seconds if state else 0.0)
        self._order = RowOrder(spec)
        self._final_loss: float | None = None
        self._watchdog = Watchdog(
            spec.optim.lr,
            trainee.shape.vocab,
            events,
            spoils=trainee.applies_bad_steps,
            vitals=_vitals(state),
        )
        self.trail = LossTrail(
            state.first_losses if state else (),
            state.last_losses if state else (),
            whole=not self.step or bool(state and state.first_losses),
        )

    def run(self, judge: Judge | None = None) -> float | None:
        """Train to the end and return the final held-out loss, or None with nothing held out.

        A stop is obeyed in the middle of a step or of an evaluation: what was computed of it is
        dropped, and the last whole step is checkpointed.

        Args:
            judge: of the sweep that it belongs to; may end it early.

        Raises:
            StopRequestedError: a stop was asked for; a checkpoint of the last whole step is safe.
            SlidepackError: RUN-DIVERGED, DISK-FULL, DATA-NO-USABLE-ROWS.
            OSError: the disk refused a checkpoint; the earlier ones stand.
        """
        try:
            return self._run(judge)
        except StopRequestedError:
            self.save_unless_saved(self._stop.reason)
            raise

    def _run(self, judge: Judge | None) -> float | None:
        if judge is not None:
            judge.end_if_stopped(self)
        self._evaluate_if_due(judge)
        self.begin()
        # The attempt before may have been stopped in the middle of an evaluation.
        while not self.is_done:
            self._obey()
            begun = time.monotonic()
            rows = self.next_rows()
            loss, norm = self._trainee.train_step(rows, self.step, self.total_steps)
            self.record_step(rows, loss, norm, time.monotonic() - begun)
            self._evaluate_if_due(judge)
            self.save_if_due()
        self.save_unless_saved("end of training")
        return self.conclude()

    def begin(self) -> None:
        """Report that steps begin."""
        self._events.append(PhaseChanged(at=self._events.now(), phase="training"))

    @property
    def is_done(self) -> bool:
        """Whether every step is done."""
        return self.step >= self.total_steps

    def next_rows(self, ahead: int = 0) -> list[EncodedRow]:
        """Return the rows of the next step, or of one that comes so many after it.

        Raises:
            SlidepackError: DATA-NO-USABLE-ROWS: the next step has no token to learn from.
        """
        rows = self._order.rows_of_step(self._data.train, self.step + ahead)
        if not ahead and not any(row.num_supervised for row in rows):
            lines = ", ".join(str(row.line) for row in rows[:_SHOWN_LINES])
            raise SlidepackError(
                "DATA-NO-USABLE-ROWS",
                f"Step {self.step + 1} has no token to learn from.",
                why=f"none is supervised in its {len(rows)} rows (line {lines})",
                fix="Look at these rows with `slidepack data check`, and queue the job again.",
            )
        return rows

    def record_step(
        self, rows: Sequence[EncodedRow], loss: LossSum, norm: float, seconds: float
    ) -> None:
        """Count and report a step that was just done.

        Raises:
            SlidepackError: RUN-DIVERGED.
        """
        lr = learning_rate(self._spec.optim, self.step, self.total_steps)
        self.step += 1
        tokens = sum(len(row.ids) for row in rows)
        self.tokens += tokens
        self.trail.add(loss.mean)
        self._watchdog.look(self.step, loss.mean, norm, self.good_step)
        speed = self.clock.add_step(seconds, tokens)
        self._events.append(
            Progress(
                at=self._events.now(),
                step=self.step,
                total_steps=self.total_steps,
                loss=_finite(loss.mean),
                grad_norm=_finite(norm),
                lr=lr,
                tokens=tokens,
                supervised_tokens=loss.tokens,
                tokens_per_second=speed,
                eta_seconds=self.clock.eta_seconds(self.total_steps - self.step),
            )
        )

    @property
    def good_step(self) -> int | None:
        """Step of the newest checkpoint that was made in good health, of any attempt."""
        return self._checkpoints.good_step

    @property
    def samples(self) -> int:
        """Rows trained on so far."""
        return self.step * self._spec.batch_size

    def end_early(self, why: str) -> None:
        """Let this step be the last one.

        Args:
            why: for the user.
        """
        self._events.append(Warned(at=self._events.now(), code="RUN-STOPPED-EARLY", message=why))
        self.total_steps = self.step

    def due_evaluation(self, *, wanted: bool = False) -> Sequence[EncodedRow] | None:
        """Return the held-out rows that are to be measured at this step; None where none are.

        Args:
            wanted: measure them, whatever the job's own schedule says.
        """
        if self._evaluated_step == self.step or not self._data.selection:
            return None
        every = self._spec.eval.every_steps or max(1, self.total_steps // _EVALUATIONS_PER_RUN)
        due = wanted or self.step % every == 0 or self.is_done
        return self._data.selection if due else None

    def record_evaluation(self, loss: LossSum) -> None:
        """Report the held-out loss of this step."""
        self._report_evaluation("selection", self._data.selection, loss)
        self._evaluated_step = self.step
        if self.step == 0 and self.eval_loss_before is None:
            self.eval_loss_before = loss.mean
        if self.is_done:
            self._final_loss = loss.mean

    def conclude(self) -> float | None:
        """Measure what was never trained on; return the final held-out loss."""
        if self._final_loss is None and self._data.selection:
            # The attempt before measured it, and was stopped after that.
            self.record_evaluation(self._trainee.evaluate(self._data.selection))
        if self._data.test:
            self._report_evaluation(
                "test", self._data.test, self._trainee.evaluate(self._data.test)
            )
        return self._final_loss

    def _evaluate_if_due(self, judge: Judge | None) -> None:
        rows = self.due_evaluation(wanted=judge is not None and judge.wants_evaluation(self))
        if rows is not None:
            loss = self._trainee.evaluate(rows)
            self.record_evaluation(loss)
            if judge is not None:
                judge.judge(self, loss.mean)
            self._stop.check()

    def _report_evaluation(
        self, split: Literal["selection", "test"], rows: Sequence[EncodedRow], loss: LossSum
    ) -> None:
        self._events.append(
            Evaluated(
                at=self._events.now(),
                step=self.step,
                split=split,
                loss=_finite(loss.mean),
                rows=len(rows),
                supervised_tokens=loss.tokens,
            )
        )

    def save_if_due(self) -> None:
        """Write a checkpoint where it is time for one."""
        evaluated = self._evaluated_step == self.step
        if not self.is_done and self._checkpoints.is_due(self.step, evaluated=evaluated):
            self.save("schedule")

    def save_unless_saved(self, reason: str) -> None:
        """Write a checkpoint of the last whole step, unless there is one."""
        if not self._checkpoints.has(self.step):
            self.save(reason)

    def save(self, reason: str) -> None:
        """Write a checkpoint of the last whole step and report it.

        Raises:
            SlidepackError: DISK-FULL.
            OSError: the disk refused; the earlier ones stand.
        """
        self._checkpoints.save(self._state(), reason)

    def _state(self) -> LaneState:
        healthy = self._watchdog.is_healthy
        return LaneState(
            step=self.step,
            total_steps=self.total_steps,
            spec_hash=spec_hash(self._spec),
            eval_loss_before=self.eval_loss_before,
            evaluated_step=self._evaluated_step,
            seconds=self.clock.seconds,
            tokens=self.tokens,
            fixed=fixed_part(self._spec),
            healthy=healthy,
            good_step=-1 if self.good_step is None else self.good_step,
            eval_rows=len(self._data.selection),
            vitals=self._watchdog.vitals,
            first_losses=tuple(self.trail.first),
            last_losses=tuple(self.trail.last),
            carried_steps=self._trainee.carried_steps,
            judged=self.judged,
        )

    def _obey(self) -> None:
        """Carry out commands and stop requests, between two steps.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        for command in self._control.new_commands():
            if command.kind == "stop":
                self._stop.request(f"control command {command.command_id}")
            else:
                self.save(f"control command {command.command_id}")
            self._events.append(
                ControlDone(at=self._events.now(), command_id=command.command_id, outcome="done")
            )
        self._stop.check()


def _vitals(state: LaneState | None) -> Vitals | None:
    if state is None:
        return None
    return state.vitals or Vitals(has_known=state.has_known)


def _finite(value: float) -> float | None:
    """Return the value, or None where it is no number: JSON has no word for those."""
    return value if math.isfinite(value) else None
