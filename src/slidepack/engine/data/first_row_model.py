"""Shows the first training row of a job: `python -m ...first_row_model < SPEC`.

It runs apart from the daemon, which loads no tokenizer and runs no template.
"""

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.data.first_row import FirstRow, RowAnswer
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.rows import Row, decode_row
from slidepack.engine.data.shown import show_row
from slidepack.engine.data.split import split_of
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.data.too_long import encode_rows
from slidepack.engine.shape import read_shape


def first_row(spec: JobSpec) -> FirstRow:
    """Return the first sample that a job trains on, by the file's order.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-NO-USABLE-ROWS, MODEL-BROKEN or
            MODEL-NO-CHAT-TEMPLATE.
    """
    folder = Path(spec.base.path)
    tokenizer = load_tokenizer(folder)
    limit = min(spec.max_seq_len, read_shape(folder).max_positions)
    for row in _training_rows(spec):
        for sample in encode_rows(row, tokenizer, limit, spec.too_long):
            if isinstance(sample, EncodedRow):
                return FirstRow(
                    shown=show_row(sample, tokenizer),
                    tokens=len(sample.ids),
                    learned=sample.num_supervised,
                )
    raise SlidepackError(
        "DATA-NO-USABLE-ROWS",
        "No row of this dataset is trained on.",
        why="each is held out, too long or refused by the model's template",
        fix="Raise max_seq_len, hold out less, or mend the rows.",
    )


def _training_rows(spec: JobSpec) -> Iterator[Row]:
    held = spec.eval
    fraction = 0.0 if held.selection is not None else held.selection_fraction
    seed = spec.seed if held.split_seed is None else held.split_seed
    try:
        with Path(spec.dataset.path).open("rb") as file:
            for line in file:
                row = decode_row(line)
                if split_of(row, seed, fraction, held.test_fraction) == "train":
                    yield row
    except OSError as error:
        raise SlidepackError(
            "DATA-NOT-FOUND",
            "The job's rows cannot be read.",
            why=f"{spec.dataset.path}: {error.strerror}",
            fix="Add the data file again and queue the job again.",
        ) from error


def main() -> int:
    """Read a specification from stdin, write the answer to stdout, return the exit code."""
    try:
        answer = RowAnswer(
            row=first_row(msgspec.json.decode(sys.stdin.buffer.read(), type=JobSpec))
        )
    except SlidepackError as error:
        answer = RowAnswer(error=error.report)
    sys.stdout.buffer.write(msgspec.json.encode(answer))
    return 0


if __name__ == "__main__":
    sys.exit(main())
