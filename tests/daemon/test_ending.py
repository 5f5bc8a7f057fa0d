"""What becomes of a job whose worker has ended: every branch of the decision."""

from typing import Any

import pytest

from slidepack.daemon.states import LIVE, TRANSITIONS, AttemptState, JobState
from slidepack.daemon.supervisor.ending import MAX_FRUITLESS_ATTEMPTS, Ending, decide_ending
from slidepack.engine.contract.errors import CATALOGUE, ErrorReport
from slidepack.engine.contract.events import Failed, Finished, Yielded

_FINISHED = Finished(
    at=1.0,
    steps=8,
    result="/r",
    eval_loss_before=2.0,
    eval_loss_after=1.0,
    seconds=1.0,
    tokens_per_second=1.0,
    peak_host_bytes=1,
    peak_device_bytes=0,
)
_YIELDED = Yielded(at=1.0, reason="SIGTERM")
_LAST = MAX_FRUITLESS_ATTEMPTS
_OOM: dict[str, Any] = {"oom_evidence": "/proc/vmstat: oom_kill rose from 0 to 1"}
_LAST_OOM: dict[str, Any] = _OOM | {"fruitless_attempts": _LAST}


def _failed(code: str) -> Failed:
    return Failed(at=1.0, error=ErrorReport(code=code, what="It failed.", why="x", fix="y"))


def _decide(event: Finished | Yielded | Failed | None, **changes: Any) -> Ending:
    facts: dict[str, Any] = {
        "exit_code": -9,
        "wanted": None,
        "fruitless_attempts": 1,
        "last_log_line": "the last line",
        "oom_evidence": "",
        "result_on_disk": False,
    }
    return decide_ending(event, **(facts | changes))


@pytest.mark.parametrize(
    ("event", "facts", "attempt_state", "job_state", "code"),
    [
        # The result is there: nothing that was asked for meanwhile undoes it.
        (_FINISHED, {"exit_code": 0}, "completed", "completed", None),
        # It died, or wrote an event of another version, after the result was in place.
        (None, {"result_on_disk": True, "exit_code": -9}, "completed", "completed", None),
        (None, {"result_on_disk": True, "exit_code": 0}, "completed", "completed", None),
        (None, {"result_on_disk": True, "wanted": "cancel"}, "completed", "completed", None),
        (_FINISHED, {"wanted": "cancel"}, "completed", "completed", None),
        (_FINISHED, {"wanted": "pause"}, "completed", "completed", None),
        (_FINISHED, {"wanted": "yield", "exit_code": None}, "completed", "completed", None),
        # Cancelled, however the worker left.
        (_YIELDED, {"wanted": "cancel"}, "cancelled", "cancelled", None),
        (None, {"wanted": "cancel"}, "cancelled", "cancelled", None),
        (None, {"wanted": "cancel", "exit_code": 1}, "cancelled", "cancelled", None),
        (_failed("RUN-DIVERGED"), {"wanted": "cancel"}, "cancelled", "cancelled", None),
        (_failed("DISK-FULL"), {"wanted": "cancel"}, "cancelled", "cancelled", None),
        # Failed with a code; what the user can end keeps the job.
        (_failed("RUN-DIVERGED"), {}, "failed", "failed", "RUN-DIVERGED"),
        (_failed("DATA-CHANGED"), {"wanted": "pause"}, "failed", "failed", "DATA-CHANGED"),
        (_failed("DISK-FULL"), {}, "failed", "paused", "DISK-FULL"),
        (_failed("DISK-FULL"), {"wanted": "yield"}, "failed", "paused", "DISK-FULL"),
        # Its user paused it: room on the disk must not wake it.
        (_failed("DISK-FULL"), {"wanted": "pause"}, "failed", "paused", None),
        # Paused, with a last checkpoint or without.
        (_YIELDED, {"wanted": "pause"}, "paused", "paused", None),
        (None, {"wanted": "pause"}, "paused", "paused", None),
        # Gave way.
        (_YIELDED, {"wanted": "yield"}, "yielded", "queued", None),
        (_YIELDED, {}, "yielded", "queued", None),
        (None, {"wanted": "yield", "exit_code": -15}, "yielded", "queued", None),
        (None, {"wanted": "yield", "fruitless_attempts": 9}, "yielded", "queued", None),
        (None, {"wanted": "yield", "exit_code": 1}, "failed", "failed", "RUN-CRASHED"),
        # Died: tried again, but not for ever.
        (None, {}, "interrupted", "queued", None),
        (None, {"exit_code": None}, "interrupted", "queued", None),
        (None, {"fruitless_attempts": _LAST - 1}, "interrupted", "queued", None),
        (None, {"fruitless_attempts": _LAST}, "failed", "failed", "RUN-CRASHED"),
        (None, {"fruitless_attempts": _LAST, "exit_code": None}, "failed", "failed", "RUN-CRASHED"),
        (None, _LAST_OOM, "failed", "failed", "RAM-KILLED"),
        (
            None,
            _LAST_OOM | {"exit_code": None},
            "failed",
            "failed",
            "RAM-KILLED",
        ),
        # Another process was the kernel's victim.
        (
            None,
            _LAST_OOM | {"exit_code": -11},
            "failed",
            "failed",
            "RUN-CRASHED",
        ),
        (None, _OOM, "interrupted", "queued", None),
        # Ended by itself without a word: trying again would do the same.
        (None, {"exit_code": 1}, "failed", "failed", "RUN-CRASHED"),
        # The disk was too full even for the last event.
        (None, {"exit_code": 40}, "failed", "paused", "DISK-FULL"),
        (None, {"exit_code": 0}, "interrupted", "queued", None),
    ],
)
def test_every_branch(
    event: Finished | Yielded | Failed | None,
    facts: dict[str, Any],
    attempt_state: AttemptState,
    job_state: JobState,
    code: str | None,
) -> None:
    ending = _decide(event, **facts)
    assert (ending.attempt_state, ending.job_state) == (attempt_state, job_state)
    assert (ending.error.code if ending.error else None) == code
    assert ending.reason
    # Whatever it decides, the state machine allows it from every live state.
    assert all(ending.job_state in TRANSITIONS[state] for state in LIVE)
    assert code is None or code in CATALOGUE


def test_a_crash_says_how_and_shows_the_last_line() -> None:
    died = _decide(None, fruitless_attempts=_LAST)
    assert died.error is not None
    assert "signal 9" in died.error.why
    assert "the last line" in died.error.why
    silent = _decide(None, exit_code=3, last_log_line="")
    assert silent.error is not None
    assert silent.error.why == "exit code 3; its last words: none"


def test_the_kernels_evidence_is_told_at_every_try() -> None:
    again = _decide(None, **_OOM)
    assert "oom_kill rose from 0 to 1" in again.reason
    given_up = _decide(None, fruitless_attempts=_LAST, **_OOM)
    assert given_up.error is not None
    assert "oom_kill rose from 0 to 1" in given_up.error.why


def test_a_yield_says_why_and_how_long_it_took() -> None:
    facts = {"wanted": "yield", "wanted_why": "cs2 runs", "leave_seconds": 3.21}
    assert _decide(_YIELDED, **facts).reason == "gave way in 3.2 s: cs2 runs"
    killed = _decide(None, exit_code=-9, **facts)
    assert killed.reason == "gave way in 3.2 s: cs2 runs; it goes on from its last checkpoint"
    for wanted in ("cancel", "pause"):
        left = _decide(_YIELDED, wanted=wanted, exit_code=75, leave_seconds=0.84)
        assert left.reason.endswith("ed; its worker left in 0.8 s")
        killed = _decide(None, wanted=wanted, exit_code=-9, leave_seconds=60.02)
        assert "did not leave and was killed after 60.0 s" in killed.reason
    # Nobody asked it: somebody sent a signal.
    assert _decide(_YIELDED).reason == "gave way: SIGTERM"


@pytest.mark.parametrize("exit_code", [1, -9, None])
def test_a_worker_that_others_shared_is_tried_again_until_it_dies_alone(
    exit_code: int | None,
) -> None:
    shared = _decide(None, exit_code=exit_code, shared=True, fruitless_attempts=1)
    assert (shared.attempt_state, shared.job_state) == ("interrupted", "queued")
    last = _decide(None, exit_code=exit_code, shared=True, fruitless_attempts=3)
    assert last.job_state == "failed"
    alone = _decide(None, exit_code=1, shared=False, fruitless_attempts=1)
    assert alone.job_state == "failed", "a crash of its own would only be repeated"


@pytest.mark.parametrize("exit_code", [0, None])
def test_who_came_too_late_for_a_pack_waits_for_the_next(exit_code: int | None) -> None:
    late = _decide(None, exit_code=exit_code, never_began=True, shared=True)
    assert (late.attempt_state, late.job_state) == ("yielded", "queued")
    assert "had ended" in late.reason
    died = _decide(None, exit_code=-9, never_began=True, shared=True)
    assert died.attempt_state == "interrupted", "a pack that was killed did not end"
    asked = _decide(None, exit_code=exit_code, never_began=True, wanted="cancel")
    assert asked.job_state == "cancelled"
