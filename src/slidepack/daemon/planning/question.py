"""Asks for a plan, of the queue as it is or as it would be, and takes the time that it needs."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from slidepack.daemon.planning.open_hours import open_hours
from slidepack.daemon.planning.picture import Picture, PlannedJob, job_of
from slidepack.daemon.planning.queue_reader import QueueReader
from slidepack.daemon.planning.report import PlanReport, make_report
from slidepack.daemon.planning.request import RequestMaker
from slidepack.daemon.planning.solver_process import COMMAND, solve_in_process
from slidepack.daemon.planning.what_if import WhatIf, changed_picture
from slidepack.daemon.policy.rules import Policy
from slidepack.daemon.store.costs import CostBook
from slidepack.daemon.store.jobs import JobStore
from slidepack.engine.contract.job import JobSpec

__all__ = ["PlanQuestion"]

_SECONDS: Final = 10.0


class PlanQuestion:
    """One question: it has a reader of its own, because the replanner's is busy."""

    def __init__(
        self,
        *,
        reader: QueueReader,
        maker: RequestMaker,
        book: CostBook,
        jobs: JobStore,
        policy: Callable[[], Policy],
        held: Callable[[], str],
        solver: Sequence[str] = COMMAND,
    ) -> None:
        """Bind what is asked.

        Args:
            reader: takes pictures of the queue.
            maker: makes requests of pictures.
            book: of earlier predictions.
            jobs: the queue.
            policy: asks for the policy.
            held: says why nothing may train now; empty where it may.
            solver: command of the solver's process.
        """
        self._reader, self._maker, self._book = reader, maker, book
        self._jobs, self._policy, self._held = jobs, policy, held
        self._solver = solver

    def ask(self, now: float, what_if: WhatIf | None = None) -> PlanReport:
        """Return a plan with all that is known of it; takes up to ten seconds.

        Args:
            now: unix seconds.
            what_if: what would be different; nothing of it is done.

        Raises:
            SlidepackError: DAEMON-REQUEST-INVALID or RUN-NOT-FOUND where `what_if` names what does
                not exist, RUN-CRASHED where the solver's process fails, or what the disk says.
        """
        picture = self._reader.picture(now)
        if what_if is not None:
            picture = self._changed(picture, what_if)
        request = msgspec.structs.replace(self._maker.request(picture), seconds=_SECONDS)
        plan = solve_in_process(request, self._solver) if picture.devices else None
        self._book.settle_ended()
        return make_report(
            picture,
            request,
            plan,
            names=self._names(picture),
            accuracy=tuple(self._book.accuracy()),
            held=self._held(),
        )

    def _changed(self, picture: Picture, what_if: WhatIf) -> Picture:
        policy = self._policy()
        if what_if.windows is not None:
            policy = msgspec.structs.replace(policy, windows=what_if.windows, closed=False)
        return changed_picture(
            picture,
            what_if,
            hours=open_hours(policy, picture.now),
            spec_of=self._spec_of,
            planned=self._planned,
        )

    def _spec_of(self, job_id: int) -> JobSpec:
        return self._jobs.spec(job_id)

    def _planned(
        self, key: str, spec: JobSpec, rows: int | None, row_tokens: float | None
    ) -> PlannedJob:
        return self._reader.planned(key, spec, rows=rows, row_tokens=row_tokens)

    def _names(self, picture: Picture) -> dict[int, str]:
        names = {job_id: self._jobs.get(job_id).name for job_id in picture.unplanned}
        for job in picture.jobs:
            number = job_of(job.key)
            if number is not None:
                names[number] = job.spec.name
        return names
