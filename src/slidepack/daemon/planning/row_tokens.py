"""How many tokens a row of a dataset has before any job has counted them.

A sample from the start of the file tells tokens by byte, and the size of the file tells bytes by
row: a file of gigabytes is never read.
"""

import threading
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.job import DatasetRef
from slidepack.engine.data.rows import ChatRow, CompletionRow, Row, TextRow, TokensRow, decode_row

__all__ = ["RowSizes", "estimated_tokens"]

_BYTES_PER_TOKEN: Final = 3.5
_TURN_TOKENS: Final = 5
"""What chat templates put around a message."""
_SAMPLE_BYTES: Final = 1 << 18
UNKNOWN_ROW_TOKENS: Final = 256.0
"""Where the file cannot be read: the job itself will say what is wrong."""


def estimated_tokens(row: Row) -> float:
    """Return about how many tokens a row becomes, with any tokenizer."""
    match row:
        case ChatRow():
            texts = [
                f"{turn.content}{turn.reasoning}{turn.tool_calls}" for turn in row.messages
            ] + [row.tools]
            return _of_text(*texts) + _TURN_TOKENS * len(row.messages)
        case CompletionRow():
            return _of_text(row.prompt, row.completion)
        case TextRow():
            return _of_text(row.text)
        case TokensRow():
            return float(len(row.ids))


class RowSizes:
    """Estimates by dataset, each made once. Any thread may use it."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._known: dict[str, float] = {}

    def tokens(self, dataset: DatasetRef, rows: int) -> float:
        """Return the tokens of a row, on average.

        Args:
            dataset: normalised rows.
            rows: that it has.
        """
        with self._lock:
            known = self._known.get(dataset.content_hash)
        if known is not None:
            return known
        try:
            found = _estimate(Path(dataset.path), rows)
        except (OSError, msgspec.DecodeError):
            return UNKNOWN_ROW_TOKENS
        with self._lock:
            self._known[dataset.content_hash] = found
        return found


def _estimate(path: Path, rows: int) -> float:
    with path.open("rb") as file:
        size = path.stat().st_size
        sample = file.read(_SAMPLE_BYTES)
        if len(sample) == _SAMPLE_BYTES:
            # A row that is longer than the sample is read to its end.
            sample += file.readline()
    lines = sample.splitlines()
    tokens = sum(estimated_tokens(decode_row(line)) for line in lines)
    if not lines or not tokens:
        return UNKNOWN_ROW_TOKENS
    return max(1.0, tokens / len(sample) * size / max(1, rows))


def _of_text(*texts: str) -> float:
    return sum(len(text.encode("utf-8", "replace")) for text in texts) / _BYTES_PER_TOKEN
