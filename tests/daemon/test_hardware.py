from pathlib import Path

import msgspec
import pynvml
import pytest
from support.runs import tiny_spec

from slidepack.daemon.hardware import Waiting, machine_now
from slidepack.daemon.probe.amd import AmdInfo, read_amd
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.nvidia import NvidiaInfo, read_nvidia
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware, settle
from slidepack.daemon.probe.software import (
    KvikioBuild,
    SoftwareInfo,
    TorchBuild,
    TorchDevice,
    TritonBuild,
)
from slidepack.daemon.supervisor.run_plans import why_not_again
from slidepack.engine.memory import Machine, plan_run
from slidepack.engine.shape import read_shape

GIB = 1 << 30
CARD = Gpu(
    vendor="nvidia",
    index=0,
    uuid="GPU-1",
    name="RTX 4090",
    pci_address="0000:01:00.0",
    architecture="sm_89",
    driver_version="1",
    vram_total_bytes=24 * GIB,
    vram_free_bytes=20 * GIB,
)
DEVICE = TorchDevice(
    index=0,
    name="RTX 4090",
    uuid="GPU-1",
    pci_address="0000:01:00.0",
    architecture="sm_89",
    total_bytes=24 * GIB,
    free_bytes=23 * GIB,
    supported=True,
    problem="",
)


def _report(
    tmp_path: Path, *, card: bool, build: str, devices: tuple[TorchDevice, ...], problem: str = ""
) -> HardwareReport:
    software = SoftwareInfo(
        python="3",
        visible_devices="",
        torch=TorchBuild(
            version="2",
            build=build,  # type: ignore[arg-type]  # parametrised
            build_version="",
            arch_list=(),
            devices=devices,
            warnings=(),
            problem=problem,
        ),
        triton=TritonBuild(version="", problem=""),
        kvikio=KvikioBuild(version="", gds_available=False, problem=""),
    )
    nvidia = NvidiaInfo(
        driver_version="1",
        cuda_version="",
        cards_on_bus=("0000:01:00.0",) * card,
        gpus=(CARD,) * card,
    )
    report = probe_hardware(tmp_path, software=False)
    amd = AmdInfo(gpus=(), kfd_access="missing", missing_groups=())
    return msgspec.structs.replace(report, nvidia=nvidia, amd=amd, software=software)


def test_the_card_is_used_with_the_drivers_own_figure(tmp_path: Path) -> None:
    report = _report(tmp_path, card=True, build="cuda", devices=(DEVICE,))
    machine = machine_now(report, whole=False, device="auto")
    assert isinstance(machine, Machine)
    assert (machine.device, machine.device_free_bytes) == ("cuda:0", 20 * GIB)
    whole = machine_now(report, whole=True, device="auto")
    assert isinstance(whole, Machine)
    assert whole.device_free_bytes == 24 * GIB


def test_a_card_that_cannot_be_used_makes_jobs_wait(tmp_path: Path) -> None:
    report = _report(tmp_path, card=True, build="cuda", devices=(), problem="driver mismatch")
    waiting = machine_now(report, whole=False, device="auto")
    assert isinstance(waiting, Waiting)
    assert "driver mismatch" in waiting.reason
    assert "RTX 4090" in waiting.reason
    chosen = machine_now(report, whole=False, device="cpu")
    assert isinstance(chosen, Machine)
    assert chosen.device == "cpu"


@pytest.mark.parametrize(("card", "build"), [(False, "cuda"), (False, "cpu"), (True, "cpu")])
def test_the_cpu_is_used_where_no_card_could_be(tmp_path: Path, card: bool, build: str) -> None:
    machine = machine_now(
        _report(tmp_path, card=card, build=build, devices=()), whole=False, device="auto"
    )
    assert isinstance(machine, Machine)
    assert machine.device == "cpu"


class _Refusing:
    """NVML with a driver that does not answer."""

    def __init__(self, error: pynvml.NVMLError) -> None:
        self._error = error

    def nvmlInit(self) -> None:
        raise self._error


def _with_bus(root: Path, vendor: str) -> Path:
    device = root / "sys/bus/pci/devices/0000:0a:00.0"
    device.mkdir(parents=True)
    (device / "vendor").write_text(f"{vendor}\n")
    (device / "class").write_text("0x030000\n")
    return root


@pytest.mark.parametrize(
    "error",
    [
        pynvml.NVMLError_LibRmVersionMismatch(),
        pynvml.NVMLError_DriverNotLoaded(),
        pynvml.NVMLError_GpuIsLost(),
        pynvml.NVMLError_Unknown(),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_driver_that_does_not_answer_makes_jobs_wait(
    tmp_path: Path, error: pynvml.NVMLError
) -> None:
    nvidia = settle("nvidia", lambda: read_nvidia(_Refusing(error), tmp_path))  # type: ignore[arg-type]  # nothing else is called
    assert isinstance(nvidia, ProbeProblem)
    report = _report(tmp_path, card=False, build="cuda", devices=())
    broken = msgspec.structs.replace(report, nvidia=nvidia)
    waiting = machine_now(broken, whole=False, device="auto")
    assert isinstance(waiting, Waiting)
    for text in (nvidia.what, nvidia.why, nvidia.fix, 'device = "cpu"'):
        assert text in waiting.reason
    assert isinstance(machine_now(broken, whole=False, device="cpu"), Machine)
    # A driver that torch was not built for is none of its business.
    for build in ("cpu", "rocm"):
        other = _report(tmp_path, card=False, build=build, devices=())
        machine = machine_now(
            msgspec.structs.replace(other, nvidia=nvidia), whole=False, device="auto"
        )
        assert isinstance(machine, Machine)


def test_an_amd_probe_that_failed_makes_jobs_wait(tmp_path: Path) -> None:
    problem = ProbeProblem(item="amd", what="It broke.", why="EIO.", fix="Restart.")
    report = _report(tmp_path, card=False, build="rocm", devices=())
    waiting = machine_now(msgspec.structs.replace(report, amd=problem), whole=False, device="auto")
    assert isinstance(waiting, Waiting)
    assert "It broke. (EIO.) Restart." in waiting.reason


@pytest.mark.parametrize(("build", "vendor"), [("cuda", "0x10de"), ("rocm", "0x1002")])
def test_a_card_without_a_driver_makes_jobs_wait(tmp_path: Path, build: str, vendor: str) -> None:
    root = _with_bus(tmp_path, vendor)
    missing = _Refusing(pynvml.NVMLError_LibraryNotFound())
    report = msgspec.structs.replace(
        _report(tmp_path, card=False, build=build, devices=()),
        nvidia=read_nvidia(missing, root),  # type: ignore[arg-type]  # nothing else is called
        amd=read_amd(root, frozenset()),
    )
    waiting = machine_now(report, whole=False, device="auto")
    assert isinstance(waiting, Waiting)
    assert "0000:0a:00.0 cannot be used" in waiting.reason
    assert "slidepack doctor" in waiting.reason
    # The other maker's card says nothing about what torch was built for.
    other = _report(tmp_path, card=False, build=build, devices=())
    crossed = {"nvidia": other.nvidia} if build == "cuda" else {"amd": other.amd}
    machine = machine_now(msgspec.structs.replace(report, **crossed), whole=False, device="auto")
    assert isinstance(machine, Machine)
    assert machine.device == "cpu"


def test_a_card_that_is_too_small_to_train_on_is_no_reason_to_wait(tmp_path: Path) -> None:
    small = msgspec.structs.replace(CARD, vram_total_bytes=1 * GIB)
    report = _report(tmp_path, card=True, build="cuda", devices=())
    assert isinstance(report.nvidia, NvidiaInfo)
    nvidia = msgspec.structs.replace(report.nvidia, gpus=(small,))
    machine = machine_now(
        msgspec.structs.replace(report, nvidia=nvidia), whole=False, device="auto"
    )
    assert isinstance(machine, Machine)
    assert machine.device == "cpu"


def test_an_unanswered_or_failed_probe_makes_jobs_wait(tmp_path: Path) -> None:
    report = probe_hardware(tmp_path, software=False)
    assert isinstance(machine_now(report, whole=False, device="auto"), Waiting)
    problem = ProbeProblem(item="software", what="It hung.", why="No answer.", fix="Restart.")
    failed = msgspec.structs.replace(report, software=problem)
    waiting = machine_now(failed, whole=False, device="auto")
    assert isinstance(waiting, Waiting)
    assert "It hung." in waiting.reason


def test_a_resumed_run_waits_for_the_device_and_memory_it_began_with(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    machine = Machine(
        device="cuda:0",
        device_free_bytes=20 * GIB,
        ram_available_bytes=16 * GIB,
        cpu_threads=4,
    )
    plan = plan_run(spec, read_shape(Path(spec.base.path)), machine)
    assert why_not_again(plan, machine) == ""
    other = msgspec.structs.replace(machine, cpu_threads=2, ram_available_bytes=8 * GIB)
    assert why_not_again(plan, other) == ""
    gone = msgspec.structs.replace(machine, device="cpu")
    assert "cuda:0" in why_not_again(plan, gone)
    full = msgspec.structs.replace(machine, device_free_bytes=1 << 20)
    assert "memory" in why_not_again(plan, full)
