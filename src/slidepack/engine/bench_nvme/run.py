"""The tier against the bare drives, in the same minute, as `slidepack bench nvme` prints it."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from slidepack.engine.bench_nvme.options import NvmeOptions
from slidepack.engine.bench_nvme.raw import Raw
from slidepack.engine.bench_nvme.tier import Stages, Work, tier_seconds, update_seconds
from slidepack.engine.nvme.choose import open_transport, require_room
from slidepack.engine.nvme.failures import disk_error
from slidepack.engine.nvme.files import TierFile
from slidepack.engine.nvme.transport import Transport

__all__ = ["bench_nvme"]

_LONG_ENOUGH: Final = 1.25
"""How much longer the work of a chunk takes than its transfers, to see how much of them it
hides."""


@dataclass(slots=True)
class _Pair:
    """Seconds of the bare drives and of the tier, round by round."""

    raw: list[float] = field(default_factory=list)
    tier: list[float] = field(default_factory=list)

    def report(self, num_bytes: int) -> dict[str, Any]:
        """Return GB/s, and the share that the tier reaches: the median of the rounds' shares."""
        shares = [raw / tier for raw, tier in zip(self.raw, self.tier, strict=True)]
        return {
            "raw_gb_s": num_bytes / statistics.median(self.raw) / 1e9,
            "tier_gb_s": num_bytes / statistics.median(self.tier) / 1e9,
            "share": statistics.median(shares),
            "shares": shares,
        }


def bench_nvme(options: NvmeOptions) -> dict[str, Any]:
    """Measure reads, writes, both at once, and an update beside work that is long enough.

    Returns:
        The measurement; rates are in 1e9 bytes a second each way.

    Raises:
        SlidepackError: DISK-FULL, DISK-UNWRITABLE or DISK-FAILED.
    """
    device = torch.device(options.device)
    with ExitStack() as stack:
        folders = [stack.enter_context(_folder(folder)) for folder in options.folders]
        require_room(folders, [options.file_bytes] * 2)
        reads, writes = (
            stack.enter_context(_file(folders, name, options.file_bytes))
            for name in ("read", "written")
        )
        transport = open_transport(
            device_memory=False, wanted=options.transport, threads=options.threads
        )
        stack.callback(transport.close)
        stages = Stages(options.chunk_bytes, pin=device.type == "cuda")
        stack.callback(stages.slab.close)
        # An allocated file that was never written is read without its drive.
        tier_seconds(transport, stages, None, reads)
        tier_seconds(transport, stages, None, writes)
        bare = Raw(
            request_bytes=options.raw_request_bytes,
            threads=options.threads,
            pin=device.type == "cuda",
        )
        stack.callback(bare.slab.close)
        try:
            rates = _rates(options, bare, transport, stages, reads, writes)
        except OSError as error:
            raise disk_error(error, "read or write", folders[0]) from error
        work = Work(device, options.chunk_bytes)
        overlap = _overlap(options, transport, stages, reads, writes, work)
        return {
            "folders": [str(folder) for folder in options.folders],
            "transport": transport.name,
            "reason": transport.reason,
            "direct": reads.direct and writes.direct,
            "file_bytes": options.file_bytes,
            "chunk_bytes": options.chunk_bytes,
            "raw_request_bytes": options.raw_request_bytes,
            "threads": options.threads,
            "rounds": options.rounds,
            **{name: pair.report(options.file_bytes) for name, pair in rates.items()},
            "overlap": overlap,
            "device": torch.cuda.get_device_name(device) if work.on_card else "cpu",
            "pinned": stages.slab.pinned,
        }


def _rates(
    options: NvmeOptions,
    bare: Raw,
    transport: Transport,
    stages: Stages,
    reads: TierFile,
    writes: TierFile,
) -> dict[str, _Pair]:
    files = {"write": (None, writes), "read": (reads, None), "both": (reads, writes)}
    pairs = {name: _Pair() for name in files}
    for turn in range(options.rounds):
        for name, (source, target) in files.items():
            raw, tier = pairs[name].raw, pairs[name].tier
            # Who begins changes: a drive that was just busy is slower.
            for which in ("raw", "tier") if turn % 2 else ("tier", "raw"):
                if which == "tier":
                    tier.append(tier_seconds(transport, stages, source, target))
                    continue
                raw.append(bare.seconds(source, target))
    return pairs


def _overlap(
    options: NvmeOptions,
    transport: Transport,
    stages: Stages,
    reads: TierFile,
    writes: TierFile,
    work: Work,
) -> dict[str, Any]:
    """Return how much of the transfers work hides that takes longer than they do."""
    alone, beside, hidden, transfers = [], [], [], []
    for _ in range(options.rounds):
        moved = tier_seconds(transport, stages, reads, writes)
        work.calibrate(_LONG_ENOUGH * moved / options.chunks)
        only = _timed(lambda: _work_alone(work, stages, options.chunks))
        both = update_seconds(transport, stages, reads, writes, work)
        transfers.append(moved)
        alone.append(only)
        beside.append(both)
        hidden.append(max(0.0, 1.0 - max(0.0, both - only) / moved))
    return {
        "transfer_seconds": statistics.median(transfers),
        "work_seconds": statistics.median(alone),
        "together_seconds": statistics.median(beside),
        "hidden_share": statistics.median(hidden),
        "hidden_shares": hidden,
    }


def _work_alone(work: Work, stages: Stages, chunks: int) -> None:
    for chunk in range(chunks):
        work.on_chunk(stages.chunks[chunk % len(stages.chunks)])
    work.wait()


def _timed(call: Callable[[], None]) -> float:
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun


@contextmanager
def _folder(parent: Path) -> Iterator[Path]:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix="slidepack-bench-", dir=parent))
    except OSError as error:
        raise disk_error(error, "write", parent) from error
    try:
        yield made
    finally:
        shutil.rmtree(made)


@contextmanager
def _file(folders: list[Path], name: str, num_bytes: int) -> Iterator[TierFile]:
    file = TierFile.create([folder / name for folder in folders], num_bytes)
    try:
        yield file
    finally:
        file.close()
