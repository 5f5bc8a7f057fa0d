"""The cards as they are now, without the rest of the hardware report, which costs more."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pynvml

from slidepack.daemon.probe.amd import read_amd
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.nvidia import Nvml, read_nvidia
from slidepack.daemon.probe.problem import ProbeFailure


class GpuSample(msgspec.Struct, frozen=True, kw_only=True):
    """Every card that a driver shows, and why a driver showed none."""

    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


SampleGpus = Callable[[], GpuSample]


def sample_gpus(root: Path = Path("/"), nvml: Nvml = pynvml) -> GpuSample:
    """Ask the drivers for their cards.

    AMD's own library is left out: it takes longer to load than everything else together, and
    sysfs has what the policy needs.
    """
    problem = ""
    gpus: tuple[Gpu, ...] = ()
    try:
        gpus = read_nvidia(nvml, root).gpus
    except ProbeFailure as failure:
        problem = f"{failure.what} {failure.why}"
    try:
        gpus += read_amd(root, frozenset()).gpus
    except OSError as error:
        problem = problem or f"The AMD driver does not answer. {error}"
    return GpuSample(gpus=gpus, problem=problem)


def no_gpus() -> GpuSample:
    """Return no card, for a daemon that trains on the CPU."""
    return GpuSample()


def card_key(gpu: Gpu) -> str:
    """Return what tells a card from all others, also after a restart of its driver."""
    return gpu.uuid or gpu.pci_address or f"{gpu.vendor}-{gpu.index}"


def card_name(gpu: Gpu) -> str:
    """Return a card as users know it: `GPU 0 (RTX 4090)`."""
    name = gpu.name.removeprefix("NVIDIA ").removeprefix("GeForce ").removeprefix("AMD ")
    return f"GPU {gpu.index} ({name})"
