"""The installed PyTorch and Triton against the cards."""

from collections.abc import Iterator
from typing import Final

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.software import SoftwareInfo, TorchBuild

_TORCH_CHOOSER: Final = "https://pytorch.org/get-started/locally/"
"""PyTorch's own page: the indexes' names change with every release."""


def torch_findings(report: HardwareReport) -> Iterator[Finding]:
    """Judge the build; says nothing where torch was not asked."""
    software = report.software
    if not isinstance(software, SoftwareInfo):
        return
    torch = software.torch
    cards = training_gpus(report)
    if torch.build == "missing":
        yield Finding(
            level="problem",
            title="PyTorch does not import, so nothing can train.",
            evidence=torch.problem,
            fix="Install it into the Python that runs Slidepack: pip install torch",
        )
        return
    if cards:
        yield from _torch_on_cards(software, cards)
    else:
        yield _torch_ok(torch, "on the CPU")


def _torch_on_cards(software: SoftwareInfo, cards: tuple[Gpu, ...]) -> Iterator[Finding]:
    torch = software.torch
    vendors = {gpu.vendor for gpu in cards}
    names = ", ".join(gpu.name for gpu in cards)
    wanted = "cuda" if "nvidia" in vendors else "rocm"
    fits = (torch.build == "cuda" and "nvidia" in vendors) or (
        torch.build == "rocm" and "amd" in vendors
    )
    if not fits:
        yield Finding(
            level="problem",
            title=f"The installed PyTorch cannot use {names}.",
            evidence=f"torch {torch.version} is a {_build_name(torch)} build{_origin(torch)}.",
            fix=_reinstall(wanted),
        )
        return
    unsupported = [device for device in torch.devices if not device.supported]
    for device in unsupported:
        yield Finding(
            level="problem",
            title=f"The installed PyTorch has no code for {device.name}.",
            evidence=f"The card is {device.architecture}; torch {torch.version} was built for "
            f"{' '.join(torch.arch_list)}.",
            fix=_reinstall(wanted)
            + "; a card older than every entry needs an older torch, a newer one a newer torch.",
        )
    if not torch.devices:
        evidence = [torch.problem, *torch.warnings, software.visible_devices]
        yield Finding(
            level="problem",
            title=f"PyTorch does not see {names}.",
            evidence="; ".join(part for part in evidence if part),
            fix="Unset CUDA_VISIBLE_DEVICES and HIP_VISIBLE_DEVICES; if torch speaks of an old "
            "driver, update the driver.",
        )
    elif not unsupported:
        yield _torch_ok(torch, f"on {', '.join(device.name for device in torch.devices)}")
    if not software.triton.version:
        yield Finding(
            level="problem",
            title="Triton does not import; the GPU kernels need it.",
            evidence=software.triton.problem,
            fix="Install the Triton that belongs to this torch: pip install triton",
        )


def _torch_ok(torch: TorchBuild, where: str) -> Finding:
    return Finding(
        level="ok",
        title=f"PyTorch trains {where}.",
        evidence=f"torch {torch.version}, {_build_name(torch)} build{_origin(torch)}.",
        fix="",
    )


def _build_name(torch: TorchBuild) -> str:
    names = {"cpu": "CPU-only", "cuda": "CUDA", "rocm": "ROCm", "missing": "missing"}
    return f"{names[torch.build]} {torch.build_version}".strip()


def _origin(torch: TorchBuild) -> str:
    return f" in {torch.location}" if torch.location else ""


def _reinstall(build: str) -> str:
    platform = {"cuda": "CUDA", "rocm": "ROCm"}[build]
    return f"Reinstall torch with the pip command for {platform} from {_TORCH_CHOOSER}"
