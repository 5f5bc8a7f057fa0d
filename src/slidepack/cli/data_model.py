"""What a checked data file becomes with a model: `slidepack data check FILE --model M`."""

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from slidepack.cli.fit import Fit, MethodName, answer_fit, find_folder, training_spec
from slidepack.cli.fit_machine import DriveOptions, describe_machine
from slidepack.cli.output import print_table, say
from slidepack.cli.reading import counting_bar
from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.lengths import LengthReport
from slidepack.engine.data.model_report import (
    Fix,
    MeasureRequest,
    ModelDataReport,
    ShownRow,
    measure_in_process,
)
from slidepack.engine.data.model_verdict import model_error, model_fixes, model_issues
from slidepack.engine.data.report import DataReport, Issue, Verdict
from slidepack.engine.shape import read_shape

__all__ = ["ModelCheck", "ModelOptions", "check_with_model", "fit_fixes", "print_model"]

_RANK: Final[tuple[Verdict, ...]] = ("ok", "warn", "ask", "refuse")
_OPTIONS: Final = {
    "max_seq_len": "--max-seq-len",
    "too_long": "--too-long",
    "batch_size": "--batch",
    "allow_rejects": "--allow-rejects",
}
"""Of the command, by the setting that a fix changes."""


class ModelOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The training that the rows are meant for."""

    model: str
    method: MethodName = "lora"
    batch: int = 8
    max_seq_len: int = 2048
    too_long: TooLong = "drop"
    allow_rejects: bool = False
    progress: bool = True
    """Whether a bar is shown, where somebody looks at the terminal."""


class ModelCheck(msgspec.Struct, frozen=True, kw_only=True):
    """What `data check --model` adds to the report of the file."""

    model: str
    measured: ModelDataReport | None = None
    """None where the model cannot be used."""
    fit: Fit | None = None
    """Memory, time and disk of the training, on this machine."""
    issues: tuple[Issue, ...] = ()
    verdict: Verdict
    error: ErrorReport | None = None
    fixes: tuple[Fix, ...] = ()
    """Changes of which each alone helps against something."""


def check_with_model(rows_path: Path, report: DataReport, options: ModelOptions) -> ModelCheck:
    """Measure normalised rows with a model's tokenizer, and plan their training.

    A model that is missing or broken is a refusal, with the error that says so.

    Args:
        rows_path: the accepted rows.
        report: of the file that they come from.
        options: model and training.
    """
    try:
        return _check(rows_path, report, options)
    except SlidepackError as error:
        found = error.report
    return ModelCheck(
        model=options.model, issues=(_issue_of(found),), verdict="refuse", error=found
    )


def _check(rows_path: Path, report: DataReport, options: ModelOptions) -> ModelCheck:
    folder = find_folder(options.model)
    shape = read_shape(folder)
    limit = min(options.max_seq_len, shape.max_positions)
    request = MeasureRequest.of(str(rows_path), folder, limit, options.too_long)
    with _bar(report.accepted, shown=options.progress) as on_rows:
        measured = measure_in_process(request, on_rows)
    longest = max(16, min(limit, measured.lengths.longest))
    spec = training_spec(options.model, options.method, longest, options.batch, 1.0)
    host, rates = describe_machine(None, None, DriveOptions())
    fit = answer_fit(options.model, options.method, spec, shape, host, rates)
    fixes = model_fixes(measured, shape.max_positions)
    error = model_error(measured, fixes, allow_rejects=options.allow_rejects)
    issues = tuple(model_issues(measured))
    if error is not None:
        issues = (_issue_of(error), *issues)
        if error.code == "DATA-TOO-MANY-REJECTED":
            fixes.append(Fix(setting="allow_rejects", value=True, why="the other rows are learned"))
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
        fixes=(*fixes, *fit_fixes(fit, measured.lengths)),
    )


def _issue_of(error: ErrorReport) -> Issue:
    return Issue(
        line=0, code=error.code, message=f"{error.what} {error.why}".strip(), level="error"
    )


def _bar(
    rows: int, *, shown: bool
) -> contextlib.AbstractContextManager[Callable[[int], None] | None]:
    return counting_bar("Measuring", rows) if shown else contextlib.nullcontext()


def fit_fixes(fit: Fit, lengths: LengthReport) -> list[Fix]:
    """Return the settings with which a training fits that does not."""
    fixes = []
    if not fit.fits and fit.largest_batch is not None:
        fixes.append(Fix(setting="batch_size", value=fit.largest_batch, why="it fits then"))
    # A limit that most rows are beyond would leave little to learn.
    if not fit.fits and fit.largest_seq is not None and fit.largest_seq >= lengths.quantiles["p90"]:
        fixes.append(
            Fix(
                setting="max_seq_len",
                value=fit.largest_seq,
                why="it fits then, and at least 90% of the rows are no longer",
            )
        )
    return fixes


def print_model(check: ModelCheck) -> None:
    """Print it for people."""
    if check.measured is not None:
        _print_measured(check.model, check.measured)
    for issue in check.issues:
        if issue.level != "error":
            say(f"{issue.code}: {issue.message}.")
    if check.fit is not None:
        _print_fit(check.fit)
    for fix in check.fixes:
        option = _OPTIONS[fix.setting]
        value = "" if fix.value is True else f" {fix.value}"
        say(f"Or: {option}{value} ({fix.why}).")


def _print_measured(model: str, measured: ModelDataReport) -> None:
    lengths = measured.lengths
    quantiles = ", ".join(f"{name} {length}" for name, length in lengths.quantiles.items())
    say(
        f"With {model}: {measured.samples} samples, {measured.tokens} tokens, "
        f"{measured.supervised_tokens} of them learned; lengths {quantiles}, "
        f"longest {lengths.longest}."
    )
    print_table(("tokens up to", "rows"), ((one.upto, one.rows) for one in lengths.bins))
    say(f"Template: {measured.template}. Answers found in a second way: {measured.masks.method}.")
    for row in measured.shown:
        say(f"Line {row.line}, learned between the marks: {_marked(row)}")


def _print_fit(fit: Fit) -> None:
    say(fit.reason)
    if fit.step is not None:
        say(f"A step of {fit.batch} rows takes about {fit.step.seconds:.2f} s.")
    if fit.problem is not None:
        say(fit.problem.fix)


def _marked(row: ShownRow) -> str:
    spans = (f"»{span.text}«" if span.learned else span.text for span in row.spans)
    return "".join(spans) + (" …" if row.cut else "")
