"""Turns the forms of a new job and of one that goes on into requests."""

from typing import Any, TypeVar

import msgspec

from slidepack.daemon.continuing import ContinueRequest
from slidepack.daemon.requests import JobRequest, advice
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import clip

_Request = TypeVar("_Request", JobRequest, ContinueRequest)


def job_request(fields: dict[str, str]) -> JobRequest:
    """Return the request of a form; empty fields take their defaults.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    values = _filled(fields)
    if "sample_prompts" in values:
        lines = values["sample_prompts"].splitlines()
        values["sample_prompts"] = [line.strip() for line in lines if line.strip()]
    return _converted(values, JobRequest, "Choose a model and a dataset, and check the values.")


def continue_request(fields: dict[str, str]) -> ContinueRequest:
    """Return the request of a form; empty fields leave what they are of as it was.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    return _converted(_filled(fields), ContinueRequest, "Check the values.")


def _filled(fields: dict[str, str]) -> dict[str, Any]:
    return {name: text.strip() for name, text in fields.items() if text.strip()}


def _converted(values: dict[str, Any], kind: type[_Request], fix: str) -> _Request:
    try:
        return msgspec.convert(values, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job's settings cannot run.",
            why=_reason(values, str(error)),
            fix=fix,
        ) from error


def _reason(values: dict[str, Any], message: str) -> str:
    """Name the field and what was typed, which msgspec's message leaves out."""
    what, _, path = message.partition(" - at `$.")
    field = path.rstrip("`")
    if field not in values:
        return message
    wanted = {
        "Expected `int`": "use a whole number",
        "Expected `float`": "use a number",
        "Expected `float | null`": "use a number",
        "Expected `int | null`": "use a whole number",
    }
    help_ = advice(field) or wanted.get(what.partition(",")[0], what)
    return f"{field} is {clip(values[field])}; {help_}"
