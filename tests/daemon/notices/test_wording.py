"""What is told of a job, and when nothing is."""

import pytest
from support.notices import open_notices
from support.stores import Stores, plain_spec

from slidepack.daemon.states import JobState
from slidepack.engine.contract.errors import ErrorReport

_FULL = ErrorReport(code="DISK-FULL", what="The disk is full.", why="0 B free", fix="Free some.")


@pytest.mark.parametrize(
    ("state", "error", "kind", "title", "body"),
    [
        ("completed", None, "finished", "Job 1 (my job) is done", "10 steps, loss 1.250"),
        (
            "failed",
            _FULL,
            "failed",
            "Job 1 (my job) failed",
            "DISK-FULL: The disk is full. 0 B free. Free some.",
        ),
        ("failed", None, "failed", "Job 1 (my job) failed", "the reason"),
        (
            "paused",
            _FULL,
            "needs_you",
            "Job 1 (my job) needs you",
            "DISK-FULL: The disk is full. 0 B free. Free some.",
        ),
        ("paused", None, "paused", "Job 1 (my job) is paused", "the reason"),
    ],
)
def test_what_a_job_came_to_is_told(
    stores: Stores, state: JobState, error: ErrorReport | None, kind: str, title: str, body: str
) -> None:
    notices = open_notices(stores.folder)
    job_id = stores.jobs.add(plain_spec("my job"), 1.0).id
    stores.database.execute("UPDATE jobs SET total_steps = 10, loss = 1.25")
    notices.job_changed(stores.jobs.get(job_id), state, "the reason", error, 2.0)
    (notice,) = notices.outbox.recent()
    assert (notice.kind, notice.title, notice.body) == (kind, title, body)
    assert (notice.job_id, notice.at) == (job_id, 2.0)


@pytest.mark.parametrize("state", ["queued", "cancelled", "running"])
def test_what_nobody_needs_to_know_is_not(stores: Stores, state: JobState) -> None:
    notices = open_notices(stores.folder)
    job = stores.jobs.add(plain_spec(), 1.0)
    notices.job_changed(job, state, "the reason", None, 2.0)
    assert notices.outbox.recent() == []
