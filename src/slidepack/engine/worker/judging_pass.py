"""What a model makes of given tokens: the loss of each row, and how many it would have said itself.

Shapes: `T` packed tokens, `S` supervised ones, `D` model width, `V` vocabulary.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.lora.lanes import LaneAdapters
from slidepack.engine.lora.rows import supervised_tokens
from slidepack.engine.model.batch import PackedBatch, micro_batches, pack_rows
from slidepack.engine.model.cached_pass import walk
from slidepack.engine.model.decoder import AttentionFunction
from slidepack.engine.model.ends import final_hidden, head_logits
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.kernels import attention

__all__ = ["RowScore", "score_rows"]

_LOGITS: Final = 1 << 24
"""Logits that exist at a time: 64 MiB in fp32."""


@dataclass(frozen=True, slots=True)
class RowScore:
    """What a model made of one row's supervised tokens."""

    tokens: int
    right: int
    """How many of them were the most likely one."""
    loss: float
    """Sum of their losses, in nats."""


@torch.no_grad()
def score_rows(
    decoder: Decoder,
    lane: LaneAdapters | None,
    choices: LayerAttention,
    rows: Sequence[EncodedRow],
    *,
    max_tokens: int,
    check_stop: Callable[[], None] = lambda: None,
) -> list[RowScore]:
    """Score rows; nobody else's are in the passes, so a lane's scores depend on nobody else.

    Args:
        decoder: the base model.
        lane: a single lane, or None for the bare base.
        choices: what each layer's attention computes.
        rows: each with a supervised token.
        max_tokens: of a pass, unless a single row is longer.
        check_stop: called between passes; may raise to stop.

    Raises:
        torch.OutOfMemoryError: a pass does not fit.
    """
    scores: list[RowScore] = []
    for group in micro_batches(rows, max_tokens):
        check_stop()
        batch = pack_rows(group, decoder.shape, decoder.device, decoder.dtype)
        passing = None
        if lane is not None:
            passing = lane.lane_pass((0, batch.num_tokens, batch.num_tokens))
        x_TD = walk(decoder, passing, batch.ids, batch.rope, _attending(batch, choices))
        scores += _row_scores(x_TD[batch.predicting], batch.labels, group, decoder)
    return scores


def _attending(batch: PackedBatch, choices: LayerAttention) -> Callable[[int], AttentionFunction]:
    def attend_at(layer: int) -> AttentionFunction:
        return lambda q, k, v: attention(q, k, v, batch.segments, choices.at(layer))

    return attend_at


def _row_scores(
    x_SD: Tensor, labels_S: Tensor, rows: Sequence[EncodedRow], decoder: Decoder
) -> list[RowScore]:
    size = max(1, _LOGITS // decoder.shape.vocab)
    losses, right = [], []
    for x, labels in zip(torch.split(x_SD, size), torch.split(labels_S, size), strict=True):
        hidden = final_hidden(x, decoder.final_norm, decoder.shape)
        logits = head_logits(hidden, decoder.head, decoder.shape)
        right.append(logits.argmax(dim=-1) == labels)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        losses.append(torch.nn.functional.cross_entropy(wide, labels, reduction="none").double())
    counts = [supervised_tokens([row]) for row in rows]
    loss_parts = torch.split(torch.cat(losses).cpu(), counts)
    right_parts = torch.split(torch.cat(right).cpu(), counts)
    return [
        RowScore(count, int(hits.sum()), float(loss.sum()))
        for count, loss, hits in zip(counts, loss_parts, right_parts, strict=True)
    ]
