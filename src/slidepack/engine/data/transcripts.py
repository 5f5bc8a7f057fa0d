"""Conversations in a shape that is not read: all in one text, or one message a row."""

import re
from typing import Any, Final

from slidepack.engine.contract.errors import SlidepackError

_TRANSCRIPT: Final = re.compile(r"(?:^|\n)\s*(user|human|assistant)\s*:", re.IGNORECASE)
_TRANSCRIPT_CHARS: Final = 4000


def is_transcript(row: dict[str, Any]) -> bool:
    """Return whether one text of the row holds what both sides say."""
    for text in row.values():
        if isinstance(text, str):
            speakers = {name.lower() for name in _TRANSCRIPT.findall(text[:_TRANSCRIPT_CHARS])}
            if "assistant" in speakers and len(speakers) > 1:
                return True
    return False


def messages_error(rows: int, first: int) -> SlidepackError:
    """Return the refusal of rows that are one message each; `first` is a line."""
    return SlidepackError(
        "DATA-TRANSCRIPT-UNSUPPORTED",
        "Each row is one message, not a conversation.",
        why=f"line {first}: the first of the rows that name a speaker and what is said: {rows}",
        fix="Put the messages of a conversation into one row's `messages` list. Where the column "
        "is a text to learn, and no message, name it: --map text=….",
    )


def transcripts_error(rows: int, example: str) -> SlidepackError:
    """Return the refusal of rows with a whole conversation in one text."""
    return SlidepackError(
        "DATA-TRANSCRIPT-UNSUPPORTED",
        "The rows are transcripts: whole conversations in one text.",
        why=f"rows that name the speakers within a text: {rows}"
        + (f"; {example}" if example else ""),
        fix="Split them into turns: `messages` with `role` and `content`. Where a turn ends "
        "within a text, and which part is the answer, cannot be told for sure.",
    )
