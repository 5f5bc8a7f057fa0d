import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from slidepack.engine.torch_report import describe_device, load, supports

GIB = 1 << 30
COMMAND = (sys.executable, "-P", "-m", "slidepack.engine.torch_report")


def run(env: dict[str, str], cwd: Path | None = None) -> dict[str, dict[str, object]]:
    child = subprocess.run(
        COMMAND, capture_output=True, text=True, env={**os.environ, **env}, cwd=cwd, check=True
    )
    assert "Traceback" not in child.stderr
    (line,) = child.stdout.splitlines()
    report: dict[str, dict[str, object]] = json.loads(line)
    return report


def test_it_prints_one_object_about_the_installed_torch() -> None:
    import torch  # noqa: PLC0415  # the comparison needs it, the module must not

    report = run({})
    assert report["torch"]["version"] == torch.__version__
    assert bool(report["torch"]["devices"]) == torch.cuda.is_available()
    assert report["triton"]["version"] or report["triton"]["problem"]
    assert report["kvikio"]["version"] or report["kvikio"]["problem"]


def test_missing_and_broken_packages_are_reported(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so.12: cannot open')\n")
    (tmp_path / "triton.py").write_text("import not_there_at_all\n")
    paths = os.pathsep.join((str(tmp_path), *sys.path))
    report = run({"PYTHONPATH": paths})
    assert report["torch"]["build"] == "missing"
    assert "libcudart" in str(report["torch"]["problem"])
    assert "not_there_at_all" in str(report["triton"]["problem"])


def test_a_torch_in_the_working_folder_is_not_taken_for_the_real_one(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise OSError('the wrong one')\n")
    assert run({}, cwd=tmp_path)["torch"]["version"]


def test_visibility_variables_are_shown() -> None:
    report = run({"CUDA_VISIBLE_DEVICES": "1"})
    assert "CUDA_VISIBLE_DEVICES=1" in str(report["visible_devices"])


def test_load_tells_why() -> None:
    module, problem = load("no_such_package_anywhere")
    assert module is None
    assert "no_such_package_anywhere" in problem


@pytest.mark.parametrize(
    ("card", "arch_list", "covered"),
    [
        ("sm_89", ["sm_80", "sm_86", "sm_90"], True),
        ("sm_86", ["sm_80"], True),
        ("sm_80", ["sm_86"], False),
        ("sm_61", ["sm_75", "sm_80"], False),
        ("sm_120", ["sm_90", "sm_100"], False),
        ("sm_120", ["sm_120"], True),
        ("sm_120", ["sm_90", "compute_90"], True),
        ("sm_90", ["sm_90a"], True),
        ("sm_120", ["sm_90a", "compute_90a"], False),
        ("sm_103", ["sm_100f"], True),
        ("sm_103", ["sm_100a"], False),
        ("sm_75", [], False),
        ("gfx1100", ["gfx900", "gfx1100"], True),
        ("gfx1103", ["gfx1100"], False),
    ],
)
def test_architectures(card: Any, arch_list: Any, covered: Any) -> None:
    assert supports(card, arch_list) is covered


def fake_torch(*, hip: str | None = None, full: bool = False) -> SimpleNamespace:
    def mem_get_info(_: int) -> tuple[int, int]:
        if full:
            raise RuntimeError("CUDA error: out of memory\nCompile with TORCH_USE_CUDA_DSA")
        return 20 * GIB, 24 * GIB

    properties = SimpleNamespace(
        name="Card",
        major=11 if hip else 8,
        minor=0 if hip else 9,
        total_memory=24 * GIB,
        gcnArchName="gfx1100:sramecc-",
        uuid="0123-45",
        pci_domain_id=0,
        pci_bus_id=10,
        pci_device_id=0,
    )
    return SimpleNamespace(
        version=SimpleNamespace(hip=hip),
        cuda=SimpleNamespace(get_device_properties=lambda _: properties, mem_get_info=mem_get_info),
    )


def test_an_nvidia_device() -> None:
    device = describe_device(fake_torch(), 0, ["sm_86"])
    assert device == {
        "index": 0,
        "name": "Card",
        "uuid": "GPU-0123-45",
        "pci_address": "0000:0a:00.0",
        "architecture": "sm_89",
        "total_bytes": 24 * GIB,
        "free_bytes": 20 * GIB,
        "supported": True,
        "problem": "",
    }


def test_an_amd_device_goes_by_its_gfx_name() -> None:
    device = describe_device(fake_torch(hip="6.4"), 0, ["gfx1100"])
    assert (device["architecture"], device["supported"]) == ("gfx1100", True)


def test_a_full_card_still_tells_its_size() -> None:
    device = describe_device(fake_torch(full=True), 0, ["sm_89"])
    assert (device["total_bytes"], device["free_bytes"]) == (24 * GIB, None)
    assert device["problem"] == "free memory: CUDA error: out of memory"
