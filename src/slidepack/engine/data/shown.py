"""A row as the model sees it, for people: which stretches carry the loss."""

import itertools
from typing import Final

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.model_report import ShownRow, ShownSpan
from slidepack.engine.data.tokenizer import ChatTokenizer

_MAX_TOKENS: Final = 1000
"""Shown of a row."""
_CONTROLS: Final = dict.fromkeys(
    {*range(32), *range(127, 160), 0x200E, 0x200F, *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    - {ord("\n"), ord("\t")},
    "\ufffd",
)
"""Control characters, and those that turn the direction of writing around."""


def show_row(row: EncodedRow, tokenizer: ChatTokenizer) -> ShownRow:
    """Return the row's text in stretches that are learned or not; special tokens are written out.

    A character whose bytes are spread over a learned and an unlearned token shows as U+FFFD.
    """
    pairs = zip(row.ids[:_MAX_TOKENS], row.supervised[:_MAX_TOKENS], strict=True)
    spans = tuple(
        ShownSpan(
            tokenizer.decode([token for token, _ in group], special=True).translate(_CONTROLS),
            learned,
        )
        for learned, group in itertools.groupby(pairs, key=lambda pair: pair[1])
    )
    return ShownRow(row.line, spans, len(row.ids) > _MAX_TOKENS)
