"""What the planners of adapters and of full fine-tuning share: the machine, sizes, refusals."""

from collections.abc import Mapping
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.plan import ActivationPolicy
from slidepack.engine.memory_pass import (
    card_kept_elements,
    card_layer_elements,
    head_chunk_elements,
    head_row_elements,
    layer_kept_elements,
)
from slidepack.engine.shape import ModelShape

__all__ = [
    "DEVICE_CONTEXT_BYTES",
    "DEVICE_HOST_BYTES",
    "GIB",
    "HEADROOM",
    "HOST_PROCESS_BYTES",
    "RESULT_COPIES",
    "Machine",
    "MemoryNeed",
    "NvmeRoom",
    "activation_bytes_per_token",
    "logit_bytes",
    "too_small",
    "usable_bytes",
]

GIB: Final = 1 << 30

HOST_PROCESS_BYTES: Final = 400 << 20
"""Interpreter and the CPU build of torch, before the first weight."""
DEVICE_HOST_BYTES: Final = 1536 << 20
"""The same with a GPU build and its driver (measured: 1.45 GB with torch 2.11 and CUDA 13.0)."""
DEVICE_CONTEXT_BYTES: Final = 900 << 20
"""Driver context, libraries and allocator slack on a GPU."""
HEADROOM: Final = 0.9
"""Share of the free memory that a plan may use."""
_CPU_BYTES_PER_LOGIT: Final = 8
"""The logit in fp32 and one temporary; on a card the gradient takes the logit's place."""
RESULT_COPIES: Final = 3
"""Two checkpoints kept and one being written."""


class NvmeRoom(msgspec.Struct, frozen=True, kw_only=True):
    """The drives that training state may lie on."""

    folders: tuple[str, ...]
    """One on each drive; state is striped over them."""
    free_bytes: int
    """For state, over all of them."""
    linked: bool = True
    """Whether checkpoints in the data directory can be links to files there: they are on the same
    mount. Else the drives hold the state once, and the data directory's disk has the copies."""
    read_bytes_per_second: float
    """Of all of them together, with nothing written meanwhile."""
    write_bytes_per_second: float
    both_bytes_per_second: float = 0.0
    """Read and written together while both go on; 0 where that was not measured, and is taken for
    what the faster way does alone."""
    measured: bool
    """Whether these rates were measured here; else they are those of a common drive."""
    rated_write_bytes: float | None = None
    """What the drives are rated to take over their life; None where nobody knows."""
    rated_source: str = ""
    """Where that figure is from; empty where there is none."""
    written_bytes: float | None = None
    """What they have taken so far; None where they do not tell."""
    refused: str = ""
    """Why nothing is put there unless a job asks for it; empty where it may be."""


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What a run may use, as probed just before it starts."""

    device: str
    """`cpu` or `cuda:N`."""
    device_free_bytes: int
    """Free VRAM; ignored for `cpu`."""
    ram_available_bytes: int
    cpu_threads: int
    nvme: NvmeRoom | None = None
    """Drives for state that does not fit the RAM; None where there are none."""


class MemoryNeed(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that a plan is predicted to take at its peak, by what they are for."""

    device: Mapping[str, int]
    """Empty where the device is the CPU."""
    host: Mapping[str, int]
    disk: Mapping[str, int]

    @property
    def device_bytes(self) -> int:
        """All of the device's parts."""
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        """All of the host's parts."""
        return sum(self.host.values())

    @property
    def disk_bytes(self) -> int:
        """All of the disk's parts."""
        return sum(self.disk.values())


def usable_bytes(free: int) -> int:
    """Return how much of the free memory a plan may use."""
    return int(free * HEADROOM)


def activation_bytes_per_token(
    shape: ModelShape, policy: ActivationPolicy, width_bytes: int, *, on_cpu: bool
) -> int:
    """Return the bytes one token of a micro-batch of adapters holds at the peak of a pass.

    `keep` saves what autograd needs of every operation; `recompute` saves each layer's input, and
    has one layer at a time. The head's logits come on top.
    """
    if on_cpu:
        kept = layer_kept_elements(shape)
        if policy == "keep":
            return kept * shape.num_layers * width_bytes
        return (shape.hidden * shape.num_layers + 2 * kept) * width_bytes
    head = head_row_elements(shape, 1)
    if policy == "keep":
        beside = max(head, 2 * shape.ffn)
        return (card_kept_elements(shape) * shape.num_layers + beside) * width_bytes
    layer = max(head, card_layer_elements(shape, 1, trained=False))
    return (shape.hidden * shape.num_layers + layer) * width_bytes


def logit_bytes(shape: ModelShape, tokens: int, width_bytes: int, *, on_cpu: bool) -> int:
    """Return the bytes of the head's logits in a pass over a frozen head."""
    chunk = head_chunk_elements(shape, tokens, on_cpu=on_cpu)
    return chunk * (_CPU_BYTES_PER_LOGIT if on_cpu else width_bytes)


def too_small(
    on_cpu: bool,
    needed: int,
    free: int,
    fix: str = "Choose a smaller model, batch size or max_seq_len, or close other programs.",
) -> SlidepackError:
    """Return the refusal of a job that does not fit, with both figures.

    Args:
        on_cpu: RAM is what is missing, not VRAM.
        needed: bytes that it needs.
        free: bytes that are free.
        fix: what helps.
    """
    return SlidepackError(
        "RAM-TOO-SMALL" if on_cpu else "GPU-OUT-OF-MEMORY",
        "The job does not fit this machine's memory.",
        why=f"it needs about {needed / GIB:.1f} GiB, {free / GIB:.1f} GiB are free "
        f"and a tenth of that is held back",
        fix=fix,
    )
