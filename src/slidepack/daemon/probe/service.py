"""Whether the daemon is installed as this user's service, and outlives a logout."""

from pathlib import Path

import msgspec

from slidepack.daemon.system.unit_file import UNIT_NAME


class ServiceInfo(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="kind",
    tag="service",
):
    """The user's service, from its files alone."""

    user: str
    unit: str
    """Its file; empty where there is none."""
    enabled: bool
    """Whether it starts with a login."""
    lingers: bool
    """Whether it starts with the machine and goes on without a login."""


def read_service(root: Path, folder: Path, user: str) -> ServiceInfo:
    """Look for the files that `slidepack service install` leaves.

    Args:
        root: the file system's root; holds `var`.
        folder: of the user's units.
        user: by name.
    """
    unit = folder / UNIT_NAME
    return ServiceInfo(
        user=user,
        unit=str(unit) if unit.is_file() else "",
        # A link, which is there even where its target is not.
        enabled=(folder / "default.target.wants" / UNIT_NAME).is_symlink(),
        lingers=(root / "var" / "lib" / "systemd" / "linger" / user).exists(),
    )
