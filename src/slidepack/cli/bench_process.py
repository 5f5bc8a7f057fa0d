"""Runs a benchmark in a process of its own, which may load torch."""

import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["run_benchmark"]


class _Failure(msgspec.Struct):
    """What the benchmark prints last where it ends with a coded error."""

    error: ErrorReport


def run_benchmark(*arguments: str, module: str = "slidepack.engine.bench") -> Any:
    """Run a benchmark and return what it prints; what it says on the way is passed on.

    Args:
        arguments: of `python -m MODULE`.
        module: that measures, and prints one JSON object last.

    Raises:
        SlidepackError: its own, or RUN-CRASHED.
    """
    said = "it said nothing"
    with _ends_by_signals(), tempfile.TemporaryFile() as printed:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            try:
                for line in process.stderr:
                    sys.stderr.write(line)
                    said = line.strip() or said
            except BaseException:
                # A terminal has told it already; it takes the first signal and ignores others.
                process.terminate()
                process.stderr.close()
                process.wait()
                raise
        printed.seek(0)
        last = (printed.read().splitlines() or [b""])[-1]
    if process.returncode:
        raise _error(last, said)
    return json.loads(last)


@contextmanager
def _ends_by_signals() -> Iterator[None]:
    """End the block in order where this process is told to go; it would leave the other behind."""

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    before = [signal.signal(number, leave) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def _error(last: bytes, said: str) -> SlidepackError:
    try:
        return SlidepackError.from_report(msgspec.json.decode(last, type=_Failure).error)
    except msgspec.DecodeError:
        return SlidepackError(
            "RUN-CRASHED", "The benchmark did not run.", why=said, fix="Run `slidepack doctor`."
        )
