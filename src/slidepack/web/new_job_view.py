"""The page of a new job as it is drawn: models that fit, what is wrong, what it would come to."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from slidepack.daemon.fits import METHODS, Fit, Method, ModelFits
from slidepack.daemon.hardware import DeviceNow, Waiting, devices_now
from slidepack.daemon.planning.forecast import Forecast, forecast
from slidepack.daemon.requests import JobRequest, JobSettings, freeze_job, job_spec
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import DatasetRecord
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.memory import Machine
from slidepack.web.form_values import FormValues
from slidepack.web.format import duration, plural, size
from slidepack.web.job_form import NewJob

__all__ = ["FitCell", "Look", "ModelRow", "NewJobPage", "fit_sizes", "look_at"]

_MOST_FORECAST: Final = 200
"""Members whose time is planned while somebody types."""
_SETTING_WORDS: Final = {
    "batch_size": "rows a step",
    "max_seq_len": "tokens a row",
    "clip_norm": "as the clip norm",
}
_METHODS_SAID: Final[dict[Method, str]] = {
    "lora": "trains a small addition and leaves the model as it is: it needs room for the model "
    "and a little more, and is what to take if you are not sure.",
    "qlora": "is LoRA on a model held in 4 bits: it needs about a third of that room, is a little "
    "slower and less exact, and is for models that do not fit otherwise.",
    "full": "changes the whole model: it needs several times the model's size in memory and much "
    "more time, and is for many thousands of rows from which LoRA has not learned enough.",
}
_USUAL: Final[tuple[Method, ...]] = ("lora", "qlora")
"""What to take, the best first; a full fine-tuning is for those who know why."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Change:
    """A change of one setting, as a button makes it."""

    field: str
    value: int
    words: str


@dataclass(frozen=True, kw_only=True, slots=True)
class MethodSaid:
    """A way to train, for who has never trained."""

    method: Method
    title: str
    words: str
    """Go on after the title: what it needs, and when to take it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FitCell:
    """A way to train a model."""

    pick: str
    """Value of its radio button."""
    key: str
    """For its id."""
    method: Method
    title: str
    usual: bool
    """Whether it is what to take without a reason for another one."""
    fits: bool
    choosable: bool
    chosen: bool
    sizes: str
    """What it would take; empty where it does not fit."""
    why: str
    needs: str
    changes: tuple[Change, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelRow:
    """A model with its ways."""

    id: str
    name: str
    params: int
    bytes: int
    license: str
    problem: str
    cells: tuple[FitCell, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Look:
    """What follows from what the form holds now."""

    machine: str
    """In words."""
    waiting: str
    """Why nothing is known of the machine yet; empty where it is."""
    methods: tuple[MethodSaid, ...]
    models: tuple[ModelRow, ...]
    importing: int
    """Models that are on their way."""
    problems: dict[str, str]
    missing: str
    """What has not been chosen yet, in words."""
    outlook: tuple[str, ...]
    """What it would come to, in sentences."""
    jobs: int
    """That would be queued."""
    error: ErrorReport | None
    """Why nothing can be said of it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJobPage:
    """The page."""

    csrf_token: str
    datasets: list[DatasetRecord]
    dataset: int | None
    """Chosen as the page opens."""
    values: FormValues
    """What the fields hold as the page opens."""
    draft: str
    """An upload to check as the page opens; empty for none."""
    defaults: JobRequest
    """What the fields mean while they are empty."""
    targets: tuple[str, ...]
    tonight: float | None
    """When `tonight` begins, in unix seconds; None where that is now."""
    look: Look


def look_at(service: Service, asked: NewJob) -> Look:
    """Return what follows from a form; takes less than a second."""
    report = service.hardware.report()
    devices = devices_now(report, whole=True, device=service.settings.device)
    first = None if isinstance(devices, Waiting) else devices[0]
    machine = None if first is None else first.machine
    models = service.catalogue.models()
    # What cannot run says nothing of what fits: then that is what would fit by default.
    settings = JobSettings() if asked.problems else asked.settings
    rows = service.fits.of(models, settings, machine)
    outlook: tuple[str, ...] = ()
    error = None
    jobs = 1
    if not asked.problems and not asked.missing:
        try:
            members = asked.members()
            jobs = len(members)
            outlook = _outlook(service, asked, members)
        except SlidepackError as refused:
            error = refused.report
    return Look(
        machine="" if first is None else _machine_words(first, devices),
        waiting=devices.reason if isinstance(devices, Waiting) else "",
        methods=tuple(
            MethodSaid(method=method, title=METHODS[method], words=words)
            for method, words in _METHODS_SAID.items()
        ),
        models=tuple(_row(one, machine, asked) for one in rows),
        importing=sum(model.state == "importing" for model in models),
        problems=asked.problems,
        missing=asked.missing,
        outlook=outlook,
        jobs=jobs,
        error=error,
    )


def specs_of(service: Service, asked: NewJob, members: Sequence[JobSettings]) -> list[JobSpec]:
    """Return what the members would be queued with.

    Raises:
        SlidepackError: those of `freeze_job`.
    """
    first = freeze_job(
        msgspec.structs.replace(asked.job(), **msgspec.structs.asdict(members[0])),
        service.catalogue,
        service.paths,
    )
    return [first] + [
        job_spec(one, first.name, first.base, first.dataset, first.eval.selection)
        for one in members[1:]
    ]


def forecast_of(service: Service, asked: NewJob, members: Sequence[JobSettings]) -> Forecast:
    """Return how long the members would take.

    Raises:
        SlidepackError: those of `freeze_job`.
    """
    specs = specs_of(service, asked, members)
    return forecast(service.queue_reader(), service.request_maker(), specs, time.time())


def time_words(found: Forecast) -> str:
    """Return how long it would take, as a sentence; empty where that is not known."""
    if found.seconds is None or found.one_seconds is None:
        return ""
    if found.jobs == 1:
        return f"{plural(found.steps, 'step')}, about {duration(found.seconds)} once it begins."
    times = found.times_one or 1.0
    where = "one pack" if found.devices == 1 else f"{found.devices} packs"
    if found.most_lanes >= found.jobs or found.devices > 1:
        how = f"{found.jobs} lanes in {where}"
    elif found.most_lanes > 1:
        how = f"{found.jobs} jobs, up to {found.most_lanes} at once in a pack"
    else:
        how = f"{found.jobs} jobs, one after the other"
    said = f"{how}, {times:.1f}× the time of one: "  # noqa: RUF001 - a times sign
    said += f"about {duration(found.seconds)} against {duration(found.one_seconds)}."
    alone = found.one_by_one_seconds
    if alone and found.most_lanes > 1 and alone > 1.05 * found.seconds:
        said += f" One by one they would take {duration(alone)}."
    return said


def _outlook(service: Service, asked: NewJob, members: list[JobSettings]) -> tuple[str, ...]:
    counted = members[:_MOST_FORECAST]
    found = forecast_of(service, asked, counted)
    said = []
    if len(members) > len(counted):
        said.append(f"{len(members)} jobs; the time is that of the first {len(counted)}.")
    said.append(time_words(found) or found.unfit or found.waiting)
    return tuple(filter(None, said))


def _machine_words(first: DeviceNow, devices: object) -> str:
    many = f" (of {len(devices)} cards)" if isinstance(devices, list) and len(devices) > 1 else ""
    ram = f"{size(first.machine.ram_available_bytes)} of RAM"
    if first.key == "cpu":
        return f"On the CPU, with {ram}."
    return f"On {first.name}{many}, with {size(first.machine.device_free_bytes)} of VRAM and {ram}."


def _row(one: ModelFits, machine: Machine | None, asked: NewJob) -> ModelRow:
    model = one.model
    chosen = asked.method if model.id == asked.model else None
    if machine is None or one.problem:
        # Nothing is known of what fits; the worker will find out.
        cells = tuple(_unknown(model.id, method, chosen) for method in METHODS)
    else:
        usual = _usual(one.fits)
        cells = tuple(_cell(model.id, fit, machine, chosen, usual) for fit in one.fits)
    return ModelRow(
        id=model.id,
        name=model.name,
        params=model.params,
        bytes=model.bytes,
        license=model.license,
        problem=one.problem,
        cells=() if one.problem else cells,
    )


def _unknown(model_id: str, method: Method, chosen: Method | None) -> FitCell:
    return FitCell(
        pick=f"{model_id}:{method}",
        key=f"{model_id}-{method}",
        method=method,
        title=METHODS[method],
        usual=method == _USUAL[0],
        fits=True,
        choosable=True,
        chosen=chosen == method,
        sizes="",
        why="",
        needs="",
        changes=(),
    )


def _usual(fits: Sequence[Fit]) -> Method | None:
    fitting = {fit.method for fit in fits if fit.fits}
    return next((method for method in _USUAL if method in fitting), None)


def _cell(
    model_id: str, fit: Fit, machine: Machine, chosen: Method | None, usual: Method | None
) -> FitCell:
    return FitCell(
        pick=f"{model_id}:{fit.method}",
        key=f"{model_id}-{fit.method}",
        method=fit.method,
        title=METHODS[fit.method],
        usual=fit.method == usual,
        fits=fit.fits,
        choosable=fit.choosable,
        chosen=chosen == fit.method,
        sizes=fit_sizes(fit, machine),
        why=fit.why,
        needs=fit.needs,
        changes=tuple(
            Change(
                field=remedy.setting,
                value=remedy.value,
                words=f"{remedy.value} {_SETTING_WORDS[remedy.setting]}",
            )
            for remedy in fit.remedies
        ),
    )


def fit_sizes(fit: Fit, machine: Machine) -> str:
    """Return what a way to train would take, in words; empty where it does not fit."""
    if not fit.fits:
        return ""
    host = _of(fit.host_bytes, machine.ram_available_bytes)
    if machine.device == "cpu":
        return f"{host} of RAM"
    device = _of(fit.device_bytes, machine.device_free_bytes)
    # A few GB of RAM are there anyway; what holds layers or optimizer state is worth a word.
    if fit.method == "full" or fit.host_bytes > machine.ram_available_bytes // 4:
        return f"{device}, and {host} of RAM"
    return device


def _of(need: int, there: int) -> str:
    # Both in the unit of the larger one, so that they compare at a glance.
    unit, name = (1 << 30, "GiB") if there >= 1 << 30 else (1 << 20, "MiB")
    return f"{need / unit:.1f} of {there / unit:.1f} {name}"
