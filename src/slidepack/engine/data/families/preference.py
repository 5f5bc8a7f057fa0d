"""Preference pairs: known, so that they are refused by name and not misread as answers."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from slidepack.engine.data.families.cells import Cells, RejectedError

_MARKS: Final = (
    {"chosen", "rejected"},
    {"preferred_output", "non_preferred_output"},
    {"messages", "rejected_response"},
    {"messages", "rejected_messages"},
    {"chosen_messages", "rejected_messages"},
    {"kto_tag"},
)
"""Columns that only preference data has: TRL's and UltraFeedback's, OpenAI's, ms-swift's, KTO's."""
_KTO: Final = ({"prompt", "completion", "label"}, {"messages", "label"})
"""With a label that is true or false."""


def is_preference(kinds: Mapping[str, Any]) -> bool:
    """Return whether rows whose cells are of these types, by column, compare answers."""
    names = {name.strip().casefold() for name in kinds}
    if any(marks <= names for marks in _MARKS):
        return True
    return any(names >= marks for marks in _KTO) and kinds.get("label") is bool


def convert(line: int, cells: Cells) -> NoReturn:
    """Reject the row."""
    raise RejectedError("preference-pair", "no method here learns from preferences")
