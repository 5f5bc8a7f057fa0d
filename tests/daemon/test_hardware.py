from pathlib import Path

import msgspec
import pytest
from support.runs import tiny_spec

from slidepack.daemon.hardware import Waiting, machine_now
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.nvidia import NvidiaInfo
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, probe_hardware
from slidepack.daemon.probe.software import (
    KvikioBuild,
    SoftwareInfo,
    TorchBuild,
    TorchDevice,
    TritonBuild,
)
from slidepack.daemon.supervisor.starting import why_not_again
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
    return msgspec.structs.replace(report, nvidia=nvidia, software=software)


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
