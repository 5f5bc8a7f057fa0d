"""`slidepack data check`: what a data file holds, and becomes with a model, with no daemon."""

import contextlib
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec
import typer

from slidepack.cli.data_model import ModelCheck, ModelOptions, check_with_model, print_model
from slidepack.cli.fit import MethodName
from slidepack.cli.options import Form, Json
from slidepack.cli.output import print_json, print_table, say
from slidepack.cli.reading import reading_bar
from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.check import judge_file
from slidepack.engine.data.mapping import parse_columns
from slidepack.engine.data.report import CheckOptions, DataReport

_NOT_YET: Final = 10
"""Exit status of a file that was read and with which no training would start, or not yet."""

app = typer.Typer(help="Data files.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Data files."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="Data file.")],
    form: Form = None,
    columns: Annotated[
        list[str] | None,
        typer.Option(
            "--map", help="ROLE=COLUMN, as in output=answer or output=pos.answer; repeatable."
        ),
    ] = None,
    allow_rejects: Annotated[
        bool, typer.Option("--allow-rejects", help="Bear that many rows are left out.")
    ] = False,
    text_mode: Annotated[
        str | None, typer.Option(help="Of plain text: document, paragraph or line.")
    ] = None,
    encoding: Annotated[
        str | None, typer.Option(help="Of a text file; found out if not given.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Folder or id of a model: measure the rows with its tokenizer too."),
    ] = None,
    method: Annotated[MethodName, typer.Option(help="With --model: what is trained.")] = "lora",
    batch: Annotated[int, typer.Option(min=1, max=4096, help="With --model: rows in a step.")] = 8,
    max_seq_len: Annotated[
        int, typer.Option(min=16, max=1 << 20, help="With --model: most tokens of a row.")
    ] = 2048,
    too_long: Annotated[
        TooLong, typer.Option(help="With --model: what becomes of longer rows.")
    ] = "drop",
    json_output: Json = False,
) -> None:
    """Check a data file: which rows can be used, and why the others cannot."""
    options = CheckOptions(
        form=form,
        columns=parse_columns(columns or ()),
        allow_rejects=allow_rejects,
        text_mode=text_mode,
        encoding=encoding,
    )
    training = None
    if model is not None:
        training = ModelOptions(
            model=model,
            method=method,
            batch=batch,
            max_seq_len=max_seq_len,
            too_long=too_long,
            allow_rejects=allow_rejects,
            progress=not json_output,
        )
    report, checked = _judge(file, options, training, bar=not json_output)
    verdict = report.verdict if checked is None else checked.verdict
    if json_output:
        print_json(_answer(report, checked))
    else:
        _print(file, report)
        if checked is not None:
            print_model(checked)
        say(f"Verdict: {verdict}.")
    error = report.error or (None if checked is None else checked.error)
    if error is not None:
        sys.stderr.write(f"{error.line()}\n")
    if report.error is not None:
        raise typer.Exit(CATALOGUE[report.error.code].exit_code)
    if verdict in ("ask", "refuse"):
        raise typer.Exit(_NOT_YET)


def _judge(
    file: Path, options: CheckOptions, training: ModelOptions | None, *, bar: bool
) -> tuple[DataReport, ModelCheck | None]:
    with tempfile.TemporaryDirectory() as scratch:
        rows = Path(scratch) / "rows.jsonl"
        with reading_bar(file) if bar else contextlib.nullcontext() as progress:
            report = judge_file(file, rows, Path(scratch) / "rejects.jsonl", options, progress)
        if training is None or report.error is not None:
            return report, None
        return report, check_with_model(rows, report, training)


def _answer(report: DataReport, checked: ModelCheck | None) -> Any:
    """Return the one object of `--json`: with a model, its verdict and issues are in it."""
    answer: dict[str, Any] = msgspec.to_builtins(report)
    if checked is not None:
        answer |= {"verdict": checked.verdict, "error": msgspec.to_builtins(checked.error)}
        answer["issues"] = [*answer["issues"], *msgspec.to_builtins(checked.issues)]
        answer["with_model"] = msgspec.to_builtins(checked)
    return answer


def _print(file: Path, report: DataReport) -> None:
    if report.rows:
        read_as = f", read as {report.family}" if report.family else ""
        rows = "row" if report.rows == 1 else "rows"
        say(f"{file.name}: {report.accepted} of {report.rows} {rows} can be used{read_as}.")
    for note in report.notes:
        say(note)
    if report.columns:
        said = ", ".join(f"{role} from {column}" for role, column in report.columns.items())
        say(f"Columns: {said}")
    if report.ignored_columns:
        say(f"Ignored columns: {', '.join(report.ignored_columns)}")
    for issue in report.issues:
        if issue.level == "warning":
            say(f"Warning {issue.code}: {issue.message}.")
    rejects = [issue for issue in report.issues if issue.level == "reject"]
    if rejects:
        print_table(
            ("line", "reason", "detail"),
            ((reject.line, reject.code, reject.message) for reject in rejects),
        )
    if more := report.rejected - len(rejects):
        reasons = ", ".join(f"{reason} {count}" for reason, count in _by_count(report.reasons))
        say(f"{more} more rejected {'row' if more == 1 else 'rows'}; all by reason: {reasons}.")


def _by_count(reasons: dict[str, int]) -> list[tuple[str, int]]:
    return sorted(reasons.items(), key=lambda reason: -reason[1])
