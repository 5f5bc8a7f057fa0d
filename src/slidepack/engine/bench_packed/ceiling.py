"""The ceiling of any LoRA over a frozen base: forward and input gradient, and nothing else."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.bench_packed.device import clear
from slidepack.engine.bench_packed.options import PackedOptions
from slidepack.engine.bench_packed.packs import random_rows
from slidepack.engine.bench_packed.progress import tell_rate
from slidepack.engine.bench_packed.steps import StepTimes, time_steps
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.model.batch import PackedBatch, pack_rows
from slidepack.engine.model.ends import embed, final_hidden
from slidepack.engine.model.layer_attention import LayerAttention
from slidepack.engine.model.layers import Decoder
from slidepack.engine.model.packed_layer import packed_layer
from slidepack.kernels import linear_cross_entropy

__all__ = ["BasePass", "CeilingResult", "measure_ceiling"]


@dataclass(frozen=True, kw_only=True, slots=True)
class CeilingResult:
    """What a pass of one size took, or why there is no telling."""

    tokens: int
    times: StepTimes | None
    why: str | None
    """None where it was measured."""


def measure_ceiling(
    options: PackedOptions, decoder: Decoder, choices: LayerAttention, sizes: Iterable[int]
) -> list[CeilingResult]:
    """Time passes of some sizes, each a multiple of a row's length."""
    return [_measure(options, decoder, choices, tokens) for tokens in sizes]


def _measure(
    options: PackedOptions, decoder: Decoder, choices: LayerAttention, tokens: int
) -> CeilingResult:
    clear(decoder.device)
    rows = _rows(options, tokens // options.seq)
    batch = pack_rows(rows, decoder.shape, decoder.device, decoder.dtype)
    base = BasePass(decoder, choices)
    try:
        times = time_steps(lambda: base.run(batch), options, decoder.device)
    except torch.OutOfMemoryError as error:
        # Packs that recompute fit where a pass that keeps everything does not.
        return CeilingResult(tokens=tokens, times=None, why=str(error).partition("\n")[0])
    tell_rate(f"the bare base, {tokens:,} tokens", times, tokens)
    return CeilingResult(tokens=tokens, times=times, why=None)


def _rows(options: PackedOptions, count: int) -> list[EncodedRow]:
    lanes = -(-count // options.batch)
    return [row for lane in range(lanes) for row in random_rows(options, lane)][:count]


class BasePass:
    """Forward through the bare base, and the loss's gradient back to the embedding's rows.

    No adapter, no optimizer, nothing recomputed. Of the head only the positions that predict.
    """

    def __init__(self, decoder: Decoder, choices: LayerAttention) -> None:
        """Bind the base, and what each layer's attention computes."""
        self._decoder = decoder
        self._choices = choices

    def run(self, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        """Return the mean loss's share of each label, [S], and its gradient at layer 0, [T, D]."""
        decoder = self._decoder
        x = embed(decoder.embedding, batch.ids, decoder.shape)
        kept: list[tuple[Tensor, Tensor]] = []
        for layer in range(len(decoder.layers)):
            leaf = x.detach().requires_grad_()
            y = self._layer(layer, leaf, batch)
            kept.append((leaf, y))
            x = y.detach()
        losses, grad = self._head(x, batch)
        del x
        while kept:
            leaf, y = kept.pop()
            (grad,) = torch.autograd.grad(y, leaf, grad)
        return losses, grad

    def _layer(self, layer: int, x: Tensor, batch: PackedBatch) -> Tensor:
        decoder = self._decoder
        return packed_layer(x, decoder.layers[layer], decoder.shape, batch, self._choices.at(layer))

    def _head(self, x: Tensor, batch: PackedBatch) -> tuple[Tensor, Tensor]:
        decoder = self._decoder
        leaf = x[batch.predicting].requires_grad_()
        normed = final_hidden(leaf, decoder.final_norm, decoder.shape)
        labels = batch.labels.numel()
        head = linear_cross_entropy(
            normed.detach(),
            decoder.head,
            batch.labels,
            weights_S=torch.full((labels,), 1.0 / labels, device=x.device),
            soft_cap=decoder.shape.final_soft_cap,
            none_ignored=True,
        )
        (grad,) = torch.autograd.grad(normed, leaf, head.hidden_grad)
        return head.losses, torch.zeros_like(x).index_copy_(0, batch.predicting, grad)
