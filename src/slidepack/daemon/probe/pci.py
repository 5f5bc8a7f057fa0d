"""Display controllers on the PCI bus, whether or not a driver holds them."""

from pathlib import Path
from typing import Final

from slidepack.daemon.probe.kernel_files import list_names, read_int

NVIDIA_VENDOR_ID: Final = 0x10DE
AMD_VENDOR_ID: Final = 0x1002

_DISPLAY_CLASS: Final = 0x03


def display_controllers(root: Path, vendor_id: int) -> tuple[str, ...]:
    """Return the PCI addresses of a vendor's display controllers, in bus order."""
    devices = root / "sys" / "bus" / "pci" / "devices"
    return tuple(
        address
        for address in list_names(devices)
        if read_int(devices / address / "vendor") == vendor_id
        and (read_int(devices / address / "class") or 0) >> 16 == _DISPLAY_CLASS
    )
