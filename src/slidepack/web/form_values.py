"""What the form of a new job holds when it begins with the settings of another job."""

from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from slidepack.daemon.duplicating import settings_of_job
from slidepack.daemon.fits import Method
from slidepack.daemon.requests import JobSettings, job_title
from slidepack.daemon.service import Service
from slidepack.daemon.store.catalogue import DatasetRecord
from slidepack.daemon.store.jobs import JobRecord
from slidepack.engine.contract.job import DatasetRef
from slidepack.web.form_lines import lines_of_field

__all__ = ["FormValues", "values_of_job"]

_APART: Final = frozenset(("name", "method", "targets", "sample_prompts", "base_precision"))
"""Settings that are no plain text of the form."""
_OPEN: Final = frozenset(("name", "epochs", "lr", "rank", "start", "priority"))
"""Fields that are not folded away."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FormValues:
    """What the fields hold; one that is not named keeps its default."""

    origin: JobRecord | None = None
    """Whose settings these are."""
    notes: tuple[str, ...] = ()
    """What could not be taken over, in sentences."""
    texts: dict[str, str] = field(default_factory=dict)
    """By field, as somebody would have typed them."""
    targets: tuple[str, ...] | None = None
    """The linears that are ticked; None is all."""
    model: str = ""
    method: Method = "lora"
    dataset: int | None = None

    @property
    def folded(self) -> bool:
        """Whether all that is set is seen without the settings that are folded away."""
        return self.targets is None and self.texts.keys() <= _OPEN


def values_of_job(service: Service, job_id: int) -> FormValues:
    """Return a job's settings for the form.

    What it asked of the clock is not taken over, for that is past.

    Raises:
        SlidepackError: RUN-NOT-FOUND.
    """
    job, spec = service.jobs.get(job_id), service.jobs.spec(job_id)
    settings = settings_of_job(spec)
    notes: list[str] = []
    dataset = _dataset(service, spec.dataset)
    if dataset is None:
        notes.append("Its dataset is not here any more: choose another one.")
    if not _has_model(service, job.model_id):
        notes.append("Its model is not here any more: choose another one.")
    texts = _texts(settings)
    if dataset is None or spec.name != job_title(dataset, job.model_id):
        texts["name"] = spec.name
    if spec.eval.selection is not None:
        held_out = _dataset(service, spec.eval.selection)
        if held_out is None:
            notes.append("Its held-out dataset is not here any more: a share of the rows is.")
        else:
            texts["held_out"] = str(held_out.id)
    if spec.continues is not None:
        notes.append(f"It went on from job {spec.continues.job}; this one begins with the base.")
    texts |= {"start": "now"} if job.any_time else {}
    texts |= {"priority": str(job.priority)} if job.priority else {}
    return FormValues(
        origin=job,
        notes=tuple(notes),
        texts=texts,
        targets=None if settings.targets == JobSettings().targets else settings.targets,
        model=job.model_id,
        method=_way(settings),
        dataset=None if dataset is None else dataset.id,
    )


def _texts(settings: JobSettings) -> dict[str, str]:
    usual = msgspec.structs.asdict(JobSettings())
    texts = {
        name: _text(value)
        for name, value in msgspec.structs.asdict(settings).items()
        if name not in _APART and value != usual[name]
    }
    if settings.base_precision not in ("auto", "nf4"):
        texts["base_precision"] = settings.base_precision
    if settings.sample_prompts:
        # A line is a question: one of several lines, as the API takes them, becomes one.
        texts["sample_prompts"] = "\n".join(
            " ".join(lines_of_field(prompt)) for prompt in settings.sample_prompts
        )
    return texts


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else ""
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)


def _way(settings: JobSettings) -> Method:
    if settings.method == "full":
        return "full"
    return "qlora" if settings.base_precision == "nf4" else "lora"


def _dataset(service: Service, rows: DatasetRef) -> DatasetRecord | None:
    return next(
        (one for one in service.catalogue.datasets() if str(one.id) == rows.dataset_id), None
    )


def _has_model(service: Service, model_id: str) -> bool:
    return any(one.id == model_id and one.state == "ready" for one in service.catalogue.models())
