"""The state of one LoRA lane: parameters, gradients and moments, each one flat fp32 arena."""

import hashlib
import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from slidepack.engine.contract.job import LORA_TARGETS, LoraMethod
from slidepack.engine.shape import ModelShape
from slidepack.kernels import lora_ref


@dataclass(frozen=True, slots=True)
class AdapterPair:
    """A and B of one linear; views into the arena, with gradients as views into its gradient."""

    a: Tensor
    """[R, in]"""
    b: Tensor
    """[out, R]"""


class LoraArena:
    """One lane's adapter at its exact rank: fp32 master, gradient and AdamW moments."""

    def __init__(
        self,
        shape: ModelShape,
        method: LoraMethod,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """Allocate the arena, all zero; `initialise` or a checkpoint fills it.

        Args:
            shape: the base model's sizes.
            method: rank, targets and scale.
            device: where the arena lives.
            dtype: fp32; fp64 where a test wants a judge.
        """
        self.method = method
        self.num_layers = shape.num_layers
        # PEFT's order of modules, whatever order the user named the targets in.
        self.targets = tuple(target for target in LORA_TARGETS if target in method.targets)
        size = shape.lora_params(method.rank, self.targets)
        self.params = torch.zeros(size, dtype=dtype, device=device)
        self.grads = torch.zeros_like(self.params)
        self.exp_avg = torch.zeros_like(self.params)
        self.exp_avg_sq = torch.zeros_like(self.params)
        self._pairs: dict[tuple[int, str], AdapterPair] = {}
        offset = 0
        for layer in range(shape.num_layers):
            for target in self.targets:
                rows, columns = shape.linear_shape(target)
                a, offset = self._leaf(offset, (method.rank, columns))
                b, offset = self._leaf(offset, (rows, method.rank))
                self._pairs[layer, target] = AdapterPair(a, b)

    def _leaf(self, offset: int, size: tuple[int, int]) -> tuple[Tensor, int]:
        end = offset + size[0] * size[1]
        leaf = self.params[offset:end].view(size).requires_grad_()
        # A gradient that is already there is added to in place, so it stays a view of the arena.
        leaf.grad = self.grads[offset:end].view(size)
        return leaf, end

    def initialise(self, seed: int) -> None:
        """Fill A as PEFT does (Kaiming uniform, a = sqrt 5) from a seed of each tensor; B is 0.

        Each tensor's values depend on the seed, its layer and its name alone.
        """
        for (layer, target), pair in self._pairs.items():
            generator = torch.Generator().manual_seed(derive_seed(seed, "init", layer, target))
            bound = 1.0 / math.sqrt(pair.a.shape[1])
            values = torch.rand(pair.a.shape, generator=generator, dtype=torch.float64)
            with torch.no_grad():
                pair.a.copy_((values * 2.0 - 1.0) * bound)
                pair.b.zero_()

    def pair(self, layer: int, target: str) -> AdapterPair | None:
        """Return the adapter of a linear, or None where it is not a target."""
        return self._pairs.get((layer, target))

    def named_pairs(self) -> Iterator[tuple[int, str, AdapterPair]]:
        """Yield (layer, target, pair) in arena order."""
        for (layer, target), pair in self._pairs.items():
            yield layer, target, pair


class LaneLayer:
    """One lane at one layer, during one micro-batch: adds its low-rank products, with dropout."""

    def __init__(self, arena: LoraArena, layer: int, dropout_key: tuple[int, ...] | None) -> None:
        """Bind a layer.

        Args:
            arena: the lane.
            layer: index of the decoder layer.
            dropout_key: (seed, step, micro-batch) in training, so that a recomputed pass draws the
                same mask; None in evaluation.
        """
        self._arena = arena
        self._layer = layer
        self._key = dropout_key if arena.method.dropout > 0.0 else None

    def delta(self, x: Tensor, target: str) -> Tensor | None:
        """Return scale · B·A·dropout(x), or None where the linear is not a target."""
        pair = self._arena.pair(self._layer, target)
        if pair is None:
            return None
        return lora_ref(self._dropped(x, target), pair.a, pair.b, self._arena.method.scale)

    def _dropped(self, x: Tensor, target: str) -> Tensor:
        if self._key is None:
            return x
        keep = 1.0 - self._arena.method.dropout
        seed = derive_seed(*self._key, self._layer, target)
        generator = torch.Generator(x.device).manual_seed(seed)
        mask = torch.rand(x.shape, generator=generator, device=x.device) < keep
        return x * (mask.to(x.dtype) / keep)


def derive_seed(*parts: int | str) -> int:
    """Return a 63-bit seed that depends on every part."""
    text = "\0".join(map(str, parts)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
