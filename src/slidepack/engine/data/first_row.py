"""Asks for the first row that a job trains on, as its model sees it.

Imports no tokenizer: that is loaded in a process of its own (`first_row_model`), which ends with
its answer.
"""

import subprocess
import sys
from typing import Final

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import JobSpec
from slidepack.engine.data.model_report import ShownRow

__all__ = ["FirstRow", "RowAnswer", "first_row_in_process"]

_MODULE: Final = "slidepack.engine.data.first_row_model"
_MOST_SECONDS: Final = 60.0


class FirstRow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The first sample of the training rows, in the order of the file."""

    shown: ShownRow
    tokens: int
    """Of the whole sample, shown or not."""
    learned: int
    """Of these, how many the loss counts."""


class RowAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What the process says: exactly one of both."""

    row: FirstRow | None = None
    error: ErrorReport | None = None


def first_row_in_process(spec: JobSpec) -> FirstRow:
    """Return the first row that a job trains on.

    Raises:
        SlidepackError: DATA-NOT-FOUND, DATA-NO-USABLE-ROWS, MODEL-BROKEN, MODEL-NO-CHAT-TEMPLATE or
            RUN-CRASHED.
    """
    command = [sys.executable, "-m", _MODULE]
    try:
        done = subprocess.run(
            command,
            input=msgspec.json.encode(spec),
            stdout=subprocess.PIPE,
            timeout=_MOST_SECONDS,
            check=False,
        )
        answer = msgspec.json.decode(done.stdout, type=RowAnswer)
    except (subprocess.TimeoutExpired, msgspec.DecodeError) as error:
        raise SlidepackError(
            "RUN-CRASHED",
            "The row could not be shown.",
            why=f"the process that loads the tokenizer did not answer: {error}",
            fix="Training is not affected. Try again; where it ends so again, report it.",
        ) from error
    if answer.row is None:
        assert answer.error is not None
        raise SlidepackError.from_report(answer.error)
    return answer.row
