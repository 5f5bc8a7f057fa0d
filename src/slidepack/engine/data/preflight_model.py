"""Measures normalised rows with a model's tokenizer: `python -m ...preflight_model REQUEST`.

The file is cut at line ends into parts that processes encode side by side; only counts and a few
shown rows travel back, so memory does not grow with the file. It runs apart from the daemon and the
CLI, which load no tokenizer and run no template.
"""

import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.crew import Crew
from slidepack.engine.data.lengths import length_report
from slidepack.engine.data.measurer import Counts, Measurer
from slidepack.engine.data.model_report import (
    MaskReport,
    MeasureDone,
    MeasureFailed,
    MeasureMessage,
    MeasureProgress,
    MeasureRequest,
    ModelDataReport,
)
from slidepack.engine.data.tokenizer import load_tokenizer

_PART_BYTES: Final = 1 << 18

_Part = tuple[int, int]
"""Where a part of the file starts and ends."""


def measure_rows(
    request: MeasureRequest, on_rows: Callable[[int], None] | None = None
) -> ModelDataReport:
    """Encode all normalised rows and count what they give; the same in any number of processes.

    Args:
        request: what to measure; where it wants one process, that is this one.
        on_rows: called with the number of rows measured so far; may raise to stop.

    Raises:
        SlidepackError: DATA-NOT-FOUND, MODEL-BROKEN, MODEL-NO-CHAT-TEMPLATE or RUN-CRASHED.
    """
    if request.processes > 1:
        prepare = functools.partial(_prepare, request)
        with Crew[_Part, Counts](request.processes, prepare) as crew:
            return _sum_up(request, crew.results(_parts(Path(request.rows))), on_rows)
    measure = _measurer(request, quick=False)
    return _sum_up(request, map(measure, _parts(Path(request.rows))), on_rows)


def _prepare(request: MeasureRequest) -> Callable[[_Part], Counts]:
    """Return what measures parts in a process of a crew."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    return _measurer(request, quick=True)


def _measurer(request: MeasureRequest, *, quick: bool) -> Callable[[_Part], Counts]:
    tokenizer = load_tokenizer(Path(request.model), request.template, quick=quick)
    measurer = Measurer(tokenizer, request.max_seq_len, request.too_long)
    return lambda part: measurer.measure(Path(request.rows), *part)


def _sum_up(
    request: MeasureRequest, counted: Iterator[Counts], on_rows: Callable[[int], None] | None
) -> ModelDataReport:
    total = next(counted)
    while True:
        if on_rows is not None:
            on_rows(total.rows)
        more = next(counted, None)
        if more is None:
            break
        total.add(more)
    return ModelDataReport(
        rows=total.rows,
        encoded_rows=total.encoded_rows,
        samples=total.samples,
        tokens=total.tokens,
        supervised_tokens=total.supervised,
        rejects=total.rejects,
        partly=total.partly,
        first_rejects=tuple(total.first_rejects),
        lengths=length_report(total.lengths, request.max_seq_len),
        too_long=request.too_long,
        retried=total.retried,
        kept_by=total.kept_by,
        masks=MaskReport(
            method=total.rendering.method if total.chats else "none",
            conversations=total.chats,
            disagreeing=total.rejects.get("masks-disagree", 0),
        ),
        template=total.rendering.template,
        template_reason=total.rendering.reason,
        shown=tuple(total.shown),
    )


def _parts(path: Path) -> Iterator[_Part]:
    """Yield parts of the file that start and end at line ends; one at least, be it empty."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            end = 0
            while end < size:
                start = end
                file.seek(min(start + _PART_BYTES, size))
                file.readline()
                end = file.tell()
                yield start, end
            if not size:
                yield 0, 0
    except OSError as error:
        raise SlidepackError(
            "DATA-NOT-FOUND",
            "The normalised rows cannot be read.",
            why=f"{path}: {error.strerror}",
            fix="Check the data file again.",
        ) from error


def _say(message: MeasureMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main(argument: str) -> int:
    """Measure what the request says, write progress and result to stdout, return the exit code."""
    # Ctrl-C goes to whoever asked, too, who tells of it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        request = msgspec.json.decode(argument, type=MeasureRequest)
        report = measure_rows(request, lambda rows: _say(MeasureProgress(rows)))
    except SlidepackError as error:
        _say(MeasureFailed(error.report))
        return error.exit_code
    _say(MeasureDone(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
