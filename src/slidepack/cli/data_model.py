"""What a checked data file becomes with a model: `slidepack data check FILE --model M`."""

from pathlib import Path
from typing import Final, Literal

import msgspec

from slidepack.cli.fit import Fit, MethodName, answer_fit, find_folder, training_spec
from slidepack.cli.fit_machine import describe_machine
from slidepack.cli.output import print_table, say
from slidepack.cli.reading import counting_bar
from slidepack.engine.contract.errors import ErrorReport
from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.model_report import (
    MeasureRequest,
    ModelDataReport,
    ShownRow,
    measure_in_process,
)
from slidepack.engine.data.model_verdict import model_error, model_issues
from slidepack.engine.data.report import DataReport, Issue, Verdict
from slidepack.engine.shape import read_shape

__all__ = ["ModelCheck", "ModelOptions", "check_with_model", "print_model"]

_RANK: Final[tuple[Verdict, ...]] = ("ok", "warn", "ask", "refuse")


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The training that the rows are meant for."""

    model: str
    method: MethodName = "lora"
    batch: int = 8
    max_seq_len: int = 2048
    too_long: TooLong = "drop"
    allow_rejects: bool = False


class Fix(msgspec.Struct, frozen=True, kw_only=True):
    """A change that would help, as an option of the command and in words."""

    option: str
    why: str


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `data check --model` adds to the report of the file."""

    model: str
    measured: ModelDataReport
    fit: Fit
    """Memory, time and disk of the training, on this machine."""
    issues: tuple[Issue, ...]
    verdict: Verdict
    error: ErrorReport | None
    fixes: tuple[Fix, ...]


def check_with_model(rows_path: Path, report: DataReport, options: ModelOptions) -> ModelCheck:
    """Measure normalised rows with a model's tokenizer, and plan their training.

    Args:
        rows_path: the accepted rows.
        report: of the file that they come from.
        options: model and training.

    Raises:
        SlidepackError: the model is not there or broken, or has no template for conversations.
    """
    folder = find_folder(options.model)
    shape = read_shape(folder)
    limit = min(options.max_seq_len, shape.max_positions)
    with counting_bar("Measuring", report.accepted) as on_rows:
        measured = measure_in_process(
            MeasureRequest.of(str(rows_path), folder, limit, options.too_long), on_rows
        )
    longest = max(16, min(limit, measured.lengths.longest))
    spec = training_spec(options.model, options.method, longest, options.batch, 1.0)
    host, rates = describe_machine(None, None, None)
    fit = answer_fit(options.model, options.method, spec, shape, host, rates)
    error = model_error(measured, allow_rejects=options.allow_rejects)
    issues = tuple(model_issues(measured))
    if not fit.fits:
        issues += (Issue(line=0, code="does-not-fit", message=fit.reason),)
    level: Verdict = "refuse" if error else ("warn" if issues else "ok")
    return ModelCheck(
        model=options.model,
        measured=measured,
        fit=fit,
        issues=issues,
        verdict=max(level, report.verdict, key=_RANK.index),
        error=error,
        fixes=tuple(_fixes(measured, fit, shape.max_positions)),
    )


def _fixes(measured: ModelDataReport, fit: Fit, most: int) -> list[Fix]:
    fixes = []
    lengths = measured.lengths
    if lengths.rows_over and lengths.suggested > lengths.max_seq_len and lengths.suggested <= most:
        fixes.append(
            Fix(option=f"--max-seq-len {lengths.suggested}", why="it holds 99% of the rows")
        )
    if lengths.rows_over:
        policies: tuple[Literal["cut", "split"], ...] = ("cut", "split")
        fixes += [
            Fix(option=f"--too-long {policy}", why="longer rows are not left out then")
            for policy in policies
            if policy != measured.too_long
        ]
    if not fit.fits:
        fixes += [Fix(option=sentence, why="it would fit then") for sentence in fit.change]
    return fixes


def print_model(check: ModelCheck) -> None:
    """Print it for people."""
    measured, lengths = check.measured, check.measured.lengths
    quantiles = ", ".join(f"{name} {length}" for name, length in lengths.quantiles.items())
    say(
        f"With {check.model}: {measured.samples} samples, {measured.tokens} tokens, "
        f"{measured.supervised_tokens} of them learned; lengths {quantiles}, "
        f"longest {lengths.longest}."
    )
    print_table(("tokens up to", "rows"), ((one.upto, one.rows) for one in lengths.bins))
    say(f"Template: {measured.template}. Answers found in a second way: {measured.masks.method}.")
    for row in measured.shown:
        say(f"Line {row.line}, learned between the marks: {_marked(row)}")
    for issue in check.issues:
        say(f"{issue.code}: {issue.message}.")
    say(check.fit.reason)
    if check.fit.step is not None:
        say(f"A step of {check.fit.batch} rows takes about {check.fit.step.seconds:.2f} s.")
    for fix in check.fixes:
        say(f"Or: {fix.option} ({fix.why}).")


def _marked(row: ShownRow) -> str:
    spans = (f"»{span.text}«" if span.learned else span.text for span in row.spans)
    return "".join(spans) + (" …" if row.cut else "")
