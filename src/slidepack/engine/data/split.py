"""Splits rows into train, selection and test by what they ask, so that twins stay together."""

import hashlib
from typing import Final, Literal

from slidepack.engine.data.rows import Row, folded_key

Split = Literal["train", "selection", "test"]

_BUCKETS: Final = 1 << 32


def split_of(row: Row, seed: int, selection_fraction: float, test_fraction: float) -> Split:
    """Return the split of a row.

    It depends on the row's question alone (case and white space folded), so rows that ask the same
    thing never stand on both sides, and adding rows never moves the old ones. A row without a
    question, a plain text, goes by all of its text.
    """
    question = folded_key(row)
    digest = hashlib.sha256(f"{seed}\0{question}".encode("utf-8", "surrogatepass")).digest()
    position = int.from_bytes(digest[:4], "big") / _BUCKETS
    if position < test_fraction:
        return "test"
    return "selection" if position < test_fraction + selection_fraction else "train"
