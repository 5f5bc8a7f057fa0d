"""A measurement's state on a drive."""

import resource
import tempfile
from pathlib import Path

from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.bench_slide.plan import SlidePlan
from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.tier_layout import TIER_CHUNK, spread
from slidepack.engine.sliding.tier_store import TierSetup

__all__ = ["bench_tier", "cap_ram", "tier_rows"]


def bench_tier(options: SlideOptions, units: int) -> TierSetup | None:
    """Return what the state is told of the drive; None where all is in RAM."""
    if options.nvme_folder is None:
        return None
    chosen = _chosen(units, options.nvme_share)
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.nvme_folder))
    return TierSetup(
        folders=(folder,),
        moments=chosen,
        master=chosen,
        transport=open_transport(device_memory=options.optimizer == "gpu"),
        chunk=TIER_CHUNK,
    )


def tier_rows(options: SlideOptions, shape: ModelShape, plan: SlidePlan) -> frozenset[int]:
    """Return the layers whose inputs are on the drive."""
    if options.nvme_folder is None or plan.full.rows == "device":
        return frozenset()
    return _chosen(shape.num_layers, options.nvme_share)


def _chosen(count: int, share: float) -> frozenset[int]:
    return frozenset(index for index, chosen in enumerate(spread(count, share)) if chosen)


def cap_ram(options: SlideOptions) -> None:
    """Make the system refuse this process more memory for data than asked for."""
    if options.ram_cap_gb is not None:
        most = int(options.ram_cap_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
