"""`slidepack data check`: what a data file holds, with no daemon."""

import tempfile
from pathlib import Path
from typing import Annotated

import typer

from slidepack.cli.output import print_json, print_table, say
from slidepack.engine.data.check import DataReport, check_file

app = typer.Typer(help="Data files.", no_args_is_help=True)


@app.callback()
def data() -> None:
    """Data files."""


@app.command("check")
def check(
    file: Annotated[Path, typer.Argument(help="Data file: JSON or JSON lines.")],
    form: Annotated[
        str | None, typer.Option("--format", help="chat, alpaca or completion.")
    ] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Check a data file: which rows can be used, and why the others cannot."""
    with tempfile.TemporaryDirectory() as scratch:
        report = check_file(
            file, Path(scratch) / "rows.jsonl", Path(scratch) / "rejects.jsonl", form
        )
    if json_output:
        print_json(report)
    else:
        _print(file, report)


def _print(file: Path, report: DataReport) -> None:
    say(f"{file.name}: {report.usable} of {report.rows} rows can be used, read as {report.format}.")
    for note in report.notes:
        say(note)
    if report.ignored_fields:
        say(f"Ignored fields: {', '.join(report.ignored_fields)}")
    if report.first_rejects:
        print_table(
            ("line", "reason", "detail"),
            ((reject.line, reject.reason, reject.detail) for reject in report.first_rejects),
        )
