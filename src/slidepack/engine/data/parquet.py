"""Reads Parquet and Arrow files, some rows at a time; a row's number stands as its line.

PyArrow is loaded when the first such file is read: with NumPy behind it, it would take a third of
the daemon's memory.
"""

import importlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, Final

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.arrow_values import (
    Convert,
    KeyTwiceError,
    NotTextError,
    holds_moments,
    plain_type,
    text_converter,
)
from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.opening import DAMAGED_CODE, Source
from slidepack.engine.data.rows import Reject, clip

STREAM_START: Final = b"\xff\xff\xff\xff"
"""Of an Arrow file without a footer, as `datasets` writes them."""
_LINES_NOTE: Final = "The file has no lines; line numbers count its rows from 1."
_SHOWN_COLUMNS: Final = 10
_BATCH_BYTES: Final = 2 << 20
_MAX_BATCH_ROWS: Final = 256
_BUFFER_BYTES: Final = 1 << 20
_MAPPED_BYTES: Final = 64 << 20
"""A larger Arrow file is mapped: its batches may be as large as the file."""


def read_parquet(source: Source, notes: list[str]) -> Iterator[RawRow | Reject]:
    """Yield the rows of a Parquet file.

    Raises:
        SlidepackError: the file is damaged, or two columns have one name.
    """
    yield from _read(source, notes, _parquet_batches, "Parquet")


def read_arrow(source: Source, notes: list[str], is_stream: bool) -> Iterator[RawRow | Reject]:
    """Yield the rows of an Arrow file, also called Feather, or of an Arrow stream.

    Raises:
        SlidepackError: the file is damaged, or two columns have one name.
    """
    yield from _read(source, notes, _stream_batches if is_stream else _file_batches, "Arrow")


_Batches = Callable[[Source, ExitStack], Iterator[tuple[Any, float]]]
"""Yields batches, and after each the share of the file that has been read."""


def _read(
    source: Source, notes: list[str], batches: _Batches, kind: str
) -> Iterator[RawRow | Reject]:
    notes.append(_LINES_NOTE)
    done = 0
    with ExitStack() as stack:
        found = batches(source, stack)
        while True:
            try:
                batch, share = next(found, (None, 1.0))
                rows = [] if batch is None else list(_rows(batch, done, source))
            except SlidepackError:
                raise
            except _arrow_errors() as error:
                raise _damaged(source, kind, done, error) from error
            if batch is not None and not done:
                _tell_converted(batch.schema, notes)
            yield from rows
            if batch is None:
                break
            done += batch.num_rows
            source.tell(int(share * source.size))
    source.tell(source.size)


def _tell_converted(schema: Any, notes: list[str]) -> None:
    names = [clip(field.name, 40) for field in schema if holds_moments(field.type)]
    if names:
        more = ", …" if len(names) > _SHOWN_COLUMNS else ""
        columns = "column" if len(names) == 1 else f"{len(names)} columns"
        shown = ", ".join(names[:_SHOWN_COLUMNS])
        notes.append(f"Dates and decimals of the {columns} {shown}{more} are read as text.")


def _parquet_batches(source: Source, stack: ExitStack) -> Iterator[tuple[Any, float]]:
    parquet = _load("pyarrow.parquet")
    # Pages are read one by one, not whole columns at once.
    file = stack.enter_context(
        parquet.ParquetFile(source.path, pre_buffer=False, buffer_size=_BUFFER_BYTES)
    )
    metadata = file.metadata
    groups = [metadata.row_group(i) for i in range(metadata.num_row_groups)]
    row_bytes = max((g.total_byte_size // max(g.num_rows, 1) for g in groups), default=0)
    num_rows = min(max(_BATCH_BYTES // max(row_bytes, 1), 1), _MAX_BATCH_ROWS)
    done = 0
    for group in range(metadata.num_row_groups):
        # A batch of two groups would need one dictionary for both, which nested columns cannot.
        for batch in file.iter_batches(num_rows, row_groups=[group], use_threads=False):
            done += batch.num_rows
            yield batch, done / max(metadata.num_rows, 1)


def _file_batches(source: Source, stack: ExitStack) -> Iterator[tuple[Any, float]]:
    arrow = _load("pyarrow")
    is_large = source.size > _MAPPED_BYTES
    data = arrow.memory_map(str(source.path)) if is_large else arrow.OSFile(str(source.path))
    file = stack.enter_context(_load("pyarrow.ipc").open_file(stack.enter_context(data)))
    for i in range(file.num_record_batches):
        for part in _slices(file.get_batch(i)):
            yield part, (i + 1) / file.num_record_batches


def _stream_batches(source: Source, stack: ExitStack) -> Iterator[tuple[Any, float]]:
    arrow = _load("pyarrow")
    is_large = source.size > _MAPPED_BYTES
    data = arrow.memory_map(str(source.path)) if is_large else arrow.OSFile(str(source.path))
    data = stack.enter_context(data)
    for batch in stack.enter_context(_load("pyarrow.ipc").open_stream(data)):
        for part in _slices(batch):
            yield part, data.tell() / max(source.size, 1)


def _slices(batch: Any) -> Iterator[Any]:
    # Offsets that point beyond the data would be followed.
    batch.validate(full=True)
    num_rows = min(max(_BATCH_BYTES * batch.num_rows // max(batch.nbytes, 1), 1), _MAX_BATCH_ROWS)
    for start in range(0, batch.num_rows, num_rows):
        yield batch.slice(start, num_rows)


def _rows(batch: Any, done: int, source: Source) -> Iterator[RawRow | Reject]:
    names = batch.schema.names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise SlidepackError(
            "DATA-FORMAT-UNKNOWN",
            "The table cannot be read.",
            why=f"{source.name}: more than one column is called {clip(', '.join(twice))!r}",
            fix="Give every column a name of its own.",
        )
    columns = [
        (column.cast(plain_type(column.type)), text_converter(column.type))
        for column in batch.columns
    ]
    try:
        values = [_converted(column.to_pylist(), convert) for column, convert in columns]
    except (UnicodeDecodeError, NotTextError, KeyTwiceError):
        yield from _rows_one_by_one(columns, names, batch.num_rows, done)
        return
    for line, cells in enumerate(zip(*values, strict=True), start=done + 1):
        yield RawRow(line, dict(zip(names, cells, strict=True)))


def _converted(values: list[Any], convert: Convert | None) -> list[Any]:
    return values if convert is None else [convert(value) for value in values]


def _rows_one_by_one(
    columns: list[tuple[Any, Convert | None]], names: list[str], num_rows: int, done: int
) -> Iterator[RawRow | Reject]:
    """Yield the rows of a batch of which some cannot be read."""
    for i in range(num_rows):
        value = {}
        try:
            for name, (column, convert) in zip(names, columns, strict=True):
                (value[name],) = _converted(column.slice(i, 1).to_pylist(), convert)
        except (UnicodeDecodeError, NotTextError):
            detail = f"the column {clip(name, 40)} holds bytes that are not UTF-8"
            yield Reject(line=done + i + 1, reason="not-text", detail=detail)
        except KeyTwiceError as error:
            yield RawRow(done + i + 1, {}, name_twice=error.key)
        else:
            yield RawRow(done + i + 1, value)


def _damaged(source: Source, kind: str, done: int, error: BaseException) -> SlidepackError:
    after = f"after row {done}" if done else "before the first row"
    return SlidepackError(
        DAMAGED_CODE,
        f"The {kind} file is damaged or cut off, or holds what cannot be read.",
        why=f"{source.name}, {after}: {clip(error, 200)}",
        fix="Copy or download the file again, or write it anew.",
    )


def _load(name: str) -> Any:
    return importlib.import_module(name)


def _arrow_errors() -> tuple[type[BaseException], ...]:
    """Return all that PyArrow raises over broken bytes."""
    return (_load("pyarrow").ArrowException, ValueError, OSError, KeyError, TypeError,
            OverflowError, MemoryError, NotImplementedError)  # fmt: skip
