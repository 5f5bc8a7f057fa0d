"""What surrounds the hardware: limits, environment, packages, swap, power, the disk's real speed.

It takes seconds and writes to the disk, so only the `doctor` command asks for it.
"""

import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

import slidepack
from slidepack.daemon.probe.clock import clock_synchronised
from slidepack.daemon.probe.disk_speed import DiskSpeed, DiskUnmeasured, measure_disk
from slidepack.daemon.probe.environment import Environment, read_environment
from slidepack.daemon.probe.limits import Limits, read_limits
from slidepack.daemon.probe.packages import Packages, SearchPath, read_packages, search_path
from slidepack.daemon.probe.power import ASK_SECONDS, PowerInfo, read_power
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import settle
from slidepack.daemon.probe.running_daemon import daemon_pid
from slidepack.daemon.probe.service import ServiceInfo, read_service
from slidepack.daemon.probe.virtual_memory import VirtualMemory, read_virtual_memory
from slidepack.daemon.probe.wsl_config import WslConfig, read_wsl_configs
from slidepack.daemon.system.logind import Logind

_PACKAGE: Final = Path(slidepack.__path__[0])


class SetupReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The surroundings, item by item; a `ProbeProblem` stands where one could not be read."""

    daemon_pid: int | None
    """The daemon that runs on the data directory; limits and environment are then its own."""
    limits: Limits | ProbeProblem
    environment: Environment | ProbeProblem
    packages: Packages | ProbeProblem
    virtual_memory: VirtualMemory | ProbeProblem
    disk_speed: DiskSpeed | DiskUnmeasured | ProbeProblem
    power: PowerInfo | ProbeProblem
    service: ServiceInfo | ProbeProblem
    clock_synchronised: bool | None
    """None where the kernel does not say."""
    nvidia_fs: bool
    """Whether the kernel has NVIDIA's module for GPUDirect Storage."""
    wsl_configs: tuple[WslConfig, ...]


class SetupSources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the probe looks. The defaults are this machine; tests put others in their place."""

    root: Path = Path("/")
    environment: Mapping[str, str] = msgspec.field(default_factory=lambda: os.environ)
    search: Callable[[str], SearchPath] = search_path
    measure: Callable[[Path], DiskSpeed | DiskUnmeasured] = measure_disk
    power: Callable[[Path], PowerInfo] = lambda root: read_power(root, Logind(seconds=ASK_SECONDS))
    clock: Callable[[], bool | None] = clock_synchronised


def probe_setup(data_dir: Path, sources: SetupSources | None = None) -> SetupReport:
    """Probe the surroundings; an item that fails leaves the rest standing.

    Args:
        data_dir: where runs are kept; its drive is measured. It need not exist yet.
        sources: where to look; None is this machine.
    """
    places = sources or SetupSources()
    root = places.root
    pid = daemon_pid(root, data_dir)
    environment = settle("environment", lambda: read_environment(root, pid, places.environment))
    pythonpath = ""
    if isinstance(environment, Environment):
        pythonpath = environment.variables.get("PYTHONPATH", "")
    return SetupReport(
        daemon_pid=pid,
        limits=settle("limits", lambda: read_limits(root, pid)),
        environment=environment,
        packages=settle("packages", lambda: read_packages(places.search(pythonpath), _PACKAGE)),
        virtual_memory=settle("virtual_memory", lambda: read_virtual_memory(root)),
        disk_speed=settle("disk_speed", lambda: places.measure(data_dir)),
        power=settle("power", lambda: places.power(root)),
        service=settle("service", lambda: _service(root, places.environment)),
        clock_synchronised=places.clock(),
        nvidia_fs=(root / "proc" / "driver" / "nvidia-fs").exists(),
        wsl_configs=read_wsl_configs(root),
    )


def _service(root: Path, environment: Mapping[str, str]) -> ServiceInfo:
    config = environment.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    return read_service(root, Path(config) / "systemd" / "user", _user_name())


def _user_name() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError as error:
        raise ValueError(f"user {os.getuid()} has no name") from error
