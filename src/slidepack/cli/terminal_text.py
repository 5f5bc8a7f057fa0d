"""Text from models, files and names, made safe for a terminal."""

import re
from typing import Final

__all__ = ["one_line", "printable"]

_UNWANTED: Final = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls, what turns the direction of writing around, and halves of surrogate pairs. Joiners and
marks of direction stay: Persian, Hindi and emoji need them."""
_LINE_ENDS: Final = re.compile(r"[\x85\u2028\u2029]")
_MOVES: Final = re.compile(r"[\n\t]")


def printable(text: str) -> str:
    """Return a text without what would steer a terminal or cannot be written.

    LF and tabs stay, and every other end of a line becomes LF, but a lone CR goes. Each character
    is judged alone: the pieces of a text give what the whole gives.
    """
    return _LINE_ENDS.sub("\n", _UNWANTED.sub("", text))


def one_line(text: str) -> str:
    """Return a printable text with spaces in place of its line ends and tabs."""
    return _MOVES.sub(" ", printable(text))
