"""What trains, what comes next and what has ended, as the first page lists it. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import tzinfo
from typing import Final

from slidepack.daemon.planner.answer import TaskPlan
from slidepack.daemon.planning.picture import job_of
from slidepack.daemon.planning.planned_queue import PlannedQueue
from slidepack.daemon.policy.windows import clock_text
from slidepack.daemon.states import LIVE, TERMINAL, JobState
from slidepack.daemon.store.jobs import JobRecord

__all__ = ["LiveJob", "NextJob", "QueueView", "Spark", "queue_view", "spark"]

SPARK_WIDTH: Final = 120
SPARK_HEIGHT: Final = 24


@dataclass(frozen=True, kw_only=True, slots=True)
class Spark:
    """A loss curve without axes."""

    points: str
    """As SVG has them."""
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class LiveJob:
    """A job that has a worker."""

    job: JobRecord
    spark: Spark | None
    """None before it has two steps."""
    device: str
    done: str
    """When it will be, on the clock; empty where nobody knows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NextJob:
    """A job that waits."""

    job: JobRecord
    begins: str
    """When it will by the plan, on the clock; empty where that names no time to come."""


@dataclass(frozen=True, kw_only=True, slots=True)
class QueueView:
    """The jobs of the first page."""

    live: tuple[LiveJob, ...]
    next: tuple[NextJob, ...]
    ended: tuple[JobRecord, ...]
    more_live: int
    """That are not shown."""
    more_next: int
    more_ended: int

    @property
    def empty(self) -> bool:
        """Whether there is no job at all."""
        return not (self.live or self.next or self.ended)


def queue_view(
    *,
    live: Sequence[LiveJob],
    waiting: Sequence[JobRecord],
    ended: Sequence[JobRecord],
    counts: Mapping[JobState, int],
    planned: PlannedQueue | None,
    now: float,
    zone: tzinfo,
) -> QueueView:
    """Put the lists together.

    Args:
        live: those that are shown.
        waiting: the first of the queue, in its order.
        ended: the last ones, the newest first.
        counts: how many jobs there are in each state.
        planned: the newest plan; None where there is none.
        now: unix seconds.
        zone: of the clock that the page shows.
    """
    tasks: dict[int | None, TaskPlan] = (
        {} if planned is None else {job_of(task.task): task for task in planned.plan.tasks}
    )
    number_live = sum(number for state, number in counts.items() if state in LIVE)
    number_ended = sum(number for state, number in counts.items() if state in TERMINAL)
    number_waiting = sum(counts.values()) - number_live - number_ended
    return QueueView(
        live=tuple(live),
        next=tuple(
            NextJob(job=job, begins=_begins(tasks.get(job.id), now, zone)) for job in waiting
        ),
        ended=tuple(ended),
        more_live=max(0, number_live - len(live)),
        more_next=max(0, number_waiting - len(waiting)),
        more_ended=max(0, number_ended - len(ended)),
    )


def _begins(task: TaskPlan | None, now: float, zone: tzinfo) -> str:
    if task is None or task.begin is None or task.begin <= now:
        return ""
    return clock_text(task.begin, now, zone)


def spark(losses: Sequence[float | None]) -> Spark | None:
    """Return a curve of losses that lie at equal distances; None is no number, and a gap."""
    known = [loss for loss in losses if loss is not None]
    if len(known) < 2:
        return None
    low, high = min(known), max(known)
    across = SPARK_WIDTH / (len(losses) - 1)
    down = (SPARK_HEIGHT - 2) / ((high - low) or 1.0)
    points = " ".join(
        f"{place * across:.1f},{1 + (high - loss) * down:.1f}"
        for place, loss in enumerate(losses)
        if loss is not None
    )
    return Spark(points=points, words=f"Training loss from {known[0]:.3f} to {known[-1]:.3f}")
