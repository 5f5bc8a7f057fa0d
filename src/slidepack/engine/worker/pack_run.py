"""The run of a pack: many lanes, one base, one pass; lanes join and leave between two steps.

Nothing that befalls a lane reaches the others: it joins when its data is ready, and leaves when it
is done, fails, is asked to, or has to make room. The pack ends with its last lane.
"""

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from slidepack.engine.contract.control import ControlCommand
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.events import (
    ControlDone,
    LaneJoined,
    LaneLeft,
    PhaseChanged,
    StepTimed,
    Warned,
)
from slidepack.engine.contract.pack import LaneRef, PackFolder
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.lora.pack import LaneStep, StepOutcome
from slidepack.engine.model.loss import LossSum
from slidepack.engine.worker.base import Base, open_base
from slidepack.engine.worker.boarding import Boarding
from slidepack.engine.worker.control import ControlReader
from slidepack.engine.worker.eventlog import EventLog
from slidepack.engine.worker.failures import coded
from slidepack.engine.worker.held_up import HeldUp
from slidepack.engine.worker.run import open_device
from slidepack.engine.worker.seat import Seat
from slidepack.engine.worker.step_timer import StepTimer
from slidepack.engine.worker.stopping import StopFlag, StopRequestedError
from slidepack.engine.worker.sweep import Sweep
from slidepack.engine.worker.trainee import LoraTrainee

__all__ = ["PackRun"]

_Result = TypeVar("_Result", StepOutcome, LossSum)

logger = logging.getLogger("slidepack.worker")


class PackRun:
    """One worker's pack."""

    def __init__(self, folder: PackFolder, events: EventLog, stop: StopFlag) -> None:
        """Read the pack folder, and load the base.

        Raises:
            StopRequestedError: a stop was asked for.
            SlidepackError: RUN-FOLDER-BROKEN, GPU-UNUSABLE, the errors of `load_decoder`.
        """
        self._events = events
        self._stop = stop
        self._spec = folder.read_pack()
        self._plan = folder.read_plan()
        self._control = ControlReader(folder.control)
        self._base = self._load(open_device(self._plan))
        self._pack = self._base.pack
        self._boarding = Boarding(
            self._spec,
            self._plan,
            self._base.decoder.shape,
            load_tokenizer(Path(self._spec.base.path)),
            stop,
            self._report_refused,
        )
        self._seats: dict[str, Seat] = {}
        self._sweep = Sweep()
        self._timer = StepTimer(self._report_steps)
        self._held_up = HeldUp()
        # Whether a lane found no room: nobody joins until one has left.
        self._crowded = False

    def execute(self) -> None:
        """Run until no lane is left.

        Raises:
            StopRequestedError: a stop was asked for; every lane has its checkpoint.
            OSError: the disk refused the pack's own files.
        """
        try:
            self._loop()
        except StopRequestedError:
            for seat in list(self._seats.values()):
                self._leave(seat, self._stop.reason)
            raise
        finally:
            self._boarding.close(self._stop.reason or "the pack has ended")
            self._base.close()

    def _load(self, device: torch.device) -> Base:
        def on_layer(done: int, total: int) -> None:
            self._stop.check()
            self._events.append(
                PhaseChanged(at=self._events.now(), phase="loading", done=done, total=total)
            )

        return open_base(
            Path(self._spec.base.path),
            self._plan,
            device,
            on_layer,
            self._stop.check,
            exact=self._spec.exact,
        )

    def _loop(self) -> None:
        while True:
            self._obey()
            self._boarding.board(len(self._seats), crowded=self._crowded)
            self._let_in()
            if self._seats:
                self._step()
                self._evaluate()
                self._finish_done()
                for seat in list(self._seats.values()):
                    with self._held_up.by(seat.ref.lane):
                        self._try(seat, lambda seat: seat.trainer.save_if_due())
            elif self._boarding.is_empty:
                return
            else:
                self._boarding.wait()

    def _obey(self) -> None:
        """Carry out commands and stop requests.

        Raises:
            StopRequestedError: a stop was asked for.
        """
        for command in self._control.new_commands():
            outcome = self._carry_out(command)
            self._events.append(
                ControlDone(at=self._events.now(), command_id=command.command_id, outcome=outcome)
            )
        self._stop.check()

    def _carry_out(self, command: ControlCommand) -> str:
        by, lane = f"control command {command.command_id}", command.lane
        match command.kind:
            case "stop":
                self._stop.request(by)
            case "checkpoint":
                for seat in list(self._seats.values()):
                    self._try(seat, lambda seat: seat.trainer.save_unless_saved(by))
            case "join":
                if lane in self._seats or lane in self._boarding:
                    return "it is in the pack already"
                self._boarding.add(
                    LaneRef(lane=lane, folder=command.folder, priority=command.priority)
                )
            case "leave":
                reason = command.reason or by
                if lane in self._seats:
                    self._leave(self._seats[lane], reason)
                elif not self._boarding.remove(lane, reason):
                    return "it is not in the pack"
        return "done"

    def _let_in(self) -> None:
        """Give seats to the lanes whose data is there, while there is room."""
        if self._crowded:
            return
        coming = self._boarding.coming
        for seat in self._boarding.ready():
            # At once: a lane that joins by itself moves all that are here.
            self._pack.expect(coming)
            coming = []
            self._join(seat)
            if self._crowded:
                return

    def _join(self, seat: Seat) -> None:
        """Give a lane its seat, its checkpoint, and its first evaluation."""
        lane = seat.ref.lane
        try:
            self._check_room(seat)
            self._pack.join(lane, seat.method, seat.seed)
        except torch.OutOfMemoryError as error:
            if not self._seats:
                found = coded(error)
                self._report_refused(lane, found, recorded=seat.fail(found))
                return
            self._crowded = True
            seat.close()
            self._boarding.add(seat.ref)
            return
        self._seats[lane] = seat
        trainee = LoraTrainee(self._base, lane, seat.optim, seat.seed, self._stop.check)
        with self._held_up.by(lane):
            self._try(seat, lambda seat: seat.begin(trainee, self._plan))
        if lane in self._seats:
            self._try(seat, self._sweep.resume)
        if lane in self._seats:
            self._evaluate()
        if lane in self._seats:
            self._events.append(
                LaneJoined(at=self._events.now(), lane=lane, step=seat.trainer.step)
            )
            self._held_up.begin()
            # It may have been stopped between its last step and its result.
            self._finish_done()

    def _check_room(self, seat: Seat) -> None:
        """Check that a sliding step of all lanes has room for its rows.

        Raises:
            torch.OutOfMemoryError: it has not.
        """
        slide = self._plan.slide
        if slide is None:
            return
        shape = self._base.decoder.shape
        tokens = sum(one.step_tokens(shape) for one in (*self._seats.values(), seat))
        if tokens > slide.max_tokens:
            raise torch.OutOfMemoryError(
                f"a step of all lanes has up to {tokens} tokens, there is room for "
                f"{slide.max_tokens}"
            )

    def _step(self) -> None:
        """Do one step of every lane."""
        work: dict[str, LaneStep] = {}

        def ask(seat: Seat) -> None:
            work[seat.ref.lane] = seat.next_step()

        for seat in list(self._seats.values()):
            self._try(seat, ask)
        rows = {lane: step.rows for lane, step in work.items()}

        def step() -> dict[str, StepOutcome]:
            return self._pack.step({lane: work[lane] for lane in rows}, self._prepare_next)

        begun = time.monotonic()
        outcomes = self._made_to_fit(rows, step)
        seconds = time.monotonic() - begun
        if outcomes:
            tokens = sum(len(row.ids) for lane in outcomes for row in work[lane].rows)
            self._timer.record(outcomes.keys(), tokens, seconds)
        for lane, outcome in outcomes.items():

            def record(
                seat: Seat, step: LaneStep = work[lane], outcome: StepOutcome = outcome
            ) -> None:
                seat.trainer.record_step(step.rows, outcome.loss, outcome.grad_norm, seconds)

            self._try(self._seats[lane], record)

    def _made_to_fit(
        self, rows: dict[str, Sequence[EncodedRow]], run: Callable[[], dict[str, _Result]]
    ) -> dict[str, _Result]:
        """Run passes; where they do not fit the card, in smaller parts or with fewer lanes.

        Args:
            rows: of each lane; a lane that has to leave is taken out.
            run: passes the rows that are left.
        """
        while rows:
            try:
                return run()
            except torch.OutOfMemoryError as error:
                found = coded(error)
            torch.cuda.empty_cache()
            if self._pack.shrink(max(len(row.ids) for some in rows.values() for row in some)):
                words = f"a pass has at most {self._pack.max_tokens} tokens now"
                self._events.append(
                    Warned(at=self._events.now(), code=found.report.code, message=words)
                )
                continue
            # Of equals, the one that came last has the least to lose.
            seats = [self._seats[lane] for lane in reversed(rows)]
            seat = min(seats, key=lambda seat: seat.ref.priority)
            del rows[seat.ref.lane]
            if len(self._seats) > 1:
                self._leave(seat, "the card has no room for all lanes of the pack")
                self._crowded = True
            else:
                self._leave_failed(seat, found)
        return {}

    def _prepare_next(self) -> None:
        """Build the rows of the step after this one, if nobody joins or leaves."""
        if self._base.decoder.device.type == "cpu":
            # The passes are over by now.
            return
        staying = {
            lane: seat
            for lane, seat in self._seats.items()
            if seat.trainer.step + 1 < seat.trainer.total_steps
        }
        if staying:
            self._pack.prepare({lane: seat.next_step(1) for lane, seat in staying.items()})

    def _evaluate(self) -> None:
        """Measure the held-out loss of every lane whose turn it is, in one pass."""
        due = {
            lane: seat.trainer.due_evaluation(wanted=self._sweep.wants_evaluation(seat))
            for lane, seat in self._seats.items()
        }
        rows = {lane: found for lane, found in due.items() if found is not None}
        losses = self._remembered(rows)
        unknown = {lane: found for lane, found in rows.items() if lane not in losses}
        with self._held_up.by(*unknown):
            measured = self._made_to_fit(unknown, lambda: self._pack.evaluate(unknown))
        for lane, loss in measured.items():
            if self._seats[lane].is_untouched:
                self._base.memory.keep_loss(rows[lane], loss)
        for lane, loss in (losses | measured).items():

            def record(seat: Seat, loss: LossSum = loss) -> None:
                seat.trainer.record_evaluation(loss)
                self._sweep.judge(seat, loss.mean)

            self._try(self._seats[lane], record)

    def _remembered(self, rows: dict[str, Sequence[EncodedRow]]) -> dict[str, LossSum]:
        """Return the losses of lanes that are still what their base is, where that is known."""
        known = {
            lane: self._base.memory.loss(found)
            for lane, found in rows.items()
            if self._seats[lane].is_untouched
        }
        return {lane: loss for lane, loss in known.items() if loss is not None}

    def _finish_done(self) -> None:
        """Write the results of the lanes that have done their last step, and free their seats."""
        for seat in list(self._seats.values()):
            if seat.trainer.is_done:
                with self._held_up.by(seat.ref.lane):
                    self._try(seat, lambda seat: seat.finish(self._plan))
                if seat.ref.lane in self._seats:
                    self._unseat(seat, "done")

    def _try(self, seat: Seat, action: Callable[[Seat], None]) -> None:
        """Do something with one lane; where that fails, the lane fails, and no other."""
        try:
            action(seat)
        except (SlidepackError, torch.OutOfMemoryError, OSError) as error:
            logger.info("lane %s fails", seat.ref.lane, exc_info=True)
            self._leave_failed(seat, coded(error))

    def _leave(self, seat: Seat, reason: str) -> None:
        self._try(seat, lambda seat: seat.leave(reason))
        if seat.ref.lane in self._seats:
            self._unseat(seat, reason)

    def _leave_failed(self, seat: Seat, error: SlidepackError) -> None:
        recorded = seat.fail(error)
        self._unseat(seat, error.report.code, None if recorded else error)

    def _unseat(self, seat: Seat, reason: str, untold: SlidepackError | None = None) -> None:
        lane = seat.ref.lane
        del self._seats[lane]
        self._pack.leave(lane)
        self._crowded = False
        self._report_left(lane, seat.steps_done, reason, untold)

    def _report_steps(self, tokens: int, lanes: int, seconds: float, steps: int) -> None:
        self._events.append(
            StepTimed(
                at=self._events.now(), tokens=tokens, lanes=lanes, seconds=seconds, steps=steps
            )
        )

    def _report_refused(self, lane: str, error: SlidepackError, *, recorded: bool) -> None:
        self._report_left(lane, 0, error.report.code, None if recorded else error)

    def _report_left(
        self, lane: str, step: int, reason: str, untold: SlidepackError | None = None
    ) -> None:
        self._events.append(
            LaneLeft(
                at=self._events.now(),
                lane=lane,
                step=step,
                reason=reason,
                held_up_seconds=self._held_up.take(lane),
                error=None if untold is None else untold.report,
            )
        )
