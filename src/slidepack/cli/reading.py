"""A bar that shows how far a file was read, where somebody looks at the terminal."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TransferSpeedColumn,
)

_SHOWN_FROM_BYTES: Final = 4 << 20
"""Smaller files are read before a bar is seen."""


@contextlib.contextmanager
def reading_bar(file: Path) -> Iterator[Callable[[int], None] | None]:
    """Give a function that takes the number of bytes read; None where no bar is shown."""
    console = Console(stderr=True)
    try:
        size = file.stat().st_size
    except OSError:
        size = 0
    if not console.is_terminal or size < _SHOWN_FROM_BYTES:
        yield None
        return
    columns = (TextColumn("Checking"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=size)
        yield lambda read: bar.update(task, completed=read)


@contextlib.contextmanager
def counting_bar(what: str, rows: int) -> Iterator[Callable[[int], None] | None]:
    """Give a function that takes the number of rows done; None where no bar is shown."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn("rows"))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("", total=rows)
        yield lambda done: bar.update(task, completed=done)
