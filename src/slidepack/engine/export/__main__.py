"""The exporter process: `python -P -m slidepack.engine.export REQUEST.json`.

It writes how far it is to standard output, one JSON object a line, the outcome last.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NoReturn

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.export.contract import ExportFailed, ExportRequest, decode_request
from slidepack.engine.export.placing import disk_error
from slidepack.engine.export.report import Reporter
from slidepack.engine.export.run import ExportDiffersError, run


class _Stopped(BaseException):
    """Raised by a signal; not an Exception, so that no library swallows it."""


class _Stop:
    """Raises at the first signal, and remembers it: compiled code may turn what is raised in the
    middle of it into an error of its own."""

    def __init__(self) -> None:
        """Begin to listen."""
        self.asked = False
        _listen(self._raise)

    def _raise(self, number: int, frame: FrameType | None) -> NoReturn:
        self.asked = True
        _listen(signal.SIG_IGN)
        raise _Stopped


def main(arguments: list[str]) -> int:
    """Run one export and return the exit code: 0, or that of the error written as the last line."""
    # Libraries may print; standard output is for the lines that a command reads.
    lines = os.dup(1)
    os.dup2(2, 1)
    reporter = Reporter(lines)
    stop = _Stop()
    try:
        result = run(_read_request(arguments), reporter, lambda: _listen(signal.SIG_IGN))
        reporter.end(result)
    except ExportDiffersError as error:
        _listen(signal.SIG_IGN)
        return _fail(
            reporter, error.error, ExportFailed(error=error.error.report, verification=error.found)
        )
    except BaseException as error:
        _listen(signal.SIG_IGN)
        if not stop.asked and not isinstance(error, SlidepackError | OSError | MemoryError):
            raise
        coded = _coded(_Stopped() if stop.asked else error)
        return _fail(reporter, coded, ExportFailed(error=coded.report))
    return 0


def _read_request(arguments: list[str]) -> ExportRequest:
    try:
        (path,) = arguments
        return decode_request(Path(path).read_bytes())
    except (ValueError, OSError, msgspec.MsgspecError) as error:
        raise SlidepackError(
            "DAEMON-REQUEST-INVALID",
            "The exporter was started with no valid request.",
            why=str(error),
            fix="Start it as: python -P -m slidepack.engine.export REQUEST.json",
        ) from error


def _coded(error: BaseException) -> SlidepackError:
    if isinstance(error, SlidepackError):
        return error
    if isinstance(error, OSError):
        return disk_error(error)
    if isinstance(error, MemoryError):
        return SlidepackError(
            "RAM-TOO-SMALL",
            "There was too little memory for the export.",
            why=str(error),
            fix="Close other programs and run the command again.",
        )
    return SlidepackError(
        "RUN-INTERRUPTED",
        "The export was stopped; nothing of it was kept.",
        why="The exporter was told to stop",
        fix="Run the same command again.",
    )


def _fail(reporter: Reporter, error: SlidepackError, line: ExportFailed) -> int:
    try:
        reporter.end(line)
    except OSError:
        # Nobody reads the lines any more; the exit code still tells.
        sys.stderr.write(error.report.line() + "\n")
    return error.exit_code


def _listen(action: Callable[[int, FrameType | None], NoReturn] | signal.Handlers) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, action)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
