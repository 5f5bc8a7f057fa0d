"""How commands print: tables for people, one JSON value for `--json`."""

import sys
from collections.abc import Iterable
from typing import Any

import msgspec
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def print_json(value: Any) -> None:
    """Print one JSON value on one line of standard output."""
    sys.stdout.write(msgspec.json.encode(value).decode() + "\n")
    sys.stdout.flush()


def print_table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> None:
    """Print a plain table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(escape("" if cell is None else str(cell)) for cell in row))
    Console().print(table)


def say(text: str) -> None:
    """Print a sentence for people, with no markup read into it."""
    Console(soft_wrap=True).print(escape(text), highlight=False)
