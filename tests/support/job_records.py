"""Records of jobs in each state, with text that a page must escape."""

from slidepack.daemon.states import TERMINAL, JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import ErrorReport

FAILURE = ErrorReport(code="RUN-FAILED", what="It <failed>.", why="the evidence", fix="Try again.")


def job_record(
    state: JobState, *, begun: bool = True, reason: str = "waits for its turn"
) -> JobRecord:
    """Return a job of three steps out of ten, or one that has not begun."""
    return JobRecord(
        id=7,
        name="A <job>",
        state=state,
        reason=reason,
        model_id="small",
        dataset_id=1,
        step=3 if begun else 0,
        total_steps=10 if begun else 0,
        phase="training" if begun else "",
        loss=1.5 if begun else None,
        eta_seconds=12.0 if begun else None,
        tokens_per_second=120.0 if begun else None,
        result="somewhere" if state == "completed" else None,
        error=FAILURE if state == "failed" else None,
        wanted="pause" if state == "pausing" else None,
        wanted_at=None,
        created_at=1.0,
        started_at=2.0 if begun else None,
        ended_at=70.0 if state in TERMINAL else None,
    )
