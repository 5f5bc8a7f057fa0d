"""`slidepack doctor`: look at this machine and say what stands in the way of training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from slidepack.cli.output import print_json
from slidepack.daemon.doctor.describe import machine_facts, pcie_link
from slidepack.daemon.doctor.finding import Finding, Level, gib
from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.probe.drives import Drives
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.report import HardwareReport, probe_hardware
from slidepack.daemon.probe.setup import SetupReport, probe_setup

_MARKS: Final[dict[Level, tuple[str, str]]] = {
    "ok": ("✓", "green"),
    "note": ("•", "yellow"),
    "problem": ("✗", "bold red"),
}
_UNKNOWN: Final = "n/a"
_MAX_PROCESSES: Final = 3


class DoctorOutput(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What `doctor --json` prints."""

    hardware: HardwareReport
    setup: SetupReport
    findings: tuple[Finding, ...]


def doctor(json_output: bool, data_dir: Path) -> int:
    """Probe this machine and print the result to stdout; a spinner goes to stderr.

    Returns:
        The exit code: 1 where a finding is a problem, else 0.
    """
    if json_output:
        report, setup, found = _examine(data_dir)
        print_json(DoctorOutput(hardware=report, setup=setup, findings=found), indent=2)
    else:
        with Console(stderr=True).status("Looking at the hardware, PyTorch and the disk…"):
            report, _, found = _examine(data_dir)
        print_report(report, found, Console())
    return 1 if any(finding.level == "problem" for finding in found) else 0


def _examine(data_dir: Path) -> tuple[HardwareReport, SetupReport, tuple[Finding, ...]]:
    report = probe_hardware(data_dir, software=True)
    setup = probe_setup(data_dir)
    return report, setup, findings(report, setup)


def print_report(report: HardwareReport, found: Sequence[Finding], console: Console) -> None:
    """Print the cards, the machine, the drives, and then the findings."""
    if report.gpus:
        console.print(_gpu_table(report.gpus))
    console.print(_machine_grid(report))
    if isinstance(report.drives, Drives) and report.drives.drives:
        console.print(_drive_table(report.drives))
    console.print(_findings_grid(found))
    console.print(_verdict(found))


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
        header_style="dim",
    )


def _gpu_table(gpus: Sequence[Gpu]) -> Table:
    table = _table("Graphics cards")
    table.add_column("Card", overflow="fold")
    table.add_column("VRAM free / total", justify="right")
    table.add_column("Driver", overflow="fold")
    table.add_column("PCIe")
    table.add_column("Heat", justify="right")
    table.add_column("Load", justify="right")
    table.add_column("Used by", overflow="fold")
    for gpu in gpus:
        table.add_row(
            Text(gpu.name),
            f"{_size(gpu.vram_free_bytes)} / {_size(gpu.vram_total_bytes)}",
            Text(gpu.driver_version),
            pcie_link(gpu),
            _UNKNOWN if gpu.temperature_celsius is None else f"{gpu.temperature_celsius} °C",
            _UNKNOWN if gpu.utilisation_percent is None else f"{gpu.utilisation_percent} %",
            _users(gpu),
        )
    return table


def _users(gpu: Gpu) -> Text:
    if not gpu.processes:
        return Text("nobody", style="dim")
    by_size = sorted(gpu.processes, key=lambda process: process.used_bytes or 0, reverse=True)
    lines = [
        f"{process.name or 'unknown'} ({process.pid})"
        + ("" if process.used_bytes is None else f" {gib(process.used_bytes)}")
        for process in by_size[:_MAX_PROCESSES]
    ]
    if len(by_size) > _MAX_PROCESSES:
        lines.append(f"and {len(by_size) - _MAX_PROCESSES} more")
    return Text("\n".join(lines))


def _machine_grid(report: HardwareReport) -> Group:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in machine_facts(report):
        if value:
            grid.add_row(label, Text(value))
    return Group(Text("Machine", style="bold"), grid, Text())


def _drive_table(drives: Drives) -> Table:
    table = _table("Drives")
    table.add_column("Mounted at", overflow="fold")
    table.add_column("Device", overflow="fold")
    table.add_column("Kind")
    table.add_column("Format")
    table.add_column("Free / total", justify="right")
    table.add_column("Holds")
    for drive in drives.drives:
        held = {"data": drive.holds_data_dir, "home": drive.holds_home}
        table.add_row(
            Text(drive.mount),
            Text(drive.device),
            drive.kind,
            drive.fs_type,
            f"{gib(drive.free_bytes)} / {gib(drive.total_bytes)}",
            ", ".join(name for name, holds in held.items() if holds),
        )
    return table


def _findings_grid(found: Sequence[Finding]) -> Group:
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in found:
        mark, style = _MARKS[finding.level]
        body = Text(finding.title, style="" if finding.level == "ok" else "bold")
        if finding.evidence:
            body.append(f"\n{finding.evidence}", style="not bold dim")
        if finding.fix:
            body.append(f"\n→ {finding.fix}", style="not bold")
        grid.add_row(Text(mark, style=style), body)
    return Group(Text("Findings", style="bold"), grid, Text())


def _verdict(found: Sequence[Finding]) -> Text:
    problems = sum(finding.level == "problem" for finding in found)
    if not problems:
        return Text("Ready to train.", style="bold green")
    return Text(f"{problems} problem{'s' if problems > 1 else ''} to solve.", style="bold red")


def _size(num_bytes: int | None) -> str:
    return _UNKNOWN if num_bytes is None else gib(num_bytes)
