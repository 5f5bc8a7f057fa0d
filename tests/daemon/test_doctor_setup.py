"""What the doctor says about the surroundings of the hardware."""

from typing import Any

import msgspec
import pytest
from support.doctor_reports import (
    DRIVE,
    GIB,
    HEALTHY,
    NO_CARD,
    SETTLED,
    SWAP,
    said,
    said_anew,
    setup_with,
    with_amd,
)
from support.doctor_reports import with_torch as with_software

from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.probe.disk_speed import DiskUnmeasured
from slidepack.daemon.probe.drives import Drives
from slidepack.daemon.probe.problem import ProbeProblem
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.service import ServiceInfo
from slidepack.daemon.probe.setup import SetupReport
from slidepack.daemon.probe.software import KvikioBuild
from slidepack.daemon.probe.wsl import WslInfo
from slidepack.daemon.probe.wsl_config import WslConfig

replace = msgspec.structs.replace

WSL = replace(HEALTHY, wsl=WslInfo(version="wsl2", kernel="6.6-microsoft-standard-WSL2"))
CONTAINED = replace(HEALTHY, memory=replace(HEALTHY.memory, cgroup_limit_bytes=16 * GIB))
UNREAD = ProbeProblem(item="x", what="It could not be read.", why="gone", fix="Mount /proc.")


def test_a_healthy_machine_has_only_good_news() -> None:
    assert said(SETTLED) == []
    assert said(SETTLED, with_amd()) == []
    assert [one.title for one in said(SETTLED, NO_CARD)] == [
        "No graphics card to train on: training runs on the CPU."
    ]


CASES: dict[str, tuple[SetupReport, HardwareReport, str, str, str]] = {
    "locked-of-the-daemon": (
        setup_with("limits", whose="daemon", locked_bytes=8 << 20),
        HEALTHY,
        "note",
        "ulimit -l of the running daemon is 8 MiB",
        "LimitMEMLOCK=infinity",
    ),
    "memory-of-the-daemon": (
        setup_with("limits", whose="daemon", cgroup_memory_bytes=8 * GIB),
        HEALTHY,
        "note",
        "8.0 GiB of 64.0 GiB",
        "MemoryMax=",
    ),
    "open-files": (
        setup_with("limits", open_files=256),
        HEALTHY,
        "note",
        "ulimit -n of this shell is 256",
        "ulimit -n 1024",
    ),
    "file-size": (
        setup_with("limits", file_size_bytes=GIB),
        HEALTHY,
        "note",
        "ulimit -f of this shell is 1.0 GiB",
        "ulimit -f unlimited",
    ),
    "address-space": (
        setup_with("limits", address_space_bytes=16 * GIB),
        HEALTHY,
        "problem",
        "ulimit -v of this shell is 16.0 GiB",
        "ulimit -v unlimited",
    ),
    "address-space-without-a-card": (
        setup_with("limits", address_space_bytes=16 * GIB),
        NO_CARD,
        "note",
        "16.0 GiB",
        "ulimit -v unlimited",
    ),
    "no-swap": (
        setup_with("virtual_memory", swap=()),
        HEALTHY,
        "note",
        "never goes to swap",
        "mkswap /swapfile",
    ),
    "no-swap-in-wsl": (
        setup_with("virtual_memory", swap=()),
        WSL,
        "note",
        "never goes to swap",
        ".wslconfig",
    ),
    "no-swap-in-a-container": (
        setup_with("virtual_memory", swap=()),
        CONTAINED,
        "note",
        "never goes to swap",
        "the host's to give",
    ),
    "swap-full": (
        setup_with("virtual_memory", swap=(replace(SWAP, used_bytes=8 * GIB - 1),)),
        HEALTHY,
        "note",
        "8.0 GiB of 8.0 GiB on /swapfile (nvme",
        "Close what is not needed",
    ),
    "swap-on-a-slow-disk": (
        setup_with("virtual_memory", swap=(replace(SWAP, path="/dev/sda2", kind="hdd"),)),
        HEALTHY,
        "note",
        "/dev/sda2 (hdd)",
        "swapoff /dev/sda2",
    ),
    "overcommit": (
        setup_with("virtual_memory", strict_overcommit=True),
        HEALTHY,
        "note",
        "10.0 GiB of 40.0 GiB is promised",
        "vm.overcommit_memory=0",
    ),
    "mappings": (
        setup_with("virtual_memory", max_map_count=1000),
        HEALTHY,
        "note",
        "vm.max_map_count is 1000",
        "vm.max_map_count=65530",
    ),
    "slow-disk": (
        setup_with("disk_speed", write_bytes_per_second=50e6),
        HEALTHY,
        "note",
        "writes 50 MB/s, reads 3000 MB/s (250 MB each, 2000 MB/s both ways at once). "
        "10 GB of checkpoint or model takes about 3 min to write and 3 s to read",
        "SLIDEPACK_HOME",
    ),
    "unmeasured-disk": (
        replace(SETTLED, disk_speed=DiskUnmeasured(why="only 3.0 GB are free")),
        HEALTHY,
        "note",
        "only 3.0 GB",
        "Free some space",
    ),
    "unwritable-data-directory": (
        replace(SETTLED, disk_speed=UNREAD),
        HEALTHY,
        "problem",
        "gone",
        "Mount /proc.",
    ),
    "an-item-that-could-not-be-read": (
        replace(SETTLED, power=UNREAD),
        HEALTHY,
        "note",
        "gone",
        "Mount /proc.",
    ),
    "battery": (
        setup_with("power", battery_percent=41.0, plugged_in=False),
        HEALTHY,
        "note",
        "41 % left",
        "Plug it in",
    ),
    "refused-sleep-lock": (
        setup_with(
            "power", awake_code="DAEMON-POWER-REFUSED", awake_why="denied", awake_fix="See polkit."
        ),
        HEALTHY,
        "note",
        "denied",
        "See polkit.",
    ),
    "no-logind-in-wsl": (
        setup_with(
            "power",
            systemd=False,
            awake_code="DAEMON-NO-LOGIND",
            awake_why="no bus",
            awake_fix="Windows decides.",
        ),
        WSL,
        "note",
        "no bus",
        "Windows decides.",
    ),
    "clock": (
        replace(SETTLED, clock_synchronised=False),
        HEALTHY,
        "note",
        "unsynchronised",
        "timedatectl set-ntp true",
    ),
    "linger": (
        replace(SETTLED, service=ServiceInfo(user="me", unit="/u", enabled=True, lingers=False)),
        HEALTHY,
        "note",
        "/var/lib/systemd/linger/me",
        "loginctl enable-linger me",
    ),
    "not-enabled": (
        replace(SETTLED, service=ServiceInfo(user="me", unit="/u", enabled=False, lingers=True)),
        HEALTHY,
        "note",
        "not enabled",
        "systemctl --user enable",
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
    "plugged-in": (setup_with("power", battery_percent=80.0, plugged_in=True), HEALTHY),
    "battery-of-unknown-state": (setup_with("power", battery_percent=80.0), HEALTHY),
    "container-without-logind": (
        setup_with("power", systemd=False, awake_code="DAEMON-NO-LOGIND", awake_why="no bus"),
        HEALTHY,
    ),
    "clock-of-a-container": (
        replace(setup_with("power", systemd=False), clock_synchronised=False),
        HEALTHY,
    ),
    "clock-unknown": (replace(SETTLED, clock_synchronised=None), HEALTHY),
    "service-in-order": (
        replace(SETTLED, service=ServiceInfo(user="me", unit="/u", enabled=True, lingers=True)),
        HEALTHY,
    ),
    "zram": (
        setup_with("virtual_memory", swap=(replace(SWAP, kind="zram", path="/dev/zram0"),)),
        HEALTHY,
    ),
}


@pytest.mark.parametrize(("setup", "report"), SILENT.values(), ids=SILENT.keys())
def test_what_does_no_harm_is_not_complained_of(setup: SetupReport, report: HardwareReport) -> None:
    assert said(setup, report) == said(SETTLED, report)


def good(setup: SetupReport, report: HardwareReport = HEALTHY) -> dict[str, str]:
    return {one.title: one.evidence for one in findings(report, setup) if one.level == "ok"}


def test_zram_is_told_apart_from_room_on_a_drive() -> None:
    setup = setup_with("virtual_memory", swap=(replace(SWAP, kind="zram", path="/dev/zram0"),))
    assert "adds none to a run" in good(setup)["Swap is compressed memory (zram)."]
    assert "adds none" not in good(SETTLED)["Swap"]


def test_gds_is_told_and_is_never_a_problem() -> None:
    assert any("not in use" in title for title in good(SETTLED))
    kvikio = KvikioBuild(version="26.10", gds_available=True, problem="")
    report = with_software(HEALTHY, kvikio=kvikio)
    evidence = good(replace(SETTLED, nvidia_fs=True), report)["GPUDirect Storage works."]
    assert "nvidia-fs loaded" in evidence
    assert not any("GPUDirect" in title for title in good(SETTLED, NO_CARD))


def test_windows_memory_that_is_decided_is_no_complaint() -> None:
    config = WslConfig(path="/mnt/c/Users/me/.wslconfig", memory="24GB", swap="")
    setup = replace(SETTLED, wsl_configs=(config,))
    assert "memory=24GB" in good(setup, WSL)["Memory of WSL 2"]
    assert said(setup, WSL) == []


def test_a_cached_measurement_says_so() -> None:
    assert "page cache" in good(setup_with("disk_speed", direct=False))["Disk speed"]


def test_half_of_windows_memory_is_told_with_the_way_to_more() -> None:
    (note,) = (one for one in said(SETTLED, WSL) if "Windows' memory" in one.title)
    assert "64.0 GiB; no .wslconfig decides it" in note.evidence
    assert "memory=24GB" in note.fix


@pytest.mark.parametrize("changes", [{"free_bytes": GIB}, {"read_only": True}])
def test_a_drive_in_trouble_is_told_once(changes: Any) -> None:
    report = replace(HEALTHY, drives=Drives(drives=(replace(DRIVE, **changes),)))
    for answer in (DiskUnmeasured(why="only 1.0 GB are free"), UNREAD):
        assert len(said(replace(SETTLED, disk_speed=answer), report)) == 1
