"""A measurement's state on a drive."""

import resource
from pathlib import Path

from slidepack.engine.bench_slide.options import SlideOptions
from slidepack.engine.contract.job import NvmeUse
from slidepack.engine.contract.plan import FullPlan
from slidepack.engine.memory_nvme import Placement
from slidepack.engine.nvme.choose import open_transport
from slidepack.engine.nvme.failures import folder_error
from slidepack.engine.shape import ModelShape
from slidepack.engine.sliding.tier_store import TierSetup
from slidepack.engine.tier_folders import bench_folder, remove_dead, take_folder

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
    """Return what the state is told of the drive; None where all is in RAM.

    What measurements that were killed left there is removed.

    Raises:
        SlidepackError: DISK-UNWRITABLE, DISK-FULL or DISK-FAILED.
    """
    if full.nvme is None:
        return None
    assert options.nvme_folder is not None
    drive = Path(options.nvme_folder)
    folder = bench_folder(drive)
    try:
        # The lock is this process's as long as it lives; the store takes the folder with it.
        take_folder(folder)
    except OSError as error:
        raise folder_error(error, drive, folder) from error
    remove_dead(drive)
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
