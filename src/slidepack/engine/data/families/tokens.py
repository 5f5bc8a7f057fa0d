"""Rows that another program has tokenised: `input_ids`, perhaps `labels` and `attention_mask`."""

from typing import Any, Final

from slidepack.engine.data.families.cells import Cells, RejectedError
from slidepack.engine.data.rows import Number, TokensRow

_UNSEEN: Final = -100
"""The label of a token that the loss leaves out, as PyTorch and everybody after it has it."""


def convert(line: int, cells: Cells) -> TokensRow:
    """Return ids and which of them are learned; without labels all are. Padding is taken out."""
    ids = _integers(cells, "input_ids")
    labels = _integers(cells, "labels") if cells.cell("labels") is not None else ids
    mask = _integers(cells, "attention_mask") if cells.cell("attention_mask") is not None else None
    for role, column in (("labels", labels), ("attention_mask", mask)):
        if column is not None and len(column) != len(ids):
            raise RejectedError(
                "bad-tokens",
                f"{cells.name(role)} has {len(column)} entries, input_ids {len(ids)}",
            )
    if mask is not None:
        if not set(mask) <= {0, 1}:
            raise RejectedError("bad-tokens", "attention_mask holds more than 0 and 1")
        ids = [token for token, seen in zip(ids, mask, strict=True) if seen]
        labels = [label for label, seen in zip(labels, mask, strict=True) if seen]
    if not ids:
        raise RejectedError("empty-text", f"{cells.name('input_ids')} holds no token")
    if min(ids) < 0:
        raise RejectedError("bad-tokens", f"{cells.name('input_ids')} holds {min(ids)}")
    supervised = tuple(label != _UNSEEN for label in labels)
    for token, label in zip(ids, labels, strict=True):
        if label not in (token, _UNSEEN):
            raise RejectedError("bad-tokens", f"token {token} has label {label}, not its own")
    if not any(supervised):
        raise RejectedError("no-answer", f"every label is {_UNSEEN}")
    return TokensRow(line, tuple(ids), supervised)


def _integers(cells: Cells, role: str) -> list[int]:
    values = cells.cell(role)
    if isinstance(values, list):
        try:
            return [_integer(value, role == "attention_mask") for value in values]
        except ValueError:
            pass
    raise RejectedError("bad-tokens", f"{cells.name(role)} is {cells.shown(role)}")


def _integer(value: Any, may_be_truth: bool) -> int:
    if type(value) is int or (may_be_truth and isinstance(value, bool)):
        return int(value)
    # Longer than any vocabulary, and Python refuses to read digits by the thousand.
    if isinstance(value, Number) and len(value.text) < 20:
        return int(value.text)
    raise ValueError(value)
