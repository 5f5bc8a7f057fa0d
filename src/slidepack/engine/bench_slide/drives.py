"""A measurement's state on a drive."""

import resource
import tempfile
from pathlib import Path

from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.contract.job import NvmeUse
from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory_nvme import Placement
from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.tier_store import TierSetup

__all__ = ["bench_tier", "cap_ram", "with_drive"]


def with_drive(
    options: SlideOptions, shape: ModelShape, full: FullPlan, micro_tokens: int, *, on_cpu: bool
) -> FullPlan:
    """Return a plan with what is asked to be on a drive, placed as a run places it."""
    if options.nvme_folder is None:
        return full
    share = options.nvme_share
    rows = share if full.rows == "host" else 0.0
    use = NvmeUse(moments=share, master=share, rows=rows)
    return Placement(shape, use, (options.nvme_folder,), on_cpu=on_cpu).asked(full, micro_tokens)


def bench_tier(options: SlideOptions, full: FullPlan) -> TierSetup | None:
    """Return what the state is told of the drive; None where all is in RAM."""
    if full.nvme is None:
        return None
    folder = Path(tempfile.mkdtemp(prefix="bench-", dir=options.nvme_folder))
    return TierSetup(
        folders=(folder,),
        moments=frozenset(full.nvme.moments),
        master=frozenset(full.nvme.master),
        transport=open_transport(device_memory=options.optimizer == "gpu"),
        chunk=full.nvme.chunk_elements,
    )


def cap_ram(options: SlideOptions) -> None:
    """Make the system refuse this process more memory for data than asked for."""
    if options.ram_cap_gb is not None:
        most = int(options.ram_cap_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
