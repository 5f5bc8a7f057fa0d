"""Keeps a plan of the queue at hand: a thread that plans anew when something has changed."""

import functools
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final

from slidepack.daemon.planner.answer import Options, Plan
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.tasks import Window
from slidepack.daemon.planning.basis import basis
from slidepack.daemon.planning.passed_over import PassedOver
from slidepack.daemon.planning.picture import Picture, job_of
from slidepack.daemon.planning.planned_queue import (
    Move,
    PlannedQueue,
    Start,
    could_begin,
    newly_in_time,
    planned_queue,
)
from slidepack.daemon.planning.promises import promises_of
from slidepack.daemon.planning.queue_reader import QueueReader
from slidepack.daemon.planning.quick_plan import QUICK_ROUNDS, quick_plan
from slidepack.daemon.planning.request import RequestMaker, is_hard
from slidepack.daemon.planning.second_opinion import SecondOpinion
from slidepack.daemon.planning.solver_process import COMMAND
from slidepack.daemon.store.costs import CostBook
from slidepack.daemon.store.plan_input import QueueState
from slidepack.daemon.told_once import ToldOnce

__all__ = ["Replanner"]

_SOLVER_LOOK_SECONDS: Final = 0.1
_CALM_SECONDS: Final = 2.0
"""Between two looks at a queue that is the same: a step of a job changes next to nothing."""
_RETRY_SECONDS: Final = 2.0
"""Between two looks while there is no device, as before torch has told of the cards."""
_GLANCE_SECONDS: Final = 30.0
"""Between two looks without any news: policy and hardware change, too."""
_REFRESH_SECONDS: Final = 300.0
"""After which a plan is made anew although nothing happened: steps take as long as they take."""
_SOONEST_SECONDS: Final = 0.1
_SETTLED_SECONDS: Final = 1800.0
"""For which a job that was moved stays where it is: plans change their minds more often."""
_PATIENCE_SECONDS: Final = 3.0
"""How long nothing is started while the plan is of an older queue; then the queue's order counts.
"""


class Replanner:
    """The newest plan, and who begins now by it.

    `changed`, `plan`, `starts`, `moves` and `why` may be called from any thread; the first never
    waits.
    """

    def __init__(
        self,
        *,
        reader: QueueReader,
        maker: RequestMaker,
        book: CostBook,
        promise: Callable[[Sequence[int]], None],
        solver: Sequence[str] = COMMAND,
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind what is read; nothing is planned until `start`.

        Args:
            reader: takes pictures of the queue; nobody else may use it, but for its `queue`.
            maker: makes requests of pictures; nobody else may use it.
            book: gets what plans predict.
            promise: told of jobs that a plan has done by their deadline, and that no later one may
                sacrifice to others.
            solver: command of the solver's process.
            clock: unix time in seconds.
            monotonic: seconds by a clock that only goes forward.
        """
        self._reader, self._maker, self._book = reader, maker, book
        self._keep = promise
        self._clock, self._monotonic = clock, monotonic
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = ToldOnce()
        self._lock = threading.Lock()
        self._planned: PlannedQueue | None = None
        self._outdated_since: float | None = None
        self._passed_over = PassedOver()
        self._moved: dict[int, float] = {}
        # Of the thread alone:
        self._opinion = SecondOpinion(solver)
        self._basis: object = None
        self._made_at = self._looked_at = float("-inf")
        self._look_at = float("inf")
        self._queue: QueueState = ()
        self._promised: set[int] = set()
        self._revision = 0
        self._news = False

    def start(self) -> None:
        """Begin to plan."""
        self._thread = threading.Thread(target=self._run, name="planner", daemon=True)
        self._wake.set()
        self._thread.start()

    def stop(self) -> None:
        """End the thread and the solver's process."""
        self._stopping.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def changed(self) -> None:
        """Take note that the queue or the devices may have changed."""
        self._wake.set()

    def plan(self) -> PlannedQueue | None:
        """Return the newest plan; None where there is none that can be used."""
        with self._lock:
            return self._planned

    def starts(self, now: float) -> list[Start] | None:
        """Return who begins now, in the plan's order; None while there is no plan to follow.

        Nobody begins by a plan that was made for another queue: there will be another in a moment.

        Args:
            now: unix seconds.
        """
        queue = self._reader.queue()
        with self._lock:
            planned = self._planned
            if planned is None:
                return None
            if planned.queue != queue:
                self._wake.set()
                return self._while_outdated()
            self._outdated_since = None
            # Where others train still, a job that does not begin may only wait for them to leave.
            due = {one.job_id for one in planned.starts if one.device not in planned.busy}
            if self._passed_over.due(due, now):
                self._wake.set()
            return list(planned.starts)

    def moves(self, now: float) -> list[Move]:
        """Return the running jobs that are to leave where they are, each of them once.

        Args:
            now: unix seconds.
        """
        planned = self.plan()
        # Every tick asks, and next to no plan moves anybody: the queue is read only then.
        if planned is None or not planned.moves or planned.queue != self._reader.queue():
            return []
        with self._lock:
            self._moved = {
                job: at for job, at in self._moved.items() if 0 <= now - at < _SETTLED_SECONDS
            }
            found = [move for move in planned.moves if move.job_id not in self._moved]
            self._moved |= {move.job_id: now for move in found}
            return found

    def why(self, job_id: int) -> str:
        """Return why a job waits by the plan; empty where that is not known."""
        with self._lock:
            planned = self._planned
            put_off = job_id in self._passed_over.put_off(self._clock())
        if put_off:
            return "waits: it could not begin when its turn came, and is tried again soon"
        return "" if planned is None else planned.reasons.get(job_id, "")

    def _while_outdated(self) -> list[Start] | None:
        clock = self._monotonic()
        if self._outdated_since is None:
            self._outdated_since = clock
        return [] if clock - self._outdated_since < _PATIENCE_SECONDS else None

    def _run(self) -> None:
        try:
            while not self._stopping.is_set():
                woken = self._wake.wait(self._pause())
                self._wake.clear()
                if self._stopping.is_set():
                    return
                self._told.run("solver", self._look_at_solver, "The planner's solver: ")
                # Where even that fails, looking tells why.
                self._news = True
                self._told.run("news", functools.partial(self._look_for_news, woken=woken))
                if self._news:
                    self._told.run("plan", self._look, "The queue cannot be planned: ")
        finally:
            self._opinion.drop()

    def _pause(self) -> float:
        """Return the seconds after which there is something to do in any case."""
        clock = self._monotonic()
        left = min(self._due_at(), self._look_at) - clock
        if self._opinion.pending:
            left = min(left, _SOLVER_LOOK_SECONDS)
        return min(_REFRESH_SECONDS, max(_SOONEST_SECONDS, left))

    def _due_at(self) -> float:
        """Return when a plan is made anew in any case, by the clock that only goes forward."""
        planned = self.plan()
        due = self._made_at + _REFRESH_SECONDS
        if planned is None or planned.next_begin is None:
            return due
        return min(due, self._monotonic() + planned.next_begin - self._clock())

    def _look_for_news(self, *, woken: bool) -> None:
        """Find out whether to look at once; what can wait is looked at in a moment."""
        clock = self._monotonic()
        if clock >= min(self._due_at(), self._look_at):
            return
        calm_until = self._looked_at + _CALM_SECONDS
        self._news = woken and (clock >= calm_until or self._reader.queue() != self._queue)
        if woken and not self._news:
            self._look_at = min(self._look_at, calm_until)

    def _look(self) -> None:
        """Plan anew, unless the queue and the devices are those of the plan that there is."""
        clock = self._monotonic()
        due = clock >= self._due_at()
        self._looked_at, self._look_at = clock, clock + _RETRY_SECONDS
        try:
            self._renew(due=due)
        except BaseException:
            # What was planned may not hold any more; the queue's own order always does.
            self._forget()
            raise

    def _renew(self, *, due: bool) -> None:
        self._book.settle_ended()
        self._queue = self._reader.queue()
        now = self._clock()
        hours = self._reader.hours(now)
        if not could_begin(self._queue, hours, now):
            # A machine without work is left alone: a card that sleeps is woken by a question.
            self._adopt_nothing(self._queue, hours)
            self._look_at = self._looked_at + (_GLANCE_SECONDS if self._queue else math.inf)
            return
        picture = self._put_off(self._reader.picture(now))
        self._queue = picture.queue
        if not picture.devices:
            self._adopt_nothing(picture.queue, hours)
            return
        self._look_at = self._looked_at + _GLANCE_SECONDS
        rests_on = basis(picture)
        if due or rests_on != self._basis:
            self._replan(picture)
            self._basis = rests_on
        self._promise(picture)

    def _adopt_nothing(self, queue: QueueState, hours: tuple[Window, ...]) -> None:
        """Plan that nobody begins until the queue changes, a window opens, or there is a device."""
        self._opinion.drop()
        self._basis = None
        now = self._clock()
        nothing = Picture(now=now, queue=queue, jobs=(), devices=(), windows=hours)
        self._adopt(nothing, make_plan((), (), now, Options()))
        self._made_at = self._monotonic()

    def _forget(self) -> None:
        self._opinion.drop()
        self._basis = None
        with self._lock:
            self._planned = None

    def _put_off(self, picture: Picture) -> Picture:
        with self._lock:
            until = self._passed_over.put_off(picture.now)
        if not until:
            return picture
        jobs = tuple(
            replace(job, not_before=max(until[number], job.not_before or 0.0))
            if (number := job_of(job.key)) in until
            else job
            for job in picture.jobs
        )
        return replace(picture, jobs=jobs)

    def _replan(self, picture: Picture) -> None:
        self._opinion.drop()
        request = self._maker.request(picture, search_rounds=QUICK_ROUNDS)
        plan, in_time = quick_plan(request, self._monotonic)
        self._adopt(picture, plan)
        self._made_at = self._monotonic()
        if not in_time or is_hard(request, plan):
            # Without a second opinion there is still the first one.
            ask = functools.partial(self._opinion.ask, request, picture)
            self._told.run("solver's start", ask, "The planner's solver: ")

    def _promise(self, picture: Picture) -> None:
        planned = self.plan()
        assert planned is not None
        made = promises_of(picture, planned.plan)
        new = [one for one in made if one.job_id not in self._promised]
        if new:
            self._book.promise(new, picture.now)
        self._promised = {one.job_id for one in made}

    def _look_at_solver(self) -> None:
        answer = self._opinion.take()
        if answer is not None and self._reader.queue() == answer[0].queue:
            self._adopt(*answer)

    def _adopt(self, picture: Picture, plan: Plan) -> None:
        self._revision += 1
        planned = planned_queue(picture, plan, self._revision)
        if kept := newly_in_time(picture, plan):
            self._keep(kept)
        with self._lock:
            self._planned = planned
