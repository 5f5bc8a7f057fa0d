"""The adapters of many lanes, as a decoder's linears meet them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.lora.arena import LoraArena, derive_seed
from slidepack.engine.lora.groups import GROUPS, group_layout
from slidepack.engine.lora.rows import LaneRow, LaneTensors, Piece, lane_tensors
from slidepack.engine.model.decoder import LayerAdapter
from slidepack.engine.shape import ModelShape
from slidepack.kernels import (
    LoraDropout,
    LoraLayout,
    LoraTables,
    LoraWeights,
    dropout_tables,
    lora_linear,
    lora_tables,
)
from slidepack.kernels.tiles import LoraTiles

__all__ = ["LaneAdapters", "LanePass", "LaneWork", "MicroBatch", "Serve", "step_seed"]

_SITES: Final = MappingProxyType({group.name: index for index, group in enumerate(GROUPS)})


class LaneAdapters:
    """Lanes in their order in a row. Built anew when a lane joins or leaves."""

    def __init__(
        self,
        shape: ModelShape,
        arenas: Sequence[LoraArena],
        device: torch.device,
        serve: "Serve | None" = None,
        refetch: Callable[[int, str], Tensor] | None = None,
    ) -> None:
        """Find the lanes' blocks.

        Args:
            shape: the base model's sizes.
            arenas: one a lane, at least one, all of the same pools.
            device: where the passes run.
            serve: brings a layer's lanes to where a pass reads them, layer after layer; None
                where they stay there.
            refetch: returns the base's weight of a layer's group in a backward pass, where it does
                not stay in memory until then.
        """
        self._serve = serve
        self._refetch = refetch
        self.arenas = tuple(arenas)
        self.methods: tuple[LoraMethod, ...] = tuple(arena.method for arena in arenas)
        self.device = device
        self._layouts: dict[str, LoraLayout] = {}
        for group in GROUPS:
            layout = group_layout(group, shape, self.methods)
            self._layouts[group.name] = LoraLayout(
                in_width=layout.in_width,
                part_widths=layout.part_widths,
                # Padding belongs to an adapter that has no rank anywhere.
                ranks=(*layout.ranks, (0,) * len(group.targets)),
            )
        scales = [method.scale for method in self.methods]
        wide = arenas[0].pool_of(0).grads.dtype
        self._scales = torch.tensor([*scales, 0.0], dtype=wide, device=device)
        self._starts = {
            (layer, group.name): (*(arena.block_start(layer, group.name) for arena in arenas), 0)
            for layer in range(shape.num_layers)
            for group in GROUPS
        }
        table = torch.tensor(list(self._starts.values()), dtype=torch.int64, device=device)
        self._offsets = dict(zip(self._starts, table, strict=True))
        self._resident: dict[int, Mapping[str, LoraWeights]] = {}

    def weights_over(self, layer: int, weights: Tensor, grads: Tensor) -> Mapping[str, LoraWeights]:
        """Return the lanes' weights of each group of a layer, over copies of its pool."""
        return {
            group.name: LoraWeights(
                pool=weights,
                grads=grads,
                starts=self._starts[layer, group.name],
                offsets=self._offsets[layer, group.name],
                scales=self._scales,
            )
            for group in GROUPS
        }

    def again(self, layer: int, group: str) -> Callable[[], Tensor] | None:
        """Return what gets the base's weight in a backward pass; None where it is kept."""
        return None if self._refetch is None else partial(self._refetch, layer, group)

    def served_weights(self, layer: int) -> Mapping[str, LoraWeights]:
        """Return the lanes' weights of each group of a layer, where a pass reads them."""
        if self._serve is not None:
            return self._serve(self, layer)
        if layer not in self._resident:
            pool = self.arenas[0].pool_of(layer)
            self._resident[layer] = self.weights_over(layer, pool.weights, pool.grads)
        return self._resident[layer]

    def __len__(self) -> int:
        """Return how many lanes there are."""
        return len(self.methods)

    def lane_pass(
        self,
        bounds: Sequence[int],
        *,
        first: bool = True,
        dropout: LoraDropout | None = None,
        device: torch.device | None = None,
    ) -> "LanePass":
        """Bind a packed row.

        Args:
            bounds: N + 2 offsets: of each lane's tokens, and of the padding after them.
            first: overwrite the gradients instead of adding to them.
            dropout: of the row; None in evaluation, which drops nothing.
            device: where the tables are wanted; None for where the passes run.
        """
        sizes = LoraTiles.of(self.device)
        tables = {
            name: lora_tables(layout, bounds, device or self.device, sizes=sizes)
            for name, layout in self._layouts.items()
            # A group that no lane targets is a plain product, where its weight can be kept.
            if layout.largest_rank or self._refetch is not None
        }
        return LanePass(self, tables, dropout, add=not first)

    def dropout(self, row: LaneRow | LaneTensors, seeds: Sequence[int]) -> LoraDropout | None:
        """Return the dropout of a row, or None where no lane has any.

        Args:
            row: of these lanes; the dropout's tables are where its tensors are.
            seeds: of each lane in this step.
        """
        rates = [method.dropout for method in self.methods]
        if not any(rates):
            return None
        return dropout_tables((*seeds, 0), (*rates, 0.0), row.samples, row.positions)


@dataclass(frozen=True, slots=True)
class LanePass:
    """The lanes during one pass of a row."""

    lanes: LaneAdapters
    tables: Mapping[str, LoraTables]
    """Of the groups that any lane targets."""
    dropout: LoraDropout | None
    add: bool
    """Add to the gradients instead of overwriting them."""

    def layer(self, layer: int, weights: Mapping[str, LoraWeights] | None = None) -> LayerAdapter:
        """Return what a decoder layer needs.

        Args:
            layer: index.
            weights: of the layer's groups; None lets them be served.
        """
        found = self.lanes.served_weights(layer) if weights is None else weights
        return _LayerPass(self, layer, found)


@dataclass(frozen=True, slots=True)
class MicroBatch:
    """A packed row with its lanes, ready to pass."""

    row: LaneRow
    lanes: LanePass


@dataclass(frozen=True, kw_only=True, slots=True)
class LaneWork:
    """A micro-batch of a step that is still to be laid out."""

    pieces: Sequence[Piece | None]
    """Of each lane."""
    denominators: Sequence[int]
    """Supervised tokens of each lane's whole step."""
    seeds: Sequence[int]
    """Of each lane's dropout in this step."""
    first: bool
    """Whether it is the step's first, which overwrites the gradients."""
    exact_tokens: int
    """Tokens that the row is filled up to; 0 for as many as it has."""
    most_tokens: int
    """That a micro-batch may have."""

    def bind(self, adapters: LaneAdapters, shape: ModelShape, dtype: torch.dtype) -> MicroBatch:
        """Lay it out where the passes run."""
        laid = lane_tensors(self.pieces, self.denominators, dtype, pad_to=self.exact_tokens)
        row = laid.bind(shape, adapters.device, dtype)
        dropout = adapters.dropout(row, self.seeds)
        return MicroBatch(row, adapters.lane_pass(row.bounds, first=self.first, dropout=dropout))


@dataclass(frozen=True, slots=True)
class _LayerPass:
    passing: LanePass
    layer: int
    weights: Mapping[str, LoraWeights]

    def linear(self, x: Tensor, weight: Tensor, group: str) -> Tensor:
        """Apply a group's linears and each token's own adapter."""
        tables = self.passing.tables.get(group)
        if tables is None:
            return torch.nn.functional.linear(x, weight)
        return lora_linear(
            x,
            weight,
            tables,
            self.weights[group],
            add=self.passing.add,
            dropout=self.passing.dropout,
            site=self.layer * len(GROUPS) + _SITES[group],
            again=self.passing.lanes.again(self.layer, group),
        )


Serve = Callable[[LaneAdapters, int], Mapping[str, LoraWeights]]
"""Brings a layer's lanes to where a pass reads them; asked for layer after layer."""


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a lane's dropout in a step."""
    return derive_seed(seed, "dropout", step)
