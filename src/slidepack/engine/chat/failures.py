"""What a pass may die of without the process dying of it."""

import torch

from slidepack.engine.contract.errors import SlidepackError

__all__ = ["is_out_of_memory", "no_room"]


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether memory was missing; torch has a class of its own for a card's only."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def no_room(what: str, error: RuntimeError) -> SlidepackError:
    """Return CHAT-NO-ROOM for what did not fit."""
    return SlidepackError(
        "CHAT-NO-ROOM",
        f"There is not enough memory for {what}.",
        why=" ".join(str(error).split())[:300],
        fix="Ask fewer voices at once, start the chat with a smaller context, or close what else "
        "uses the memory.",
    )
