"""Held-out rows that an earlier job was trained on; only hashes are kept."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from slidepack.engine.contract.job import JobSpec, TrainedRows
from slidepack.engine.data.rows import Row, decode_row, folded_key
from slidepack.engine.data.split import split_of
from slidepack.engine.data.twins import Overlap

__all__ = ["trained_before"]

_SHOWN_LINES: Final = 3


def trained_before(spec: JobSpec, earlier: Sequence[TrainedRows]) -> Overlap:
    """Return the held-out rows of a job whose question earlier jobs were trained on.

    Case and white space do not count, as in the split of one file.

    Args:
        spec: of the job.
        earlier: rows of the jobs that it continues.

    Raises:
        OSError: a file cannot be read.
    """
    known: set[int] = set()
    for rows in earlier:
        if not _is_split_alike(spec, rows):
            known.update(_trained_on(rows))
    lines = [row.line for row in _held_out(spec) if hash(folded_key(row)) in known] if known else []
    return Overlap(rows=len(lines), first_lines=tuple(lines[:_SHOWN_LINES]))


def _is_split_alike(spec: JobSpec, rows: TrainedRows) -> bool:
    """Return whether a question is held out of both or of neither, whatever the rows are."""
    held = spec.eval
    return held.selection is None and (
        _seed(spec),
        held.selection_fraction,
        held.test_fraction,
    ) == (rows.split_seed, rows.selection_fraction, rows.test_fraction)


def _trained_on(rows: TrainedRows) -> Iterator[int]:
    for row in _read(rows.dataset.path):
        if split_of(row, rows.split_seed, rows.selection_fraction, rows.test_fraction) == "train":
            yield hash(folded_key(row))


def _held_out(spec: JobSpec) -> Iterator[Row]:
    held = spec.eval
    if held.selection is not None:
        yield from _read(held.selection.path)
        return
    for row in _read(spec.dataset.path):
        fractions = held.selection_fraction, held.test_fraction
        if split_of(row, _seed(spec), *fractions) == "selection":
            yield row


def _seed(spec: JobSpec) -> int:
    return spec.seed if spec.eval.split_seed is None else spec.eval.split_seed


def _read(path: str) -> Iterator[Row]:
    with Path(path).open("rb") as file:
        for line in file:
            yield decode_row(line)
