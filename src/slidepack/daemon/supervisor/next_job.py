"""Starts the jobs that may run, and says of every other one why it waits."""

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Final

from slidepack.daemon.hardware import Waiting
from slidepack.daemon.store.attempts import AttemptStore
from slidepack.daemon.store.database import Database
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.daemon.store.packs import PackStore
from slidepack.daemon.supervisor.backoff import fruitless, wait_seconds
from slidepack.daemon.supervisor.choosing import Gate, dependence, held_reason
from slidepack.daemon.supervisor.company import Company
from slidepack.daemon.supervisor.following import Following
from slidepack.daemon.supervisor.launching import StartedWorker, Waits
from slidepack.daemon.supervisor.look import Look, close, taken
from slidepack.daemon.supervisor.outcomes import Outcomes
from slidepack.daemon.supervisor.pack_starting import Joined, PackStarter
from slidepack.daemon.supervisor.seats import DeviceSeat, seats_of
from slidepack.daemon.supervisor.starting import Starter
from slidepack.daemon.supervisor.waking import Waking
from slidepack.engine.contract.errors import SlidepackError

logger = logging.getLogger(__name__)

_AGAIN_SECONDS: Final = 2.0
"""Between two tries at a job that the hardware or the disk keeps waiting."""
_IN_LINE_SECONDS: Final = 30.0
"""After a run, for which nothing overtakes a job that may find room any moment."""
_DIED: Final = frozenset({"interrupted"})


class NextJob:
    """Goes through the queue, in the order of the plan where there is one."""

    def __init__(
        self,
        *,
        database: Database,
        jobs: JobStore,
        attempts: AttemptStore,
        packs: PackStore,
        starter: Starter,
        pack_starter: PackStarter,
        gate: Gate,
        outcomes: Outcomes,
        plan: Following,
        packing: bool,
        retry_seconds: float,
        held: Callable[[], Mapping[str, str]] = dict,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Bind the queue, what starts its jobs or keeps them from running, and who is told.

        Args:
            database: for transactions.
            jobs: the queue.
            attempts: the tries at its jobs.
            packs: the workers that run many jobs.
            starter: starts jobs that have a worker of their own.
            pack_starter: starts jobs that share one.
            gate: says why one may not start.
            outcomes: told of a job that is held.
            plan: says who begins where.
            packing: whether LoRA jobs share workers.
            retry_seconds: before a job is tried again whose worker died without a step.
            held: why nobody may come to some devices, as where somebody chats.
            monotonic: seconds by a clock that only goes forward.
        """
        self._db = database
        self._jobs = jobs
        self._attempts = attempts
        self._packs = packs
        self._starter = starter
        self._pack_starter = pack_starter
        self._gate = gate
        self._outcomes = outcomes
        self._plan = plan
        self._company = Company(jobs, attempts, packing=packing)
        self._waking = Waking(
            database=database,
            jobs=jobs,
            attempts=attempts,
            starter=starter,
            may_try=self._may_try,
            retry_seconds=retry_seconds,
        )
        self._retry_seconds = retry_seconds
        self._held = held
        self._monotonic = monotonic
        self._tried: dict[int, float] = {}
        self._waits: dict[int, Waits] = {}
        self._free_since: float | None = None
        """When the last run was seen to have ended."""
        self._unexpected: dict[int, str] = {}

    def start(self, now: float, leaving: Collection[str] = ()) -> list[StartedWorker | Joined]:
        """Start what can run; explain all others.

        A job that waits for its time, a window or another job does not keep those behind it from
        running. One that waits for memory or the disk does so for a while after a run has ended:
        what that run held may be about to be freed.

        Args:
            now: unix time in seconds.
            leaving: nonces of workers that were asked to leave as a whole.
        """
        queued = self._jobs.queued()
        states = self._jobs.states_of(earlier for job in queued for earlier in job.after)
        why: dict[int, str] = {}
        able = []
        for job in queued:
            depends = dependence(job, states)
            if depends.broken:
                self._hold(job, depends.broken, now)
                continue
            reason = self._gate.why_wait(job, now) or depends.waits
            if reason:
                why[job.id] = reason
            else:
                able.append(job)
        started = self._start_able(able, why, now, leaving) if able else []
        self._explain(queued, why)
        self._forget_all_but({job.id for job in queued})
        return started

    def _start_able(
        self, able: list[JobRecord], why: dict[int, str], now: float, leaving: Collection[str]
    ) -> list[StartedWorker | Joined]:
        devices = self._starter.devices()
        if isinstance(devices, Waiting):
            why.update(dict.fromkeys((job.id for job in able), devices.reason))
            return []
        live = self._attempts.live()
        held = self._held()
        seats = seats_of(devices, live, self._packs.live(), leaving, held)
        if all(seat.device.key in held for seat in seats):
            # No plan is followed: it would count on a device that is free, and pass its jobs over.
            why.update(dict.fromkeys((job.id for job in able), taken(seats)))
            return []
        planned = self._plan.starts(now)
        wanted = None if planned is None else {start.job_id: start.device for start in planned}
        look = Look(seats, wanted, in_line=self._is_just_free(running=bool(live)), why=why)
        order = able if wanted is None else _in_order(able, wanted)
        for number, job in enumerate(order):
            if job.id not in look.gone:
                self._consider(job, order[number + 1 :], look, now)
        return look.started

    def _consider(
        self, job: JobRecord, behind: Sequence[JobRecord], look: Look, now: float
    ) -> None:
        """Start a job where that is possible now, or say why it waits."""
        if not look.begins(job.id):
            why = self._plan.why(job.id) or taken(look.seats)
            look.why[job.id] = why or "waits for its turn"
            return
        choice = look.choice(job.id)
        seat = self._seat_for(job, choice)
        if seat is None:
            look.why[job.id] = taken(choice)
            if look.wanted is None:
                # In the queue's order nobody overtakes one for whom the devices are not free yet.
                close(look.seats, f"waits behind job {job.id}")
            return
        not_yet = self._why_not_yet(job, now)
        if not_yet:
            look.why[job.id] = not_yet
            return
        company = [other for other in behind if other.id not in look.gone]
        outcome = self._try(job, seat, company, look.wanted, now)
        if isinstance(outcome, StartedWorker | Joined):
            look.take(outcome, seat, job.id)
            return
        look.why[job.id] = "" if outcome is None else outcome.reason
        if outcome is not None and seat.pack is not None:
            # What is full for one is full for those behind it.
            close([seat], outcome.reason)
        if outcome is not None and outcome.soon and look.in_line:
            close(choice, f"waits behind job {job.id}, which was tried just now")

    def _seat_for(self, job: JobRecord, seats: Sequence[DeviceSeat]) -> DeviceSeat | None:
        """Return where a job can go: to others of its kind, else to a device that is free."""
        if not any(seat.idle or seat.pack for seat in seats):
            return None
        if self._company.may_share(job):
            for seat in seats:
                fits = seat.takes(self._company.model(job, seat.device.key))
                if fits and not self._company.is_shunned(job):
                    return seat
        return next((seat for seat in seats if seat.idle and not seat.closed), None)

    def wake_paused(self, now: float) -> bool:
        """Queue the jobs again that a full disk paused, where there is room; say whether any."""
        return self._waking.wake(now)

    def _why_not_yet(self, job: JobRecord, now: float) -> str:
        attempts = self._attempts.of(job.id)
        if not attempts or attempts[-1].ended_at is None:
            return ""
        died = fruitless(attempts, _DIED)
        left = attempts[-1].ended_at + wait_seconds(died, self._retry_seconds) - now
        # A clock that was set back must not make minutes of seconds.
        if died and 0 < left <= wait_seconds(died, self._retry_seconds):
            return f"its worker died {died} times without a step; it is tried again soon"
        return ""

    def _try(
        self,
        job: JobRecord,
        seat: DeviceSeat,
        others: Sequence[JobRecord],
        wanted: Mapping[int, str] | None,
        now: float,
    ) -> StartedWorker | Joined | Waits | None:
        """Start a job; what is wrong with one must not keep the others from running."""
        if not self._may_try(job):
            return self._waits.get(job.id)
        try:
            outcome = self._place(job, seat, others, wanted, now)
        except SlidepackError:
            # The database cannot be written: nothing can be started.
            raise
        except Exception as error:
            if self._unexpected.get(job.id) != repr(error):
                logger.error("Job %d cannot be started", job.id, exc_info=error)
            self._unexpected[job.id] = repr(error)
            outcome = Waits(f"waits: {error!r}; the daemon's log has the details", soon=False)
        if isinstance(outcome, Waits):
            self._waits[job.id] = outcome
        return outcome

    def _place(
        self,
        job: JobRecord,
        seat: DeviceSeat,
        others: Sequence[JobRecord],
        wanted: Mapping[int, str] | None,
        now: float,
    ) -> StartedWorker | Joined | Waits | None:
        spec = self._company.spec(job)
        if not self._company.may_share(job):
            return self._starter.run(job, spec, seat.device, now)
        if seat.pack is not None:
            return self._pack_starter.join(job, spec, seat.pack, now)

        def begins(other: JobRecord) -> bool:
            chosen = wanted is None or wanted.get(other.id) == seat.device.key
            return chosen and not self._why_not_yet(other, now)

        lanes, later = self._company.of(job, seat.device.key, others, begins)
        alone = self._company.is_shunned(job)
        return self._pack_starter.start(lanes, later, seat.device, now, alone=alone)

    def _is_just_free(self, *, running: bool) -> bool:
        if running:
            self._free_since = None
            return False
        clock = self._monotonic()
        if self._free_since is None:
            self._free_since = clock
        return clock - self._free_since < _IN_LINE_SECONDS

    def _explain(self, queued: list[JobRecord], why: dict[int, str]) -> None:
        changed = [job for job in queued if why.get(job.id) and why[job.id] != job.reason]
        if not changed:
            return
        with self._db.transaction():
            for job in changed:
                self._jobs.explain(job.id, why[job.id])

    def _hold(self, job: JobRecord, why: str, now: float) -> None:
        reason = held_reason(why)
        with self._db.transaction():
            # Its user may have been faster.
            if self._jobs.get(job.id).state == "queued":
                self._jobs.move(job.id, "paused", reason, now)
                self._outcomes.settled(job, "paused", reason, None, now)

    def _may_try(self, job: JobRecord) -> bool:
        clock = self._monotonic()
        if clock - self._tried.get(job.id, float("-inf")) < _AGAIN_SECONDS:
            return False
        self._tried[job.id] = clock
        return True

    def _forget_all_but(self, queued: set[int]) -> None:
        kept = queued | {job.id for job in self._jobs.paused()}
        for known in (self._tried, self._waits, self._unexpected):
            for job_id in known.keys() - kept:
                del known[job_id]
        self._company.forget_all_but(queued)


def _in_order(able: Sequence[JobRecord], wanted: Mapping[int, str]) -> list[JobRecord]:
    """Return the jobs in the plan's order; those that it does not begin now come last."""
    place = {job_id: number for number, job_id in enumerate(wanted)}
    return sorted(able, key=lambda job: place.get(job.id, len(place)))
