"""Any bytes give rows, rejects or a coded error that names a place: no traceback, no hang."""

import csv
import gzip
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.plain_text import TextMode
from slidepack.engine.data.reading import RawRow, read_rows

_SETTINGS = settings(max_examples=150)
_NAMES = ("f", "f.csv", "f.txt", "f.jsonl", "f.md", "f.json.gz")
_MODES: tuple[TextMode, ...] = ("document", "paragraph", "line")
_ENCODINGS = (None, None, None, "utf-8-replace", "cp1252", "utf-16", "gbk")
_PLACE: Final = re.compile(r"\b(line|row|byte|column) \d|before the first row|starts with|holds no")


def _rows(count: int) -> list[dict[str, Any]]:
    return [
        {"id": i, "x": i / 3, "messages": [{"role": "user", "content": f"q{i} ü\n"}]}
        for i in range(count)
    ]


def _csv() -> bytes:
    file = io.StringIO(newline="")
    writer = csv.writer(file)
    writer.writerow(["prompt", "completion"])
    writer.writerows([f"q {i}", 'x, "y"\nz' * i] for i in range(8))
    return file.getvalue().encode()


def _parquet(compression: str) -> bytes:
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(_rows(9))
    pq.write_table(table, buffer, compression=compression, row_group_size=4)
    return buffer.getvalue()


def _arrow(new_writer: Callable[..., Any]) -> bytes:
    buffer = io.BytesIO()
    table = pa.Table.from_pylist(_rows(9))
    with new_writer(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=4)
    return buffer.getvalue()


_LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in _rows(9)).encode()
VALID: Final[dict[str, bytes]] = {
    "lines": _LINES,
    "array": json.dumps(_rows(9), indent=1).encode(),
    "wrapped": json.dumps({"version": 1, "data": _rows(9)}).encode(),
    "columns": json.dumps({"prompt": ["a", "b"], "completion": ["c", "d"]}, indent=1).encode(),
    "csv": _csv(),
    "gzip": gzip.compress(_LINES),
    "zstd": zstandard.compress(_LINES),
    "utf-16": _LINES.decode().encode("utf-16"),
    "parquet": _parquet("none"),
    "parquet-zstd": _parquet("zstd"),
    "feather": _arrow(pa.ipc.new_file),
    "stream": _arrow(pa.ipc.new_stream),
}
_PIECES = (b'"', b"\n", b"\r", b",", b"\0", b"{", b"[", b"]}", b"\xff", b"\xed\xa0\x80", b"\\u")


@st.composite
def _spoilt(draw: st.DrawFn, data: bytes) -> bytes:
    """Return the data with a few bytes flipped, cut, doubled or put in."""
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(data)))
        match draw(st.sampled_from(("flip", "cut", "end", "double", "insert"))):
            case "flip" if at < len(data):
                flipped = data[at] ^ 1 << draw(st.integers(0, 7))
                data = data[:at] + bytes([flipped]) + data[at + 1 :]
            case "cut":
                data = data[:at] + data[at + draw(st.integers(1, 20)) :]
            case "end":
                data = data[:at]
            case "double":
                data = data[:at] + data[max(0, at - draw(st.integers(1, 50))) :]
            case _:
                data = data[:at] + draw(st.sampled_from(_PIECES)) + data[at:]
    return data


def _check(data: bytes, name: str, mode: TextMode, encoding: str | None) -> None:
    notes: list[str] = []
    told: list[int] = []
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / name
        path.write_bytes(data)
        lines = []
        try:
            for row in read_rows(
                path, notes, text_mode=mode, encoding=encoding, on_bytes=told.append
            ):
                lines.append(row.line)
                if isinstance(row, RawRow):
                    repr(row.value)
                else:
                    assert row.reason and row.detail
        except SlidepackError as error:
            assert error.report.what and error.report.fix
            assert _PLACE.search(error.report.why), error.report
        else:
            assert lines and told[-1] == len(data)
    assert all(line >= 1 for line in lines)
    assert lines == sorted(lines)
    assert told == sorted(told)


@_SETTINGS
@given(
    data=st.binary(max_size=300),
    name=st.sampled_from(_NAMES),
    mode=st.sampled_from(_MODES),
    encoding=st.sampled_from(_ENCODINGS),
)
def test_any_bytes(data: bytes, name: str, mode: TextMode, encoding: str | None) -> None:
    _check(data, name, mode, encoding)


@_SETTINGS
@given(
    text=st.text(alphabet='abä🙂 \t\n\r",;|[]{}:0-1.e\\#', max_size=200),
    name=st.sampled_from(_NAMES),
    mode=st.sampled_from(_MODES),
)
def test_any_text_of_telling_characters(text: str, name: str, mode: TextMode) -> None:
    _check(text.encode(), name, mode, None)


@pytest.mark.parametrize("kind", VALID)
@_SETTINGS
@given(draw=st.data(), name=st.sampled_from(_NAMES), encoding=st.sampled_from(_ENCODINGS))
def test_spoilt_files(kind: str, draw: st.DataObject, name: str, encoding: str | None) -> None:
    _check(draw.draw(_spoilt(VALID[kind])), name, "line", encoding)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@_SETTINGS
@given(
    rows=st.lists(st.dictionaries(st.text(), _JSON, max_size=4), min_size=2, max_size=6),
    ascii_only=st.booleans(),
    shape=st.sampled_from(("lines", "array", "wrapped")),
)
def test_what_was_written_as_json_comes_back(
    rows: list[dict[str, Any]], ascii_only: bool, shape: str
) -> None:
    if shape == "lines":
        text = "".join(json.dumps(row, ensure_ascii=ascii_only) + "\r\n" for row in rows)
    else:
        value = rows if shape == "array" else {"version": 1, "data": [{"x": row} for row in rows]}
        text = json.dumps(value, ensure_ascii=ascii_only)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.json"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        found = [row.value for row in read_rows(path) if isinstance(row, RawRow)]
    if shape == "wrapped":
        found = [value["x"] for value in found]
    assert [_plain(value) for value in found] == rows


_CELL = st.text(st.characters(codec="utf-8", exclude_characters="\r"))


@_SETTINGS
@given(
    rows=st.lists(
        st.tuples(_CELL, _CELL),
        min_size=1,
        max_size=8,
    ),
    separator=st.sampled_from(",;\t|"),
)
def test_what_was_written_as_csv_comes_back(rows: list[tuple[str, str]], separator: str) -> None:
    file = io.StringIO(newline="")
    writer = csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL)
    writer.writerows([("prompt", "completion"), *rows])
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.csv"
        path.write_bytes(file.getvalue().encode())
        found = [row.value for row in read_rows(path) if isinstance(row, RawRow)]
    assert [(value["prompt"], value["completion"]) for value in found] == rows


def _plain(value: Any) -> Any:
    """Turn numbers back into what `json.loads` makes of them."""
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return int(value.text) if hasattr(value, "text") else value
