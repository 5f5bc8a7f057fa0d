"""Whether this user may compute on the AMD cards."""

from collections.abc import Iterator

from slidepack.daemon.doctor.cards import training_gpus
from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.probe.amd import AmdInfo
from slidepack.daemon.probe.report import HardwareReport


def amd_access_findings(report: HardwareReport) -> Iterator[Finding]:
    """Judge the groups and the device file that ROCm needs."""
    amd = report.amd
    if not isinstance(amd, AmdInfo):
        return
    if amd.amdsmi_problem:
        yield Finding(
            level="note",
            title="amdsmi gives no answer; AMD cards are read from the kernel alone.",
            evidence=amd.amdsmi_problem,
            fix="Install the amdsmi that belongs to your ROCm, or leave it: names may be vaguer.",
        )
    cards = [gpu.name for gpu in training_gpus(report) if gpu.vendor == "amd"]
    if not cards:
        return
    names = ", ".join(cards)
    join = f"sudo usermod -aG {','.join(amd.missing_groups)} $USER, then log out and in again."
    if amd.kfd_access == "missing":
        yield Finding(
            level="problem",
            title=f"{names} shows pictures and cannot compute.",
            evidence="/dev/kfd does not exist.",
            fix="Load the amdgpu module with compute support; in a container, pass /dev/kfd in.",
        )
    elif amd.kfd_access == "denied":
        groups = ", ".join(amd.missing_groups)
        yield Finding(
            level="problem",
            title=f"This user may not compute on {names}.",
            evidence=f"/dev/kfd is refused; not in group: {groups or 'the one that owns it'}.",
            fix=join if groups else "See `ls -l /dev/kfd` for the group that it wants.",
        )
    elif amd.missing_groups:
        yield Finding(
            level="note",
            title=f"Access to {names} may end when you log out.",
            evidence=f"/dev/kfd opens, and this user is not in group: "
            f"{', '.join(amd.missing_groups)}.",
            fix=f"For nights without a login: {join}",
        )
