"""Rows packed together teach what they teach alone: the same loss, and none sees another."""

from pathlib import Path

import pytest
import torch
from support.judges import tiny_llama
from support.lanes import packed_logits
from support.packing import packed, random_rows
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.loading import load_decoder

LENGTHS = (7, 2, 31, 1, 64, 12)


def _decoder(folder: Path) -> Decoder:
    tiny_llama(folder, kv_heads=2, tied=True)
    return load_decoder(folder, torch.device("cpu"), torch.float64)


def _losses(decoder: Decoder, rows: list[EncodedRow]) -> Tensor:
    """Return the loss of every learned token of a packed row, in the order of the rows."""
    (batch,) = packed(decoder, rows)
    logits = torch.cat(packed_logits(decoder, rows))
    return torch.nn.functional.cross_entropy(
        logits[batch.predicting], batch.labels, reduction="none"
    )


def test_packed_loss_is_unpacked_loss(tmp_path: Path) -> None:
    decoder = _decoder(tmp_path)
    rows = random_rows(LENGTHS, decoder.shape.vocab)
    together = _losses(decoder, rows)
    alone = torch.cat([_losses(decoder, [row]) for row in rows])
    assert together.dtype == torch.float64
    # Every learned token but one that starts a row, which nothing predicts.
    learned = sum(sum(row.supervised[1:]) for row in rows)
    assert together.numel() == alone.numel() == learned
    # Positions and the cosines of RoPE are the same numbers; sums differ in the last bits only.
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_no_row_sees_another(tmp_path: Path, changed: int) -> None:
    decoder = _decoder(tmp_path)
    vocab = decoder.shape.vocab
    rows = random_rows(LENGTHS, vocab)
    other = list(rows)
    ids = tuple((token + 1) % vocab for token in rows[changed].ids)
    other[changed] = EncodedRow(rows[changed].line, ids, rows[changed].supervised)
    for index, (before, after) in enumerate(
        zip(packed_logits(decoder, rows), packed_logits(decoder, other), strict=True)
    ):
        assert torch.equal(before, after) == (index != changed)
