"""`python -m slidepack.daemon.planner.solve`: a request on standard input, its plan on standard
output, with the solver. A process of its own, so that the daemon never loads what the solver needs.
"""

import sys
import time
from typing import BinaryIO

import msgspec

from slidepack.daemon.planner.answer import Plan
from slidepack.daemon.planner.ilp import HighsSolver
from slidepack.daemon.planner.plan import make_plan
from slidepack.daemon.planner.request import PlanRequest
from slidepack.engine.contract.errors import SlidepackError

__all__ = ["main", "solve"]


def solve(request: PlanRequest) -> Plan:
    """Plan with the solver.

    Raises:
        SlidepackError: DAEMON-REQUEST-INVALID.
    """
    deadline = time.monotonic() + request.seconds
    try:
        return make_plan(
            request.tasks,
            request.devices,
            request.now,
            request.options,
            solver=HighsSolver(seed=request.options.seed),
            seconds_left=lambda: deadline - time.monotonic(),
        )
    except ValueError as error:
        raise _invalid(str(error)) from error


def main(source: BinaryIO, target: BinaryIO) -> int:
    """Answer one request; return the exit status."""
    try:
        try:
            request = msgspec.json.decode(source.read(), type=PlanRequest)
        except msgspec.DecodeError as error:
            raise _invalid(str(error)) from error
        answer = msgspec.json.encode(solve(request))
    except SlidepackError as error:
        target.write(msgspec.json.encode({"error": error.report}))
        return error.exit_code
    target.write(answer)
    return 0


def _invalid(why: str) -> SlidepackError:
    return SlidepackError(
        "DAEMON-REQUEST-INVALID",
        "The planner was asked for something that it cannot plan.",
        why=why,
        fix="Send what `PlanRequest` describes.",
    )


if __name__ == "__main__":
    sys.exit(main(sys.stdin.buffer, sys.stdout.buffer))
