"""Turns the new-job form into a request."""

from typing import Any

import msgspec

from slidepack.daemon.requests import JobRequest, advice
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import clip


def job_request(fields: dict[str, str]) -> JobRequest:
    """Return the request of a form; empty fields take their defaults.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    values: dict[str, Any] = {name: text.strip() for name, text in fields.items() if text.strip()}
    if "sample_prompts" in values:
        lines = values["sample_prompts"].splitlines()
        values["sample_prompts"] = [line.strip() for line in lines if line.strip()]
    try:
        return msgspec.convert(values, JobRequest, strict=False)
    except msgspec.ValidationError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job's settings cannot run.",
            why=_reason(values, str(error)),
            fix="Choose a model and a dataset, and check the values.",
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
    }
    help_ = advice(field) or wanted.get(what.partition(",")[0], what)
    return f"{field} is {clip(values[field])}; {help_}"
