"""Environment variables that explain what runs see, load or how fast they are."""

from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import Final

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.doctor.finding import Finding, short
from slidepack.daemon.doctor.limits import OWNERS
from slidepack.daemon.probe.environment import Environment
from slidepack.daemon.probe.gpu import Vendor
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.software import SoftwareInfo

_CHOOSERS: Final[dict[Vendor, tuple[str, ...]]] = {
    "nvidia": ("CUDA_VISIBLE_DEVICES",),
    # HIP heeds CUDA's variable too.
    "amd": (
        "HIP_VISIBLE_DEVICES",
        "ROCR_VISIBLE_DEVICES",
        "GPU_DEVICE_ORDINAL",
        "CUDA_VISIBLE_DEVICES",
    ),
}
_SLOWING: Final = (
    "CUDA_LAUNCH_BLOCKING",
    "AMD_SERIALIZE_KERNEL",
    "PYTORCH_NO_CUDA_MEMORY_CACHING",
)
_OFF: Final = ("", "0")
_ALLOCATORS: Final = ("libjemalloc", "libtcmalloc", "libmimalloc")
"""Preloaded on purpose, and good for training."""


def environment_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Judge the variables, the running daemon's where one runs."""
    environment = setup.environment
    if not isinstance(environment, Environment):
        return
    yield from _python(environment, trouble=_has_trouble(report))
    yield from _libraries(environment)
    vendors = {gpu.vendor for gpu in training_gpus(report)}
    if vendors:
        yield from _cards(environment, vendors)


def _note(environment: Environment, name: str, title: str, fix: str, detail: str = "") -> Finding:
    where = OWNERS[environment.whose]
    value = short(environment.variables[name])
    unset = (
        "leave the variable out where the daemon is started (`systemctl --user cat slidepack` for "
        "a service), and start it anew"
        if environment.whose == "daemon"
        else f"`unset {name}`"
    )
    return Finding(
        level="note",
        title=title,
        evidence=f"{name}={value} in the environment {where}.{detail}",
        fix=fix.format(unset=unset),
    )


def _has_trouble(report: HardwareReport) -> bool:
    software = report.software
    if not isinstance(software, SoftwareInfo):
        return True
    return software.torch.build == "missing" or not software.triton.version


def _python(environment: Environment, *, trouble: bool) -> Iterator[Finding]:
    if environment.variables.get("PYTHONHOME"):
        yield _note(
            environment,
            "PYTHONHOME",
            "Python is told to take its library from elsewhere.",
            "If packages or modules are missing, {unset}.",
        )
    # Many set it for good; what it hides of ours is told with the packages.
    if trouble and environment.variables.get("PYTHONPATH"):
        yield _note(
            environment,
            "PYTHONPATH",
            "Extra folders stand in front of the installed packages.",
            "This may be why packages do not import: {unset}.",
        )


def _libraries(environment: Environment) -> Iterator[Finding]:
    if environment.foreign_libraries:
        yield _note(
            environment,
            "LD_LIBRARY_PATH",
            "Other GPU libraries stand in front of PyTorch's own.",
            "PyTorch brings its own. If it fails to import or crashes, {unset}.",
            f" It holds {', '.join(environment.foreign_libraries)}.",
        )
    preloaded = environment.variables.get("LD_PRELOAD", "").replace(":", " ").split()
    if any(not PurePosixPath(name).name.startswith(_ALLOCATORS) for name in preloaded):
        yield _note(
            environment,
            "LD_PRELOAD",
            "Every program gets a foreign library loaded into it.",
            "Overlays of games do this to whatever Steam starts. If runs crash, {unset}.",
        )


def _cards(environment: Environment, vendors: set[Vendor]) -> Iterator[Finding]:
    choosers = (name for vendor, names in _CHOOSERS.items() if vendor in vendors for name in names)
    for name in dict.fromkeys(choosers):
        if name in environment.variables:
            yield _note(
                environment,
                name,
                "A variable chooses the cards that runs see.",
                "Nothing to do if that is meant; to let runs see every card, {unset}.",
            )
    if "amd" in vendors and environment.variables.get("HSA_OVERRIDE_GFX_VERSION"):
        yield _note(
            environment,
            "HSA_OVERRIDE_GFX_VERSION",
            "The AMD card is told to pass for another one.",
            "It helps cards that ROCm does not know. If yours is one that it knows, or runs crash "
            "or give NaN, {unset}.",
        )
    for name in _SLOWING:
        if environment.variables.get(name, "0") not in _OFF:
            yield _note(
                environment,
                name,
                "A variable for finding faults makes every run slow.",
                "When you are done with it, {unset}.",
            )
