"""When a job may run: its priority, its earliest time, and what it comes after."""

from typing import Final, Literal

import msgspec

MAX_PRIORITY: Final = 100
_LATEST: Final = 4_102_444_800.0
"""The year 2100, in unix time: later ones are milliseconds, or a slip."""


class JobTiming(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job's place in time; what is left out lets it run as soon as its turn comes."""

    priority: int = 0
    """Higher ones come first; among equals the queue's order counts."""
    not_before: float | None = None
    """Unix time in seconds."""
    deadline: float | None = None
    """Unix time in seconds by which it should be done."""
    any_time: bool = False
    """Whether it may run outside the windows of the policy."""
    after: tuple[int, ...] = ()
    """Jobs that must be completed first."""
    after_failure: Literal["hold", "run"] = "hold"
    """What happens where one of those fails or is cancelled: this job is paused, or runs anyway."""
    on_failure: Literal["continue", "stop"] = "continue"
    """Whether the queue goes on where this job fails, or pauses."""

    def __post_init__(self) -> None:
        """Refuse values that cannot be kept."""
        if not -MAX_PRIORITY <= self.priority <= MAX_PRIORITY:
            raise ValueError(f"priority is {self.priority}; use {-MAX_PRIORITY} to {MAX_PRIORITY}")
        for name in ("not_before", "deadline"):
            time = getattr(self, name)
            if time is not None and not 0 <= time <= _LATEST:
                raise ValueError(f"{name} is {time:g}; use unix time in seconds")
        begin, done = self.not_before, self.deadline
        if begin is not None and done is not None and done <= begin:
            raise ValueError(f"it should be done by {done:g}, and not begin before {begin:g}")
        if len(set(self.after)) != len(self.after):
            raise ValueError(f"after names a job twice: {list(self.after)}")
