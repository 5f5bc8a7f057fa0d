"""The trainer's own logits, in fp32, layer by layer, so that no more than one layer is held."""

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import torch
from torch import Tensor

from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.export.adapter import Adapter
from slidepack.engine.export.peft import module_path
from slidepack.engine.lora.arena import LoraArena
from slidepack.engine.lora.lanes import LaneAdapters, LanePass
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.model.batch import pack_rows
from slidepack.engine.model.decoder import AttentionFunction, decoder_layer
from slidepack.engine.model.ends import embed, final_hidden, head_logits
from slidepack.engine.model.layer_attention import layer_attention
from slidepack.engine.model.layers import layer_over
from slidepack.engine.shape import ModelShape
from slidepack.kernels import AttentionChoice, Segments, attention

__all__ = ["TensorSource", "trainer_logits"]

_CPU = torch.device("cpu")


class TensorSource(Protocol):
    """A model's tensors, by their Hugging Face names."""

    def read(self, name: str, size: tuple[int, ...]) -> Tensor:
        """Return a tensor in any dtype; raises where it is missing or has another shape."""


@torch.no_grad()
def trainer_logits(
    source: TensorSource,
    shape: ModelShape,
    adapter: Adapter | None,
    prompts: Sequence[Sequence[int]],
    on_layer: Callable[[int, int], None] = lambda _done, _total: None,
) -> Tensor:
    """Return the logits of every position of every prompt, [T, V] fp32, one after the other.

    The passes are those of training: the engine's layers, and its LoRA operations with one lane.

    Args:
        source: of the base's tensors.
        shape: of the base.
        adapter: applied beside the weights, as in training; None for the bare model.
        prompts: token ids, each non-empty.
        on_layer: called with (layers done, layers in all); may raise to stop.

    Raises:
        SlidepackError: what `source` raises.
    """
    rows = [EncodedRow(0, tuple(ids), (False,) * len(ids)) for ids in prompts]
    batch = pack_rows(rows, shape, _CPU, torch.float32)
    lane = None if adapter is None else _lane(adapter, shape, batch.num_tokens)
    choices = layer_attention(shape, _CPU, torch.float32)
    embedding = source.read("model.embed_tokens.weight", (shape.vocab, shape.hidden))
    x = embed(_rows_of(embedding, batch.ids), _places(batch.ids), shape)
    flat = torch.empty(shape.layer_params)
    for index in range(shape.num_layers):
        layer = layer_over(flat, shape)
        for name, view in layer.named.items():
            view.copy_(source.read(f"model.layers.{index}.{name}", tuple(view.shape)))
        attend = _attending(batch.segments, choices.at(index))
        table = batch.rope.of_window(shape.window_of(index))
        x = decoder_layer(
            x, layer, shape, table, attend, None if lane is None else lane.layer(index)
        )
        on_layer(index + 1, shape.num_layers)
    norm = source.read("model.norm.weight", (shape.hidden,)).float()
    hidden = final_hidden(x, norm, shape)
    if not shape.tied_head:
        embedding = source.read("lm_head.weight", (shape.vocab, shape.hidden))
    return torch.cat([head_logits(hidden, part, shape) for part in _parts(embedding)], dim=-1)


def _rows_of(embedding: Tensor, ids: Tensor) -> Tensor:
    # A whole vocabulary in fp32 may be the largest tensor of the model; few rows are used.
    return embedding[torch.unique(ids)].float()


def _places(ids: Tensor) -> Tensor:
    """Return where each id is among the rows that are used."""
    return torch.searchsorted(torch.unique(ids), ids)


def _parts(head: Tensor, rows: int = 1 << 14) -> Iterator[Tensor]:
    for start in range(0, len(head), rows):
        yield head[start : start + rows].float()


def _attending(segments: Segments, choice: AttentionChoice) -> AttentionFunction:
    return lambda q, k, v: attention(q, k, v, segments, choice)


def _lane(adapter: Adapter, shape: ModelShape, tokens: int) -> LanePass:
    """Return the adapter as the only lane of a row, in the trainer's own memory layout."""
    arena = LoraArena(shape, adapter.method, LanePool(_CPU, torch.float32))
    master = arena.master()
    for layer, target, pair in arena.pairs(master):
        found = adapter.pairs[f"{module_path(layer, target)}.weight"]
        pair.a.copy_(found.a)
        pair.b.copy_(found.b)
    arena.set_master(master)
    return LaneAdapters(shape, [arena], _CPU).lane_pass((0, tokens, tokens))
