"""Losses of some tokens, added up."""

from dataclasses import dataclass

__all__ = ["LossSum"]


@dataclass(frozen=True, slots=True)
class LossSum:
    """Losses of some tokens, added up."""

    total: float
    """Sum over supervised tokens, in nats."""
    tokens: int
    """Supervised tokens."""

    @property
    def mean(self) -> float:
        """Mean loss of a supervised token."""
        return self.total / self.tokens
