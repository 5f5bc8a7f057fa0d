"""Whom a chat is with: a base and the adapters that completed jobs trained over it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from slidepack.daemon.chat.contract import SessionRequest
from slidepack.daemon.imports import unchanged
from slidepack.daemon.store.catalogue import Catalogue, ModelRecord
from slidepack.daemon.store.jobs import JobRecord, JobStore
from slidepack.engine.chat.contract import BASE_VOICE
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import FullMethod, JobSpec, LoraMethod, Precision
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["Adapter", "Subject", "Subjects", "job_voice"]

_WEIGHTS: Final = "adapter_model.safetensors"
_FILE_WIDTH: Final = 4
"""Bytes of a parameter in an adapter's file."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A job's adapter."""

    job_id: int
    title: str
    folder: Path
    params: int

    @property
    def name(self) -> str:
        """Of its voice."""
        return job_voice(self.job_id)


@dataclass(frozen=True, slots=True)
class Subject:
    """One model, and adapters over it."""

    model: str
    """Id of the base, or `job-N` of a job that trained all of it."""
    title: str
    path: Path
    content_hash: str
    """That the process is to compare; empty where the files are known to be those."""
    shape: ModelShape
    precision: Precision
    adapters: tuple[Adapter, ...]
    bare: str = BASE_VOICE
    """Name of the model's own voice."""
    bare_title: str = ""

    @property
    def adapter_params(self) -> int:
        """Of all adapters."""
        return sum(adapter.params for adapter in self.adapters)


class Subjects:
    """Finds what is to answer."""

    def __init__(self, jobs: JobStore, catalogue: Catalogue) -> None:
        """Bind the stores."""
        self._jobs = jobs
        self._catalogue = catalogue

    def of(self, request: SessionRequest) -> Subject:
        """Return whom a request asks for.

        Raises:
            SlidepackError: RUN-NOT-FOUND, RUN-NO-RESULT or MODEL-NOT-FOUND; MODEL-NOT-READY;
                MODEL-CHANGED where a job was trained over another content than the model has now;
                CHAT-REQUEST-INVALID where these cannot be in one chat; those of `read_shape`.
        """
        found = [(self._completed(number), self._jobs.spec(number)) for number in request.jobs]
        if any(isinstance(spec.method, FullMethod) for _, spec in found):
            return _whole_model(request, *found[0])
        names = {spec.base.model_id for _, spec in found} | ({request.model} - {""})
        if len(names) != 1:
            raise _not_together(f"their bases are {', '.join(sorted(names))}")
        model = self._model(names.pop())
        for job, spec in found:
            if spec.base.content_hash != model.content_hash:
                raise _other_base(job, model)
        return Subject(
            model=model.id,
            title=_title([job for job, _ in found]) or model.name,
            path=Path(model.path),
            content_hash="" if unchanged(model) else model.content_hash,
            shape=read_shape(Path(model.path)),
            precision=request.precision or _precision([spec for _, spec in found]),
            adapters=tuple(_adapter(job) for job, _ in found),
            bare_title=f"{model.name}, as it was",
        )

    def _completed(self, job_id: int) -> JobRecord:
        job = self._jobs.get(job_id)
        if job.state != "completed" or job.result is None:
            raise SlidepackError(
                "RUN-NO-RESULT",
                f"Job {job_id} has nothing to chat with yet.",
                why=f"it is {job.state}",
                fix="Wait until it is completed.",
            )
        return job

    def _model(self, model_id: str) -> ModelRecord:
        model = self._catalogue.model(model_id)
        if model.state != "ready":
            raise SlidepackError(
                "MODEL-NOT-READY",
                f"The model {model_id} cannot answer yet.",
                why=f"its import is in state {model.state}",
                fix="Wait until it is ready, or add it again.",
            )
        return model


def job_voice(job_id: int) -> str:
    """Return the name of a job's voice."""
    return f"job-{job_id}"


def _whole_model(request: SessionRequest, job: JobRecord, spec: JobSpec) -> Subject:
    if len(request.jobs) > 1 or request.model:
        raise _not_together("one of the jobs trained every weight, and is a model of its own")
    assert job.result is not None, "it is completed"
    path = Path(job.result) / "model"
    return Subject(
        model=job_voice(job.id),
        title=_title([job]),
        path=path,
        content_hash="",
        shape=read_shape(path),
        precision=request.precision or "auto",
        adapters=(),
        bare=job_voice(job.id),
        bare_title=f"Job {job.id}: {job.name}",
    )


def _adapter(job: JobRecord) -> Adapter:
    assert job.result is not None, "it is completed"
    folder = Path(job.result) / "adapter"
    try:
        size = (folder / _WEIGHTS).stat().st_size
    except OSError as error:
        raise SlidepackError(
            "RUN-NO-RESULT",
            f"The adapter of job {job.id} is gone.",
            why=f"{folder / _WEIGHTS}: {error.strerror}",
            fix="Run the job again.",
        ) from error
    return Adapter(job.id, f"Job {job.id}: {job.name}", folder, size // _FILE_WIDTH)


def _precision(specs: list[JobSpec]) -> Precision:
    """Return how the jobs held their base, where all did it alike."""
    used = {spec.method.base_precision for spec in specs if isinstance(spec.method, LoraMethod)}
    return used.pop() if len(used) == 1 else "auto"


def _title(jobs: list[JobRecord]) -> str:
    if not jobs:
        return ""
    others = f" and {len(jobs) - 1} others" if len(jobs) > 1 else ""
    return f"job {jobs[0].id}{others}"


def _not_together(why: str) -> SlidepackError:
    return SlidepackError(
        "CHAT-REQUEST-INVALID",
        "These cannot answer in one chat.",
        why=why,
        fix="Ask for jobs over one base, or for one whole model alone.",
    )


def _other_base(job: JobRecord, model: ModelRecord) -> SlidepackError:
    return SlidepackError(
        "MODEL-CHANGED",
        f"Job {job.id} was trained over another content than {model.id} has now.",
        why="the hash in its specification is not the model's",
        fix="Add the model as it was with `slidepack models add`, or train again.",
    )
