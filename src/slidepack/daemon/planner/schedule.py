"""What a simulation says: who ran where and when, in open seconds, and who did not end."""

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["Placement", "Recompute", "Schedule", "Strategy", "Wait"]

Recompute = Literal["freely", "for tokens", "never"]
"""`for tokens`: where more tokens a second come of it, as in packs that are small anyway."""

Wait = Literal[
    "closed",
    "not before",
    "dependency",
    "device away",
    "other base",
    "whole device",
    "reserved",
    "lanes",
    "memory",
    "tokens",
    "deadline",
    "moving",
]
"""Why a task does not begin at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Strategy:
    """What leads the simulation; everything else follows from it."""

    order: tuple[int, ...]
    """Of the tasks, first to last, within a priority."""
    cap_factors: tuple[float, ...] = ()
    """Most tokens of a step by seat, as a multiple of where they cost what a step costs anyway;
    empty: no bound."""
    max_lanes: int = 0
    """Most lanes of a pack; 0 leaves it to the device."""
    recompute: tuple[Recompute, ...] = ()
    """Whether a lane joins that makes a pack recompute what it keeps; by seat, empty: freely."""
    seat_of: tuple[int, ...] | None = None
    """Seat of each task; -1, or None for all, lets the simulation choose."""
    degree: int = 1
    """Devices that a pack takes, where there are seats of so many."""
    released: frozenset[int] = frozenset()
    """Running tasks that are taken from where they are; the others stay."""


@dataclass(frozen=True, slots=True)
class Placement:
    """A task on a seat, in open seconds; its worker's start is part of it."""

    task: int
    seat: int
    begin: float
    end: float


@dataclass(kw_only=True, slots=True)
class Schedule:
    """The outcome of a strategy."""

    placements: list[Placement] = field(default_factory=list)
    """Of the tasks that end, in the order in which they do."""
    unfinished: list[Placement] = field(default_factory=list)
    """Of those that the last window cuts off."""
    not_begun: list[int] = field(default_factory=list)
    waits: dict[int, Wait] = field(default_factory=dict)
    """Why a task was not taken when it first could have been."""
    moved: list[int] = field(default_factory=list)
    """Running tasks that were taken from where they were."""

    @property
    def makespan(self) -> float:
        """Open seconds until the last task ends."""
        return max((placement.end for placement in self.placements), default=0.0)
