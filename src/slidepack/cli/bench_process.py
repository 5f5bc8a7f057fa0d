"""Runs a benchmark in a process of its own, which may load torch."""

import json
import subprocess
import sys
from typing import Any

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError

__all__ = ["run_benchmark"]


class _Failure(msgspec.Struct):
    """What the benchmark prints last where it ends with a coded error."""

    error: ErrorReport


def run_benchmark(*arguments: str) -> Any:
    """Run a benchmark and return what it prints.

    Args:
        arguments: of `python -m slidepack.engine.bench`.

    Raises:
        SlidepackError: its own, or RUN-CRASHED.
    """
    done = subprocess.run(
        [sys.executable, "-P", "-m", "slidepack.engine.bench", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise _error(done)
    return json.loads(done.stdout.splitlines()[-1])


def _error(done: subprocess.CompletedProcess[str]) -> SlidepackError:
    try:
        said = (done.stdout.splitlines() or [""])[-1]
        return SlidepackError.from_report(msgspec.json.decode(said, type=_Failure).error)
    except msgspec.DecodeError:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return SlidepackError(
            "RUN-CRASHED", "The benchmark did not run.", why=last, fix="Run `slidepack doctor`."
        )
