"""Turns the form of a job that goes on into a request."""

from typing import Any

import msgspec

from slidepack.daemon.continuing import ContinueRequest
from slidepack.daemon.requests import advice
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import clip


def continue_request(fields: dict[str, str]) -> ContinueRequest:
    """Return the request of a form; empty fields leave what they are of as it was.

    Raises:
        SlidepackError: RUN-SPEC-INVALID.
    """
    values = {name: text.strip() for name, text in fields.items() if text.strip()}
    try:
        return msgspec.convert(values, ContinueRequest, strict=False)
    except msgspec.ValidationError as error:
        raise SlidepackError(
            "RUN-SPEC-INVALID",
            "The job's settings cannot run.",
            why=_reason(values, str(error)),
            fix="Check the values.",
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
