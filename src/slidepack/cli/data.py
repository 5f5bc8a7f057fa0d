"""`slidepack data check`: what a data file holds, with no daemon."""

import sys
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from slidepack.cli.output import print_json, print_table, say
from slidepack.cli.reading import reading_bar
from slidepack.engine.contract.errors import CATALOGUE
from slidepack.engine.data.check import judge_file
from slidepack.engine.data.mapping import parse_columns
from slidepack.engine.data.report import CheckOptions, DataReport
from slidepack.engine.data.rows import FORMATS

app = typer.Typer(help="Data files.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Data files."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="Data file.")],
    form: Annotated[
        str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; detected if left out.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--map", help="ROLE=COLUMN, as in output=answer; repeatable."),
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
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a data file: which rows can be used, and why the others cannot."""
    options = CheckOptions(
        form=form,
        columns=parse_columns(columns or ()),
        allow_rejects=allow_rejects,
        text_mode=text_mode,
        encoding=encoding,
    )
    report = _judge(file, options)
    if json_output:
        print_json(report)
    else:
        _print(file, report)
    if report.error is not None:
        sys.stderr.write(f"{report.error.line()}\n")
        raise typer.Exit(CATALOGUE[report.error.code].exit_code)


def _judge(file: Path, options: CheckOptions) -> DataReport:
    with tempfile.TemporaryDirectory() as scratch, reading_bar(file) as progress:
        return judge_file(
            file, Path(scratch) / "rows.jsonl", Path(scratch) / "rejects.jsonl", options, progress
        )


def _print(file: Path, report: DataReport) -> None:
    if report.rows:
        read_as = f", read as {report.family}" if report.family else ""
        say(f"{file.name}: {report.accepted} of {report.rows} rows can be used{read_as}.")
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
    say(f"Verdict: {report.verdict}.")
