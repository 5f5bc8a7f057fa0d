"""The adapters of many lanes, as a decoder's linears meet them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import torch
from torch import Tensor

from slidepack.engine.contract.job import LoraMethod
from slidepack.engine.lora.arena import LoraArena, derive_seed
from slidepack.engine.lora.groups import GROUPS, group_layout
from slidepack.engine.lora.rows import LaneRow
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

__all__ = ["LaneAdapters", "LanePass", "step_seed"]

_SITES: Final = MappingProxyType({group.name: index for index, group in enumerate(GROUPS)})


class LaneAdapters:
    """Lanes in their order in a row. Built anew when a lane joins or leaves."""

    def __init__(self, shape: ModelShape, arenas: Sequence[LoraArena]) -> None:
        """Find the lanes' blocks.

        Args:
            shape: the base model's sizes.
            arenas: one a lane, at least one, all of one pool.
        """
        pool = arenas[0].pool
        assert all(arena.pool is pool for arena in arenas)
        self.methods: tuple[LoraMethod, ...] = tuple(arena.method for arena in arenas)
        self._device = pool.device
        # Padding belongs to an adapter that has no rank anywhere.
        self._layouts: dict[str, LoraLayout] = {}
        for group in GROUPS:
            layout = group_layout(group, shape, self.methods)
            self._layouts[group.name] = LoraLayout(
                in_width=layout.in_width,
                part_widths=layout.part_widths,
                ranks=(*layout.ranks, (0,) * len(group.targets)),
            )
        scales = [method.scale for method in self.methods]
        scales_N = torch.tensor([*scales, 0.0], dtype=pool.grads.dtype, device=self._device)
        starts = [arena.block_starts() for arena in arenas]
        keys = list(starts[0])
        table = torch.tensor(
            [[*(start[key] for start in starts), 0] for key in keys],
            dtype=torch.int64,
            device=self._device,
        )
        self._weights = {
            key: LoraWeights(
                pool=pool.weights,
                grads=pool.grads,
                starts=(*(start[key] for start in starts), 0),
                offsets=offsets,
                scales=scales_N,
            )
            for key, offsets in zip(keys, table, strict=True)
        }

    def __len__(self) -> int:
        """Return how many lanes there are."""
        return len(self.methods)

    def lane_pass(
        self, bounds: Sequence[int], *, first: bool = True, dropout: LoraDropout | None = None
    ) -> "LanePass":
        """Bind a packed row.

        Args:
            bounds: N + 2 offsets: of each lane's tokens, and of the padding after them.
            first: overwrite the gradients instead of adding to them.
            dropout: of the row; None in evaluation, which drops nothing.
        """
        tables = {
            name: lora_tables(layout, bounds, self._device)
            for name, layout in self._layouts.items()
            if layout.largest_rank
        }
        return LanePass(self._weights, tables, dropout, add=not first)

    def dropout(self, row: LaneRow, seeds: Sequence[int]) -> LoraDropout | None:
        """Return the dropout of a row, or None where no lane has any.

        Args:
            row: of these lanes.
            seeds: of each lane in this step.
        """
        rates = [method.dropout for method in self.methods]
        if not any(rates):
            return None
        return dropout_tables((*seeds, 0), (*rates, 0.0), row.samples, row.positions)


@dataclass(frozen=True, slots=True)
class LanePass:
    """The lanes during one pass of a row."""

    weights: Mapping[tuple[int, str], LoraWeights]
    """Of each layer's groups."""
    tables: Mapping[str, LoraTables]
    """Of the groups that any lane targets."""
    dropout: LoraDropout | None
    add: bool
    """Add to the gradients instead of overwriting them."""

    def layer(self, layer: int) -> LayerAdapter:
        """Return what a decoder layer needs."""
        return _LayerPass(self, layer)


@dataclass(frozen=True, slots=True)
class _LayerPass:
    lanes: LanePass
    layer: int

    def linear(self, x: Tensor, weight: Tensor, group: str) -> Tensor:
        """Apply a group's linears and each token's own adapter."""
        tables = self.lanes.tables.get(group)
        if tables is None:
            return torch.nn.functional.linear(x, weight)
        return lora_linear(
            x,
            weight,
            tables,
            self.lanes.weights[self.layer, group],
            add=self.lanes.add,
            dropout=self.lanes.dropout,
            site=self.layer * len(GROUPS) + _SITES[group],
        )


def step_seed(seed: int, step: int) -> int:
    """Return the seed of a lane's dropout in a step."""
    return derive_seed(seed, "dropout", step)
