"""Rows of a part of a file, encoded and counted."""

from collections import Counter
from pathlib import Path
from typing import Final, get_args

import msgspec

from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.mask_check import mask_method
from slidepack.engine.data.masking import EncodedRow, encode_whole
from slidepack.engine.data.model_report import MaskMethod, ShownRow
from slidepack.engine.data.rows import ChatRow, Reject, Row, decode_row
from slidepack.engine.data.shown import show_row
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.data.too_long import fit_samples

_MAX_FIRST_REJECTS: Final = 20
_MAX_SHOWN: Final = 3
_MAX_RETRIED: Final = 8
"""Rows of a part that are tried with the other policies; dividing a long talk takes time."""


class Rendering(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's conversations are rendered."""

    method: MaskMethod
    template: str
    reason: str


class Counts(msgspec.Struct):
    """What rows gave."""

    rendering: Rendering
    rows: int = 0
    encoded_rows: int = 0
    samples: int = 0
    tokens: int = 0
    supervised: int = 0
    chats: int = 0
    lengths: dict[int, int] = {}
    rejects: dict[str, int] = {}
    partly: dict[str, int] = {}
    first_rejects: list[Reject] = []
    retried: int = 0
    kept_by: dict[TooLong, int] = {}
    shown: list[ShownRow] = []

    def add(self, other: "Counts") -> None:
        """Add those of later rows."""
        self.rows += other.rows
        self.encoded_rows += other.encoded_rows
        self.samples += other.samples
        self.tokens += other.tokens
        self.supervised += other.supervised
        self.chats += other.chats
        self.retried += other.retried
        self.lengths = dict(Counter(self.lengths) + Counter(other.lengths))
        self.rejects = dict(Counter(self.rejects) + Counter(other.rejects))
        self.partly = dict(Counter(self.partly) + Counter(other.partly))
        self.kept_by = dict(Counter(self.kept_by) + Counter(other.kept_by))
        for reject in other.first_rejects:
            self.name(reject)
        self.shown = (self.shown + other.shown)[:_MAX_SHOWN]

    def name(self, reject: Reject) -> None:
        """Keep a reject where it is among the first, of all or of its reason."""
        if len(self.first_rejects) < _MAX_FIRST_REJECTS or all(
            known.reason != reject.reason for known in self.first_rejects
        ):
            self.first_rejects.append(reject)


class Measurer:
    """Encodes rows and counts."""

    def __init__(self, tokenizer: ChatTokenizer, max_seq_len: int, too_long: TooLong) -> None:
        """Measure rows against a limit."""
        self._tokenizer = tokenizer
        self._max_seq_len = max_seq_len
        self._too_long = too_long
        self._others: list[TooLong] = [one for one in get_args(TooLong) if one != too_long]
        self._rendering = Rendering(
            method=mask_method(tokenizer),
            template=tokenizer.template_name,
            reason=tokenizer.template_reason,
        )

    def measure(self, path: Path, start: int, end: int) -> Counts:
        """Count the rows that start in this part of the file."""
        counts = Counts(self._rendering)
        with path.open("rb") as file:
            file.seek(start)
            while file.tell() < end and (line := file.readline()):
                self._count(decode_row(line), counts)
        return counts

    def _count(self, row: Row, counts: Counts) -> None:
        counts.rows += 1
        counts.chats += isinstance(row, ChatRow)
        whole = encode_whole(row, self._tokenizer)
        longest = max((len(s.ids) for s in whole if isinstance(s, EncodedRow)), default=0)
        if longest:
            counts.lengths[longest] = counts.lengths.get(longest, 0) + 1
        fitting = fit_samples(row, whole, self._tokenizer, self._max_seq_len, self._too_long)
        learned = [sample for sample in fitting if isinstance(sample, EncodedRow)]
        refused = next((sample for sample in fitting if isinstance(sample, Reject)), None)
        if refused is not None:
            rows_by_reason = counts.partly if learned else counts.rejects
            rows_by_reason[refused.reason] = rows_by_reason.get(refused.reason, 0) + 1
            counts.name(refused)
        if learned and len(counts.shown) < _MAX_SHOWN:
            counts.shown.append(show_row(learned[0], self._tokenizer))
        counts.tokens += sum(len(sample.ids) for sample in learned)
        counts.supervised += sum(sample.num_supervised for sample in learned)
        counts.samples += len(learned)
        counts.encoded_rows += bool(learned)
        if longest > self._max_seq_len and not learned and counts.retried < _MAX_RETRIED:
            self._retry(row, whole, counts)

    def _retry(self, row: Row, whole: list[EncodedRow | Reject], counts: Counts) -> None:
        """Count which other policies would keep something of a row."""
        counts.retried += 1
        for policy in self._others:
            kept = fit_samples(row, whole, self._tokenizer, self._max_seq_len, policy)
            if any(isinstance(sample, EncodedRow) for sample in kept):
                counts.kept_by[policy] = counts.kept_by.get(policy, 0) + 1
