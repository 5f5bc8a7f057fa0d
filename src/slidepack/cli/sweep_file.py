"""A sweep file: what is tried, as TOML."""

import codecs
from pathlib import Path

import msgspec

from slidepack.daemon.sweeps.members import check_settings, expand, settings_of
from slidepack.daemon.sweeps.request import SweepPlan
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["check_members", "read_plan"]


def read_plan(path: Path) -> SweepPlan:
    """Return what a sweep file asks for.

    Raises:
        SlidepackError: RUN-SPEC-INVALID: it cannot be read, or has unknown fields.
    """
    try:
        # Editors of Windows write a byte-order mark, which TOML does not know.
        text = path.read_bytes().removeprefix(codecs.BOM_UTF8)
        return msgspec.toml.decode(text, type=SweepPlan)
    except (OSError, msgspec.DecodeError) as error:
        known = ", ".join(SweepPlan.__struct_fields__)
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The sweep file cannot be read.",
            why=f"{path}: {error}",
            fix=f"It is TOML with {known}.",
        ) from error


def check_members(plan: SweepPlan) -> None:
    """Refuse what the daemon would refuse, before a large data file is sent to it.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    for assignment in expand(plan):
        check_settings(settings_of(plan, assignment))
