"""The states of a job and of an attempt, and every transition that is allowed."""

from typing import Final, Literal, get_args

JobState = Literal[
    "draft",
    "queued",
    "starting",
    "running",
    "pausing",
    "paused",
    "yielding",
    "finishing",
    "completed",
    "failed",
    "cancelled",
]
AttemptState = Literal[
    "live", "completed", "failed", "cancelled", "paused", "yielded", "interrupted"
]

JOB_STATES: Final[tuple[JobState, ...]] = get_args(JobState)
TERMINAL: Final[frozenset[JobState]] = frozenset({"completed", "failed", "cancelled"})
LIVE: Final[frozenset[JobState]] = frozenset(
    {"starting", "running", "pausing", "yielding", "finishing"}
)
"""States in which a worker belongs to the job."""

# A worker may end in any way in any live state: it can finish while it is asked to pause.
_ENDS: Final[frozenset[JobState]] = frozenset(
    {"queued", "paused", "completed", "failed", "cancelled"}
)

TRANSITIONS: Final[dict[JobState, frozenset[JobState]]] = {
    "draft": frozenset({"queued", "cancelled"}),
    "queued": frozenset({"starting", "paused", "failed", "cancelled"}),
    "starting": _ENDS | {"running", "pausing", "yielding", "finishing"},
    "running": _ENDS | {"pausing", "yielding", "finishing"},
    "pausing": _ENDS | {"finishing"},
    "paused": frozenset({"queued", "cancelled"}),
    "yielding": _ENDS | {"pausing", "finishing"},
    "finishing": _ENDS | {"pausing", "yielding"},
    "completed": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}
