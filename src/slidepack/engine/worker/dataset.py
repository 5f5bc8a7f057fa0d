"""Turns the frozen dataset into encoded rows: split, tokenised, with every loss reported."""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec
from slidepack.engine.data.masking import EncodedRow, encode_prompt
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Reject,
    Row,
    Turn,
    decode_row,
    first_question,
)
from slidepack.engine.data.split import Split, split_of
from slidepack.engine.data.template import TemplateRejectedError
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.data.too_long import encode_rows
from slidepack.engine.judge.questions import JudgeRows, Questions
from slidepack.engine.worker.reject_log import RejectLog
from slidepack.engine.worker.row_store import RowStore

_SHOWN_CHARACTERS = 4000
"""Of a question, in events and on the page; the model always gets the whole of it."""
MAX_SAMPLES = 3
"""Held-out questions that are answered before and after where the user named none."""


@dataclass(frozen=True, slots=True)
class SamplePrompt:
    """A question to answer before and after training."""

    text: str
    ids: tuple[int, ...]


@dataclass(slots=True)
class EncodedData:
    """All rows of a run."""

    train: Sequence[EncodedRow] = ()
    """In a file, not in memory."""
    selection: Sequence[EncodedRow] = ()
    test: Sequence[EncodedRow] = ()
    prompts: list[SamplePrompt] = field(default_factory=list)
    judged_by: Questions = field(default_factory=Questions)
    """What the tuned model is compared with its base by."""
    rejects: RejectLog = field(default_factory=lambda: RejectLog(None))
    """Rows that the model's template or the length limit refused."""


def load_data(
    spec: JobSpec,
    tokenizer: ChatTokenizer,
    max_seq_len: int,
    on_row: Callable[[int], None],
    *,
    vocab: int | None = None,
    scratch: Path | None = None,
    rejects: Path | None = None,
) -> EncodedData:
    """Read, check, split and encode the datasets of a job.

    Args:
        spec: the job.
        tokenizer: the base model's.
        max_seq_len: the job's limit, or the model's where that is lower.
        on_row: called with the number of rows read so far; may raise to stop.
        vocab: rows of the model's embedding; a row of data with a token beyond is left out.
        scratch: folder on whose disk the encoded rows are; None for the system's temporary one.
        rejects: file for the rows that are left out, made where there are any.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-CHANGED, DATA-NO-USABLE-ROWS,
            MODEL-NO-CHAT-TEMPLATE, MODEL-BROKEN.
        OSError: the disk refused.
    """

    def encode(row: Row) -> list[EncodedRow | Reject]:
        encoded = encode_rows(row, tokenizer, max_seq_len, spec.too_long)
        return [one if isinstance(one, Reject) else _within(one, vocab) for one in encoded]

    data = EncodedData(rejects=RejectLog(rejects))
    splits: dict[Split, RowStore] = {
        "train": RowStore(scratch),
        "selection": RowStore(scratch),
        "test": RowStore(scratch),
    }
    held_out: list[Row] = []
    judged_by = JudgeRows(spec.eval.judge_rows)
    done = 0
    talks = tokenizer.has_template
    with closing(data.rejects):
        for row, split in _placed_rows(spec):
            talks = talks or (isinstance(row, ChatRow) and split is not None)
            place = split or "selection"
            encoded = encode(row)
            judged_by.see(row, place, encoded)
            usable = _store(encoded, splits[place], data.rejects)
            if usable and place == "selection" and len(held_out) < MAX_SAMPLES:
                held_out.append(row)
            done += 1
            on_row(done)
    data.train = splits["train"]
    if not data.train:
        raise _nothing_left(data, done)
    data.prompts = [
        prompt
        for prompt in _sample_prompts(
            [_question_row(text, talks) for text in spec.eval.sample_prompts] or held_out,
            tokenizer,
            max_seq_len,
        )
        if vocab is None or max(prompt.ids) < vocab
    ]
    data.judged_by = judged_by.questions(tokenizer, max_seq_len, vocab)
    data.selection = splits["selection"][: spec.eval.max_rows]
    data.test = splits["test"][: spec.eval.max_rows]
    return data


def _placed_rows(spec: JobSpec) -> Iterator[tuple[Row, Split | None]]:
    """Yield the rows of a job's datasets with their split; None for those of its held-out file.

    Raises:
        SlidepackError: DATA-NOT-FOUND or DATA-CHANGED.
    """
    held_out, judged = spec.eval.selection, spec.eval
    fraction = 0.0 if held_out is not None else judged.selection_fraction
    seed = spec.seed if judged.split_seed is None else judged.split_seed
    for row in read_frozen_rows(spec.dataset):
        yield row, split_of(row, seed, fraction, judged.test_fraction)
    if held_out is not None:
        for row in read_frozen_rows(held_out):
            yield row, None


def read_frozen_rows(ref: DatasetRef) -> Iterator[Row]:
    """Yield the rows of a dataset, once it is known to be the one that was queued.

    Raises:
        SlidepackError: DATA-NOT-FOUND or DATA-CHANGED.
    """
    try:
        with Path(ref.path).open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != ref.content_hash:
                raise SlidepackError(
                    "DATA-CHANGED",
                    "The dataset is not the one that was queued.",
                    why=f"{ref.path} has sha256 {found[:12]}…, "
                    f"the job names {ref.content_hash[:12]}…",
                    fix="Add the data file again and queue the job again.",
                )
            file.seek(0)
            for line in file:
                yield decode_row(line)
    except OSError as error:
        raise SlidepackError(
            "DATA-NOT-FOUND",
            "The job's dataset cannot be read.",
            why=f"{ref.path}: {error.strerror}",
            fix="Add the data file again and queue the job again.",
        ) from error


def _within(row: EncodedRow, vocab: int | None) -> EncodedRow | Reject:
    highest = max(row.ids)
    if vocab is None or highest < vocab:
        return row
    detail = f"it holds token {highest}, the model has {vocab}"
    return Reject(line=row.line, reason="unknown-token", detail=detail)


def _store(encoded: list[EncodedRow | Reject], place: RowStore, rejects: RejectLog) -> bool:
    """Keep what a row gave, or why it gave nothing; return whether any can be used."""
    before = len(place)
    for one in encoded:
        if isinstance(one, Reject):
            rejects.add(one)
        else:
            place.append(one)
    return len(place) > before


def _sample_prompts(
    rows: list[Row], tokenizer: ChatTokenizer, max_seq_len: int
) -> list[SamplePrompt]:
    prompts: list[SamplePrompt] = []
    shown: set[str] = set()
    for row in rows:
        text = first_question(row)[:_SHOWN_CHARACTERS]
        try:
            ids = encode_prompt(row, tokenizer)
        except TemplateRejectedError:
            # Usable as a whole, but not up to its first answer: nothing to ask the model with.
            continue
        if text in shown:
            # Answers are known by their question; rows may differ further on.
            continue
        if 0 < len(ids) <= max_seq_len:
            shown.add(text)
            prompts.append(SamplePrompt(text, tuple(ids)))
    return prompts


def _question_row(text: str, talks: bool) -> Row:
    """Return a row that asks `text`: as a conversation where the model or the data has these."""
    if talks:
        return ChatRow(0, (Turn("user", text, False),))
    return CompletionRow(0, text, "")


def _nothing_left(data: EncodedData, rows: int) -> SlidepackError:
    first = data.rejects.first
    why = f"line {first.line}: {first.reason} ({first.detail})" if first else "all are held out"
    return SlidepackError(
        "DATA-NO-USABLE-ROWS",
        f"None of the {rows} rows is left to train on.",
        why=why,
        fix="Raise max_seq_len, hold out less, or mend the rows.",
    )
