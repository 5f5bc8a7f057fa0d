"""What is planned and on what: tasks, devices, hours. Times are seconds on one clock."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from slidepack.daemon.planner.cost import StepCost

__all__ = ["BaseOnDevice", "Device", "FullRun", "PassBytes", "Task", "Window"]


class _Frozen(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Base of the planner's structs."""


class PassBytes(_Frozen, frozen=True, kw_only=True):
    """What a pass over the base takes beside weights and adapters."""

    per_token: int
    logits_per_token: int = 0
    logit_tokens: int = 0
    """Tokens whose logits are there at once, at most."""

    def of(self, tokens: int) -> int:
        """Return the bytes of a pass of so many tokens."""
        return tokens * self.per_token + min(tokens, self.logit_tokens) * self.logits_per_token


class BaseOnDevice(_Frozen, frozen=True, kw_only=True):
    """How a base, in one precision, trains on a device."""

    cost: StepCost
    fixed_bytes: int
    """Base, driver and all else that no lane adds to."""
    bytes_per_param: float
    """Of each parameter of an adapter."""
    bytes_each: int = 0
    """Of the fixed ones, what every further device of a group takes as well."""
    recompute: PassBytes
    """Where layers are recomputed in the backward pass, with a row at a time at least."""
    keep: PassBytes | None = None
    """Where activations are kept; None where they never are."""
    keep_tokens: int = 0
    """Tokens of a pass that must fit before activations are kept, where a step has as many."""
    recompute_slowdown: float = 1.0
    """Of the part of a step that grows with its tokens, against keeping."""
    most_params: int | None = None
    """Most parameters of adapters at once, where something else than the device holds them."""
    startup_seconds: float = 0.0
    """Until the first step of a worker."""
    lane_seconds_once: float = 0.0
    """In which a pack makes no step because of one lane: it joins, is measured, writes its result.
    All of it is planned for where the lane joins."""

    def __post_init__(self) -> None:
        """Refuse what would make waiting cheaper than work."""
        if self.recompute_slowdown < 1.0 or min(self.startup_seconds, self.lane_seconds_once) < 0.0:
            raise ValueError(
                f"a slowdown of {self.recompute_slowdown}, a start of {self.startup_seconds} s and "
                f"{self.lane_seconds_once} s of a lane; use 1 or more, and 0 or more"
            )


class Device(_Frozen, frozen=True, kw_only=True):
    """A device that is there to be planned on."""

    key: str
    memory_bytes: int
    """What plans may use: free, less what is held back."""
    bases: Mapping[str, BaseOnDevice]
    """By `Task.model`; a base that is not here does not run here."""
    name: str = ""
    """As shown to people."""
    kind: str = ""
    """Devices of the same non-empty kind can carry one pack together."""
    max_lanes: int = 0
    """Most lanes at once; 0 leaves it to the memory."""
    free_from: float = 0.0
    """When it is there; the past is now."""


class FullRun(_Frozen, frozen=True, kw_only=True):
    """A full fine-tuning on each device; it takes the whole of one."""

    step_seconds: Mapping[str, float]
    """By the key of the device; where it does not fit, it is not here."""
    startup_seconds: float = 0.0
    refusal: str = ""
    """Why it fits none of the others, and what would help."""


class Task(_Frozen, frozen=True, kw_only=True):
    """One job, or what is left of it."""

    key: str
    steps: int
    """That are left."""
    model: str = ""
    """Base and precision: tasks with the same may share a pack."""
    tokens: int = 0
    """Of a step, on average."""
    most_tokens: int = 0
    """Of a step whose rows are all of the longest; 0 is the average."""
    params: int = 0
    """Of its adapter."""
    longest: int = 0
    """Tokens of a row, at most; 0 is all tokens of a step."""
    full: FullRun | None = None
    """None: the task is one lane."""
    priority: int = 0
    value: float = 1.0
    """What it is worth to have it by the morning."""
    not_before: float | None = None
    deadline: float | None = None
    promised: bool = False
    """Its deadline was accepted, and goes before anything else."""
    after: tuple[str, ...] = ()
    """Tasks that must end first."""
    running_on: tuple[str, ...] = ()
    """Devices on which it trains now."""
    move_seconds: float = 0.0
    """What it costs to take it from where it trains: checkpoint, and what is done again."""

    def __post_init__(self) -> None:
        """Refuse what is no work."""
        if self.steps < 1:
            raise ValueError(f"{self.key} has {self.steps} steps left; use 1 or more")
        if self.full is None and (self.tokens < 1 or self.params < 0 or not self.model):
            raise ValueError(f"{self.key} has no base, or no tokens in a step")

    @property
    def kind(self) -> Literal["lora", "full"]:
        """What it is."""
        return "lora" if self.full is None else "full"

    @property
    def row_tokens(self) -> int:
        """Tokens that a pass must hold at least."""
        return self.longest or self.tokens

    @property
    def step_tokens(self) -> int:
        """Tokens of a step that memory must be there for."""
        return max(self.tokens, self.most_tokens)


class Window(_Frozen, frozen=True, kw_only=True):
    """Hours in which work may run."""

    begin: float
    end: float
