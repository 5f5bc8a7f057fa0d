"""Measures the rows of the tile table for the GPU of this machine."""

from typing import Any

import torch

from slidepack.engine.bench_kernels.measure import GpuMeter, Meter
from slidepack.engine.bench_kernels.operation import Setting
from slidepack.engine.bench_kernels.run import llama_8b, versions
from slidepack.engine.tune.operations import OPERATIONS
from slidepack.engine.tune.table_file import check_writable, rendered, table_path, write_rows
from slidepack.kernels.tiles import device_class

__all__ = ["bench_tune", "tuned_rows"]


def bench_tune(*, write: bool) -> dict[str, Any]:
    """Find the best sizes for the current GPU, and put them into the table where `write` says so.

    Returns:
        The rows, the same as TOML, and the file that was written, or None.

    Raises:
        RuntimeError: there is no GPU, or no size of an operation runs on it.
        SlidepackError: DISK-UNWRITABLE or DISK-FULL.
    """
    setting = llama_8b()
    path = table_path()
    if write:
        check_writable(path)
    name = torch.cuda.get_device_name(setting.device)
    rows = tuned_rows(setting, GpuMeter(setting.device), name)
    kind = device_class(setting.device)
    if write:
        write_rows(path, kind, rows)
    return {
        "device": name,
        "device_class": kind,
        "versions": versions(),
        "operations": rows,
        "toml": rendered(kind, rows),
        "written": str(path) if write else None,
    }


def tuned_rows(setting: Setting, meter: Meter, device: str) -> dict[str, dict[str, int | str]]:
    """Return a row of sizes and `measured` for each operation of the table."""
    found = versions()
    machine = f"{device}, torch {found['torch']}, Triton {found['triton']}"
    dtype = str(setting.dtype).removeprefix("torch.")
    rows: dict[str, dict[str, int | str]] = {}
    for operation, tune in OPERATIONS.items():
        row = tune(setting, meter)
        rows[operation] = {**row.sizes, "measured": f"{row.measured} {dtype}, {machine}"}
        if setting.device.type == "cuda":
            # Each operation's tensors are gone here; a small card needs their room for the next.
            torch.cuda.empty_cache()
    return rows
