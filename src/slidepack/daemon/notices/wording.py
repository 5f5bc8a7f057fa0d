"""The words of notices about jobs."""

from slidepack.daemon.notices.settings import Kind
from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.data.rows import clip

_NAME = 60


def job_notice(
    job: JobRecord, state: JobState, reason: str, error: ErrorReport | None
) -> tuple[Kind, str, str] | None:
    """Return kind, title and body of what a job has come to, or None where nobody needs telling.

    Args:
        job: the job, before or after the change.
        state: what it has become.
        reason: why, in the words of the transition.
        error: what stands in its way, where something does.
    """
    name = f"Job {job.id} ({clip(job.name, _NAME)})"
    match state:
        case "completed":
            return "finished", f"{name} is done", _progress(job)
        case "failed":
            return "failed", f"{name} failed", _told(error, reason)
        case "paused" if error is not None:
            return "needs_you", f"{name} needs you", _told(error, reason)
        case "paused":
            return "paused", f"{name} is paused", reason
        case _:
            return None


def _progress(job: JobRecord) -> str:
    loss = "" if job.loss is None else f", loss {job.loss:.3f}"
    return f"{job.total_steps} steps{loss}" if job.total_steps else "It is completed."


def _told(error: ErrorReport | None, reason: str) -> str:
    return reason if error is None else error.line()
