"""The setting that says which devices train: all cards, some of them, or the CPU. Pure."""

import re
from collections.abc import Sequence
from typing import Final

from slidepack.daemon.probe.software import TorchDevice

__all__ = ["check_choice", "chosen_cards"]

_ALL: Final = frozenset({"auto", "cpu"})
_TORCH_NAME: Final = re.compile(r"cuda:\d+")
_LEAST_LETTERS: Final = 3
"""Of a part of a name: fewer would be a slip."""


def check_choice(choice: str) -> None:
    """Check what the setting `device` may be.

    Raises:
        ValueError: it names nothing.
    """
    short = [part for part in _parts(choice) if len(part) < _LEAST_LETTERS]
    if not _parts(choice) or short:
        raise ValueError(
            f"device is {choice!r}; use auto, cpu, or cards by name, number, PCI address or UUID, "
            'as in "RTX 3090" or "cuda:0, cuda:2"'
        )


def chosen_cards(choice: str, cards: Sequence[TorchDevice]) -> tuple[list[TorchDevice], str]:
    """Return the cards that a choice names, and what it names that is not there.

    Args:
        choice: `auto` for all; else cards, separated by commas: torch's name (`cuda:1`), a part of
            the card's name (`3090`, which may be several), a PCI address, or the driver's UUID.
            `cpu` names none.
        cards: as torch sees them.

    Returns:
        The cards in their own order, and the first part that names none; empty where all do.
    """
    if choice == "auto":
        return list(cards), ""
    if choice == "cpu":
        return [], ""
    found: set[int] = set()
    for part in _parts(choice):
        named = {card.index for card in cards if _names(part, card)}
        if not named:
            return [], part
        found |= named
    return [card for card in cards if card.index in found], ""


def _parts(choice: str) -> list[str]:
    if choice in _ALL:
        return [choice]
    return [part for text in choice.split(",") if (part := text.strip())]


def _names(part: str, card: TorchDevice) -> bool:
    wanted = part.lower()
    if _TORCH_NAME.fullmatch(wanted):
        return wanted == f"cuda:{card.index}"
    exact = {card.uuid.lower(), card.pci_address.lower()} - {""}
    return wanted in exact or wanted in card.name.lower()
