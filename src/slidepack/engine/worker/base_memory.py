"""What a base has said already: lanes that begin with it need not ask again.

Before its first step an adapter adds exactly nothing, so its held-out loss is that of the base, and
so are the answers "before". Members of a sweep share rows and questions, and most of what a short
lane costs its pack is to measure the same base once more.
"""

import hashlib
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.loss import LossSum
from slidepack.engine.worker.judging_pass import RowScore

__all__ = ["BaseMemory"]

_MOST: Final = 64
"""Sets of rows, and of questions, that are remembered."""

_Key = TypeVar("_Key")
_Value = TypeVar("_Value")
_Questions = tuple[tuple[tuple[int, ...], ...], int, frozenset[int]]


class BaseMemory:
    """Losses, scores and answers of an untouched base."""

    def __init__(self) -> None:
        """Begin with nothing."""
        self._losses: dict[bytes, LossSum] = {}
        self._scores: dict[bytes, list[RowScore]] = {}
        self._answers: dict[_Questions, list[list[int]]] = {}

    def loss(self, rows: Sequence[EncodedRow]) -> LossSum | None:
        """Return the summed loss of rows, or None where they were not measured."""
        return self._losses.get(_digest(rows))

    def keep_loss(self, rows: Sequence[EncodedRow], loss: LossSum) -> None:
        """Remember the summed loss of rows."""
        _put(self._losses, _digest(rows), loss)

    def scores(
        self, rows: Sequence[EncodedRow], ask: Callable[[], list[RowScore]]
    ) -> list[RowScore]:
        """Return the scores of rows, asked for where they are not known.

        Args:
            rows: to be scored.
            ask: scores them.
        """
        key = _digest(rows)
        if key not in self._scores:
            _put(self._scores, key, ask())
        return self._scores[key]

    def answers(
        self,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        stop_ids: frozenset[int],
        ask: Callable[[], list[list[int]]],
    ) -> list[list[int]]:
        """Return the answers to prompts, asked for where they are not known.

        Args:
            prompts: token ids.
            max_new_tokens: of each answer.
            stop_ids: that end an answer.
            ask: generates them greedily.
        """
        key = (tuple(map(tuple, prompts)), max_new_tokens, stop_ids)
        if key not in self._answers:
            _put(self._answers, key, ask())
        return self._answers[key]


def _put(known: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    while len(known) >= _MOST:
        del known[next(iter(known))]
    known[key] = value


def _digest(rows: Sequence[EncodedRow]) -> bytes:
    found = hashlib.sha256()
    for row in rows:
        # Lengths first, so that no two lists of rows read the same.
        found.update(len(row.ids).to_bytes(8, "little"))
        found.update(b"".join(token.to_bytes(8, "little") for token in row.ids))
        found.update(bytes(row.supervised))
    return found.digest()
