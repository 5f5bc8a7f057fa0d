"""Passes over a cache give what a pass over the whole text gives."""

from pathlib import Path

import pytest
import torch
from support.families import FAMILY_NAMES, tiny_family
from support.lanes import TinyLane, pack_on, shake
from support.packing import random_rows
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.model.cached_pass import CachedPasses
from slidepack.engine.model.kv_cache import KvCache, Piece
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.loading import load_decoder

CPU = torch.device("cpu")
LANE = TinyLane(name="lane", method=LoraMethod(rank=4), lengths=(), total_steps=1)


def _passes(folder: Path, seats: int) -> CachedPasses:
    decoder = load_decoder(folder, CPU, torch.float32)
    attention = layer_attention(decoder.shape, CPU, torch.float32)
    cache = KvCache(decoder.shape, seats, 64, CPU, torch.float32)
    for layer in range(decoder.shape.num_layers):
        for part in cache.of_layer(layer):
            # What nobody has written must not be read.
            part.fill_(float("nan"))
    return CachedPasses(decoder, attention, cache)


def _close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("name", FAMILY_NAMES)
@torch.no_grad()
def test_cached_logits_are_transformers_however_the_text_is_cut(tmp_path: Path, name: str) -> None:
    judge = tiny_family(tmp_path, name)
    passes = _passes(tmp_path, 3)
    texts = [row.ids for row in random_rows((23, 9, 30), passes.decoder.shape.vocab)]
    cuts = [(0, 23), (0, 1, 2, 9), (0, 11, 12, 20, 30)]
    wanted = [judge(torch.tensor([text])).logits[0] for text in texts]
    for turn in range(4):
        pieces = [
            Piece(seat, cut[turn], text[cut[turn] : cut[turn + 1]])
            for seat, (text, cut) in enumerate(zip(texts, cuts, strict=True))
            if turn + 1 < len(cut)
        ]
        for piece, row in zip(pieces, passes.advance(pieces, None), strict=True):
            _close(row, wanted[piece.seat][piece.end - 1])


@pytest.mark.parametrize("name", FAMILY_NAMES)
@torch.no_grad()
def test_passes_of_fixed_shapes_give_the_same(tmp_path: Path, name: str) -> None:
    """What a GPU records; it looks at all places and hides those that do not count."""
    tiny_family(tmp_path, name)
    passes = _passes(tmp_path, 3)
    pack = pack_on(passes.decoder, [LANE])
    shake(pack.lanes[LANE.name], 0.2)
    texts = [row.ids for row in random_rows((19, 4, 11), passes.decoder.shape.vocab)]
    lanes = pack.adapters((LANE.name,))
    start = [Piece(seat, 0, text[:-1]) for seat, text in enumerate(texts)]
    tuned = sum(len(piece.ids) for piece in start[:2])
    passes.advance(start, lanes.lane_pass((0, tuned, tuned + len(start[2].ids))))
    last = [Piece(seat, len(text) - 1, text[-1:]) for seat, text in enumerate(texts)]
    both = lanes.lane_pass((0, 2, 3))
    by_pieces = passes.advance(last, both)
    # Hidden places are multiplied by zero, so they must hold numbers, as a GPU's seats do.
    for layer in range(passes.decoder.shape.num_layers):
        for part in passes.cache.of_layer(layer):
            part.nan_to_num_(nan=5.0)
    row = passes.token_row(last)
    _close(passes.token_pass(row, both), by_pieces)
    assert row.reach == 19


@torch.no_grad()
def test_a_pass_that_was_abandoned_leaves_the_sequences_as_they_were(tmp_path: Path) -> None:
    tiny_family(tmp_path, "gemma3")
    passes = _passes(tmp_path, 1)
    (row,) = random_rows((12,), passes.decoder.shape.vocab)
    passes.advance([Piece(0, 0, row.ids[:8])], None)
    calls = iter(range(2))
    stopped = CachedPasses(
        passes.decoder,
        layer_attention(passes.decoder.shape, CPU, torch.float32),
        passes.cache,
        lambda: None if next(calls, None) is not None else _stop(),
    )
    with pytest.raises(KeyboardInterrupt):
        stopped.advance([Piece(0, 8, (1, 2, 3))], None)
    whole = _passes(tmp_path, 1).advance([Piece(0, 0, row.ids)], None)
    _close(passes.advance([Piece(0, 8, row.ids[8:])], None), whole)


def _stop() -> None:
    raise KeyboardInterrupt
