"""Random encoded rows, and packing them for a decoder."""

import torch

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, micro_batches, pack_rows
from slidepack.engine.model.layers import Decoder


def random_rows(lengths: tuple[int, ...], vocab: int, seed: int = 0) -> list[EncodedRow]:
    """Return rows of the given lengths; about half of the tokens are supervised."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for line, length in enumerate(lengths, start=1):
        ids = torch.randint(0, vocab, (length,), generator=generator).tolist()
        chosen = torch.rand(length, generator=generator) < 0.5
        chosen[-1] = True
        rows.append(EncodedRow(line, tuple(ids), tuple(chosen.tolist())))
    return rows


def packed(
    decoder: Decoder, rows: list[EncodedRow], max_tokens: int = 1 << 20
) -> list[PackedBatch]:
    """Pack rows into micro-batches of at most `max_tokens` tokens."""
    return [
        pack_rows(group, decoder.shape, decoder.device, decoder.dtype)
        for group in micro_batches(rows, max_tokens)
    ]
