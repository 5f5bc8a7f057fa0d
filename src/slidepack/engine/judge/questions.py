"""The rows that a model is judged by: held out of training, and what is asked of each.

Every row has its tokens to predict. Where its last answer is short, the model answers for itself;
where the answers of all rows come from a few labels, the model is asked which it holds most likely.
"""

import hashlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from slidepack.engine.contract.judgement import SHORT_TOKENS
from slidepack.engine.data.masking import EncodedRow, encode_whole
from slidepack.engine.data.rows import ChatRow, CompletionRow, Reject, Row, first_question
from slidepack.engine.data.split import Split
from slidepack.engine.data.tokenizer import ChatTokenizer

__all__ = ["JudgeRows", "JudgedRow", "Questions", "ShortAnswer"]

_MOST_LABELS: Final = 10
_LONGEST_LABEL: Final = 80
"""Characters; a set of longer texts is not one of labels."""
_ROWS_PER_LABEL: Final = 4
"""Answers that repeat less often are few by chance."""
_LABELLED_SHARE: Final = 0.95


@dataclass(frozen=True, slots=True)
class ShortAnswer:
    """What is asked of a row whose last answer is short."""

    question: str
    """As people read it: the last one before the answer."""
    prompt: tuple[int, ...]
    expected: tuple[int, ...]
    """Ids of the answer, the end token among them."""
    candidates: tuple[EncodedRow, ...] = ()
    """The prompt with each label as its answer; none where there is no closed set."""
    label: int | None = None
    """Number of the right one."""


@dataclass(frozen=True, slots=True)
class JudgedRow:
    """One row, encoded as training encodes it, and what else is asked of it."""

    line: int
    samples: tuple[EncodedRow, ...]
    short: ShortAnswer | None


@dataclass(frozen=True, slots=True)
class Questions:
    """All rows that a run is judged by."""

    split: Literal["test", "selection"] = "test"
    rows: tuple[JudgedRow, ...] = ()
    labels: tuple[str, ...] = ()
    """The closed set; empty where answers are free."""

    @property
    def digest(self) -> str:
        """sha256 of everything that a model sees of them."""
        seen = [
            (
                [(sample.ids, sample.supervised) for sample in row.samples],
                row.short
                and (row.short.prompt, row.short.expected, [c.ids for c in row.short.candidates]),
            )
            for row in self.rows
        ]
        return hashlib.sha256(msgspec.json.encode((SHORT_TOKENS, self.labels, seen))).hexdigest()


@dataclass(slots=True)
class JudgeRows:
    """Collects the rows to judge by, while all rows of a job pass by."""

    most: int
    """Rows that are kept; 0 for none."""
    _kept: dict[Split, list[tuple[Row, tuple[EncodedRow, ...]]]] = field(
        default_factory=lambda: {"test": [], "selection": []}
    )
    _answers: Counter[str] = field(default_factory=Counter)
    _rows: int = 0
    _is_open: bool = False

    def see(self, row: Row, split: Split, encoded: Sequence[EncodedRow | Reject]) -> None:
        """Take note of a row.

        Args:
            row: any row.
            split: what it is for.
            encoded: what training makes of it.
        """
        samples = tuple(one for one in encoded if isinstance(one, EncodedRow))
        if not self.most or not samples:
            return
        self._count(row)
        kept = self._kept.get(split)
        if kept is not None and len(kept) < self.most:
            kept.append((row, samples))

    def _count(self, row: Row) -> None:
        self._rows += 1
        answer = _last_answer(row)
        if self._is_open or answer is None or len(answer) > _LONGEST_LABEL:
            return
        self._answers[answer] += 1
        if len(self._answers) > _MOST_LABELS:
            # More than that are remembered of no file, however long it is.
            self._is_open = True
            self._answers.clear()

    @property
    def labels(self) -> tuple[str, ...]:
        """The answers of all rows where these are few, in order; else none."""
        labelled = sum(self._answers.values())
        few = len(self._answers) >= 2 and labelled >= _ROWS_PER_LABEL * len(self._answers)
        if self._is_open or not few or labelled < _LABELLED_SHARE * self._rows:
            return ()
        return tuple(sorted(self._answers))

    def questions(
        self, tokenizer: ChatTokenizer, max_seq_len: int, vocab: int | None = None
    ) -> Questions:
        """Return what is asked: of the test rows or, where there are none, the selection rows.

        Args:
            tokenizer: the model's.
            max_seq_len: most tokens of a prompt with its answer.
            vocab: rows of the model's embedding; nothing with a token beyond is asked.
        """
        split: Literal["test", "selection"] = "test" if self._kept["test"] else "selection"
        asking = _Asking(tokenizer, max_seq_len, vocab, self.labels)
        rows = tuple(
            JudgedRow(row.line, samples, asking.short_answer(row))
            for row, samples in self._kept[split]
        )
        return Questions(split, rows, self.labels)


@dataclass(frozen=True, slots=True)
class _Asking:
    tokenizer: ChatTokenizer
    max_seq_len: int
    vocab: int | None
    labels: tuple[str, ...]

    def short_answer(self, row: Row) -> ShortAnswer | None:
        """Return what is asked of a row, or None where its answer is long or nothing is asked."""
        answer = _last_answer(row)
        if answer is None or not first_question(row).strip():
            return None
        encoded = self._encode(row, answer)
        if encoded is None:
            return None
        start = encoded.supervised.index(True)
        expected = encoded.ids[start:]
        # One more is the token that ends it.
        if not all(encoded.supervised[start:]) or len(expected) > SHORT_TOKENS + 1:
            return None
        candidates: tuple[EncodedRow, ...] = ()
        if answer in self.labels:
            candidates = self._candidates(row, encoded.ids[:start])
        return ShortAnswer(
            question=_last_question(row),
            prompt=encoded.ids[:start],
            expected=expected,
            candidates=candidates,
            label=self.labels.index(answer) if candidates else None,
        )

    def _candidates(self, row: Row, prompt: tuple[int, ...]) -> tuple[EncodedRow, ...]:
        """Return the row with each label; none where a label does not stand behind the prompt."""
        encoded = [self._encode(row, label) for label in self.labels]
        found = tuple(
            one
            for one in encoded
            if one is not None
            and one.ids[: len(prompt)] == prompt
            and one.supervised.index(True) == len(prompt)
        )
        return found if len(found) == len(self.labels) else ()

    def _encode(self, row: Row, answer: str) -> EncodedRow | None:
        """Encode a row with this answer as its last, and nothing else to predict."""
        encoded = encode_whole(_with_answer(row, answer), self.tokenizer)
        if len(encoded) != 1 or isinstance(encoded[0], Reject):
            return None
        one = encoded[0]
        fits = len(one.ids) <= self.max_seq_len
        known = self.vocab is None or max(one.ids) < self.vocab
        return one if fits and known else None


def _last_answer(row: Row) -> str | None:
    """Return the text of a row's last answer that is learned; None where it is more than text."""
    if isinstance(row, CompletionRow):
        return row.completion
    if not isinstance(row, ChatRow):
        return None
    index = _last_trained(row)
    turn = None if index is None else row.messages[index]
    return None if turn is None or turn.reasoning or turn.tool_calls else turn.content


def _last_trained(row: ChatRow) -> int | None:
    trained = [i for i, turn in enumerate(row.messages) if turn.train and turn.role == "assistant"]
    return trained[-1] if trained else None


def _last_question(row: Row) -> str:
    if isinstance(row, ChatRow):
        asked = [t.content for t in row.messages[: _last_trained(row)] if t.role == "user"]
        return asked[-1] if asked else ""
    return first_question(row)


def _with_answer(row: Row, answer: str) -> Row:
    """Return the row up to its last answer, which is another one and the only one learned."""
    if isinstance(row, CompletionRow):
        return msgspec.structs.replace(row, completion=answer)
    assert isinstance(row, ChatRow)
    index = _last_trained(row)
    assert index is not None
    before = [msgspec.structs.replace(turn, train=False) for turn in row.messages[:index]]
    last = msgspec.structs.replace(row.messages[index], content=answer)
    return msgspec.structs.replace(row, messages=(*before, last))
