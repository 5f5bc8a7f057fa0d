"""What the supervisor does with the moves of a plan: over real stores, with no worker."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from support.stores import Stores, plain_spec

from slidepack.daemon.changes import Changes
from slidepack.daemon.planning.planned_queue import Move
from slidepack.daemon.states import JobState
from slidepack.daemon.supervisor.supervisor import Supervisor


@dataclass
class _Plan:
    """A plan that moves jobs."""

    found: list[Move] = field(default_factory=list)

    def moves(self, now: float) -> list[Move]:
        return self.found

    def changed(self) -> None:
        pass


class _Quiet:
    """Everything else that a tick asks, with nothing to say."""

    def live(self) -> list[Any]:
        return []

    def start(self, now: float, leaving: object) -> list[Any]:
        return []

    def wake_paused(self, now: float) -> bool:
        return False


@pytest.mark.parametrize(
    ("state", "wanted", "asked"),
    [
        ("running", None, "yield"),
        ("running", "cancel", "cancel"),
        ("running", "pause", "pause"),
        ("starting", None, None),
        ("queued", None, None),
    ],
)
def test_a_running_job_is_asked_to_leave_unless_its_user_wants_something_else(
    stores: Stores, state: str, wanted: str | None, asked: str | None
) -> None:
    job = stores.jobs.add(plain_spec(), 0.0).id
    steps: tuple[JobState, ...] = ("starting", "running")
    for step in steps[: ("queued", *steps).index(state)]:
        stores.jobs.move(job, step, "test", 1.0)
    if wanted is not None:
        stores.jobs.want(job, wanted, 1.0)
    quiet: Any = _Quiet()
    supervisor = Supervisor(
        database=stores.database,
        jobs=stores.jobs,
        attempts=stores.attempts,
        runlog=stores.runlog,
        packs=quiet,
        plan=_Plan([Move(job_id=job, why="goes on on cuda:1")]),  # type: ignore[arg-type]  # enough of it
        next_job=quiet,
        gate=quiet,
        outcomes=quiet,
        retention=quiet,
        changes=Changes(),
        stop_seconds=1.0,
    )
    supervisor.tick(2.0)
    found = stores.jobs.get(job)
    assert found.wanted == asked
    assert found.wanted_why == ("goes on on cuda:1" if asked == "yield" else "")
