"""The training loop: step, report, evaluate, checkpoint, obey."""

import math
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import (
    Checkpointed,
    ControlDone,
    Evaluated,
    PhaseChanged,
    Progress,
    Warned,
)
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.lora.optimizer import learning_rate
from slidepack.engine.worker.checkpoint import LaneState, save_checkpoint
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.dataset import EncodedData
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.order import rows_of_step
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError
from slidepack.engine.worker.trainee import Trainee

CHECKPOINT_SECONDS: Final = 300.0
"""Time between checkpoints where the job names no number of steps."""
_EVALUATIONS_PER_RUN: Final = 10
_CHECKPOINT_PAUSE: Final = 20.0
_MAX_BAD_STEPS: Final = 3
_SPEED_WINDOW: Final = 20
"""Steps over which tokens per second are averaged."""


@dataclass(slots=True)
class RunClock:
    """Training time and recent speed; wall time of earlier attempts is carried in."""

    seconds_before: float
    started: float = field(default_factory=time.monotonic)
    recent: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """Training seconds of the whole run so far."""
        return self.seconds_before + time.monotonic() - self.started

    def add_step(self, seconds: float, tokens: int) -> float:
        """Record a step and return recent tokens per second."""
        self.recent = [*self.recent[1 - _SPEED_WINDOW :], (seconds, tokens)]
        return sum(t for _, t in self.recent) / max(1e-9, sum(s for s, _ in self.recent))

    def eta_seconds(self, steps_left: int) -> float:
        """Return the expected seconds of the remaining steps."""
        return steps_left * sum(s for s, _ in self.recent) / max(1, len(self.recent))


class Trainer:
    """Trains; every result leaves as an event or a checkpoint."""

    def __init__(
        self,
        *,
        spec: JobSpec,
        spec_hash: str,
        trainee: Trainee,
        data: EncodedData,
        total_steps: int,
        state: LaneState | None,
        events: EventLog,
        control: ControlReader,
        stop: StopFlag,
        checkpoints: Path,
    ) -> None:
        """Bind everything a run needs; `state` is what a resumed run goes on from."""
        self._spec = spec
        self._spec_hash = spec_hash
        self._trainee = trainee
        self._data = data
        self._events = events
        self._control = control
        self._stop = stop
        self._checkpoints = checkpoints
        self.total_steps = total_steps
        self.step = state.step if state else 0
        self.tokens = state.tokens if state else 0
        self.eval_loss_before = state.eval_loss_before if state else None
        self._evaluated_step = state.evaluated_step if state else -1
        self.clock = RunClock(state.seconds if state else 0.0)
        self._bad_steps = 0
        self._last_checkpoint_time = time.monotonic()
        self._checkpoint_seconds = 0.0
        self._last_checkpoint_step = self.step if state else -1

    def run(self) -> float | None:
        """Train to the end and return the final held-out loss, or None with nothing held out.

        A stop is obeyed in the middle of a step or of an evaluation: what was computed of it is
        dropped, and the last whole step is checkpointed.

        Raises:
            StopRequestedError: a stop was asked for; a checkpoint of the last whole step is safe.
            SlidepackError: RUN-DIVERGED.
            OSError: the disk refused a checkpoint; the earlier ones stand.
        """
        try:
            return self._run()
        except StopRequestedError:
            if self._last_checkpoint_step != self.step:
                self.save(self._stop.reason)
            raise

    def _run(self) -> float | None:
        if self.step == 0 and self.eval_loss_before is None:
            self.eval_loss_before = self.evaluate(0)
        self._events.append(PhaseChanged(at=self._events.now(), phase="training"))
        # The attempt before may have been stopped in the middle of it.
        final_loss = self._evaluate_if_due()
        while self.step < self.total_steps:
            self._obey()
            self._train_one()
            final_loss = self._evaluate_if_due()
            if self._checkpoint_due():
                self.save("schedule")
        if self._last_checkpoint_step != self.step:
            self.save("end of training")
        if final_loss is None:
            final_loss = self.evaluate(self.step)
        return final_loss

    def evaluate(self, step: int) -> float | None:
        """Measure and report the held-out loss, or return None with nothing held out."""
        rows = self._data.selection
        if not rows:
            return None
        loss = self._trainee.evaluate(rows)
        self._events.append(
            Evaluated(
                at=self._events.now(),
                step=step,
                split="selection",
                loss=_finite(loss.mean),
                rows=len(rows),
                supervised_tokens=loss.tokens,
            )
        )
        self._evaluated_step = step
        self._stop.check()
        return loss.mean

    def evaluate_test(self) -> None:
        """Measure and report the loss on the rows that selection never saw."""
        if not self._data.test:
            return
        loss = self._trainee.evaluate(self._data.test)
        self._events.append(
            Evaluated(
                at=self._events.now(),
                step=self.step,
                split="test",
                loss=_finite(loss.mean),
                rows=len(self._data.test),
                supervised_tokens=loss.tokens,
            )
        )

    def save(self, reason: str) -> None:
        """Write a checkpoint of the last whole step and report it."""
        begun = time.monotonic()
        path = save_checkpoint(
            self._trainee,
            LaneState(
                step=self.step,
                total_steps=self.total_steps,
                spec_hash=self._spec_hash,
                eval_loss_before=self.eval_loss_before,
                evaluated_step=self._evaluated_step,
                seconds=self.clock.seconds,
                tokens=self.tokens,
            ),
            self._checkpoints,
        )
        self._last_checkpoint_time = time.monotonic()
        self._checkpoint_seconds = self._last_checkpoint_time - begun
        self._last_checkpoint_step = self.step
        self._events.append(
            Checkpointed(
                at=self._events.now(),
                step=self.step,
                path=str(path),
                seconds=self._checkpoint_seconds,
                reason=reason,
            )
        )

    def _train_one(self) -> None:
        begun = time.monotonic()
        rows = rows_of_step(self._spec, self._data.train, self.step)
        lr = learning_rate(self._spec.optim, self.step, self.total_steps)
        loss, norm = self._trainee.train_step(rows, self.step, self.total_steps)
        self.step += 1
        tokens = sum(len(row.ids) for row in rows)
        self.tokens += tokens
        self._watch(loss.mean, norm)
        speed = self.clock.add_step(time.monotonic() - begun, tokens)
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

    def _watch(self, loss: float, norm: float) -> None:
        """Stop a run whose loss or gradient is not a number for several steps in a row.

        One is enough where it has already spoilt the weights.

        Raises:
            SlidepackError: RUN-DIVERGED.
        """
        if math.isfinite(loss) and math.isfinite(norm):
            self._bad_steps = 0
            self._gate_first_loss(loss)
            return
        self._bad_steps += 1
        spoilt = self._trainee.applies_bad_steps
        if self._bad_steps < _MAX_BAD_STEPS and not spoilt:
            return
        kept = max(0, self._last_checkpoint_step)
        changed = "the weights are spoilt" if spoilt else "those steps changed nothing"
        raise SlidepackError(
            "RUN-DIVERGED",
            f"The loss is no number since step {self.step - self._bad_steps + 1}.",
            why=f"loss {loss}, gradient norm {norm}; {changed}, "
            f"the checkpoint of step {kept} is kept",
            fix=f"Try again with a learning rate below {self._spec.optim.lr / 3:.1e}.",
        )

    def _gate_first_loss(self, loss: float) -> None:
        limit = math.log(self._trainee.shape.vocab) + 2.0
        if self.step == 1 and loss > limit:
            self._events.append(
                Warned(
                    at=self._events.now(),
                    code="RUN-HIGH-LOSS",
                    message=f"The first loss is {loss:.2f}, above guessing ({limit:.2f}): "
                    "the model or its tokenizer may not fit the data.",
                )
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

    def _evaluate_if_due(self) -> float | None:
        if self._evaluated_step == self.step:
            return None
        every = self._spec.eval.every_steps or max(1, self.total_steps // _EVALUATIONS_PER_RUN)
        due = self.step % every == 0 or self.step == self.total_steps
        return self.evaluate(self.step) if due else None

    def _checkpoint_due(self) -> bool:
        if self.step == self.total_steps:
            return False
        every = self._spec.checkpoint_every_steps
        if every:
            return self.step % every == 0
        # A whole model takes its time to write; no more than a twentieth of the run goes there.
        pause = max(CHECKPOINT_SECONDS, _CHECKPOINT_PAUSE * self._checkpoint_seconds)
        return time.monotonic() - self._last_checkpoint_time >= pause


def _finite(value: float) -> float | None:
    """Return the value, or None where it is no number: JSON has no word for those."""
    return value if math.isfinite(value) else None
