"""The PCI Express link of a card, from sysfs."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from slidepack.daemon.probe.kernel_files import read_int, read_text

_GENERATION_BY_SPEED: Final = {
    "2.5": 1,
    "5.0": 2,
    "5": 2,
    "8.0": 3,
    "8": 3,
    "16.0": 4,
    "16": 4,
    "32.0": 5,
    "32": 5,
    "64.0": 6,
    "64": 6,
}
"""Kernels differ in whether they write the decimal of GT/s."""


class PcieLink(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Generation and lanes, now and at most; None where the kernel does not say."""

    generation: int | None
    generation_max: int | None
    width: int | None
    width_max: int | None


def read_link(device: Path) -> PcieLink:
    """Return the narrowest link between a device's sysfs folder and the root of the bus.

    AMD's desktop cards sit behind a bridge of their own, to which their link is always full; the
    slot shows only further up.
    """
    path = tuple(_links(device))
    return PcieLink(
        generation=_least(_generation(folder / "current_link_speed") for folder in path),
        generation_max=_least(_generation(folder / "max_link_speed") for folder in path),
        width=_least(read_int(folder / "current_link_width") for folder in path),
        width_max=_least(read_int(folder / "max_link_width") for folder in path),
    )


def _links(device: Path) -> Iterator[Path]:
    folder = device.resolve()
    while (folder / "current_link_speed").exists():
        yield folder
        folder = folder.parent


def _generation(path: Path) -> int | None:
    match = re.match(r"([\d.]+) GT/s", read_text(path) or "")
    return _GENERATION_BY_SPEED.get(match[1]) if match else None


def _least(values: Iterator[int | None]) -> int | None:
    # The kernel writes a width of 0 or 255 for a link that is down or unknown.
    return min((value for value in values if value and value < 255), default=None)
