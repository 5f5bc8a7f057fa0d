"""The page of the doctor: what stands in the way of training, with what to do about it."""

import asyncio
import getpass
import importlib.metadata
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from litestar import Request, Response, get, post
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath
from litestar.response import Redirect, Template

from slidepack.daemon.doctor.describe import machine_facts, pcie_link
from slidepack.daemon.doctor.examination import Examination
from slidepack.daemon.doctor.finding import Finding
from slidepack.daemon.doctor.fixes import FIXES, FixName
from slidepack.daemon.doctor.judge import findings
from slidepack.daemon.doctor.report_text import Identity, report_text
from slidepack.daemon.doctor.room import RoomUse, room_used
from slidepack.daemon.probe.disk_speed import DiskSpeed
from slidepack.daemon.probe.drives import Drive, Drives
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.probe.report import HardwareReport
from slidepack.daemon.probe.tier import Tier
from slidepack.daemon.service import Service
from slidepack.web.access import Access
from slidepack.web.format import clock, size
from slidepack.web.page_parts import require_known
from slidepack.web.page_session import csrf_of

__all__ = ["DoctorPage", "doctor_pages", "report_of"]

AnyRequest = Request[Any, Any, Any]

_FIX_LABELS: Final[dict[str, str]] = {
    "enable-service": "Start it with the login",
    "enable-linger": "Let it run without a login",
}
_LINKS: Final[dict[str, tuple[str, str]]] = {"free-room": ("See what takes the room", "#room")}
_PARTS: Final = ("findings", "machine", "room", "log")


@dataclass(frozen=True, kw_only=True, slots=True)
class CardRow:
    """A graphics card as a row of its table."""

    name: str
    vram: str
    driver: str
    link: str
    heat: str
    load: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DriveRow:
    """A drive as a row of its table."""

    mount: str
    kind: str
    free: str
    holds: str


@dataclass(frozen=True, kw_only=True, slots=True)
class DoctorPage:
    """The page of the doctor."""

    csrf_token: str
    at: float | None
    """When the whole machine was last examined, in unix seconds; None before the first time."""
    running: bool
    """Whether an examination is on."""
    problems: int
    notes: int
    found: tuple[Finding, ...]
    """Problems first."""
    fixes: dict[str, str]
    """Name of what the daemon can mend -> what its button says."""
    links: dict[str, tuple[str, str]]
    """Name of what a page helps with -> what the link says, and where it leads."""
    facts: tuple[tuple[str, str], ...]
    cards: tuple[CardRow, ...]
    drives: tuple[DriveRow, ...]
    disk_speed: str
    """Empty where it was not measured."""
    wear: str
    """How worn the drives are; empty where nothing is known of it."""
    room: tuple[RoomUse, ...]
    """What the data directory holds; empty in parts that do not show it."""
    report: str
    """Everything as text for a bug report."""
    log: str


@get("/doctor")
async def doctor(request: AnyRequest, service: Service, access: Access) -> Template:
    """Show the findings; the first visit begins a whole examination."""
    if service.examiner.last() is None:
        service.examiner.begin()
    page = await asyncio.to_thread(_page, request, service, access)
    return Template("doctor.html", context={"page": page})


@get("/doctor/parts/{part:str}")
async def doctor_part(
    request: AnyRequest, service: Service, access: Access, part: FromPath[str]
) -> Template:
    """Show a part of the page."""
    require_known(part, _PARTS)
    page = await asyncio.to_thread(_page, request, service, access, part)
    return Template(f"parts/doctor_{part}.html", context={"page": page})


@post("/doctor/look", status_code=200)
async def look_again(request: AnyRequest, service: Service, access: Access) -> Response[Any]:
    """Begin an examination and show the findings so far."""
    service.examiner.begin()
    return await _after(request, service, access)


@post("/doctor/fix/{name:str}", status_code=200)
async def fix(
    request: AnyRequest, service: Service, access: Access, name: FromPath[str]
) -> Response[Any]:
    """Carry out what a finding offers."""
    require_known(name, FIXES)
    chosen: FixName = next(known for known in FIXES if known == name)
    await asyncio.to_thread(service.examiner.fix, chosen)
    return await _after(request, service, access)


def doctor_pages() -> list[HTTPRouteHandler]:
    """Return the handlers, for the pages' router."""
    return [doctor, doctor_part, look_again, fix]


async def _after(request: AnyRequest, service: Service, access: Access) -> Response[Any]:
    if not request.headers.get("hx-request"):
        return Redirect("/doctor", status_code=303)
    page = await asyncio.to_thread(_page, request, service, access, "findings")
    return Template("parts/doctor_findings.html", context={"page": page})


def report_of(service: Service) -> str:
    """Return the doctor's report as text, without names and secrets."""
    hardware, found, examined = _seen(service)
    facts = (("Slidepack", importlib.metadata.version("slidepack")), *machine_facts(hardware))
    cards = [(f"GPU {gpu.index}", _card_text(gpu)) for gpu in hardware.gpus]
    drives = [("Drive", f"{row.mount} {row.kind} {row.free}") for row in _drives(hardware)]
    examined_at = "" if examined is None else clock(examined.at)
    lines = (*facts, *cards, *drives, ("Examined", examined_at))
    return report_text(lines, found, service.examiner.log.text(), _identity(service))


def _page(request: AnyRequest, service: Service, access: Access, part: str = "") -> DoctorPage:
    hardware, found, examined = _seen(service)
    speed = None if examined is None else examined.setup.disk_speed
    tier = service.hardware.report().tier
    return DoctorPage(
        csrf_token=csrf_of(request, access),
        at=None if examined is None else examined.at,
        running=service.examiner.running(),
        problems=sum(one.level == "problem" for one in found),
        notes=sum(one.level == "note" for one in found),
        found=found,
        fixes=_FIX_LABELS,
        links=_LINKS,
        facts=(
            ("Slidepack", importlib.metadata.version("slidepack")),
            *((name, value) for name, value in machine_facts(hardware) if value),
        ),
        cards=tuple(_card(gpu) for gpu in hardware.gpus),
        drives=_drives(hardware),
        disk_speed=_speed(speed) if isinstance(speed, DiskSpeed) else "",
        wear=tier.words() if isinstance(tier, Tier) else "",
        room=room_used(service.paths) if part in ("", "room") else (),
        report=report_of(service),
        log=service.examiner.log.text(),
    )


def _seen(
    service: Service,
) -> tuple[HardwareReport, tuple[Finding, ...], Examination | None]:
    """Return the last examination, or what a first glance shows."""
    last = service.examiner.last()
    if last is not None:
        return last.hardware, last.findings, last
    glance = service.hardware.report()
    return glance, findings(glance), None


def _card(gpu: Gpu) -> CardRow:
    return CardRow(
        name=gpu.name,
        vram=f"{size(gpu.vram_free_bytes)} free of {size(gpu.vram_total_bytes)}",
        driver=gpu.driver_version or "–",  # noqa: RUF001 - a dash for "no value"
        link=pcie_link(gpu),
        heat="" if gpu.temperature_celsius is None else f"{gpu.temperature_celsius} °C",
        load="" if gpu.utilisation_percent is None else f"{gpu.utilisation_percent} %",
    )


def _card_text(gpu: Gpu) -> str:
    row = _card(gpu)
    parts = (row.name, row.vram, f"driver {row.driver}", f"PCIe {row.link}", row.heat, row.load)
    return ", ".join(part for part in parts if part)


def _drives(report: HardwareReport) -> tuple[DriveRow, ...]:
    if not isinstance(report.drives, Drives):
        return ()
    return tuple(_drive(one) for one in report.drives.drives)


def _drive(drive: Drive) -> DriveRow:
    held = {"data": drive.holds_data_dir, "home": drive.holds_home}
    return DriveRow(
        mount=drive.mount,
        kind=f"{drive.kind}, {drive.fs_type}",
        free=f"{size(drive.free_bytes)} free of {size(drive.total_bytes)}",
        holds=", ".join(name for name, holds in held.items() if holds),
    )


def _speed(speed: DiskSpeed) -> str:
    cached = "" if speed.direct else "; with the page cache, so reads may look too fast"
    write, read = speed.write_bytes_per_second / 1e6, speed.read_bytes_per_second / 1e6
    both = speed.both_bytes_per_second / 1e6
    return f"writes {write:,.0f} MB/s, reads {read:,.0f} MB/s, {both:,.0f} MB/s at once{cached}"


def _identity(service: Service) -> Identity:
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = ""
    return Identity(
        user=user,
        home=os.path.expanduser("~"),
        machine=socket.gethostname(),
        data_dir=str(Path(service.paths.home).absolute()),
    )
