"""The hardware report: every item, or what kept it from being read."""

import grp
import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import pynvml

from slidepack.daemon.probe.amd import AmdInfo, read_amd
from slidepack.daemon.probe.cpu import CpuInfo, read_cpu
from slidepack.daemon.probe.drives import Drives, read_drives
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.memory import MemoryInfo, read_memory
from slidepack.daemon.probe.nvidia import NvidiaInfo, Nvml, read_nvidia
from slidepack.daemon.probe.problem import ProbeFailure, ProbeProblem
from slidepack.daemon.probe.software import SoftwareInfo, SoftwareProbe, torch_report_command
from slidepack.daemon.probe.tier import Tier
from slidepack.daemon.probe.wsl import WslInfo, read_wsl

T = TypeVar("T")


class HardwareReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """This machine, item by item; a `ProbeProblem` stands where an item could not be read."""

    nvidia: NvidiaInfo | ProbeProblem
    amd: AmdInfo | ProbeProblem
    cpu: CpuInfo | ProbeProblem
    memory: MemoryInfo | ProbeProblem
    drives: Drives | ProbeProblem
    wsl: WslInfo | ProbeProblem
    software: SoftwareInfo | ProbeProblem | None
    """None where the slow software probe was left out."""
    tier: Tier | ProbeProblem | None = None
    """None where nobody asked what the settings allow."""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Every card that a driver shows, NVIDIA's first."""
        vendors = (self.nvidia, self.amd)
        return tuple(
            gpu for vendor in vendors if not isinstance(vendor, ProbeProblem) for gpu in vendor.gpus
        )

    @property
    def problems(self) -> tuple[ProbeProblem, ...]:
        """The items that could not be read."""
        items = (getattr(self, name) for name in self.__struct_fields__)
        return tuple(item for item in items if isinstance(item, ProbeProblem))


class ProbeSources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the probe looks. The defaults are this machine; tests put others in their place."""

    root: Path = Path("/")
    """The file system's root; holds `proc`, `sys`, `dev` and `usr`."""
    nvml: Nvml = pynvml
    load_amdsmi: Callable[[str], object] | None = importlib.import_module
    software_command: Sequence[str] = ()
    """Empty runs `slidepack.engine.torch_report` with this Python."""


def probe_hardware(
    data_dir: Path, *, software: bool, sources: ProbeSources | None = None
) -> HardwareReport:
    """Probe this machine; an item that fails leaves the rest standing.

    Args:
        data_dir: where runs are kept; decides which drive matters. It need not exist yet.
        software: whether to ask torch as well, in a child process. That takes seconds; the
            rest takes a fraction of one.
        sources: where to look; None is this machine.
    """
    places = sources or ProbeSources()
    root = places.root
    home = Path(os.path.expanduser("~"))
    command = places.software_command or torch_report_command()
    return HardwareReport(
        nvidia=settle("nvidia", lambda: read_nvidia(places.nvml, root)),
        amd=settle("amd", lambda: read_amd(root, own_groups(), load_amdsmi=places.load_amdsmi)),
        cpu=settle("cpu", lambda: read_cpu(root)),
        memory=settle("memory", lambda: read_memory(root)),
        drives=settle("drives", lambda: read_drives(root, data_dir, home)),
        wsl=settle("wsl", lambda: read_wsl(root)),
        software=settle("software", SoftwareProbe(command).ask) if software else None,
    )


def own_groups() -> frozenset[str]:
    """Return the names of the groups that this process is in; a nameless group is left out."""
    mine = {*os.getgroups(), os.getegid()}
    return frozenset(group.gr_name for group in grp.getgrall() if group.gr_gid in mine)


def settle(item: str, read: Callable[[], T]) -> T | ProbeProblem:
    """Return what a reader reads, or what kept it from reading."""
    try:
        return read()
    except ProbeFailure as failure:
        return ProbeProblem(item=item, what=failure.what, why=failure.why, fix=failure.fix)
    except (OSError, ValueError) as error:
        return ProbeProblem(
            item=item,
            what=f"The {item} item could not be read.",
            why=f"{type(error).__name__}: {error}",
            fix="Check that /proc and /sys are mounted and readable for this user.",
        )
