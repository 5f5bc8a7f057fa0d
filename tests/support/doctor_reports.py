"""Hardware reports and surroundings of machines that nothing is wrong with, to be spoilt."""

from typing import Any

import msgspec

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.probe.amd import AmdInfo
from slidepack.daemon.probe.cpu import CpuInfo
from slidepack.daemon.probe.disk_speed import DiskSpeed
from slidepack.daemon.probe.drives import Drive, Drives
from slidepack.daemon.probe.environment import Environment
from slidepack.daemon.probe.gpu import Gpu, GpuProcess
from slidepack.daemon.probe.limits import Limits
from slidepack.daemon.probe.memory import MemoryInfo
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.packages import Packages
from slidepack.daemon.probe.power import PowerInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.service import ServiceInfo
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.software import (
    KvikioBuild,
    SoftwareInfo,
    TorchBuild,
    TorchDevice,
    TritonBuild,
)
from slidepack.daemon.probe.virtual_memory import SwapArea, VirtualMemory
from slidepack.daemon.probe.wsl import WslInfo

GIB = 1 << 30
replace = msgspec.structs.replace

RTX = Gpu(
    vendor="nvidia",
    index=0,
    uuid="GPU-0",
    name="NVIDIA GeForce RTX 4090",
    pci_address="0000:01:00.0",
    architecture="sm_89",
    driver_version="570.1",
    vram_total_bytes=24 * GIB,
    vram_free_bytes=20 * GIB,
    pcie_generation=1,
    pcie_generation_max=4,
    pcie_width=16,
    pcie_width_max=16,
    temperature_celsius=40,
    utilisation_percent=3,
    processes=(GpuProcess(pid=7, name="game [beta]", used_bytes=3 * GIB),),
)
RADEON = replace(RTX, vendor="amd", name="AMD Radeon RX 7900 XTX", processes=())
APU = replace(RADEON, name="AMD Radeon Graphics", vram_total_bytes=GIB // 2)

DEVICE = TorchDevice(
    index=0,
    name="NVIDIA GeForce RTX 4090",
    uuid="GPU-0",
    pci_address="0000:01:00.0",
    architecture="sm_89",
    total_bytes=24 * GIB,
    free_bytes=20 * GIB,
    supported=True,
    problem="",
)
CUDA = TorchBuild(
    version="2.11.0+cu128",
    build="cuda",
    build_version="12.8",
    arch_list=("sm_80", "sm_90"),
    devices=(DEVICE,),
    warnings=(),
    problem="",
)
CPU_TORCH = replace(
    CUDA, version="2.11.0+cpu", build="cpu", build_version="", arch_list=(), devices=()
)
DRIVE = Drive(
    mount="/home",
    device="/dev/nvme0n1p2",
    fs_type="ext4",
    kind="nvme",
    total_bytes=1000 * GIB,
    free_bytes=500 * GIB,
    read_only=False,
    holds_data_dir=True,
    holds_home=True,
)
NO_AMD = AmdInfo(gpus=(), kfd_access="missing", missing_groups=())
NO_NVIDIA = NvidiaInfo(driver_version="", cuda_version="", cards_on_bus=(), gpus=())
MEMORY = MemoryInfo(
    total_bytes=64 * GIB,
    available_bytes=50 * GIB,
    swap_total_bytes=0,
    swap_free_bytes=0,
    cgroup_limit_bytes=None,
    memlock_bytes=None,
)
HEALTHY = HardwareReport(
    nvidia=NvidiaInfo(
        driver_version="570.1", cuda_version="12.8", cards_on_bus=("0000:01:00.0",), gpus=(RTX,)
    ),
    amd=NO_AMD,
    cpu=CpuInfo(
        model="AMD Ryzen 9 7950X",
        physical_cores=16,
        logical_cores=32,
        allowed_cores=8,
        quota_cores=4.0,
        extensions=("avx2", "avx512f"),
    ),
    memory=MEMORY,
    drives=Drives(drives=(DRIVE,)),
    wsl=WslInfo(version="no", kernel="6.8.0"),
    software=SoftwareInfo(
        python="3.11.9",
        visible_devices="",
        torch=CUDA,
        triton=TritonBuild(version="3.6.0", problem=""),
        kvikio=KvikioBuild(version="", gds_available=False, problem="not installed"),
    ),
)

SWAP = SwapArea(path="/swapfile", kind="nvme", size_bytes=8 * GIB, used_bytes=GIB)
SETTLED = SetupReport(
    daemon_pid=None,
    limits=Limits(
        whose="shell",
        open_files=1024,
        locked_bytes=None,
        address_space_bytes=None,
        file_size_bytes=None,
        cgroup_memory_bytes=None,
    ),
    environment=Environment(whose="shell", variables={}),
    packages=Packages(copies=(), hidden_stdlib=(), leftovers=()),
    virtual_memory=VirtualMemory(
        swap=(SWAP,),
        strict_overcommit=False,
        commit_limit_bytes=40 * GIB,
        committed_bytes=10 * GIB,
        max_map_count=65530,
    ),
    disk_speed=DiskSpeed(
        both_bytes_per_second=2.0e9,
        folder="/home/me/slidepack",
        write_bytes_per_second=2e9,
        read_bytes_per_second=3e9,
        measured_bytes=250 * 10**6,
        direct=True,
    ),
    power=PowerInfo(
        battery_percent=None,
        plugged_in=None,
        systemd=True,
        awake_code="",
        awake_why="",
        awake_fix="",
    ),
    service=ServiceInfo(user="me", unit="", enabled=False, lingers=False),
    clock_synchronised=True,
    nvidia_fs=False,
    wsl_configs=(),
)


def with_torch(report: HardwareReport, **changes: Any) -> HardwareReport:
    software = report.software
    assert isinstance(software, SoftwareInfo)
    torch = changes.pop("torch", software.torch)
    return replace(report, software=replace(software, torch=torch, **changes))


def with_amd(**changes: Any) -> HardwareReport:
    values = {"gpus": (RADEON,), "kfd_access": "ok", "missing_groups": (), **changes}
    rocm = replace(
        CUDA,
        version="2.11.0+rocm6.4",
        build="rocm",
        devices=(replace(DEVICE, name=RADEON.name, architecture="gfx1100"),),
    )
    return with_torch(replace(HEALTHY, nvidia=NO_NVIDIA, amd=AmdInfo(**values)), torch=rocm)


def setup_with(item: str, **changes: Any) -> SetupReport:
    """Return the healthy surroundings with one item's fields changed."""
    return replace(SETTLED, **{item: replace(getattr(SETTLED, item), **changes)})


NO_CARD = with_torch(replace(HEALTHY, nvidia=NO_NVIDIA), torch=CPU_TORCH)


def said(setup: SetupReport, report: HardwareReport = HEALTHY) -> list[Finding]:
    """Return the doctor's problems and notes."""
    return [one for one in findings(report, setup) if one.level != "ok"]


def said_anew(setup: SetupReport, report: HardwareReport = HEALTHY) -> list[Finding]:
    """Return those that healthy surroundings do not bring about."""
    before = said(SETTLED, report)
    return [one for one in said(setup, report) if one not in before]
