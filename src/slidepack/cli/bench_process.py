"""Runs a benchmark in a process of its own, which may load torch."""

import json
import subprocess
import sys
import tempfile
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
    with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
        with subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stdout=printed,
            stderr=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                sys.stderr.write(line)
                said = line.strip() or said
        printed.seek(0)
        last = (printed.read().splitlines() or [""])[-1]
    if process.returncode:
        raise _error(last, said)
    return json.loads(last)


def _error(last: str, said: str) -> SlidepackError:
    try:
        return SlidepackError.from_report(msgspec.json.decode(last, type=_Failure).error)
    except msgspec.DecodeError:
        return SlidepackError(
            "RUN-CRASHED", "The benchmark did not run.", why=said, fix="Run `slidepack doctor`."
        )
