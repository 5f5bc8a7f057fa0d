"""Decides what becomes of a job when its worker has ended. Pure: no clock, no process, no disk."""

import signal
from dataclasses import dataclass
from typing import Final

from slidepack.daemon.states import AttemptState, JobState
from slidepack.engine.contract.errors import ErrorReport, code_of_exit
from slidepack.engine.contract.events import Failed, Finished, Yielded

MAX_FRUITLESS_ATTEMPTS: Final = 3
"""Interrupted attempts in a row, none with a new step, after which a job is given up."""

_RESUMABLE_CODES: Final = frozenset({"DISK-FULL", "DISK-UNWRITABLE", "GPU-OUT-OF-MEMORY"})
"""Failures that lose nothing and that can pass: the job is paused, not failed."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """Where attempt and job go."""

    attempt_state: AttemptState
    job_state: JobState
    reason: str
    error: ErrorReport | None = None


def decide_ending(
    event: Finished | Yielded | Failed | None,
    *,
    exit_code: int | None,
    wanted: str | None,
    wanted_why: str = "",
    leave_seconds: float | None = None,
    fruitless_attempts: int,
    last_log_line: str,
    oom_evidence: str,
    result_on_disk: bool,
    shared: bool = False,
    never_began: bool = False,
) -> Ending:
    """Return what an ended worker means.

    Args:
        event: the event with which it ended, or None where it died without one.
        exit_code: its exit code, negative for a signal, None where nobody saw it.
        wanted: what the user or the daemon asked for: `pause`, `cancel`, `yield` or None.
        wanted_why: why a yield was asked for.
        leave_seconds: from that request until its process was gone.
        fruitless_attempts: interrupted attempts in a row without a new step, this one included.
        last_log_line: the last line of its log, as evidence.
        oom_evidence: what the kernel counted of out-of-memory kills while it ran, or nothing.
        result_on_disk: whether the run folder holds a result. It is renamed into place as a whole,
            so it is complete even where the worker died before it could say so.
        shared: whether its worker had other jobs, too: it may have died of one of them.
        never_began: whether its worker left, or died, before it took notice of the job.
    """
    if isinstance(event, Finished) or result_on_disk:
        return Ending(attempt_state="completed", job_state="completed", reason="done")
    leaving = _leaving(exit_code, leave_seconds)
    if wanted == "cancel":
        return Ending(
            attempt_state="cancelled", job_state="cancelled", reason=f"cancelled{leaving}"
        )
    if isinstance(event, Failed):
        return _failed(event.error, by_user=wanted == "pause")
    if wanted == "pause":
        clean = isinstance(event, Yielded)
        return Ending(
            attempt_state="paused",
            job_state="paused",
            reason=f"paused{leaving}" + ("" if clean else "; it wrote no last checkpoint"),
        )
    took = "" if leave_seconds is None else f" in {leave_seconds:.1f} s"
    if isinstance(event, Yielded):
        why = wanted_why or event.reason
        return Ending(attempt_state="yielded", job_state="queued", reason=f"gave way{took}: {why}")
    if wanted == "yield" and not _crashed(exit_code):
        # Asked to leave before it could listen, or killed because it did not: it did not die.
        why = wanted_why or _how(exit_code)
        return Ending(
            attempt_state="yielded",
            job_state="queued",
            reason=f"gave way{took}: {why}; it goes on from its last checkpoint",
        )
    if never_began and not exit_code:
        return Ending(
            attempt_state="yielded",
            job_state="queued",
            reason="the pack that it was to join had ended; it waits for the next one",
        )
    return _died(exit_code, fruitless_attempts, last_log_line, oom_evidence, shared=shared)


def _failed(error: ErrorReport, *, by_user: bool = False) -> Ending:
    paused = error.code in _RESUMABLE_CODES
    if paused and by_user:
        # No error of the job's own: it stays paused until its user resumes it.
        return Ending(attempt_state="failed", job_state="paused", reason=f"paused; {error.line()}")
    return Ending(
        attempt_state="failed",
        job_state="paused" if paused else "failed",
        reason=error.line(),
        error=error,
    )


def _died(
    exit_code: int | None,
    fruitless_attempts: int,
    last_log_line: str,
    oom_evidence: str,
    *,
    shared: bool,
) -> Ending:
    # The kernel kills with SIGKILL; a worker that ended otherwise was not its victim.
    oom_evidence = oom_evidence if exit_code in (None, -signal.SIGKILL) else ""
    how = _how(exit_code) + (f"; {oom_evidence}" if oom_evidence else "")
    again = shared or not _crashed(exit_code)
    if again and fruitless_attempts < MAX_FRUITLESS_ATTEMPTS:
        return Ending(
            attempt_state="interrupted",
            job_state="queued",
            reason=f"the worker died ({how}); it goes on from its last checkpoint",
        )
    evidence = f"{how}; its last words: {last_log_line or 'none'}"
    if exit_code is not None and code_of_exit(exit_code) == "DISK-FULL":
        # A full disk took no event either; the exit code still tells.
        return _failed(
            ErrorReport(
                code="DISK-FULL",
                what="The disk is full; the last checkpoint is kept.",
                why=evidence,
                fix="Free some space; the job then goes on by itself.",
            )
        )
    if oom_evidence:
        error = ErrorReport(
            code="RAM-KILLED",
            what="The system killed the worker because the RAM ran out.",
            why=evidence,
            fix="Close other programs, or choose a smaller batch_size, max_seq_len or model.",
        )
    else:
        error = ErrorReport(
            code="RUN-CRASHED",
            what="The worker died.",
            why=evidence,
            fix="Read its log with `slidepack jobs logs`.",
        )
    return _failed(error)


def _leaving(exit_code: int | None, leave_seconds: float | None) -> str:
    """Return how a worker that was asked to leave did so."""
    if leave_seconds is None:
        return ""
    if exit_code == -signal.SIGKILL:
        return f"; its worker did not leave and was killed after {leave_seconds:.1f} s"
    return f"; its worker left in {leave_seconds:.1f} s"


def _crashed(exit_code: int | None) -> bool:
    """Return whether it ended by itself with an error, so that trying again would not help."""
    return exit_code is not None and exit_code > 0


def _how(exit_code: int | None) -> str:
    if exit_code is None:
        return "it was gone"
    return f"signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
