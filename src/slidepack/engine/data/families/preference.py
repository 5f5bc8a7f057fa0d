"""Preference pairs: known, so that they are refused by name and not misread as answers."""

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.columns import is_conversation
from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.rows import clip

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
_CHOSEN: Final = ("chosen", "chosen_messages", "preferred_output")
_QUESTIONS: Final = ("prompt", "question", "instruction", "query", "input")
_REJECTED: Final = ("rejected_response", "rejected_messages")


def is_preference(kinds: Mapping[str, Any]) -> bool:
    """Return whether rows whose cells are of these types, by column, compare answers."""
    names = {name.strip().casefold() for name in kinds}
    if any(marks <= names for marks in _MARKS):
        return True
    return any(names >= marks for marks in _KTO) and kinds.get("label") is bool


def convert(line: int, cells: Cells) -> NoReturn:
    """Reject the row."""
    raise RejectedError("preference-pair", "no method here learns from preferences")


def preference_error(rows: int, example: Mapping[str, Any]) -> SlidepackError:
    """Return the refusal; its way out names the columns of `example`, a row of the file."""
    known = {name.strip().casefold(): name for name in example}
    mark = known.get("kto_tag") or known.get("label")
    if mark is not None and not known.keys() & {*_CHOSEN, *_REJECTED}:
        return SlidepackError(
            "DATA-PREFERENCE-UNSUPPORTED",
            "These are judged completions, and no method here learns from judgements yet.",
            why=f"{clip(mark)} says of each answer whether it is good; rows: {rows}",
            fix=f"To learn the good answers alone, keep the rows in which {clip(mark)} is true, "
            "without that column.",
        )
    return SlidepackError(
        "DATA-PREFERENCE-UNSUPPORTED",
        "These are preference pairs, and no method here learns from them yet.",
        why=f"rows that compare a chosen with a rejected answer: {rows}",
        fix=_way_out(known, example),
    )


def _way_out(known: Mapping[str, str], example: Mapping[str, Any]) -> str:
    asked = next((known[name] for name in _QUESTIONS if name in known), None)
    chosen = next((known[name] for name in _CHOSEN if name in known), None)
    if chosen is None and "messages" in known:
        chosen = known["messages"]
    maps: tuple[str, ...] = ()
    if chosen is not None:
        question, answer = example.get(asked) if asked else None, example[chosen]
        if is_conversation(answer) and is_conversation(question) and len(answer) == 1:
            maps = (f"prompt={asked}", f"completion={chosen}")
        elif is_conversation(answer) and len(answer) > 1:
            maps = (f"messages={chosen}",)
        elif isinstance(answer, str) and isinstance(question, str):
            maps = (f"question={asked}", f"answer={chosen}")
    if not maps:
        return (
            "To learn the chosen answers alone, write each with its question as a row: "
            "`prompt` and `completion`, or `messages`."
        )
    named = " ".join(f"--map {clip(text)}" for text in maps)
    return f"To learn the chosen answers alone, name their columns: {named}."
