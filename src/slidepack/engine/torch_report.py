"""Print what this Python has to train with, as one JSON object: `python -m` only.

It runs as a process of its own because importing torch costs seconds and hundreds of megabytes,
and because a broken driver may hang or kill whoever asks it. `daemon.probe.software` reads the
object and holds its fields' meanings.
"""

import importlib
import json
import os
import platform
import re
import sys
import warnings
from collections.abc import Sequence
from types import ModuleType
from typing import Any, Final

_BROKEN: Final = (ImportError, OSError, RuntimeError, AttributeError, TypeError, ValueError)
"""What a package raises on import: not there, a library missing, or built for another version."""

_VISIBILITY: Final = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")


def load(name: str) -> tuple[ModuleType | None, str]:
    """Import a package; return it, or None and why not."""
    try:
        return importlib.import_module(name), ""
    except _BROKEN as error:
        return None, f"{type(error).__name__}: {error}"


def supports(architecture: str, arch_list: Sequence[str]) -> bool:
    """Tell whether a build's architecture list covers a card's architecture.

    CUDA code for `sm_XY` runs on the same major version from minor version Y up, unless it is
    marked `a` (that card only) or `f` (that family only); `compute_XY` is compiled at start for
    any later card. ROCm code runs on its own architecture alone.
    """
    card = re.fullmatch(r"sm_(\d+)(\d)", architecture)
    if card is None:
        return architecture in arch_list
    major, minor = int(card[1]), int(card[2])
    for entry in arch_list:
        built = re.fullmatch(r"(sm|compute)_(\d+)(\d)([af]?)", entry)
        if built is None:
            continue
        built_major, built_minor = int(built[2]), int(built[3])
        same_card = (built_major, built_minor) == (major, minor)
        if built[4] == "a":
            covers = same_card
        elif built[1] == "compute" and not built[4]:
            covers = (built_major, built_minor) <= (major, minor)
        else:
            covers = built_major == major and built_minor <= minor
        if covers:
            return True
    return False


def describe_torch() -> dict[str, object]:
    """Return the torch part of the report."""
    torch, problem = load("torch")
    if torch is None:
        return _torch_part(problem=problem)
    build, build_version = "cpu", ""
    if torch.version.hip:
        build, build_version = "rocm", torch.version.hip
    elif torch.version.cuda:
        build, build_version = "cuda", torch.version.cuda
    arch_list: list[str] = []
    devices: list[dict[str, object]] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        if build != "cpu":
            try:
                arch_list = torch.cuda.get_arch_list()
                if torch.cuda.is_available():
                    devices = [
                        describe_device(torch, index, arch_list)
                        for index in range(torch.cuda.device_count())
                    ]
                else:
                    problem = "torch finds no usable card"
            except (RuntimeError, AssertionError) as error:
                problem = _first_line(error)
    return _torch_part(
        version=torch.__version__,
        location=os.path.dirname(torch.__file__ or ""),
        build=build,
        build_version=build_version,
        arch_list=arch_list,
        devices=devices,
        warnings=[_first_line(warning.message) for warning in caught],
        problem=problem,
    )


def _torch_part(
    *,
    version: str = "",
    location: str = "",
    build: str = "missing",
    build_version: str = "",
    arch_list: Sequence[str] = (),
    devices: Sequence[dict[str, object]] = (),
    warnings: Sequence[str] = (),
    problem: str,
) -> dict[str, object]:
    return {
        "version": str(version),
        "location": location,
        "build": build,
        "build_version": build_version,
        "arch_list": list(arch_list),
        "devices": list(devices),
        "warnings": list(warnings),
        "problem": problem,
    }


def describe_device(torch: Any, index: int, arch_list: Sequence[str]) -> dict[str, object]:
    """Return one card's part of the report. `torch` is the module, or a test's stand-in."""
    properties = torch.cuda.get_device_properties(index)
    architecture = f"sm_{properties.major}{properties.minor}"
    if torch.version.hip:
        # gfx90a:sramecc+:xnack- names the card's modes after its architecture.
        architecture = properties.gcnArchName.split(":")[0]
    total: int | None = properties.total_memory
    free: int | None = None
    problem = ""
    try:
        free, total = torch.cuda.mem_get_info(index)
    except RuntimeError as error:
        problem = f"free memory: {_first_line(error)}"
    uuid = getattr(properties, "uuid", None)
    bus = getattr(properties, "pci_bus_id", None)
    address = ""
    if bus is not None:
        address = f"{properties.pci_domain_id:04x}:{bus:02x}:{properties.pci_device_id:02x}.0"
    return {
        "index": index,
        "name": properties.name,
        "uuid": "" if uuid is None else f"GPU-{str(uuid).removeprefix('GPU-')}",
        "pci_address": address,
        "architecture": architecture,
        "total_bytes": total,
        "free_bytes": free,
        "supported": supports(architecture, arch_list),
        "problem": problem,
    }


def describe_triton() -> dict[str, object]:
    """Return the Triton part of the report."""
    triton, problem = load("triton")
    return {"version": _version(triton), "problem": problem}


def describe_kvikio() -> dict[str, object]:
    """Return the kvikio part of the report; without a driver kvikio imports and has no GDS."""
    kvikio, problem = load("kvikio")
    driver, driver_problem = load("kvikio.cufile_driver") if kvikio else (None, "")
    available = False
    if driver is not None:
        try:
            available = bool(driver.properties.is_gds_available)
        except (RuntimeError, AttributeError) as error:
            driver_problem = _first_line(error)
    return {
        "version": _version(kvikio),
        "gds_available": available,
        "problem": problem or driver_problem,
    }


def _version(module: ModuleType | None) -> str:
    return "" if module is None else str(getattr(module, "__version__", "unknown"))


def _first_line(message: object) -> str:
    return (str(message).strip().splitlines() or [type(message).__name__])[0]


def report() -> dict[str, object]:
    """Return the whole report."""
    return {
        "python": platform.python_version(),
        "visible_devices": " ".join(
            f"{name}={os.environ[name]}" for name in _VISIBILITY if name in os.environ
        ),
        "torch": describe_torch(),
        "triton": describe_triton(),
        "kvikio": describe_kvikio(),
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(report()) + "\n")
