"""When two answers are the same."""

import unicodedata
from typing import Final

__all__ = ["normalised"]

_BRACKETS_AND_QUOTES: Final = frozenset({"Ps", "Pe", "Pi", "Pf"})
_MARKS: Final = frozenset(".,:;!?…\"'`*_¡¿。、")
"""Not all punctuation: a minus, a percent sign and the last of `C#` say something."""


def normalised(text: str) -> str:
    """Return what answers are compared by after normalisation.

    Unicode NFKC, case folded, stretches of white space as one space, and at the ends no white
    space, no marks of sentences and emphasis, no quotes and no brackets. Of an answer that is
    nothing else, that stays.
    """
    folded = unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
    words = " ".join(folded.split())
    start, end = 0, len(words)
    while start < end and _is_edge(words[start]):
        start += 1
    while end > start and _is_edge(words[end - 1]):
        end -= 1
    return words[start:end] or words


def _is_edge(character: str) -> bool:
    return (
        character.isspace()
        or character in _MARKS
        or unicodedata.category(character) in _BRACKETS_AND_QUOTES
    )
