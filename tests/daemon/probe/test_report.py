import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pynvml
import pytest

from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport, ProbeSources, own_groups, probe_hardware


class NoNvml:
    def nvmlInit(self) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)


class BrokenNvml:
    def nvmlInit(self) -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)


def sources(tree: Any, nvml: object = None) -> ProbeSources:
    return ProbeSources(root=tree.root, nvml=nvml or NoNvml(), load_amdsmi=None)  # type: ignore[arg-type]


@pytest.fixture
def machine(tree: Any) -> Any:
    tree.write(
        {
            "proc/cpuinfo": "processor : 0\nmodel name : Test CPU\nflags : avx2\n",
            "proc/meminfo": "MemTotal: 8 kB\nMemAvailable: 4 kB\nSwapTotal: 0 kB\nSwapFree: 0 kB\n",
            "proc/sys/kernel/osrelease": "6.8.0\n",
            "proc/self/mountinfo": "30 1 8:1 / / rw - ext4 /dev/sda1 rw\n",
        }
    )
    return tree


def test_a_whole_machine(machine: Any) -> None:
    report = probe_hardware(Path("/data"), software=False, sources=sources(machine))
    assert report.problems == ()
    assert report.gpus == ()
    assert report.software is None
    assert not isinstance(report.cpu, ProbeProblem)
    assert report.cpu.model == "Test CPU"


@pytest.mark.parametrize(
    ("item", "missing"),
    [
        ("cpu", "proc/cpuinfo"),
        ("memory", "proc/meminfo"),
        ("drives", "proc/self/mountinfo"),
    ],
)
def test_a_failing_item_leaves_the_rest(machine: Any, item: str, missing: Any) -> None:
    (machine.root / missing).unlink()
    report = probe_hardware(Path("/data"), software=False, sources=sources(machine))
    (problem,) = report.problems
    assert problem.item == item
    assert getattr(report, item) is problem
    assert "FileNotFoundError" in problem.why
    assert problem.fix


def test_a_driver_that_fails_leaves_the_rest(machine: Any) -> None:
    places = sources(machine, BrokenNvml())
    report = probe_hardware(Path("/data"), software=False, sources=places)
    assert [problem.item for problem in report.problems] == ["nvidia"]
    assert "restart" in report.problems[0].fix


def test_a_child_that_fails_leaves_the_rest(machine: Any) -> None:
    places = msgspec.structs.replace(
        sources(machine), software_command=(sys.executable, "-c", "raise SystemExit(1)")
    )
    report = probe_hardware(Path("/data"), software=True, sources=places)
    assert isinstance(report.software, ProbeProblem)
    assert len(report.problems) == 1


def test_the_report_survives_json(machine: Any) -> None:
    (machine.root / "proc/cpuinfo").unlink()
    report = probe_hardware(Path("/data"), software=False, sources=sources(machine))
    assert msgspec.json.decode(msgspec.json.encode(report), type=HardwareReport) == report


def test_the_fast_part_is_fast(tmp_path: Path) -> None:
    def seconds() -> float:
        started = time.perf_counter()
        report = probe_hardware(tmp_path, software=False)
        assert not isinstance(report.memory, ProbeProblem)
        return time.perf_counter() - started

    # The best of several: another process on this machine must not fail the test.
    assert min(seconds() for _ in range(5)) < 0.3


def test_own_groups_are_names() -> None:
    assert all(isinstance(name, str) for name in own_groups())


def test_the_probe_imports_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "import slidepack.daemon.probe.report as report\n"
        "import slidepack.daemon.doctor.judge, slidepack.cli.doctor\n"
        f"report.probe_hardware(Path({str(tmp_path)!r}), software=True)\n"
        "heavy = {'torch', 'triton', 'kvikio'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)\n"
    )
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert child.returncode == 0, child.stderr
