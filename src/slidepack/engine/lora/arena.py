"""The state of one LoRA lane, at its exact rank: a range of a pool, as the kernels read it.

Blocks follow each other layer by layer and group by group (`engine.lora.groups`); in a block are
the A matrices of the group's targets, then their B matrices, transposed.
"""

import hashlib
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.contract.job import LORA_TARGETS, LoraMethod
from slidepack.engine.lora.groups import GROUPS, group_layout
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.shape import ModelShape
from slidepack.kernels import ADAMW_BLOCK, AdamWState, join_master, split_master

__all__ = ["AdapterPair", "LoraArena", "derive_seed", "lane_layer_elements"]


@dataclass(frozen=True, slots=True)
class AdapterPair:
    """A and B of one linear, as views."""

    a: Tensor
    """[R, in]"""
    b: Tensor
    """[out, R]; stored transposed."""


def lane_layer_elements(shape: ModelShape, method: LoraMethod) -> int:
    """Return how many elements of a pool a lane takes for each layer."""
    held = sum(group_layout(group, shape, [method]).block_elements(0) for group in GROUPS)
    # One launch updates all lanes, in blocks that belong to one lane each.
    return -(-held // ADAMW_BLOCK) * ADAMW_BLOCK


class LoraArena:
    """One lane's adapter."""

    def __init__(
        self,
        shape: ModelShape,
        method: LoraMethod,
        pool: LanePool | Sequence[LanePool],
        settle: Callable[[], None] = lambda: None,
    ) -> None:
        """Take a range, all zero; `initialise` or a checkpoint fills it.

        Args:
            shape: the base model's sizes.
            method: rank, targets and scale.
            pool: memory that lanes share: one pool, or one for each layer where lanes slide.
            settle: waits until nothing changes the lane any more, before it is read or written.

        Raises:
            torch.OutOfMemoryError: the pool cannot grow; nothing has changed.
        """
        self.method = method
        self._settle = settle
        self._pools = (pool,) if isinstance(pool, LanePool) else tuple(pool)
        # PEFT's order of modules, whatever order the user named the targets in.
        self.targets = tuple(target for target in LORA_TARGETS if target in method.targets)
        self.trainable_params = shape.lora_params(method.rank, self.targets)
        self._layouts = {group.name: group_layout(group, shape, [method]) for group in GROUPS}
        self.layer_size = lane_layer_elements(shape, method)
        self._num_layers = shape.num_layers
        self.size = self.layer_size * self._num_layers
        self._part = self.size // len(self._pools)
        self.start = self._take()

    def _take(self) -> int:
        """Take the same range of every pool."""
        starts: list[int] = []
        try:
            for pool in self._pools:
                starts.append(pool.take(self._part))
        except BaseException:
            for pool, start in zip(self._pools, starts, strict=False):
                pool.give_back(start)
            raise
        assert len(set(starts)) == 1, "every layer's pool has the same lanes"
        return starts[0]

    def close(self) -> None:
        """Give the range back."""
        self._settle()
        for pool in self._pools:
            pool.give_back(self.start)

    def pool_of(self, layer: int) -> LanePool:
        """Return the pool that holds a layer's part."""
        return self._pools[layer if len(self._pools) > 1 else 0]

    def start_of(self, layer: int) -> int:
        """Return where a layer's part starts in its pool."""
        return self.start + (layer * self.layer_size if len(self._pools) == 1 else 0)

    def block_start(self, layer: int, group: str) -> int:
        """Return where the block of a layer's group starts in its pool."""
        start = self.start_of(layer)
        for name, layout in self._layouts.items():
            if name == group:
                return start
            start += layout.block_elements(0)
        raise KeyError(group)

    def states(self) -> list[AdamWState]:
        """Return master and moments, flat: one part for each pool."""
        self._settle()
        return [pool.state(self.start, self._part) for pool in self._pools]

    @property
    def state(self) -> AdamWState:
        """Master and moments of a lane in a single pool, flat."""
        (state,) = self.states()
        return state

    @property
    def grads(self) -> Tensor:
        """The gradient of a lane in a single pool, flat."""
        (pool,) = self._pools
        return pool.grads[self.start : self.start + self.size]

    def master(self) -> Tensor:
        """Return the parameters, flat, in fp32 (fp64 in an fp64 pool).

        They are a copy where the master is split, or the lane has several pools.
        """
        return _joined([_wide(state) for state in self.states()])

    def set_master(self, values: Tensor) -> None:
        """Overwrite the parameters with flat values of the master's dtype."""
        for state, part in zip(self.states(), torch.split(values, self._part), strict=True):
            if state.remainder is None:
                state.master.copy_(part)
                continue
            plane, remainder = split_master(part.to(state.master.device))
            state.master.copy_(plane)
            state.remainder.copy_(remainder)

    def moments(self) -> tuple[Tensor, Tensor]:
        """Return AdamW's moments, flat; a copy where the lane has several pools."""
        states = self.states()
        return (
            _joined([state.exp_avg for state in states]),
            _joined([state.exp_avg_sq for state in states]),
        )

    def set_moments(self, first: Tensor, second: Tensor) -> None:
        """Overwrite AdamW's moments with flat values."""
        parts = torch.split(first, self._part), torch.split(second, self._part)
        for state, one, other in zip(self.states(), *parts, strict=True):
            state.exp_avg.copy_(one)
            state.exp_avg_sq.copy_(other)

    def pairs(self, flat: Tensor) -> Iterator[tuple[int, str, AdapterPair]]:
        """Yield (layer, target, pair) of any flat tensor that is laid out as the lane."""
        for layer in range(self._num_layers):
            offset = layer * self.layer_size
            for group in GROUPS:
                layout = self._layouts[group.name]
                views = layout.views(flat, offset, 0)
                offset += layout.block_elements(0)
                for target, (a, b_transposed) in zip(group.targets, views, strict=True):
                    if target in self.targets:
                        yield layer, target, AdapterPair(a, b_transposed.T)

    def named_pairs(self) -> Iterator[tuple[int, str, AdapterPair]]:
        """Yield (layer, target, pair) of the master."""
        yield from self.pairs(self.master())

    def is_finite(self) -> bool:
        """Return whether every parameter is a number."""
        return bool(torch.isfinite(self.master()).all())

    def has_learned(self) -> bool:
        """Return whether any B left zero."""
        return any(bool(pair.b.any()) for _, _, pair in self.named_pairs())

    def initialise(self, seed: int) -> None:
        """Fill A as PEFT does (Kaiming uniform, a = sqrt 5) from a seed of each tensor; B is 0.

        Each tensor's values depend on the seed, its layer and its name alone.
        """
        flat = torch.zeros(self.size, dtype=self._pools[0].grads.dtype)
        for layer, target, pair in self.pairs(flat):
            generator = torch.Generator().manual_seed(derive_seed(seed, "init", layer, target))
            bound = 1.0 / math.sqrt(pair.a.shape[1])
            values = torch.rand(pair.a.shape, generator=generator, dtype=torch.float64)
            pair.a.copy_((values * 2.0 - 1.0) * bound)
        self.set_master(flat)


def _wide(state: AdamWState) -> Tensor:
    if state.remainder is None:
        return state.master
    return join_master(state.master, state.remainder)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
