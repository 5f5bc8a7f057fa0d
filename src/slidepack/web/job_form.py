"""The form of a new job: one job, or a sweep where a field holds several values.

What is wrong is said for each field, so that all of it can be put right at once.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Literal

import msgspec

from slidepack.daemon.fits import METHODS, Method, with_method
from slidepack.daemon.requests import JobRequest, JobSettings, advice, job_spec
from slidepack.daemon.store.timing import MAX_PRIORITY
from slidepack.daemon.sweeps.members import check_settings, expand, settings_of
from slidepack.daemon.sweeps.request import SweepRequest
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.contract.job import DatasetRef, JobSpec, ModelRef
from slidepack.engine.contract.sweep import Halving
from slidepack.engine.data.rows import clip
from slidepack.web.form_lines import lines_of_field
from slidepack.web.many_values import split_values

__all__ = ["Fields", "NewJob", "parse_new_job"]

Fields = Mapping[str, str | Sequence[str]]
Start = Literal["auto", "now", "tonight"]

_TYPES: Final = {field.name: field.type for field in msgspec.structs.fields(JobSettings)}
_LISTS: Final = frozenset(("targets", "sample_prompts"))
_WHOLE: Final = "use a whole number"
_BASE: Final = ModelRef(model_id="", path="", content_hash="")
_ROWS: Final = DatasetRef(dataset_id="", path="", content_hash="")
_FIRST_WORD: Final = re.compile(r"[a-z_]+")


@dataclass
class NewJob:
    """What a form asks for."""

    model: str = ""
    method: Method = "lora"
    dataset: int | None = None
    held_out: int | None = None
    given: dict[str, Any] = field(default_factory=dict)
    """Settings that were typed, with one good value each."""
    grid: dict[str, list[Any]] = field(default_factory=dict)
    """Settings with several."""
    start: Start = "auto"
    not_before: float | None = None
    deadline: float | None = None
    priority: int = 0
    halving: Halving | None = None
    problems: dict[str, str] = field(default_factory=dict)
    """What is wrong, by field; `form` is none in particular."""

    @property
    def missing(self) -> str:
        """What has not been chosen yet, in words; empty where nothing is missing."""
        if self.dataset is None:
            return "Drop a file first."
        return "" if self.model else "Choose a model."

    @property
    def settings(self) -> JobSettings:
        """The settings of one job: of several values the first."""
        several = {name: values[0] for name, values in self.grid.items()}
        return with_method(JobSettings(**(self.given | several)), self.method)

    def job(self) -> JobRequest:
        """Return it as one job; something must be chosen, and nothing be wrong."""
        assert self.dataset is not None
        return JobRequest(
            **msgspec.structs.asdict(self.settings),
            model=self.model,
            dataset=self.dataset,
            held_out=self.held_out,
            start=self.start,
            not_before=self.not_before,
            deadline=self.deadline,
            priority=self.priority,
        )

    def sweep(self) -> SweepRequest:
        """Return it as a sweep."""
        fixed = {name: value for name, value in self.given.items() if name != "name"}
        if self.method == "qlora":
            fixed["base_precision"] = "nf4"
        return SweepRequest(
            name=self.given.get("name", ""),
            fixed=fixed,
            grid=self.grid,
            halving=self.halving,
            model=self.model,
            dataset=self.dataset or 0,
            held_out=self.held_out,
            start=self.start,
            not_before=self.not_before,
            deadline=self.deadline,
            priority=self.priority,
        )

    def members(self) -> list[JobSettings]:
        """Return the settings of each job that it would be.

        Raises:
            SlidepackError: RUN-SPEC-INVALID.
        """
        if not self.grid:
            return [self.settings]
        plan = self.sweep()
        return [check_settings(settings_of(plan, one)) for one in expand(plan)]


def parse_new_job(fields: Fields, now: float) -> NewJob:
    """Read a form; empty fields take their defaults.

    Args:
        fields: as they were sent.
        now: unix seconds.
    """
    texts = {
        name: value.strip()
        for name, value in fields.items()
        if isinstance(value, str) and value.strip()
    }
    found = NewJob()
    _read_choice(found, texts)
    for name in _TYPES:
        if name in texts and name not in _LISTS and name != "method":
            _read_setting(found, name, texts[name])
    _read_lists(found, fields, texts)
    _read_times(found, texts, now)
    _read_sweep(found, texts)
    if not found.problems:
        _check_together(found)
    return found


def _read_choice(found: NewJob, texts: Mapping[str, str]) -> None:
    model, _, method = texts.get("pick", "").rpartition(":")
    found.model = model or texts.get("model", "")
    asked = method or texts.get("method", "lora")
    known = next((name for name in METHODS if name == asked), None)
    if known is None:
        found.problems["pick"] = f"method is {clip(asked)}; use {', '.join(METHODS)}"
    else:
        found.method = known
    for name in ("dataset", "held_out"):
        if name in texts:
            number = _whole(found, name, texts[name])
            setattr(found, name, number)


def _read_setting(found: NewJob, name: str, text: str) -> None:
    try:
        values = [_value(name, part) for part in split_values(name, text)]
        for value in values:
            _spec(with_method(JobSettings(**{name: value}), found.method))
    except ValueError as error:
        found.problems[name] = str(error)
        return
    if len(values) > 1:
        found.grid[name] = values
    else:
        found.given[name] = values[0]


def _value(name: str, text: str) -> Any:
    try:
        return msgspec.convert(text, _TYPES[name], strict=False)
    except msgspec.ValidationError as error:
        whole = "`int" in str(error)
        wanted = advice(name) or (_WHOLE if whole else "use a number")
        raise ValueError(f"{name} is {clip(text)}; {wanted}") from error


def _read_lists(found: NewJob, fields: Fields, texts: Mapping[str, str]) -> None:
    # A box that is not ticked is not sent; this field says that the boxes were there.
    if "targets" in fields or "targets_shown" in fields:
        sent = fields.get("targets", ())
        targets = (sent,) if isinstance(sent, str) else tuple(sent)
        try:
            _spec(JobSettings(targets=targets))
            found.given["targets"] = targets
        except ValueError as error:
            found.problems["targets"] = str(error)
    if "sample_prompts" in texts:
        prompts = tuple(lines_of_field(texts["sample_prompts"]))
        try:
            _spec(JobSettings(sample_prompts=prompts))
            found.given["sample_prompts"] = prompts
        except ValueError as error:
            found.problems["sample_prompts"] = str(error)


def _read_times(found: NewJob, texts: Mapping[str, str], now: float) -> None:
    start = texts.get("start", "auto")
    if start == "at":
        found.not_before = _moment(found, "at", texts.get("at", ""))
    elif start in ("auto", "now", "tonight"):
        found.start = msgspec.convert(start, Start)
    else:
        found.problems["start"] = f"start is {clip(start)}; use auto, now, tonight or at"
    if "deadline" in texts:
        found.deadline = _moment(found, "deadline", texts["deadline"])
        if found.deadline is not None and found.deadline <= now:
            found.problems["deadline"] = "that is past"
        elif found.deadline is not None and found.deadline <= (found.not_before or 0.0):
            found.problems["deadline"] = "that is before the time at which it may begin"
    if "priority" in texts:
        found.priority = _whole(found, "priority", texts["priority"]) or 0
        if not -MAX_PRIORITY <= found.priority <= MAX_PRIORITY:
            found.problems["priority"] = f"use {-MAX_PRIORITY} to {MAX_PRIORITY}"


def _read_sweep(found: NewJob, texts: Mapping[str, str]) -> None:
    if not found.grid:
        return
    first = next(iter(found.grid))
    if found.method == "full":
        found.problems[first] = "several values make a sweep, and only adapters are swept"
    if "steps" in found.grid and "epochs" in found.given:
        del found.given["epochs"]
    if "epochs" in found.grid and "steps" in found.given:
        found.problems["steps"] = "steps take the place of passes; leave one of both empty"
    if "halving_samples" in texts:
        samples = _whole(found, "halving_samples", texts["halving_samples"])
        try:
            found.halving = None if samples is None else Halving(first_samples=samples)
        except ValueError:
            found.problems["halving_samples"] = "use 1 or more"


def _check_together(found: NewJob) -> None:
    try:
        for settings in found.members():
            _spec(settings)
    except SlidepackError as error:
        found.problems["form"] = error.report.why
    except ValueError as error:
        word = _FIRST_WORD.match(str(error))
        known = word is not None and word.group() in _TYPES
        found.problems[word.group() if word is not None and known else "form"] = str(error)


def _spec(settings: JobSettings) -> JobSpec:
    """Return a specification of no data.

    Raises:
        ValueError: the settings cannot run.
    """
    try:
        return job_spec(settings, "new job", _BASE, _ROWS, None)
    except SlidepackError as error:
        raise ValueError(error.report.why) from error


def _whole(found: NewJob, name: str, text: str) -> int | None:
    try:
        return msgspec.convert(text, int, strict=False)
    except msgspec.ValidationError:
        found.problems[name] = f"{name} is {clip(text)}; {_WHOLE}"
        return None


def _moment(found: NewJob, name: str, text: str) -> float | None:
    """Return unix seconds of a number of them, or of a local date and time."""
    try:
        return msgspec.convert(text, float, strict=False)
    except msgspec.ValidationError:
        pass
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError, OSError):
        found.problems[name] = "choose a day and a time"
        return None
