"""A lane of a sweep: jobs that are compared, and those that are behind end early.

A lane's run folder says which sweep it belongs to. The rungs file of a sweep is shared: lanes in
several packs, on several cards, are judged against one another. Its workers change it under a
lock (`engine.lora.halving`), and whole or not at all; it can be read at any time.
"""

import msgspec

from slidepack.engine.contract.job import Frozen

__all__ = ["Halving", "LaneSweep", "RungResults"]


class Halving(Frozen, frozen=True, kw_only=True):
    """Successive halving: lanes that are behind the others end before their last step."""

    first_samples: int
    """Samples that every lane trains on before it is judged."""
    eta: int = 3
    """Of so many lanes one goes on; each rung is so many times as far as the one before."""

    def __post_init__(self) -> None:
        """Refuse what would judge nobody, or everybody at once."""
        if self.first_samples < 1 or self.eta < 2:
            raise ValueError(
                f"first_samples is {self.first_samples} and eta is {self.eta}; "
                "use 1 or more, and 2 or more"
            )


class LaneSweep(Frozen, frozen=True, kw_only=True):
    """Where a lane is judged; in its run folder."""

    rungs: str
    """Absolute path of the sweep's rungs file; the first that is judged makes it."""
    halving: Halving


class RungResults(Frozen, frozen=True, kw_only=True):
    """What is in a rungs file: held-out losses by rung and lane."""

    rungs: tuple[dict[str, float | None], ...] = ()
    """The first rung first; None where a loss is no number."""
    stopped: dict[str, int] = msgspec.field(default_factory=dict)
    """Rung, from 1, at which a lane was told to end."""
