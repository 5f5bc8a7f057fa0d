"""How fast cards, links and memories are, for predictions. Torch-free.

Measured ones come from `docs/benchmarks.md`'s machine and from published runs; all others are
estimates, and say so.
"""

import re
from typing import Final

import msgspec

from slidepack.engine.memory_parts import NvmeRoom

__all__ = ["Rates", "rates_of", "with_drives"]


class Rates(msgspec.Struct, frozen=True, kw_only=True):
    """What a prediction is made with."""

    compute_flops: float
    """Sustained over a training step, recompute and attention counted."""
    link_bytes: float
    """A second, one way, with nothing the other way."""
    duplex_bytes: float
    """A second each way, both ways at once."""
    cpu_adamw_bytes: float
    """A second of memory traffic of the CPU's optimizer alone; it moves 26 bytes a parameter with
    fp32 moments, 18 with bf16, 14 with 8-bit ones."""
    memory_bytes: float
    """A second of traffic to the host's memory, optimizer and link together."""
    read_bytes: float = 2.5e9
    """A second from the drives that state lies on; both guesses are those of a common NVMe drive
    that has no fast cache left."""
    write_bytes: float = 1.5e9
    drive_bytes: float = 2.5e9
    """A second to and from those drives together, while both go on: a drive shares it out."""
    source: str
    """Where the figures are from."""
    estimated: bool
    """Whether the card is not one that was measured."""


class _Card(msgspec.Struct, frozen=True, kw_only=True):
    pattern: str
    flops: float
    link_bytes: float
    source: str
    measured: bool = False


_CARDS: Final = (
    _Card(
        pattern=r"\bH200\b",
        flops=549e12,
        link_bytes=55e9,
        source="H200: measured (21,345 tokens/s of llama-3b at 8x1024, every layer resident)",
        measured=True,
    ),
    _Card(
        pattern=r"\bRTX 4090\b(?!.*(Laptop|Mobile))",
        flops=150e12,
        link_bytes=25e9,
        source="RTX 4090: 149 to 158 TFLOP/s in published runs of SlideFormer",
        measured=True,
    ),
    _Card(
        pattern=r"\bRTX 5090\b(?!.*(Laptop|Mobile))",
        flops=190e12,
        link_bytes=51e9,
        source="RTX 5090: 190 TFLOP/s, an estimate",
    ),
    _Card(
        pattern=r"\b7900 XT\b",
        flops=60e12,
        link_bytes=25e9,
        source="RX 7900 XT: 60 TFLOP/s, an estimate",
    ),
)
_UNKNOWN_CARD_FLOPS: Final = 60e12
_CPU_FLOPS_PER_THREAD: Final = 40e9
"""fp32, sustained on a core with AVX2."""
_LINK_BYTES_PER_LANE: Final = {1: 0.2e9, 2: 0.4e9, 3: 0.78e9, 4: 1.56e9, 5: 3.3e9, 6: 6.6e9}
"""By PCI Express generation, from 25 GB/s of 4.0 x16 and 52 of 5.0 x16."""
_UNKNOWN_LINK_BYTES: Final = 25e9
_DUPLEX: Final = 47.5 / 55.0
"""Each way of a link that is busy both ways, of one that is not (measured on an H200)."""

_H200_CPU_ADAMW_BYTES: Final = 3.9e9 * 26
"""The C loop's 3.9e9 parameters a second, beside an H200."""
_H200_MEMORY_BYTES: Final = 5.25e9 * 26
"""Both optimizers at once did 5.0 to 5.5e9 parameters a second."""
_H200_COPY_BYTES: Final = 70e9
_ADAMW_OF_COPY: Final = _H200_CPU_ADAMW_BYTES / _H200_COPY_BYTES
_MEMORY_OF_COPY: Final = _H200_MEMORY_BYTES / _H200_COPY_BYTES
"""What a plain copy, read and write counted once, tells of the rest."""
_DESKTOP_MEMORY_BYTES: Final = 65e9
"""Two channels of DDR5."""


def rates_of(
    card: str,
    *,
    cpu_threads: int,
    pcie_generation: int | None = None,
    pcie_width: int | None = None,
    copy_bytes_per_second: float | None = None,
) -> Rates:
    """Return the rates of a machine.

    Args:
        card: name as the driver gives it; empty where the passes run on the CPU.
        cpu_threads: threads of the CPU's passes.
        pcie_generation: of the card's link, where it is known.
        pcie_width: its lanes.
        copy_bytes_per_second: measured rate of a plain copy in host memory, where there is one.
    """
    known = next((entry for entry in _CARDS if re.search(entry.pattern, card)), None)
    is_h200 = known is _CARDS[0]
    adamw, memory, memory_source = _memory(copy_bytes_per_second, is_h200=is_h200)
    per_lane = _LINK_BYTES_PER_LANE.get(pcie_generation or 0)
    if is_h200 and known is not None:
        link = known.link_bytes
    elif per_lane is not None and pcie_width:
        link = per_lane * pcie_width
    else:
        link = _UNKNOWN_LINK_BYTES if known is None else known.link_bytes
    if not card:
        flops, source = cpu_threads * _CPU_FLOPS_PER_THREAD, "CPU: an estimate from its cores"
    elif known is None:
        flops, source = _UNKNOWN_CARD_FLOPS, f"{card}: not known, an estimate"
    else:
        flops, source = known.flops, known.source
    return Rates(
        compute_flops=flops,
        link_bytes=link,
        duplex_bytes=link * _DUPLEX,
        cpu_adamw_bytes=adamw,
        memory_bytes=memory,
        source=f"{source}; {memory_source}",
        estimated=known is None or not known.measured,
    )


def with_drives(rates: Rates, room: NvmeRoom | None) -> Rates:
    """Return rates with those of the drives that state may lie on."""
    if room is None:
        return rates
    read, write = room.read_bytes_per_second, room.write_bytes_per_second
    both = room.both_bytes_per_second or max(read, write)
    return msgspec.structs.replace(rates, read_bytes=read, write_bytes=write, drive_bytes=both)


def _memory(copy_bytes_per_second: float | None, *, is_h200: bool) -> tuple[float, float, str]:
    """Return the memory traffic of the CPU's optimizer, of everything, and where it is from."""
    if copy_bytes_per_second is not None:
        adamw, memory = (copy_bytes_per_second * x for x in (_ADAMW_OF_COPY, _MEMORY_OF_COPY))
        return adamw, memory, "host memory: from a measured copy"
    if is_h200:
        return _H200_CPU_ADAMW_BYTES, _H200_MEMORY_BYTES, "host memory: measured beside it"
    guess = _DESKTOP_MEMORY_BYTES
    return guess, guess, "host memory: guessed as two channels of DDR5"
