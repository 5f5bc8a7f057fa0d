from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from slidepack.daemon.probe.nvidia import read_nvidia
from slidepack.daemon.probe.problem import ProbeFailure
from slidepack.daemon.probe.processes import process_name

GIB = 1 << 30


def refuse(code: int) -> Any:
    def raise_(*_: object) -> None:
        raise pynvml.NVMLError(code)

    return raise_


def fake_nvml(**changes: Any) -> Any:
    """A module-like object with one healthy RTX 4090; `changes` replace functions."""
    functions: dict[str, Any] = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlSystemGetDriverVersion": lambda: "570.133.07",
        "nvmlSystemGetCudaDriverVersion": lambda: 12080,
        "nvmlDeviceGetCount": lambda: 1,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda _: "NVIDIA GeForce RTX 4090",
        "nvmlDeviceGetPciInfo": lambda _: SimpleNamespace(busId="00000000:0A:00.0"),
        "nvmlDeviceGetCudaComputeCapability": lambda _: (8, 9),
        "nvmlDeviceGetMemoryInfo": lambda _: SimpleNamespace(total=24 * GIB, free=20 * GIB),
        "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 1,
        "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: 4,
        "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 8,
        "nvmlDeviceGetMaxPcieLinkWidth": lambda _: 16,
        "nvmlDeviceGetTemperature": lambda _, __: 41,
        "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=7, memory=1),
        "nvmlDeviceGetPowerUsage": lambda _: 61_250,
        "nvmlDeviceGetTotalEnergyConsumption": lambda _: 1_500_000,
        "nvmlDeviceGetProcessUtilization": lambda _, __: [],
        "nvmlDeviceGetComputeRunningProcesses": lambda _: [],
        "nvmlDeviceGetGraphicsRunningProcesses": lambda _: [],
    }
    return SimpleNamespace(**{**functions, **changes})


def process(pid: int, used: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used)


def test_a_healthy_card_is_read_whole(tree: Any) -> None:
    info = read_nvidia(fake_nvml(), tree.root)
    assert (info.driver_version, info.cuda_version) == ("570.133.07", "12.8")
    (gpu,) = info.gpus
    assert (gpu.name, gpu.uuid, gpu.architecture) == ("NVIDIA GeForce RTX 4090", "GPU-0", "sm_89")
    assert gpu.pci_address == "0000:0a:00.0"
    assert (gpu.vram_total_bytes, gpu.vram_free_bytes) == (24 * GIB, 20 * GIB)
    assert (gpu.pcie_generation, gpu.pcie_generation_max) == (1, 4)
    assert (gpu.pcie_width, gpu.pcie_width_max) == (8, 16)
    assert (gpu.temperature_celsius, gpu.utilisation_percent) == (41, 7)
    assert (gpu.power_watts, gpu.energy_joules) == (61.25, 1500.0)
    assert gpu.problems == ()


def test_no_library_is_no_driver_and_no_error(tree: Any) -> None:
    tree.write(
        {
            "sys/bus/pci/devices/0000:01:00.0/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:01:00.0/class": "0x030000\n",
            "sys/bus/pci/devices/0000:01:00.1/vendor": "0x10de\n",
            "sys/bus/pci/devices/0000:01:00.1/class": "0x040300\n",
            "sys/bus/pci/devices/0000:02:00.0/vendor": "0x8086\n",
            "sys/bus/pci/devices/0000:02:00.0/class": "0x030000\n",
        }
    )
    nvml = fake_nvml(nvmlInit=refuse(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND))
    info = read_nvidia(nvml, tree.root)
    assert (info.driver_version, info.gpus) == ("", ())
    assert info.cards_on_bus == ("0000:01:00.0",)


@pytest.mark.parametrize(
    ("code", "fix"),
    [
        (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, "restart the machine"),
        (pynvml.NVML_ERROR_DRIVER_NOT_LOADED, "modprobe nvidia"),
        (pynvml.NVML_ERROR_UNKNOWN, "nvidia-smi"),
    ],
    ids=["updated", "not-loaded", "unknown"],
)
def test_a_driver_that_does_not_answer_says_what_helps(tree: Any, code: int, fix: Any) -> None:
    with pytest.raises(ProbeFailure) as failure:
        read_nvidia(fake_nvml(nvmlInit=refuse(code)), tree.root)
    assert fix in failure.value.fix


def test_the_library_is_closed_even_when_a_query_fails(tree: Any) -> None:
    closed = []
    nvml = fake_nvml(
        nvmlDeviceGetCount=refuse(pynvml.NVML_ERROR_UNKNOWN),
        nvmlShutdown=lambda: closed.append(True),
    )
    with pytest.raises(ProbeFailure):
        read_nvidia(nvml, tree.root)
    assert closed == [True]


def test_a_lost_card_leaves_the_other(tree: Any) -> None:
    def handle(index: int) -> int:
        if index == 0:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST)
        return index

    nvml = fake_nvml(nvmlDeviceGetCount=lambda: 2, nvmlDeviceGetHandleByIndex=handle)
    lost, well = read_nvidia(nvml, tree.root).gpus
    assert lost.vram_total_bytes is None
    assert lost.problems == ("card: GPU is lost",)
    assert well.uuid == "GPU-1"
    assert well.problems == ()


def test_a_refused_value_is_none_with_its_reason(tree: Any) -> None:
    nvml = fake_nvml(
        nvmlDeviceGetUtilizationRates=refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
        nvmlDeviceGetComputeRunningProcesses=refuse(pynvml.NVML_ERROR_NOT_SUPPORTED),
    )
    (gpu,) = read_nvidia(nvml, tree.root).gpus
    assert gpu.utilisation_percent is None
    assert gpu.problems == ("utilisation: Not Supported", "compute processes: Not Supported")
    assert gpu.temperature_celsius == 41


def test_a_driver_older_than_the_call_is_a_refusal(tree: Any) -> None:
    def mismatch(_: object) -> None:
        raise pynvml.NVMLLibraryMismatchError("too old")

    (gpu,) = read_nvidia(fake_nvml(nvmlDeviceGetComputeRunningProcesses=mismatch), tree.root).gpus
    assert gpu.problems == ("compute processes: too old",)


def test_processes_of_both_lists_count_once(tree: Any) -> None:
    tree.write({"proc/7/comm": "Xorg\n", "proc/9/comm": "game.exe\n"})
    nvml = fake_nvml(
        nvmlDeviceGetComputeRunningProcesses=lambda _: [process(9, 3 * GIB), process(11, None)],
        nvmlDeviceGetGraphicsRunningProcesses=lambda _: [process(7, GIB), process(9, 3 * GIB)],
    )
    (gpu,) = read_nvidia(nvml, tree.root).gpus
    assert [(user.pid, user.name, user.used_bytes) for user in gpu.processes] == [
        (7, "Xorg", GIB),
        (9, "game.exe", 3 * GIB),
        (11, "", None),
    ]


def test_the_gpu_time_of_each_process_is_that_of_the_last_two_seconds(tree: Any) -> None:
    asked: list[int] = []

    def samples(_handle: object, since: int) -> list[SimpleNamespace]:
        asked.append(since)
        return [
            SimpleNamespace(pid=9, smUtil=40),
            SimpleNamespace(pid=9, smUtil=34),
            SimpleNamespace(pid=0, smUtil=0),
        ]

    listed = {"nvmlDeviceGetComputeRunningProcesses": lambda _: [process(9, GIB), process(11, GIB)]}
    nvml = fake_nvml(nvmlDeviceGetProcessUtilization=samples, **listed)
    (gpu,) = read_nvidia(nvml, tree.root, now=lambda: 100.0).gpus
    assert asked == [98_000_000]
    assert [(user.pid, user.gpu_percent) for user in gpu.processes] == [(9, 37), (11, 0)]


@pytest.mark.parametrize(
    ("code", "share"),
    [(pynvml.NVML_ERROR_NOT_FOUND, 0), (pynvml.NVML_ERROR_NOT_SUPPORTED, None)],
    ids=["idle", "not-told"],
)
def test_an_idle_card_is_told_from_one_that_does_not_say(
    tree: Any, code: int, share: int | None
) -> None:
    nvml = fake_nvml(
        nvmlDeviceGetProcessUtilization=refuse(code),
        nvmlDeviceGetComputeRunningProcesses=lambda _: [process(9, GIB)],
    )
    (gpu,) = read_nvidia(nvml, tree.root).gpus
    assert [user.gpu_percent for user in gpu.processes] == [share]
    assert gpu.problems == ()


def test_a_name_cut_by_the_kernel_is_completed_from_the_command_line(tree: Any) -> None:
    tree.write(
        {
            "proc/5/comm": "a-very-long-pro\n",
            "proc/5/cmdline": "/opt/x/a-very-long-program\0--flag\0",
            "proc/6/comm": "a-very-long-pro\n",
            "proc/6/cmdline": "/usr/bin/renamed\0",
        }
    )
    proc: Path = tree.root / "proc"
    assert process_name(proc, 5) == "a-very-long-program"
    assert process_name(proc, 6) == "a-very-long-pro"


def test_the_real_library_here_gives_an_answer_or_a_reason() -> None:
    try:
        info = read_nvidia(pynvml, Path("/"))
    except ProbeFailure as failure:
        assert failure.why
    else:
        assert bool(info.driver_version) or info.gpus == ()
