"""A pool of lanes with gradients and moments, and the numbers of a step of each."""

import torch
from torch import Tensor

from slidepack.kernels import ADAMW_BLOCK, AdamWState, split_master

BETAS = ((0.9, 0.999, 1e-8), (0.8, 0.95, 1e-6), (0.0, 0.5, 1e-3))
LANES = (0, 0, 1, -1, 2, 2, -1, 0)
"""Lane of each block: in no order, some without."""


def lane_state(*, split: bool, seed: int = 0) -> tuple[Tensor, AdamWState]:
    """Return gradients and state of a pool of random values."""
    generator = torch.Generator().manual_seed(seed)
    count = len(LANES) * ADAMW_BLOCK

    def normal() -> Tensor:
        return torch.randn(count, generator=generator)

    master, remainder = split_master(normal()) if split else (normal(), None)
    return normal(), AdamWState(master, remainder, normal(), normal().square())


def lane_numbers() -> Tensor:
    """Return the numbers of three lanes with unlike settings, [3, 8]."""
    rows = []
    for lane, (beta1, beta2, eps) in enumerate(BETAS):
        scalars = (0.7 - 0.2 * lane, 1e-2 * (lane + 1), 0.3 + 0.1 * lane, 1.0 - 1e-3 * lane)
        rows.append((*scalars, 1.0 - beta1, beta2, 1.0 - beta2, eps))
    return torch.tensor(rows, dtype=torch.float32)


def moved(state: AdamWState, device: torch.device) -> AdamWState:
    """Return a copy of a state on a device."""

    def copy(tensor: Tensor) -> Tensor:
        return tensor.clone().to(device)

    remainder = None if state.remainder is None else copy(state.remainder)
    return AdamWState(copy(state.master), remainder, copy(state.exp_avg), copy(state.exp_avg_sq))


def tensors(state: AdamWState) -> list[Tensor]:
    """Return the tensors of a state."""
    found = (state.master, state.remainder, state.exp_avg, state.exp_avg_sq)
    return [tensor for tensor in found if tensor is not None]
