"""`/metrics`: how everything stands, in Prometheus' text format, behind the same login.

https://prometheus.io/docs/instrumenting/exposition_formats/ is the format, version 0.0.4.
"""

import asyncio
import math
import shutil
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

import psutil
from litestar import MediaType, Response, get

from slidepack.daemon.notices.energy import EnergyReport
from slidepack.daemon.notices.settings import Outlook
from slidepack.daemon.probe.gpu import Gpu
from slidepack.daemon.service import Service
from slidepack.daemon.states import JOB_STATES
from slidepack.daemon.store.jobs import JobRecord

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_PREFIX: Final = "slidepack_"

Kind = Literal["gauge", "counter"]
Labels = Mapping[str, str]
Sample = tuple[Labels, float | None]
"""A value that nobody knows is None, and has no line."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Standing:
    """Everything that the metrics show, read at one moment."""

    jobs_by_state: Mapping[str, int]
    live: Sequence[JobRecord]
    outlook: Outlook
    gpus: Sequence[Gpu]
    disk_free_bytes: int
    energy: EnergyReport
    notices: Mapping[str, int]
    """Deliveries that are pending, and that were given up."""
    started_at: float
    """Unix time in seconds at which the daemon started."""
    rss_bytes: int


@dataclass(frozen=True, slots=True)
class _Family:
    """One metric: all its samples, under one header."""

    name: str
    kind: Kind
    help: str
    samples: Sequence[Sample] = field(default_factory=tuple)


@get("/metrics", include_in_schema=False)
async def metrics(service: Service) -> Response[str]:
    """Return how everything stands."""
    text = await asyncio.to_thread(lambda: render(read_standing(service, time.time())))
    return Response(text, media_type=MediaType.TEXT, headers={"content-type": CONTENT_TYPE})


def read_standing(service: Service, now: float) -> Standing:
    """Gather what the metrics show.

    Raises:
        SlidepackError: DISK-FULL, DISK-UNWRITABLE.
    """
    counted = service.database.query("SELECT state, COUNT(*) AS number FROM jobs GROUP BY state")
    process = psutil.Process()
    return Standing(
        jobs_by_state={row["state"]: int(row["number"]) for row in counted},
        live=service.jobs.live(),
        outlook=service.notices.outlook(now),
        gpus=service.hardware.report().gpus,
        disk_free_bytes=shutil.disk_usage(service.paths.home).free,
        energy=service.notices.energy.total(),
        notices=service.notices.outbox.open_counts(),
        started_at=process.create_time(),
        rss_bytes=process.memory_info().rss,
    )


def render(standing: Standing) -> str:
    """Return the page of metrics."""
    return "".join(_written(family) for family in _families(standing))


def _families(standing: Standing) -> Iterable[_Family]:
    yield from _job_families(standing)
    yield from _policy_families(standing.outlook)
    yield from _gpu_families(standing.gpus)
    yield from _daemon_families(standing)


def _job_families(standing: Standing) -> Iterable[_Family]:
    by_state = standing.jobs_by_state
    yield _Family(
        "jobs",
        "gauge",
        "Jobs by state.",
        [({"state": state}, float(by_state.get(state, 0))) for state in JOB_STATES],
    )
    yield _Family(
        "queue_length", "gauge", "Jobs that wait.", [({}, float(by_state.get("queued", 0)))]
    )
    named = [({"job": str(job.id), "name": job.name}, job) for job in standing.live]
    yield _Family(
        "job_step", "gauge", "Steps a live job has done.", [(of, job.step) for of, job in named]
    )
    yield _Family(
        "job_steps",
        "gauge",
        "Steps a live job has in all.",
        [(of, job.total_steps) for of, job in named],
    )
    yield _Family(
        "job_loss",
        "gauge",
        "Training loss of a live job's last step.",
        [(of, job.loss) for of, job in named],
    )
    yield _Family(
        "job_tokens_per_second",
        "gauge",
        "Speed of a live job.",
        [(of, job.tokens_per_second) for of, job in named],
    )
    yield _Family(
        "job_eta_seconds",
        "gauge",
        "Time that a live job still needs.",
        [(of, job.eta_seconds) for of, job in named],
    )


def _policy_families(outlook: Outlook) -> Iterable[_Family]:
    yield _Family(
        "hold",
        "gauge",
        "What keeps jobs from running now.",
        [({"code": code}, 1.0) for code in dict.fromkeys(outlook.holds)],
    )
    yield _Family(
        "window_open",
        "gauge",
        "Whether jobs may run by the clock; 1 where there are no windows.",
        [({}, 0.0 if outlook.window_open is False else 1.0)],
    )


def _gpu_families(gpus: Sequence[Gpu]) -> Iterable[_Family]:
    cards = [
        ({"gpu": str(gpu.index), "vendor": gpu.vendor, "name": gpu.name, "uuid": gpu.uuid}, gpu)
        for gpu in gpus
    ]
    yield _Family(
        "gpu_memory_used_bytes",
        "gauge",
        "VRAM in use, by all programs.",
        [(of, _used(gpu)) for of, gpu in cards],
    )
    yield _Family(
        "gpu_memory_total_bytes",
        "gauge",
        "VRAM of the card.",
        [(of, gpu.vram_total_bytes) for of, gpu in cards],
    )
    yield _Family(
        "gpu_temperature_celsius",
        "gauge",
        "Temperature of the card.",
        [(of, gpu.temperature_celsius) for of, gpu in cards],
    )
    yield _Family(
        "gpu_utilisation_ratio",
        "gauge",
        "Share of time in which the card was busy, 0 to 1.",
        [
            (of, None if gpu.utilisation_percent is None else gpu.utilisation_percent / 100)
            for of, gpu in cards
        ],
    )
    yield _Family(
        "gpu_power_watts",
        "gauge",
        "What the card draws.",
        [(of, gpu.power_watts) for of, gpu in cards],
    )


def _daemon_families(standing: Standing) -> Iterable[_Family]:
    energy = standing.energy
    yield _Family(
        "energy_joules_total",
        "counter",
        "Measured energy of all runs, by source.",
        [({"source": "card"}, energy.card_joules), ({"source": "cpu_package"}, energy.cpu_joules)],
    )
    yield _Family(
        "disk_free_bytes",
        "gauge",
        "Free space on the data directory's disk.",
        [({}, standing.disk_free_bytes)],
    )
    yield _Family(
        "notice_deliveries",
        "gauge",
        "Deliveries of notices that are pending, or were given up and are still listed.",
        [({"state": state}, number) for state, number in standing.notices.items()],
    )
    yield _Family(
        "start_time_seconds",
        "gauge",
        "When the daemon started, in unix time.",
        [({}, standing.started_at)],
    )
    yield _Family(
        "resident_memory_bytes", "gauge", "RAM of the daemon.", [({}, standing.rss_bytes)]
    )


def _used(gpu: Gpu) -> float | None:
    if gpu.vram_total_bytes is None or gpu.vram_free_bytes is None:
        return None
    return gpu.vram_total_bytes - gpu.vram_free_bytes


def _written(family: _Family) -> str:
    name = f"{_PREFIX}{family.name}"
    lines = [
        f"{name}{_labels(labels)} {_number(value)}\n"
        for labels, value in family.samples
        if value is not None
    ]
    # A metric without a value has no header either.
    header = f"# HELP {name} {_escaped(family.help)}\n# TYPE {name} {family.kind}\n"
    return header + "".join(lines) if lines else ""


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = (f'{key}="{_escaped(value, quotes=True)}"' for key, value in labels.items())
    return f"{{{','.join(pairs)}}}"


def _escaped(text: str, *, quotes: bool = False) -> str:
    escaped = text.replace("\\", r"\\").replace("\n", r"\n")
    return escaped.replace('"', r"\"") if quotes else escaped


def _number(value: float) -> str:
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
