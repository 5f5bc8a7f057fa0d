import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from slidepack.cli.doctor import doctor, print_report
from slidepack.daemon.doctor import Finding, findings
from slidepack.daemon.probe.amd import AmdInfo
from slidepack.daemon.probe.cpu import CpuInfo
from slidepack.daemon.probe.drives import Drive, Drives
from slidepack.daemon.probe.gpu import Gpu, GpuProcess
from slidepack.daemon.probe.memory import WSL_PIN_NOTE, MemoryInfo
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import (
    KvikioBuild,
    SoftwareInfo,
    TorchBuild,
    TorchDevice,
    TritonBuild,
)
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


def found(report: HardwareReport, level: str) -> list[Finding]:
    return [finding for finding in findings(report) if finding.level == level]


def test_a_healthy_machine_has_only_good_news() -> None:
    assert {finding.level for finding in findings(HEALTHY)} == {"ok"}
    assert found(with_amd(), "problem") == []


def test_no_card_is_a_note_and_cpu_torch_is_then_fine() -> None:
    report = with_torch(replace(HEALTHY, nvidia=NO_NVIDIA), torch=CPU_TORCH)
    assert found(report, "problem") == []
    (note,) = found(report, "note")
    assert "training runs on the CPU" in note.title


def test_graphics_built_into_the_processor_are_no_card_to_train_on() -> None:
    report = with_torch(
        replace(HEALTHY, nvidia=NO_NVIDIA, amd=replace(NO_AMD, gpus=(APU,))), torch=CPU_TORCH
    )
    assert found(report, "problem") == []
    assert APU.name in found(report, "note")[0].evidence


PROBLEMS = {
    "cpu-torch": (with_torch(HEALTHY, torch=CPU_TORCH), "CPU-only", "CUDA"),
    "no-torch": (
        with_torch(
            HEALTHY, torch=replace(CPU_TORCH, build="missing", version="", problem="ImportError: x")
        ),
        "ImportError: x",
        "pip install torch",
    ),
    "arch-list": (
        with_torch(
            HEALTHY,
            torch=replace(CUDA, devices=(replace(DEVICE, architecture="sm_120", supported=False),)),
        ),
        "sm_120",
        "newer torch",
    ),
    "torch-sees-nothing": (
        with_torch(
            HEALTHY,
            torch=replace(CUDA, devices=(), warnings=("The NVIDIA driver is too old",)),
            visible_devices="CUDA_VISIBLE_DEVICES=",
        ),
        "too old",
        "Unset CUDA_VISIBLE_DEVICES",
    ),
    "no-triton": (
        with_torch(HEALTHY, triton=TritonBuild(version="", problem="No module named 'triton'")),
        "No module named 'triton'",
        "pip install triton",
    ),
    "cuda-torch-on-amd": (
        with_torch(with_amd(), torch=replace(CUDA, devices=())),
        "CUDA 12.8",
        "ROCm",
    ),
    "amd-denied": (
        with_amd(kfd_access="denied", missing_groups=("render", "video")),
        "render, video",
        "usermod -aG render,video",
    ),
    "amd-no-kfd": (with_amd(kfd_access="missing"), "/dev/kfd", "container"),
    "card-without-driver": (
        replace(HEALTHY, nvidia=replace(NO_NVIDIA, cards_on_bus=("0000:01:00.0",))),
        "0000:01:00.0",
        "driver",
    ),
    "driver-without-card": (
        replace(HEALTHY, nvidia=replace(HEALTHY.nvidia, gpus=())),
        "driver 570.1",
        "dmesg",
    ),
    "lost-card": (
        replace(
            HEALTHY,
            nvidia=replace(
                HEALTHY.nvidia,
                gpus=(replace(RTX, vram_total_bytes=None, problems=("card: GPU is lost",)),),
            ),
        ),
        "GPU is lost",
        "Restart",
    ),
    "disk-full": (
        replace(HEALTHY, drives=Drives(drives=(replace(DRIVE, free_bytes=9 * 10**9),))),
        "8.4 GiB free on /home",
        "SLIDEPACK_HOME",
    ),
    "disk-read-only": (
        replace(HEALTHY, drives=Drives(drives=(replace(DRIVE, read_only=True),))),
        "read-only",
        "SLIDEPACK_HOME",
    ),
    "wsl1": (
        replace(HEALTHY, wsl=WslInfo(version="wsl1", kernel="4.4.0-19041-Microsoft")),
        "4.4.0-19041-Microsoft",
        "wsl --set-version",
    ),
    "unread-item": (
        replace(HEALTHY, cpu=ProbeProblem(item="cpu", what="No CPU.", why="gone", fix="Mount it.")),
        "gone",
        "Mount it.",
    ),
}


@pytest.mark.parametrize(("report", "evidence", "fix"), PROBLEMS.values(), ids=PROBLEMS.keys())
def test_problems(report: Any, evidence: Any, fix: Any) -> None:
    problems = found(report, "problem")
    assert any(evidence in problem.evidence and fix in problem.fix for problem in problems)
    assert findings(report)[0].level == "problem"


NOTES = {
    "memlock": (replace(HEALTHY, memory=replace(MEMORY, memlock_bytes=8 << 20)), "8 MiB"),
    "cgroup": (
        replace(HEALTHY, memory=replace(MEMORY, cgroup_limit_bytes=16 * GIB)),
        "16.0 GiB of 64.0 GiB",
    ),
    "wsl-pin": (replace(HEALTHY, memory=replace(MEMORY, pin_note=WSL_PIN_NOTE)), "pinned"),
    "hdd": (
        replace(HEALTHY, drives=Drives(drives=(replace(DRIVE, kind="hdd"),))),
        "/dev/nvme0n1p2",
    ),
    "amd-seat-access": (with_amd(missing_groups=("render",)), "render"),
    "amdsmi": (with_amd(amdsmi_problem="amdsmi does not load: x"), "does not load"),
}


@pytest.mark.parametrize(("report", "evidence"), NOTES.values(), ids=NOTES.keys())
def test_notes(report: Any, evidence: Any) -> None:
    assert found(report, "problem") == []
    assert any(evidence in note.evidence for note in found(report, "note"))


def test_limits_that_bind_nothing_are_not_spoken_of() -> None:
    memory = replace(MEMORY, memlock_bytes=40 * GIB, cgroup_limit_bytes=128 * GIB)
    assert found(replace(HEALTHY, memory=memory), "note") == []


def test_no_card_pins_nothing_so_memlock_does_not_matter() -> None:
    memory = replace(MEMORY, memlock_bytes=8 << 20)
    report = with_torch(replace(HEALTHY, nvidia=NO_NVIDIA, memory=memory), torch=CPU_TORCH)
    assert not any("locked" in note.title for note in found(report, "note"))


def test_a_report_without_the_software_part_says_nothing_of_torch() -> None:
    report = replace(HEALTHY, software=None)
    assert not any("PyTorch" in finding.title for finding in findings(report))


def printed(report: HardwareReport, width: int = 100) -> str:
    stream = io.StringIO()
    print_report(report, findings(report), Console(file=stream, width=width))
    return stream.getvalue()


def test_the_printed_report_holds_the_values() -> None:
    text = printed(HEALTHY, width=140)
    for value in (
        "NVIDIA GeForce RTX 4090",
        "20.0 GiB / 24.0 GiB",
        "4.0 x16",
        "game [beta] (7) 3.0 GiB",
        "AMD Ryzen 9 7950X, 16 cores, 32 threads, 8 allowed",
        "/dev/nvme0n1p2",
        "Ready to train.",
    ):
        assert value in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_every_report_prints_at_every_width(width: Any) -> None:
    unread = ProbeProblem(item="x", what="Not read.", why="[bold]", fix="")
    broken = HardwareReport(
        nvidia=unread,
        amd=unread,
        cpu=unread,
        memory=unread,
        drives=unread,
        wsl=unread,
        software=unread,
    )
    assert "7 problems to solve." in printed(broken, width)
    assert "[bold]" in printed(broken, width)
    for report, *_ in PROBLEMS.values():
        assert all(len(line) <= width for line in printed(report, width).splitlines())


def test_json_is_one_object_on_stdout(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom pathlib import Path\nfrom slidepack.cli.doctor import doctor\n"
        f"sys.exit(doctor(True, Path({str(tmp_path)!r})))\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    output = json.loads(child.stdout)
    assert set(output) == {"hardware", "findings"}
    assert output["hardware"]["software"]["torch"]["version"]
    problems = [one for one in output["findings"] if one["level"] == "problem"]
    assert child.returncode == (1 if problems else 0)
    msgspec.convert(output["hardware"], type=HardwareReport)
    msgspec.convert(output["findings"], type=tuple[Finding, ...])


def test_the_human_report_runs_on_this_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = doctor(False, tmp_path)
    text = capsys.readouterr().out
    assert code in (0, 1)
    assert "Machine" in text
    assert "Findings" in text
