from typing import Any

import msgspec
import pytest
from support.doctor_reports import (
    APU,
    CPU_TORCH,
    CUDA,
    DEVICE,
    DRIVE,
    GIB,
    HEALTHY,
    MEMORY,
    NO_AMD,
    NO_NVIDIA,
    RTX,
    with_amd,
    with_torch,
)

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.probe.drives import Drives
from slidepack.daemon.probe.memory import WSL_PIN_NOTE
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import TritonBuild
from slidepack.daemon.probe.wsl import WslInfo

replace = msgspec.structs.replace


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


def with_rtx(**changes: Any) -> HardwareReport:
    return replace(HEALTHY, nvidia=replace(HEALTHY.nvidia, gpus=(replace(RTX, **changes),)))


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
    "lanes-lost": (with_rtx(pcie_width=8), "x8 of x16, at most 15.8 GB/s"),
    "few-lanes": (with_rtx(pcie_width=4, pcie_width_max=4), "x4, at most 7.9 GB/s"),
    "slow-link-at-work": (
        with_rtx(utilisation_percent=95, pcie_generation=3),
        "PCIe 3.0 at 95 % load; card and slot can do 4.0",
    ),
    "windows-drive": (
        replace(
            HEALTHY,
            drives=Drives(
                drives=(replace(DRIVE, mount="/mnt/c", device="C:", fs_type="9p", kind="network"),)
            ),
            wsl=WslInfo(version="wsl2", kernel="6.6-microsoft"),
        ),
        "/mnt/c (C:, 9p)",
    ),
    "amd-seat-access": (with_amd(missing_groups=("render",)), "render"),
    "amdsmi": (with_amd(amdsmi_problem="amdsmi does not load: x"), "does not load"),
}


@pytest.mark.parametrize(("report", "evidence"), NOTES.values(), ids=NOTES.keys())
def test_notes(report: Any, evidence: Any) -> None:
    assert found(report, "problem") == []
    assert any(evidence in note.evidence for note in found(report, "note"))


def test_the_fix_of_a_cpu_torch_says_where_it_is() -> None:
    report = with_torch(HEALTHY, torch=replace(CPU_TORCH, location="/venv/torch"))
    assert "in /venv/torch" in found(report, "problem")[0].evidence


def test_an_idle_card_may_lower_its_link() -> None:
    assert found(with_rtx(pcie_generation=1, utilisation_percent=5), "note") == []
    assert found(with_rtx(pcie_generation=1, utilisation_percent=None), "note") == []


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
