"""Runs the exporter in a process of its own, which may load torch, and shows how far it is."""

import contextlib
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Final

import msgspec
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from slidepack.cli.sending import encoded
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.contract import (
    ExportFailed,
    ExportProgress,
    ExportRequest,
    ExportResult,
    decode_line,
)

__all__ = ["run_export"]

_STAGES: Final = {
    "reading": "Reading",
    "writing": "Writing",
    "checking": "Checking",
    "ollama": "Handing to Ollama",
}


def run_export(request: ExportRequest) -> ExportResult:
    """Run an export and return its result.

    Raises:
        SlidepackError: its own, RUN-CRASHED, or EXPORT-INVALID where a path is not UTF-8.
        KeyboardInterrupt: after the exporter has removed what it had made.
    """
    with tempfile.TemporaryDirectory() as scratch, tempfile.TemporaryFile() as said:
        file = Path(scratch) / "request.json"
        file.write_bytes(encoded(request, "EXPORT-INVALID"))
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "slidepack.engine.export", str(file)],
            stdout=subprocess.PIPE,
            stderr=said,
        ) as process:
            assert process.stdout is not None
            try:
                outcome = _follow(process.stdout)
            except BaseException:
                # A terminal has told it already; it takes the first signal and ignores others.
                process.send_signal(signal.SIGTERM)
                process.stdout.close()
                process.wait()
                raise
        if isinstance(outcome, ExportFailed):
            raise SlidepackError.from_report(outcome.error)
        if outcome is None:
            raise _crashed(process.returncode, said)
        return outcome


def _follow(lines: IO[bytes]) -> ExportResult | ExportFailed | None:
    """Show progress until the last line, which is returned; None where it never came."""
    outcome: ExportResult | ExportFailed | None = None
    with _bar() as show:
        for line in lines:
            try:
                read = decode_line(line)
            except msgspec.DecodeError:
                # A process that was killed may leave half a line.
                continue
            if isinstance(read, ExportProgress):
                show(read)
            else:
                outcome = read
    return outcome


@contextlib.contextmanager
def _bar() -> Iterator[Callable[[ExportProgress], None]]:
    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _progress: None
        return
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("Starting", total=None)
        yield lambda read: bar.update(
            task, description=_STAGES[read.stage], completed=read.done, total=read.total
        )


def _crashed(code: int, said: IO[bytes]) -> SlidepackError:
    said.seek(0)
    lines = said.read().decode("utf-8", "replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return SlidepackError(
        "RUN-CRASHED",
        "The exporter's process died; nothing of the export was kept.",
        why=f"{how}: {lines[-1]}" if lines else how,
        fix="Run the command again; if it dies once more, run `slidepack doctor`.",
    )
