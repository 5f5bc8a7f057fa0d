"""The state of one LoRA lane, at its exact rank: a range of a pool, as the kernels read it.

Blocks follow each other layer by layer and group by group (`engine.lora.groups`); in a block are
the A matrices of the group's targets, then their B matrices, transposed.
"""

import hashlib
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.contract.job import LORA_TARGETS, LoraMethod
from slidepack.engine.lora.groups import GROUPS, group_layout
from slidepack.engine.lora.pool import LanePool
from slidepack.engine.shape import ModelShape
from slidepack.kernels import AdamWState, join_master, split_master

__all__ = ["AdapterPair", "LoraArena", "derive_seed"]


@dataclass(frozen=True, slots=True)
class AdapterPair:
    """A and B of one linear, as views."""

    a: Tensor
    """[R, in]"""
    b: Tensor
    """[out, R]; stored transposed."""


class LoraArena:
    """One lane's adapter."""

    def __init__(self, shape: ModelShape, method: LoraMethod, pool: LanePool) -> None:
        """Take a range of the pool, all zero; `initialise` or a checkpoint fills it.

        Args:
            shape: the base model's sizes.
            method: rank, targets and scale.
            pool: memory that lanes share.

        Raises:
            torch.OutOfMemoryError: the pool cannot grow; nothing has changed.
        """
        self.method = method
        self.pool = pool
        # PEFT's order of modules, whatever order the user named the targets in.
        self.targets = tuple(target for target in LORA_TARGETS if target in method.targets)
        self.trainable_params = shape.lora_params(method.rank, self.targets)
        self._layouts = {group.name: group_layout(group, shape, [method]) for group in GROUPS}
        self._offsets: dict[tuple[int, str], int] = {}
        size = 0
        for layer in range(shape.num_layers):
            for name, layout in self._layouts.items():
                self._offsets[layer, name] = size
                size += layout.block_elements(0)
        self.size = size
        self.start = pool.take(size)

    def close(self) -> None:
        """Give the range back."""
        self.pool.give_back(self.start)

    def block_starts(self) -> Mapping[tuple[int, str], int]:
        """Return the start of each (layer, group)'s block in the pool."""
        return {key: self.start + offset for key, offset in self._offsets.items()}

    @property
    def grads(self) -> Tensor:
        """The lane's gradient, flat."""
        return self.pool.grads[self.start : self.start + self.size]

    @property
    def state(self) -> AdamWState:
        """The lane's master and moments, flat."""
        return self.pool.state(self.start, self.size)

    def master(self) -> Tensor:
        """Return the parameters, flat, in fp32 (fp64 in an fp64 pool); a copy of a split master."""
        state = self.state
        if state.remainder is None:
            return state.master
        return join_master(state.master, state.remainder)

    def set_master(self, values: Tensor) -> None:
        """Overwrite the parameters with flat values of the master's dtype."""
        state = self.state
        if state.remainder is None:
            state.master.copy_(values)
            return
        plane, remainder = split_master(values.to(state.master.device))
        state.master.copy_(plane)
        state.remainder.copy_(remainder)

    def pairs(self, flat: Tensor) -> Iterator[tuple[int, str, AdapterPair]]:
        """Yield (layer, target, pair) of any flat tensor that is laid out as the lane."""
        for (layer, name), offset in self._offsets.items():
            group = next(group for group in GROUPS if group.name == name)
            views = self._layouts[name].views(flat, offset, 0)
            for target, (a, b_transposed) in zip(group.targets, views, strict=True):
                if target in self.targets:
                    yield layer, target, AdapterPair(a, b_transposed.T)

    def named_pairs(self) -> Iterator[tuple[int, str, AdapterPair]]:
        """Yield (layer, target, pair) of the master."""
        yield from self.pairs(self.master())

    def is_finite(self) -> bool:
        """Return whether every parameter is a number."""
        return bool(torch.isfinite(self.state.master).all())

    def has_learned(self) -> bool:
        """Return whether any B left zero."""
        return any(bool(pair.b.any()) for _, _, pair in self.pairs(self.state.master))

    def initialise(self, seed: int) -> None:
        """Fill A as PEFT does (Kaiming uniform, a = sqrt 5) from a seed of each tensor; B is 0.

        Each tensor's values depend on the seed, its layer and its name alone.
        """
        flat = torch.zeros(self.size, dtype=self.grads.dtype)
        for layer, target, pair in self.pairs(flat):
            generator = torch.Generator().manual_seed(derive_seed(seed, "init", layer, target))
            bound = 1.0 / math.sqrt(pair.a.shape[1])
            values = torch.rand(pair.a.shape, generator=generator, dtype=torch.float64)
            pair.a.copy_((values * 2.0 - 1.0) * bound)
        self.set_master(flat)


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
