"""The tier against the bare drives, in the same minute, as `slidepack bench nvme` prints it."""

import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from slidepack.engine.bench_nvme.deepspeed import Swaps, aio_settings, open_deepspeed
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


_Way = Callable[[TierFile | None, TierFile | None], float]
"""Reads one file and writes the other, whole, and returns the seconds; either may be None."""


@dataclass(slots=True)
class _Rounds:
    """Seconds of each way to move the same bytes, round by round."""

    num_bytes: int
    seconds: dict[str, list[float]]

    def gb_s(self, way: str) -> float:
        """Return the median rate in 1e9 bytes a second."""
        return self.num_bytes / statistics.median(self.seconds[way]) / 1e9

    def share(self, way: str, of: str) -> float:
        """Return which share of another's rate one reaches: the median of the rounds' shares."""
        return statistics.median(self.shares(way, of))

    def shares(self, way: str, of: str) -> list[float]:
        """Return the shares round by round: what drives do changes from one minute to the next."""
        return [other / own for own, other in zip(self.seconds[way], self.seconds[of], strict=True)]

    def report(self) -> dict[str, Any]:
        """Return the tier beside the bare drives."""
        return {
            "raw_gb_s": self.gb_s("raw"),
            "tier_gb_s": self.gb_s("tier"),
            "share": self.share("tier", "raw"),
            "shares": self.shares("tier", "raw"),
        }

    def beside(self, way: str) -> dict[str, float]:
        """Return another way, and how many times as fast the tier is."""
        return {"gb_s": self.gb_s(way), "tier_times": self.share("tier", way)}


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
        ways: dict[str, _Way] = {
            "tier": lambda source, target: tier_seconds(transport, stages, source, target),
            "raw": bare.seconds,
        }
        theirs, deepspeed = _deepspeed(options, stack)
        try:
            rates = _rates(options, ways | theirs, reads, writes)
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
            **{name: rounds.report() for name, rounds in rates.items()},
            "deepspeed": deepspeed
            | {way: {name: rounds.beside(way) for name, rounds in rates.items()} for way in theirs},
            "overlap": overlap,
            "device": torch.cuda.get_device_name(device) if work.on_card else "cpu",
            "pinned": stages.slab.pinned,
        }


def _deepspeed(options: NvmeOptions, stack: ExitStack) -> tuple[dict[str, _Way], dict[str, str]]:
    """Return DeepSpeed's ways, none where it cannot be used, and what is to be said of it."""
    if not options.deepspeed:
        return {}, {"problem": "not asked for"}
    found = open_deepspeed()
    if isinstance(found, str):
        return {}, {"problem": found}
    ways: dict[str, _Way] = {}
    for name, settings in aio_settings(options).items():
        swaps = Swaps(found, settings, options.file_bytes)
        stack.callback(swaps.close)
        ways[name] = swaps.seconds
    return ways, {"version": found.version}


def _rates(
    options: NvmeOptions, ways: dict[str, _Way], reads: TierFile, writes: TierFile
) -> dict[str, _Rounds]:
    files = {"write": (None, writes), "read": (reads, None), "both": (reads, writes)}
    rates = {name: _Rounds(options.file_bytes, {way: [] for way in ways}) for name in files}
    for turn in range(options.rounds):
        for name, (source, target) in files.items():
            # Who begins changes: a drive that was just busy is slower.
            for way in reversed(ways) if turn % 2 else ways:
                rates[name].seconds[way].append(ways[way](source, target))
    return rates


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
