"""What a report means for training, finding by finding, with a way out of each problem."""

from collections.abc import Iterator

from slidepack.daemon.doctor.amd_access import amd_access_findings
from slidepack.daemon.doctor.cards import card_findings
from slidepack.daemon.doctor.environment import environment_findings
from slidepack.daemon.doctor.finding import Finding, worst_first
from slidepack.daemon.doctor.host import host_findings
from slidepack.daemon.doctor.limits import limit_findings, locked_memory_findings
from slidepack.daemon.doctor.links import link_findings
from slidepack.daemon.doctor.memory import memory_findings
from slidepack.daemon.doctor.packages import package_findings
from slidepack.daemon.doctor.storage import drive_findings, gds_findings, speed_findings
from slidepack.daemon.doctor.swap import swap_findings
from slidepack.daemon.doctor.torch_build import torch_findings
from slidepack.daemon.doctor.wsl import wsl_findings, wsl_memory_findings
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.setup import SetupReport


def findings(report: HardwareReport, setup: SetupReport | None = None) -> tuple[Finding, ...]:
    """Judge a report. Problems come first, then notes, then what is well.

    Args:
        report: the hardware.
        setup: what surrounds it, where that was looked at.
    """
    found = [
        *_unread(report),
        *card_findings(report),
        *link_findings(report),
        *torch_findings(report),
        *amd_access_findings(report),
        *memory_findings(report, setup),
        *locked_memory_findings(report, setup),
        *drive_findings(report),
        *wsl_findings(report),
    ]
    if setup is not None:
        found += _setup_findings(report, setup)
    return worst_first(found)


def _setup_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    yield from _unread_setup(setup)
    yield from limit_findings(report, setup)
    yield from swap_findings(report, setup)
    yield from speed_findings(report, setup)
    yield from gds_findings(report, setup)
    yield from package_findings(setup)
    yield from environment_findings(report, setup)
    yield from host_findings(report, setup)
    yield from wsl_memory_findings(report, setup)


def _unread(report: HardwareReport) -> Iterator[Finding]:
    for problem in report.problems:
        yield Finding(level="problem", title=problem.what, evidence=problem.why, fix=problem.fix)


def _unread_setup(setup: SetupReport) -> Iterator[Finding]:
    # The disk's own finding says more. Training needs none of the others to be read.
    for item in (
        setup.limits,
        setup.environment,
        setup.packages,
        setup.virtual_memory,
        setup.power,
        setup.service,
    ):
        if isinstance(item, ProbeProblem):
            yield Finding(level="note", title=item.what, evidence=item.why, fix=item.fix)
