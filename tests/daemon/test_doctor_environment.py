"""What the doctor says about foreign packages and about environment variables."""

from typing import Any

import msgspec
import pytest
from support.doctor_reports import (
    CPU_TORCH,
    HEALTHY,
    NO_CARD,
    SETTLED,
    said,
    said_anew,
    setup_with,
    with_amd,
    with_torch,
)

from slidepack.daemon.probe.packages import PackageCopy
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport

replace = msgspec.structs.replace


def variables(whose: str = "shell", **values: str) -> SetupReport:
    return setup_with("environment", whose=whose, variables=values)


def copies(*found: PackageCopy) -> SetupReport:
    return setup_with("packages", copies=found)


def copy(place: Any, path: str, *installed_as: str, name: str = "torch") -> PackageCopy:
    return PackageCopy(name=name, path=path, place=place, installed_as=installed_as)


INSTALLED = copy("python", "/venv/torch", "torch 2.11.0")
BROKEN = with_torch(HEALTHY, torch=replace(CPU_TORCH, build="missing", problem="ImportError: x"))

CASES: dict[str, tuple[SetupReport, HardwareReport, str, str, str]] = {
    "a-file-that-hides-torch": (
        copies(copy("pythonpath", "/home/me/x/torch.py"), INSTALLED),
        HEALTHY,
        "problem",
        "/home/me/x/torch.py is in PYTHONPATH; the installed one is /venv/torch",
        "unset PYTHONPATH",
    ),
    "another-torch-in-the-user-site": (
        copies(copy("user", "/home/me/.local/torch", "torch 2.1.0"), INSTALLED),
        HEALTHY,
        "note",
        "torch 2.1.0 in /home/me/.local/torch comes from your user folder",
        "pip uninstall torch",
    ),
    "two-tritons-in-one-folder": (
        copies(
            copy("python", "/venv/triton", "triton 3.6", "pytorch_triton_rocm 3.4", name="triton")
        ),
        HEALTHY,
        "note",
        "triton 3.6, pytorch_triton_rocm 3.4 in /venv/triton",
        "pip uninstall -y triton pytorch-triton-rocm",
    ),
    "a-file-here": (
        copies(INSTALLED, copy("cwd", "/home/me/numpy.py", name="numpy")),
        HEALTHY,
        "note",
        "/home/me/numpy.py",
        "Rename it",
    ),
    "a-hidden-module-of-python": (
        setup_with("packages", hidden_stdlib=("/home/me/x/queue.py",)),
        HEALTHY,
        "problem",
        "/home/me/x/queue.py",
        "Rename it",
    ),
    "leftovers-of-pip": (
        setup_with("packages", leftovers=("/venv/~orch",)),
        HEALTHY,
        "note",
        "/venv/~orch",
        "Delete",
    ),
    "pythonhome": (variables(PYTHONHOME="/x"), HEALTHY, "note", "/x", "`unset PYTHONHOME`"),
    "foreign-cuda": (
        setup_with(
            "environment",
            variables={"LD_LIBRARY_PATH": "/usr/local/cuda/lib64"},
            foreign_libraries=("/usr/local/cuda/lib64/libcudart.so.11.0",),
        ),
        HEALTHY,
        "note",
        "It holds /usr/local/cuda/lib64/libcudart.so.11.0",
        "`unset LD_LIBRARY_PATH`",
    ),
    "preloaded-overlay": (
        variables(LD_PRELOAD="/usr/lib/libjemalloc.so.2:/steam/gameoverlayrenderer.so"),
        HEALTHY,
        "note",
        "gameoverlayrenderer.so",
        "`unset LD_PRELOAD`",
    ),
    "chosen-cards-of-the-daemon": (
        variables("daemon", CUDA_VISIBLE_DEVICES="1"),
        HEALTHY,
        "note",
        "CUDA_VISIBLE_DEVICES=1 in the environment of the running daemon",
        "start it anew",
    ),
    "chosen-amd-cards": (
        variables(HIP_VISIBLE_DEVICES="0"),
        with_amd(),
        "note",
        "HIP_VISIBLE_DEVICES=0",
        "unset HIP_VISIBLE_DEVICES",
    ),
    "gfx-override": (
        variables(HSA_OVERRIDE_GFX_VERSION="11.0.0"),
        with_amd(),
        "note",
        "11.0.0",
        "unset HSA_OVERRIDE_GFX_VERSION",
    ),
    "blocking-launches": (
        variables(CUDA_LAUNCH_BLOCKING="1"),
        HEALTHY,
        "note",
        "CUDA_LAUNCH_BLOCKING=1",
        "unset CUDA_LAUNCH_BLOCKING",
    ),
    "pythonpath-beside-a-broken-torch": (
        variables(PYTHONPATH="/x"),
        BROKEN,
        "note",
        "PYTHONPATH=/x",
        "`unset PYTHONPATH`",
    ),
}


@pytest.mark.parametrize(
    ("setup", "report", "level", "evidence", "fix"), CASES.values(), ids=CASES.keys()
)
def test_each_finding_has_evidence_and_a_fix(
    setup: SetupReport, report: HardwareReport, level: str, evidence: str, fix: str
) -> None:
    (new,) = said_anew(setup, report)
    assert new.level == level
    assert evidence in new.evidence
    assert fix in new.fix


SILENT: dict[str, tuple[SetupReport, HardwareReport]] = {
    "pythonpath-that-hides-nothing": (variables(PYTHONPATH="/opt/ros/packages"), HEALTHY),
    "chosen-cards-without-a-card": (variables(CUDA_VISIBLE_DEVICES=""), NO_CARD),
    "amd-variables-on-nvidia": (variables(HSA_OVERRIDE_GFX_VERSION="11.0.0"), HEALTHY),
    "allocator": (variables(LD_PRELOAD="/usr/lib/libjemalloc.so.2"), HEALTHY),
    "launches-not-blocked": (variables(CUDA_LAUNCH_BLOCKING="0"), HEALTHY),
    "own-libraries": (variables(LD_LIBRARY_PATH="/opt/games"), HEALTHY),
    "copy-behind": (copies(INSTALLED, copy("other", "/usr/torch", "torch 2.1.0")), HEALTHY),
    "same-copy-in-user-site": (
        copies(copy("user", "/u/torch", "torch 2.11.0"), INSTALLED),
        HEALTHY,
    ),
    "only-in-user-site": (copies(copy("user", "/u/torch", "torch 2.11.0")), HEALTHY),
}


@pytest.mark.parametrize(("setup", "report"), SILENT.values(), ids=SILENT.keys())
def test_what_does_no_harm_is_not_complained_of(setup: SetupReport, report: HardwareReport) -> None:
    assert said(setup, report) == said(SETTLED, report)


def test_a_long_value_is_cut() -> None:
    (note,) = said_anew(variables(PYTHONHOME="/x" * 500))
    assert len(note.evidence) < 300
