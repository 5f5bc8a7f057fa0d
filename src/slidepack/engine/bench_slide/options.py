"""What `slidepack bench slide` is asked for."""

import os
from dataclasses import dataclass
from typing import Final, Literal

from slidepack.engine.bench_slide.shapes import shape_named
from slidepack.engine.sliding.sharing import EngineName
from slidepack.engine.sliding.state import MomentFormat

__all__ = ["SlideOptions", "default_threads"]

_LAUNCHING_THREADS: Final = 3
"""The walk, and the engine of each kind."""


def default_threads() -> int:
    """Return the threads of the CPU's optimizer: all cores but those that launch work."""
    return max(1, len(os.sched_getaffinity(0)) - _LAUNCHING_THREADS)


@dataclass(frozen=True, kw_only=True, slots=True)
class SlideOptions:
    """One measurement."""

    shape: str
    batch: int
    """Rows in a step."""
    seq: int
    """Tokens in a row."""
    micro_tokens: int = 8192
    """Most tokens of a micro-batch."""
    steps: int = 6
    """Steps measured, after the warm-up."""
    warm_up: int = 2
    """Steps before them."""
    vram_cap_gb: float | None = None
    """Device memory that may be used, in 1e9 bytes; None for all."""
    optimizer: EngineName | Literal["auto"] = "auto"
    moments: MomentFormat = "fp32"
    clip: float = 0.0
    """Gradient norm above which gradients are scaled down; 0 for no clipping."""
    rows: Literal["device", "host"] | None = None
    """Where rows are kept; None leaves it to the plan."""
    weight_slots: int | None = None
    """Layers' weights on the card at once; None leaves it to the plan."""
    grad_slots: int | None = None
    """Layers' gradients on the card at once; None leaves it to the plan."""
    threads: int
    """Of the CPU's optimizer."""
    alias_layers: int | None = None
    """Layers of storage that all layers share; None gives each its own."""
    nvme_folder: str | None = None
    """Folder on a drive for a share of the state; None keeps it in RAM."""
    nvme_share: float = 1.0
    """Of the moments and the master weights, and of rows that are in host memory."""
    ram_cap_gb: float | None = None
    """Address space that the process may have for data, in 1e9 bytes; None for all."""
    device: str = "cuda"
    """`cpu` walks the same path without a card, to test it."""

    def __post_init__(self) -> None:
        """Refuse what cannot be measured."""
        layers = shape_named(self.shape).num_layers
        if min(self.batch, self.micro_tokens, self.steps, self.threads) < 1 or self.seq < 2:
            raise ValueError("batch, micro-tokens, steps and threads are 1 or more, seq 2 or more")
        if self.warm_up < 0:
            raise ValueError(f"warm-up is {self.warm_up}; use 0 or more")
        if (self.weight_slots or 2) < 2 or self.grad_slots == 0:
            raise ValueError("weight-slots is 2 or more, grad-slots 1 or more")
        if self.vram_cap_gb is not None and self.vram_cap_gb <= 0.0:
            raise ValueError(f"vram-cap is {self.vram_cap_gb}; use above 0")
        if not 0.0 <= self.nvme_share <= 1.0:
            raise ValueError(f"nvme-share is {self.nvme_share}; use 0 to 1")
        if self.ram_cap_gb is not None and self.ram_cap_gb <= 0.0:
            raise ValueError(f"ram-cap is {self.ram_cap_gb}; use above 0")
        if not self.clip >= 0.0:
            raise ValueError(f"clip is {self.clip}; use 0 or more")
        if self.alias_layers is not None and not 1 <= self.alias_layers <= layers:
            raise ValueError(f"alias-layers is {self.alias_layers}; use 1 to {layers}")
