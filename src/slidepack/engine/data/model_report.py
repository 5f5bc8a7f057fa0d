"""What measuring rows with a model's tokenizer asks and tells, one JSON object a line.

Imports no tokenizer, so that daemon, page and CLI can start a measurement and read what it found.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal, Self

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.lengths import LengthReport
from slidepack.engine.data.named_templates import TemplateChoice
from slidepack.engine.data.rows import Reject

MaskMethod = Literal["generation marks", "headers", "none"]
"""What the second way of finding answers goes by; `none` where the template gives it nothing."""

_MOST_PROCESSES: Final = 8
_MODULE = "slidepack.engine.data.preflight_model"


class MeasureRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows to measure; what the measuring process is started with."""

    rows: str
    """Path of the normalised rows."""
    model: str
    """A model's Hugging Face folder."""
    max_seq_len: int
    too_long: TooLong = "drop"
    template: TemplateChoice = "auto"
    """For conversations where the model has no chat template."""
    processes: int = 2

    @classmethod
    def of(cls, rows: str, model: Path, max_seq_len: int, too_long: TooLong) -> Self:
        """Return the request to measure a dataset for a training on this machine.

        Args:
            rows: path of the normalised rows.
            model: the model's folder.
            max_seq_len: the training's limit, or the model's where that is lower.
            too_long: what becomes of longer rows.
        """
        cores = len(os.sched_getaffinity(0))
        return cls(
            rows=rows,
            model=str(model),
            max_seq_len=max_seq_len,
            too_long=too_long,
            processes=min(_MOST_PROCESSES, cores),
        )


class ShownSpan(msgspec.Struct, frozen=True):
    """A stretch of a rendered row."""

    text: str
    """Safe to print: without control characters but newline and tab."""
    learned: bool
    """Whether the loss counts it."""


class ShownRow(msgspec.Struct, frozen=True):
    """A row as the model sees it."""

    line: int
    spans: tuple[ShownSpan, ...]
    cut: bool
    """Whether the row goes on behind what is shown."""


class MaskReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether two independent ways of finding the answers agree, on every conversation."""

    method: MaskMethod
    conversations: int
    disagreeing: int
    """They are among the rejects, as `masks-disagree`."""


class ModelDataReport(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What rows become with a model's tokenizer and template."""

    rows: int
    """Rows read."""
    encoded_rows: int
    """Rows of which at least one sample is learned."""
    samples: int
    """Samples learned; more than rows where templates or splitting make several of one."""
    tokens: int
    """Tokens of the samples."""
    supervised_tokens: int
    """Tokens that the loss counts."""
    rejects: dict[str, int]
    """Rows of which nothing is learned, by reason."""
    partly: dict[str, int]
    """Rows of which some samples are learned and others left out, by reason."""
    first_rejects: tuple[Reject, ...]
    """The first 20 of either, and the first of each reason."""
    lengths: LengthReport
    too_long: TooLong
    retried: int
    """Rows that are too long, of those that were tried with the other policies too."""
    kept_by: dict[TooLong, int]
    """Of these, how many each other policy keeps something of."""
    masks: MaskReport
    template: str
    """`the model's own`, `chatml`, `alpaca` or `none`."""
    template_reason: str
    """Why a named template stands in; "" where none does."""
    shown: tuple[ShownRow, ...]
    """Up to 3 rows, with what of them is learned."""


class Fix(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change of one setting that would help."""

    setting: Literal["max_seq_len", "too_long", "batch_size", "allow_rejects"]
    """Of a job, or of a check."""
    value: int | str | bool
    why: str
    """What it does, for people."""


class MeasureProgress(msgspec.Struct, frozen=True, tag_field="kind", tag="progress"):
    """Rows measured so far."""

    rows: int


class MeasureDone(msgspec.Struct, frozen=True, tag_field="kind", tag="done"):
    """The end of a measurement that worked."""

    report: ModelDataReport


class MeasureFailed(msgspec.Struct, frozen=True, tag_field="kind", tag="failed"):
    """The end of one that did not."""

    error: ErrorReport


MeasureMessage = MeasureProgress | MeasureDone | MeasureFailed
_decoder = msgspec.json.Decoder(MeasureMessage)


def measure_in_process(
    request: MeasureRequest, on_rows: Callable[[int], None] | None = None
) -> ModelDataReport:
    """Measure rows in a process of its own, which loads the tokenizer and runs the template.

    Args:
        request: what to measure.
        on_rows: called with the number of rows measured so far; may raise to stop.

    Raises:
        SlidepackError: DATA-NOT-FOUND, MODEL-BROKEN, MODEL-NO-CHAT-TEMPLATE or RUN-CRASHED.
    """
    command = [sys.executable, "-m", _MODULE, msgspec.json.encode(request).decode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                message = _decoder.decode(line)
                if isinstance(message, MeasureDone):
                    return message.report
                if isinstance(message, MeasureFailed):
                    raise SlidepackError.from_report(message.error)
                if on_rows is not None:
                    on_rows(message.rows)
            # Its output has ended, so it is about to: with a code that says more than ours would.
            process.wait()
        finally:
            # Its own children see that it ends, and end too.
            process.terminate()
    raise SlidepackError(
        "RUN-CRASHED",
        "Measuring the rows with the model's tokenizer ended without a result.",
        why=f"the process for {Path(request.rows).name} ended with code {process.returncode}",
        fix="Run the check again; where it ends so again, report it with the data file.",
    )
