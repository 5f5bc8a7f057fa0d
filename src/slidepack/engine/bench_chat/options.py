"""What a chat benchmark measures, and how its sides answer."""

from typing import Final

import msgspec

__all__ = ["SIDES", "ChatOptions", "Rate"]

SIDES: Final = ("one", "voices")
"""One answer of the base; and one of each of some adapters, at once."""


class ChatOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is measured."""

    model: str
    """A Hugging Face folder."""
    device: str = "cpu"
    threads: int = 1
    prompt: int = 256
    """Tokens of a prompt."""
    tokens: int = 64
    """Of an answer, greedy, past any end."""
    voices: int = 4
    rank: int = 16
    rounds: int = 5
    """Each side takes its turn in each; medians are told."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        for name in ("threads", "prompt", "voices", "rank", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; use 1 or more")
        if self.tokens < 2:
            raise ValueError(f"tokens is {self.tokens}; use 2 or more: the first is counted apart")


class Rate(msgspec.Struct, frozen=True, kw_only=True):
    """How fast some answers were."""

    tokens_per_second: float
    """Of all answers together, behind their first tokens."""
    first_token_seconds: float
    """Until every answer had its first token."""
