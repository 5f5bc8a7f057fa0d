"""Which queued job may run now, and why the others wait. Pure: no clock, no database."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from slidepack.daemon.states import JobState
from slidepack.daemon.store.jobs import JobRecord


class Gate(Protocol):
    """What lets training run or stops it: windows, games, heat, a user's pause."""

    def why_wait(self, job: JobRecord, now: float) -> str:
        """Return why a queued job may not start now; empty where it may."""
        ...

    def why_leave(self, job: JobRecord, now: float) -> str:
        """Return why a running job must give the GPU back now; empty where it need not."""
        ...


@dataclass(frozen=True, slots=True)
class Dependence:
    """What a job's predecessors mean for it."""

    waits: str = ""
    """Why it waits; empty where it does not."""
    broken: str = ""
    """Why it can never run as asked; empty where it can."""


def dependence(job: JobRecord, states: Mapping[int, JobState]) -> Dependence:
    """Judge the jobs that a job comes after.

    Args:
        job: queued.
        states: of its predecessors, by id.
    """
    for earlier in job.after:
        state = states[earlier]
        if state == "completed":
            continue
        if state in ("failed", "cancelled"):
            if job.after_failure == "run":
                continue
            return Dependence(broken=f"{_which(earlier)} {_ended(state)}")
        return Dependence(waits=f"waits for job {earlier} to be completed; it is {state}")
    return Dependence()


def held_reason(broken: str) -> str:
    """Return why a job is paused whose predecessor ended as it must not."""
    return f"{broken}; resume it to run it anyway"


def is_held_by(reason: str, earlier: int) -> bool:
    """Return whether a paused job's reason is `held_reason` of a predecessor."""
    return reason.startswith(_which(earlier))


def _which(earlier: int) -> str:
    return f"job {earlier}, which it comes after,"


def _ended(state: JobState) -> str:
    return "failed" if state == "failed" else "was cancelled"
