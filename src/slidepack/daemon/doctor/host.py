"""What ends a night's run from outside: sleep, battery, logout; and a clock that is wrong."""

from collections.abc import Iterator

from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.probe.power import PowerInfo
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.service import ServiceInfo
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.wsl import WslInfo


def host_findings(report: HardwareReport, setup: SetupReport) -> Iterator[Finding]:
    """Judge power, the service and the clock."""
    inside_wsl = isinstance(report.wsl, WslInfo) and report.wsl.version != "no"
    power = setup.power
    if isinstance(power, PowerInfo):
        yield from _battery(power)
        yield from _sleep(power, inside_wsl=inside_wsl)
        # Windows, or the host of a container, keeps the clock that this Linux sees.
        if power.systemd and not inside_wsl and setup.clock_synchronised is False:
            yield Finding(
                level="note",
                title="Nothing keeps the clock right.",
                evidence="The kernel calls its clock unsynchronised; windows such as "
                "'tonight from 23:00' go by it.",
                fix="`sudo timedatectl set-ntp true`, and look at `timedatectl` a minute later.",
            )
    if isinstance(setup.service, ServiceInfo):
        yield from _service(setup.service)


def _battery(power: PowerInfo) -> Iterator[Finding]:
    if power.battery_percent is not None and power.plugged_in is False:
        yield Finding(
            level="note",
            title="This machine runs on its battery.",
            evidence=f"{power.battery_percent:.0f} % left; a graphics card is much slower this "
            "way.",
            fix="Plug it in before a run.",
        )


def _sleep(power: PowerInfo, *, inside_wsl: bool) -> Iterator[Finding]:
    if not power.awake_code:
        yield Finding(
            level="ok",
            title="A run keeps this machine awake.",
            evidence="logind gives the lock against falling asleep while idle. Closing a laptop's "
            "lid still puts it to sleep.",
            fix="",
        )
        return
    refused = power.awake_code != "DAEMON-NO-LOGIND"
    can_sleep = power.systemd or inside_wsl or power.battery_percent is not None
    # Where no logind is and none is expected, as in a container, nothing puts the machine to sleep.
    if refused or can_sleep:
        yield Finding(
            level="note",
            title="A run cannot keep this machine awake.",
            evidence=f"{power.awake_why}.",
            fix=f"{power.awake_fix} Or switch off sleep while idle in the desktop's settings.",
        )


def _service(service: ServiceInfo) -> Iterator[Finding]:
    if not service.unit:
        return
    if not service.lingers:
        yield Finding(
            level="note",
            title="The service ends when you log out.",
            evidence=f"{service.unit} is installed, and /var/lib/systemd/linger/{service.user} is "
            "not there.",
            fix=f"`loginctl enable-linger {service.user}`, or "
            "`slidepack service install --linger`.",
            action="enable-linger",
        )
    if not service.enabled:
        yield Finding(
            level="note",
            title="The service does not start by itself.",
            evidence=f"{service.unit} is installed and not enabled.",
            fix="`systemctl --user enable --now slidepack`.",
            action="enable-service",
        )
