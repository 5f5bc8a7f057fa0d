"""Cards that plans can be made for without one at hand: none of these figures is measured here."""

from typing import Final

import msgspec

__all__ = ["CARDS", "Card", "free_bytes"]

_DRIVER_BYTES: Final = 600_000_000
"""Of a card that nobody else uses."""
_PEAK_SHARE: Final = 0.55
"""Of the dense bf16 peak, that training reaches."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A card by its data sheet."""

    tflops: float
    """Dense bf16 peak."""
    memory_gb: float
    """In units of 1e9 bytes."""

    @property
    def flops(self) -> float:
        """Sustained over a training step."""
        return _PEAK_SHARE * self.tflops * 1e12

    @property
    def free_bytes(self) -> int:
        """What is left beside the driver."""
        return free_bytes(self.memory_gb)


def free_bytes(memory_gb: float) -> int:
    """Return what is free on a card of so much memory that nobody uses, in bytes.

    Args:
        memory_gb: in units of 1e9 bytes.
    """
    return max(0, round(memory_gb * 1e9) - _DRIVER_BYTES)


CARDS: Final = {
    "A100-40": Card(tflops=312.0, memory_gb=40.0),
    "RTX 3090": Card(tflops=71.0, memory_gb=24.0),
    "RTX 4090": Card(tflops=165.0, memory_gb=24.0),
    "RX 7900 XTX": Card(tflops=123.0, memory_gb=24.0),
    "A10": Card(tflops=125.0, memory_gb=24.0),
}
