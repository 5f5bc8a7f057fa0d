"""What a user asks a sweep for: settings that all members share, and those in which they differ."""

from typing import Any, Final, Literal

import msgspec

from slidepack.engine.contract.sweep import Halving

MAX_MEMBERS: Final = 500
"""Of one sweep; the planner and the page are made for no more."""


class SweepPlan(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is tried; a sweep file holds these fields as TOML."""

    name: str = ""
    """Begins the names of the members."""
    fixed: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings of a job (`daemon.requests.JobSettings`) that all members share."""
    grid: dict[str, Any] = msgspec.field(default_factory=dict)
    """Setting to the list of its values; every combination is a member."""
    random: dict[str, Any] = msgspec.field(default_factory=dict)
    """`count` and `seed` of the draws, and setting to where it is drawn from: {log = [LOW, HIGH]},
    {uniform = [LOW, HIGH]} or {choices = [...]}. With a grid, each draw meets each point of it."""
    halving: Halving | None = None
    """Ends members that are behind the others early; None trains all of them to their end."""


class SweepRequest(SweepPlan, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A sweep to queue."""

    model: str
    """Id of a model."""
    dataset: int
    """Id of a dataset."""
    held_out: int | None = None
    """Id of a dataset that members are chosen by and that is never trained; None takes a share of
    the rows."""
    members: tuple[dict[str, Any], ...] = ()
    """Members one by one, by the settings in which they differ; besides grid and draws."""
    start: Literal["auto", "now", "tonight"] = "auto"
    """As of a job."""
    not_before: float | None = None
    """Unix time in seconds before which no member starts."""
    deadline: float | None = None
    """Unix time in seconds by which all members should be done."""
    priority: int = 0


class MembersRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Members to add to a sweep that is there."""

    members: tuple[dict[str, Any], ...]
    """By the settings in which they differ."""
