"""Which models fit this machine, each by adapters, by adapters over 4 bits, and as a whole.

Plans are cheap; what would make a model fit that does not takes many of them, so answers are kept.
"""

import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.daemon.requests import JobSettings, job_spec
from slidepack.daemon.store.catalogue import ModelRecord
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, ModelRef
from slidepack.engine.memory import GIB, Machine, plan_run
from slidepack.engine.memory_advice import Advice, advise
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["METHODS", "Fit", "Fits", "Method", "ModelFits", "Remedy", "with_method"]

Method = Literal["lora", "qlora", "full"]

METHODS: Final[dict[Method, str]] = {"lora": "LoRA", "qlora": "QLoRA", "full": "Full"}
_MOST_KEPT: Final = 4096


class Remedy(msgspec.Struct, frozen=True, kw_only=True):
    """A setting with which it would fit."""

    setting: Literal["batch_size", "max_seq_len", "clip_norm"]
    value: int


class Fit(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a model can be trained in one way, by its prediction."""

    method: Method
    fits: bool
    device_bytes: int
    """Predicted on the device; 0 where that is the CPU, or where it does not fit."""
    host_bytes: int
    """Predicted in RAM."""
    why: str
    """How it would use the machine, or why it cannot."""
    remedies: tuple[Remedy, ...]
    """Of what does not fit: changes of which each alone is enough."""
    needs: str
    """Memory with which it would fit, in words; empty where that is not what is missing."""

    @property
    def choosable(self) -> bool:
        """Whether it fits, or would with other settings."""
        return self.fits or bool(self.remedies)


class ModelFits(msgspec.Struct, frozen=True, kw_only=True):
    """A model with all ways to train it."""

    model: ModelRecord
    fits: tuple[Fit, ...]
    """In the order of `METHODS`; none where nothing is known of the machine or the model."""
    problem: str
    """Why its folder cannot be read; empty where it can."""

    @property
    def any_fits(self) -> bool:
        """Whether one of the ways fits."""
        return any(fit.fits for fit in self.fits)


class Fits:
    """Answers for models and settings, each found once. Any thread may ask."""

    def __init__(self) -> None:
        """Start with none."""
        self._lock = threading.Lock()
        self._known: dict[tuple[str, Method, int, int, str, Machine], Fit] = {}

    def of(
        self, models: Sequence[ModelRecord], settings: JobSettings, machine: Machine | None
    ) -> list[ModelFits]:
        """Return the models that are ready: first those that fit, the largest of them first.

        Args:
            models: of the catalogue.
            settings: of the job; its method and the precision of its base do not matter.
            machine: all of it; None where nothing is known of it yet.
        """
        found = [
            self._model(model, settings, machine) for model in models if model.state == "ready"
        ]
        return sorted(found, key=lambda one: (not one.any_fits, -one.model.params, one.model.id))

    def of_shape(
        self, key: str, shape: ModelShape, settings: JobSettings, machine: Machine
    ) -> tuple[Fit, ...]:
        """Return the ways to train a model of a shape, here or not, in the order of `METHODS`.

        What would make it fit is not looked for, which takes most of the time.

        Args:
            key: names the model; another one never has the same.
            shape: of the model.
            settings: as in `of`.
            machine: all of it.
        """
        base = ModelRef(model_id=key, path="", content_hash=f"shape of {key}")
        return tuple(
            self._fit(base, shape, method, settings, machine, advised=False) for method in METHODS
        )

    def _model(
        self, model: ModelRecord, settings: JobSettings, machine: Machine | None
    ) -> ModelFits:
        if machine is None:
            return ModelFits(model=model, fits=(), problem="")
        try:
            shape = read_shape(Path(model.path))
            base = ModelRef(model_id=model.id, path=model.path, content_hash=model.content_hash)
            fits = tuple(self._fit(base, shape, method, settings, machine) for method in METHODS)
        except SlidepackError as error:
            return ModelFits(model=model, fits=(), problem=error.report.line())
        return ModelFits(model=model, fits=fits, problem="")

    def _fit(
        self,
        base: ModelRef,
        shape: ModelShape,
        method: Method,
        settings: JobSettings,
        machine: Machine,
        *,
        advised: bool = True,
    ) -> Fit:
        chosen = with_method(settings, method)
        relevant = repr((chosen.rank, chosen.targets, chosen.moments, chosen.clip_norm))
        key = (
            base.content_hash,
            method,
            chosen.batch_size,
            chosen.max_seq_len,
            f"{relevant} {chosen.base_precision} {chosen.optimizer_engine}",
            machine,
        )
        with self._lock:
            known = self._known.get(key)
        if known is not None:
            return known
        found = _plan(_spec(base, chosen), shape, method, machine, advised=advised)
        with self._lock:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[key] = found
        return found


def with_method(settings: JobSettings, method: Method) -> JobSettings:
    """Return the settings with another way to train."""
    if method == "qlora":
        return msgspec.structs.replace(settings, method="lora", base_precision="nf4")
    if method == "full":
        return msgspec.structs.replace(settings, method="full", base_precision="auto")
    plain = "auto" if settings.base_precision == "nf4" else settings.base_precision
    return msgspec.structs.replace(settings, method="lora", base_precision=plain)


def _spec(base: ModelRef, settings: JobSettings) -> JobSpec:
    rows = DatasetRef(dataset_id="", path="", content_hash="")
    return job_spec(settings, "fit", base, rows, None)


def _plan(
    spec: JobSpec, shape: ModelShape, method: Method, machine: Machine, *, advised: bool
) -> Fit:
    try:
        plan = plan_run(spec, shape, machine)
    except SlidepackError as error:
        advice = advise(spec, shape, machine) if advised else None
        return Fit(
            method=method,
            fits=False,
            device_bytes=0,
            host_bytes=0,
            why=f"{error.report.what} {error.report.why}".strip(),
            remedies=() if advice is None else _remedies(advice),
            needs="" if advice is None else _needs(advice),
        )
    return Fit(
        method=method,
        fits=True,
        device_bytes=plan.predicted_device_bytes,
        host_bytes=plan.predicted_host_bytes,
        why=plan.reason,
        remedies=(),
        needs="",
    )


def _remedies(advice: Advice) -> tuple[Remedy, ...]:
    found: list[Remedy] = []
    if advice.largest_batch is not None:
        found.append(Remedy(setting="batch_size", value=advice.largest_batch))
    if advice.largest_seq is not None:
        found.append(Remedy(setting="max_seq_len", value=advice.largest_seq))
    if advice.without_clipping:
        found.append(Remedy(setting="clip_norm", value=0))
    return tuple(found)


def _needs(advice: Advice) -> str:
    needed = (("VRAM", advice.vram_needed_bytes), ("RAM", advice.ram_needed_bytes))
    return " and ".join(
        f"{size / GIB:.1f} GiB of {name}" for name, size in needed if size is not None
    )
