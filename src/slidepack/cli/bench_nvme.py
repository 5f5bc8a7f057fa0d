"""`slidepack bench nvme`: the tier of training state on drives against the bare drives."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from slidepack.cli.bench_process import run_benchmark
from slidepack.cli.options import Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.daemon.paths import expand_user
from slidepack.daemon.settings import data_home, folders, load_settings

__all__ = ["nvme"]

_NAMES = {"write": "writes", "read": "reads", "both": "each way at once"}


def nvme(
    folder: Annotated[
        list[str] | None,
        typer.Option(help="On the drive; several stripe. Those of the settings if left out."),
    ] = None,
    gigabytes: Annotated[
        float, typer.Option(min=0.1, help="Of each of two files, in 1e9 bytes.")
    ] = 4.0,
    chunk_megabytes: Annotated[int, typer.Option(min=1, help="Of one request of the tier.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="Of each measurement.")] = 5,
    threads: Annotated[int, typer.Option(min=1, help="In each direction.")] = 8,
    transport: Annotated[
        str, typer.Option(help="ring or kvikio; chosen as for a run if left out.")
    ] = "",
    deepspeed: Annotated[
        bool,
        typer.Option(
            "--deepspeed", help="Time DeepSpeed's drive engine too; it must be installed."
        ),
    ] = False,
    device: Annotated[str | None, typer.Option(hidden=True)] = None,
    json_output: Json = False,
) -> None:
    """Time the tier of training state on drives against the bare drives; writes some 100 GB."""
    arguments = [f"--folder={path}" for path in _folders(folder or [])]
    options = {
        "gigabytes": gigabytes,
        "chunk-megabytes": chunk_megabytes,
        "rounds": rounds,
        "threads": threads,
        "transport": transport,
        "device": device,
    }
    arguments += [f"--{name}={value}" for name, value in options.items() if value is not None]
    result = run_benchmark("nvme", *arguments, *(["--deepspeed"] if deepspeed else []))
    if json_output:
        print_json(result)
        return
    print_table(("", "bare drives", "the tier", "share"), _rows(result))
    if deepspeed:
        _show_deepspeed(result["deepspeed"])
    say(_overlap(result["overlap"]))
    say(f"{result['transport']}: {result['reason']}; in {' and '.join(result['folders'])}.")


def _folders(named: list[str]) -> list[Path]:
    if named:
        return [expand_user(folder).absolute() for folder in named]
    return list(folders(load_settings().nvme_folders)) or [data_home(os.environ)]


def _rows(result: dict[str, Any]) -> Iterator[tuple[object, ...]]:
    for name, label in _NAMES.items():
        rate = result[name]
        yield (
            label,
            f"{rate['raw_gb_s']:.2f} GB/s",
            f"{rate['tier_gb_s']:.2f} GB/s",
            f"{rate['share']:.0%}",
        )


def _show_deepspeed(found: dict[str, Any]) -> None:
    if "problem" in found:
        say(f"DeepSpeed cannot be timed: {found['problem']}.")
        return
    rows = [
        (f"{label}, {which}", f"{rate['gb_s']:.2f} GB/s", f"{rate['tier_times']:.2f} times")
        for which in ("defaults", "tuned")
        for name, label in _NAMES.items()
        for rate in (found[which][name],)
    ]
    print_table((f"DeepSpeed {found['version']}", "its rate", "the tier's"), rows)


def _overlap(found: dict[str, float]) -> str:
    return (
        f"Beside work of {found['work_seconds']:.2f} s, transfers of "
        f"{found['transfer_seconds']:.2f} s make {found['together_seconds']:.2f} s: "
        f"{found['hidden_share']:.0%} of them are hidden."
    )
