"""Measures normalised rows with a model's tokenizer: `python -m ...preflight_model REQUEST`.

The file is cut at line ends into chunks that processes encode side by side; only counts and a few
shown rows travel back, so memory does not grow with the file. It runs apart from the daemon and the
CLI, which load no tokenizer and run no template.
"""

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import signal
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.lengths import LengthHistogram
from slidepack.engine.data.mask_check import mask_method
from slidepack.engine.data.masking import EncodedRow, encode_whole
from slidepack.engine.data.model_report import (
    MaskReport,
    MeasureDone,
    MeasureFailed,
    MeasureMessage,
    MeasureProgress,
    MeasureRequest,
    ModelDataReport,
    ShownRow,
)
from slidepack.engine.data.named_templates import TemplateChoice
from slidepack.engine.data.rows import ChatRow, Reject, decode_row
from slidepack.engine.data.shown import show_row
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.data.too_long import fit_samples

_CHUNK_BYTES: Final = 1 << 18
_MAX_FIRST_REJECTS: Final = 20
_MAX_SHOWN: Final = 3
_QUEUED_A_PROCESS: Final = 3
"""Chunks handed out ahead, so that no process waits and none piles up results."""


class _Counts(msgspec.Struct):
    """What a chunk of rows gave."""

    rows: int = 0
    encoded_rows: int = 0
    samples: int = 0
    tokens: int = 0
    supervised: int = 0
    chats: int = 0
    lengths: dict[int, int] = {}
    rejects: dict[str, int] = {}
    first_rejects: list[Reject] = []
    shown: list[ShownRow] = []

    def add(self, other: "_Counts") -> None:
        """Add a later chunk's."""
        self.rows += other.rows
        self.encoded_rows += other.encoded_rows
        self.samples += other.samples
        self.tokens += other.tokens
        self.supervised += other.supervised
        self.chats += other.chats
        self.lengths = dict(Counter(self.lengths) + Counter(other.lengths))
        self.rejects = dict(Counter(self.rejects) + Counter(other.rejects))
        self.first_rejects = (self.first_rejects + other.first_rejects)[:_MAX_FIRST_REJECTS]
        self.shown = (self.shown + other.shown)[:_MAX_SHOWN]


class _Measurer:
    """Encodes rows and counts."""

    def __init__(self, tokenizer: ChatTokenizer, max_seq_len: int, too_long: TooLong) -> None:
        self._tokenizer = tokenizer
        self._max_seq_len = max_seq_len
        self._too_long = too_long

    def measure(self, path: Path, start: int, end: int) -> _Counts:
        """Count the rows that start in this part of the file."""
        counts = _Counts()
        with path.open("rb") as file:
            file.seek(start)
            while file.tell() < end and (line := file.readline()):
                self._count(line, counts)
        return counts

    def _count(self, line: bytes, counts: _Counts) -> None:
        row = decode_row(line)
        counts.rows += 1
        counts.chats += isinstance(row, ChatRow)
        whole = encode_whole(row, self._tokenizer)
        longest = max((len(s.ids) for s in whole if isinstance(s, EncodedRow)), default=0)
        if longest:
            counts.lengths[longest] = counts.lengths.get(longest, 0) + 1
        learned = 0
        for sample in fit_samples(row, whole, self._tokenizer, self._max_seq_len, self._too_long):
            if isinstance(sample, Reject):
                counts.rejects[sample.reason] = counts.rejects.get(sample.reason, 0) + 1
                if len(counts.first_rejects) < _MAX_FIRST_REJECTS:
                    counts.first_rejects.append(sample)
                continue
            if not learned and len(counts.shown) < _MAX_SHOWN:
                counts.shown.append(show_row(sample, self._tokenizer))
            learned += 1
            counts.tokens += len(sample.ids)
            counts.supervised += sample.num_supervised
        counts.samples += learned
        counts.encoded_rows += learned > 0


def measure_rows(
    rows_path: Path,
    model_folder: Path,
    max_seq_len: int,
    too_long: TooLong = "drop",
    *,
    named: TemplateChoice = "auto",
    processes: int = 2,
    on_rows: Callable[[int], None] | None = None,
) -> ModelDataReport:
    """Encode all normalised rows and count what they give; the same whatever `processes` is.

    Args:
        rows_path: one normalised row a line.
        model_folder: with the model's tokenizer.
        max_seq_len: the limit in tokens.
        too_long: what becomes of longer rows.
        named: the template for conversations where the model has none.
        processes: 1 measures in this process.
        on_rows: called with the number of rows measured so far; may raise to stop.

    Raises:
        SlidepackError: DATA-NOT-FOUND, MODEL-BROKEN or MODEL-NO-CHAT-TEMPLATE.
    """
    tokenizer = load_tokenizer(model_folder, named)
    total = _Counts()
    for counts in _measured(rows_path, model_folder, (max_seq_len, too_long, named), processes):
        total.add(counts)
        if on_rows is not None:
            on_rows(total.rows)
    histogram = LengthHistogram()
    histogram.merge(total.lengths)
    return ModelDataReport(
        rows=total.rows,
        encoded_rows=total.encoded_rows,
        samples=total.samples,
        tokens=total.tokens,
        supervised_tokens=total.supervised,
        rejects=total.rejects,
        first_rejects=tuple(total.first_rejects),
        lengths=histogram.report(max_seq_len),
        too_long=too_long,
        masks=MaskReport(
            method=mask_method(tokenizer) if total.chats else "none",
            conversations=total.chats,
            disagreeing=total.rejects.get("masks-disagree", 0),
        ),
        template=tokenizer.template_name,
        template_reason=tokenizer.template_reason,
        shown=tuple(total.shown),
    )


def _measured(
    path: Path, model: Path, how: tuple[int, TooLong, TemplateChoice], processes: int
) -> Iterator[_Counts]:
    """Yield the counts of each chunk, in the order of the file."""
    chunks = _chunks(path)
    if processes <= 1:
        max_seq_len, too_long, named = how
        measurer = _Measurer(load_tokenizer(model, named), max_seq_len, too_long)
        for start, end in chunks:
            yield measurer.measure(path, start, end)
        return
    # Started afresh, not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    pool = concurrent.futures.ProcessPoolExecutor(processes, context, _start, (model, *how))
    waiting: deque[concurrent.futures.Future[_Counts | ErrorReport]] = deque()
    try:
        for start, end in chunks:
            waiting.append(pool.submit(_measure_chunk, path, start, end))
            if len(waiting) >= processes * _QUEUED_A_PROCESS:
                yield _taken(waiting.popleft())
        while waiting:
            yield _taken(waiting.popleft())
    finally:
        pool.shutdown(cancel_futures=True)


def _chunks(path: Path) -> Iterator[tuple[int, int]]:
    """Yield parts of the file that start and end at line ends."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            start = 0
            while start < size:
                file.seek(min(start + _CHUNK_BYTES, size))
                file.readline()
                yield start, file.tell()
                start = file.tell()
    except OSError as error:
        raise SlidepackError(
            "DATA-NOT-FOUND",
            "The normalised rows cannot be read.",
            why=f"{path}: {error.strerror}",
            fix="Check the data file again.",
        ) from error


_measurer: list[_Measurer] = []
"""Of a process of the pool, made when it starts."""


def _start(model: Path, max_seq_len: int, too_long: TooLong, named: TemplateChoice) -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_watch_parent, daemon=True).start()
    _measurer.append(_Measurer(load_tokenizer(model, named, quick=True), max_seq_len, too_long))


def _watch_parent() -> None:
    """End with the process that hands out the chunks, however that ends."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def _measure_chunk(path: Path, start: int, end: int) -> _Counts | ErrorReport:
    try:
        return _measurer[0].measure(path, start, end)
    except SlidepackError as error:
        # Exceptions with fields of their own do not travel between processes.
        return error.report


def _taken(future: concurrent.futures.Future[_Counts | ErrorReport]) -> _Counts:
    found = future.result()
    if isinstance(found, ErrorReport):
        raise SlidepackError.from_report(found)
    return found


def _say(message: MeasureMessage) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(message) + b"\n")
    sys.stdout.buffer.flush()


def main(argument: str) -> int:
    """Measure what the request says, write progress and result to stdout, return the exit code."""
    try:
        request = msgspec.json.decode(argument, type=MeasureRequest)
        report = measure_rows(
            Path(request.rows),
            Path(request.model),
            request.max_seq_len,
            request.too_long,
            named=request.template,
            processes=request.processes,
            on_rows=lambda rows: _say(MeasureProgress(rows)),
        )
    except SlidepackError as error:
        _say(MeasureFailed(error.report))
        return error.exit_code
    _say(MeasureDone(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
