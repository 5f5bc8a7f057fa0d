"""Sizes of the grouped LoRA kernels: found kernel by kernel, on a short and a long row."""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor

from slidepack.engine.bench_kernels.lora import LoraCase, LoraShape, lora_case
from slidepack.engine.bench_kernels.measure import Meter
from slidepack.engine.bench_kernels.operation import Setting
from slidepack.engine.tune.candidates import (
    expand_candidates,
    outer_candidates,
    shrink_candidates,
)
from slidepack.engine.tune.search import Load, Row, Scored, Search, figures, search
from slidepack.kernels import LoraTables, lora_tables
from slidepack.kernels.lora.expand import expand_launch
from slidepack.kernels.lora.layout import RANK_CHUNK
from slidepack.kernels.lora.outer import outer_launch
from slidepack.kernels.lora.shrink import shrink_launch
from slidepack.kernels.tiles import LoraTiles

__all__ = ["best_pair", "lora", "merged"]

_SHORT: Final = 4096
_LONG: Final = 16384
_WEIGHTS: Final = {_SHORT: 1.0, _LONG: 1.0 / 3.0}
"""By tokens: a long row takes some three times the time, and is not to outweigh the short one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class _Problem:
    """Arguments of the kernels for one row."""

    case: LoraCase
    s: Tensor
    """[T, s_columns], the rank side."""
    y: Tensor
    """[T, out]."""

    def shrink(self, tables: LoraTables) -> None:
        shrink_launch(self.case.x, self.case.weights, tables, tables.input_side)

    def expand(self, tables: LoraTables) -> None:
        weights = self.case.weights
        side, scales = tables.output_side, weights.scales
        expand_launch(self.s, weights, tables, side, self.y, add=False, scales=scales)

    def outer(self, tables: LoraTables) -> None:
        weights, dy = self.case.weights, self.case.dy
        side, scales = tables.output_side, weights.scales
        outer_launch(self.s, dy, weights, tables, side, add=False, scales=scales)


def lora(setting: Setting, meter: Meter) -> Row:
    """Time shrink, expand and weight gradients.

    Shrink and expand share the tokens of a tile, so the best two that agree on them are taken.
    """
    width = setting.sizes.width
    present = LoraTiles.of(setting.device)
    problems = [
        _problem(setting, LoraShape(tokens=tokens, in_width=width, out_width=width), present)
        for tokens in _WEIGHTS
    ]
    shrink = search(shrink_candidates(present), _loads(problems, _Problem.shrink), meter)
    expand = search(expand_candidates(present), _loads(problems, _Problem.expand), meter)
    outer = search(outer_candidates(present), _loads(problems, _Problem.outer), meter)
    best_shrink, best_expand = best_pair(shrink, expand)
    chosen = merged(best_shrink.sizes, best_expand.sizes, outer.best.sizes)
    adapters = len(problems[0].case.tables.layout.ranks)
    return Row(
        sizes=dataclasses.asdict(chosen),
        measured=(
            f"shrink {figures(shrink, best_shrink)}, expand {figures(expand, best_expand)}, "
            f"gradient {figures(outer)}; {adapters} adapters of rank 8-128, {_SHORT} tokens "
            f"({_LONG} count a third), {width} x {width}"
        ),
    )


def best_pair(
    shrink: Search[LoraTiles], expand: Search[LoraTiles]
) -> tuple[Scored[LoraTiles], Scored[LoraTiles]]:
    """Return the shrink and the expand that are the fastest together, of one row tile.

    Raises:
        RuntimeError: no two that run have one.
    """
    pairs = [
        (one, other)
        for one in shrink.scored
        for other in expand.scored
        if one.sizes.row_tile == other.sizes.row_tile
    ]
    if not pairs:
        raise RuntimeError("No shrink and expand of one row tile run on this GPU.")
    return min(pairs, key=lambda pair: pair[0].score + pair[1].score)


def merged(shrink: LoraTiles, expand: LoraTiles, outer: LoraTiles) -> LoraTiles:
    """Return the sizes that take each kernel's own from where they were found."""
    sources = {"row": shrink, "shrink": shrink, "expand": expand, "outer": outer}
    return LoraTiles(
        **{
            field.name: getattr(sources[field.name.partition("_")[0]], field.name)
            for field in dataclasses.fields(LoraTiles)
        }
    )


def _problem(setting: Setting, shape: LoraShape, present: LoraTiles) -> _Problem:
    case = lora_case(setting, shape, tiles=present)
    columns = case.tables.layout.s_columns
    # As `shrink_launch` allocates it: a gradient's last tile reads past the end of the last row.
    s = setting.random(shape.tokens * columns + RANK_CHUNK)[: shape.tokens * columns]
    return _Problem(case=case, s=s.view(-1, columns), y=torch.empty_like(case.dy))


def _loads(
    problems: Sequence[_Problem], kernel: Callable[[_Problem, LoraTables], None]
) -> list[Load[LoraTiles]]:
    def load(problem: _Problem) -> Load[LoraTiles]:
        old = problem.case.tables

        def bind(tiles: LoraTiles) -> Callable[[], Any]:
            tables = lora_tables(old.layout, old.bounds, problem.y.device, sizes=tiles)
            return lambda: kernel(problem, tables)

        return Load(weight=_WEIGHTS[old.tokens], bind=bind)

    return [load(problem) for problem in problems]
