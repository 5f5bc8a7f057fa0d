"""Options that several commands share, each with one name, one kind of value and one help text."""

from typing import Annotated

import typer

from slidepack.engine.data.rows import FORMATS

__all__ = [
    "After",
    "At",
    "By",
    "Columns",
    "Form",
    "Json",
    "Name",
    "Priority",
    "Prompts",
    "Start",
]

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

Form = Annotated[
    str | None, typer.Option("--format", help=f"{', '.join(FORMATS)}; detected if left out.")
]
Columns = Annotated[
    list[str] | None, typer.Option("--map", help="ROLE=COLUMN, as in output=answer; repeatable.")
]

Name = Annotated[str | None, typer.Option(help="Display name.")]
Prompts = Annotated[
    list[str] | None, typer.Option(help="A question to answer before and after; repeatable.")
]

Start = Annotated[
    str | None, typer.Option(help="auto, now (windows do not bind it) or tonight (auto).")
]
At = Annotated[str | None, typer.Option(help="Not before: 23:00 or 2026-12-24T18:30.")]
By = Annotated[str | None, typer.Option(help="When it should be done: 07:00 or 2026-12-24T18:30.")]
Priority = Annotated[int | None, typer.Option(help="Higher ones run first (0).")]
After = Annotated[
    list[int] | None, typer.Option(help="Id of a job that must be completed first; repeatable.")
]
