"""What is told of files that are nearly right, and which of them are refused."""

import datetime
import gzip
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.reading import error, read, rows_and_growth, values

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data import reading
from slidepack.engine.data.reading import RawRow, read_rows
from slidepack.engine.data.rows import Reject

_ROWS = [{"a": "1"}, {"a": "2"}, {"a": "3"}]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize(
    ("value", "counts"),
    [
        ({"train": _ROWS, "test": _ROWS[:2]}, "train (3 items), test (2 items)"),
        ({"test": _ROWS[:1], "train": _ROWS}, "test (1 item), train (3 items)"),
        ({"data": _ROWS, "train": [*_ROWS, None]}, "data (3 items), train (4 items)"),
    ],
)
def test_several_lists_of_rows_are_ambiguous(
    tmp_path: Path, value: dict[str, Any], counts: str, indent: int | None
) -> None:
    report = error(tmp_path / "f.json", json.dumps(value, indent=indent))
    assert (report.code, report.what) == (
        "DATA-AMBIGUOUS",
        "The file holds more than one list of rows.",
    )
    assert report.why == f"f.json: {counts}"
    assert "a file of its own" in report.fix
    assert "held-out" in report.fix


def test_an_empty_list_beside_the_rows_is_none(tmp_path: Path) -> None:
    data = json.dumps({"train": _ROWS, "test": []})
    assert len(values(tmp_path / "f.json", data)) == 3


def test_rows_of_an_array_on_one_line_are_counted_and_told(tmp_path: Path) -> None:
    notes: list[str] = []
    rows = values(tmp_path / "f.json", json.dumps(_ROWS), notes=notes)
    assert rows == list(enumerate(_ROWS, start=1))
    assert len(notes) == 1
    assert "line numbers count the rows" in notes[0]
    notes.clear()
    rows = values(tmp_path / "f.json", json.dumps(_ROWS, indent=1), notes=notes)
    assert [line for line, _ in rows] == [2, 5, 8]
    assert not notes


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_last_line_cut_within_a_character_is_the_only_loss(tmp_path: Path, length: int) -> None:
    tail = "🙂".encode()[:length]
    data = b'{"a": "1"}\n{"a": "2"}\n{"a": "' + tail
    *good, cut = read(tmp_path / "f.jsonl", data)
    assert good == [RawRow(1, {"a": "1"}), RawRow(2, {"a": "2"})]
    assert isinstance(cut, Reject)
    assert cut.line == 3
    # With a first line that is none, too.
    rows = read(tmp_path / "f.jsonl", b"{oops}\n" + data)
    assert [type(row) for row in rows] == [Reject, RawRow, RawRow, Reject]
    # A newline behind it makes it a damaged line, not the end.
    assert error(tmp_path / "f.jsonl", data + b"\n").code == "DATA-ENCODING"


@pytest.mark.parametrize("after", [b"", b', "x": "\xff"'])
def test_one_object_with_a_bad_byte_is_refused(tmp_path: Path, after: bytes) -> None:
    bad = b"\xff" if not after else b""
    data = b'{\n"data": [{"a": "' + bad + b'"}]' + after + b"}"
    assert error(tmp_path / "f.json", data).code == "DATA-ENCODING"


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("f.jsonl", b'{"a": "x"}\n{"a": "\xff"}\n'),
        ("f.json", b'[{"a": "x"},\n{"a": ["\xff"]}]'),
        ("f.json", b'{"data": [{"a": "x"},\n{"\xff": "y"}]}'),
        ("f.csv", b"a,b\nx,y\n\xff,y\n"),
    ],
)
def test_rows_with_replaced_bytes_are_marked(tmp_path: Path, name: str, data: bytes) -> None:
    rows = read(tmp_path / name, data, encoding="utf-8-replace")
    assert [row.repairs for row in rows if isinstance(row, RawRow)] == [(), ("encoding",)]


def test_one_large_object_takes_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"text": "word " * (3 << 20), "b": ["x" * 50] * 10_000}))
    count, growth = rows_and_growth(path)
    assert count == 1
    assert growth < 200
    path.write_text(json.dumps({"text": "word " * (13 << 20)}))
    with pytest.raises(SlidepackError) as caught:
        list(read_rows(path))
    assert caught.value.report.code == "DATA-NOT-JSON"
    assert "longer than 16 Mi characters" in caught.value.report.why


@pytest.mark.full
def test_many_small_values_in_one_object_take_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps({"x": {f"w{i}": ["ab", i] for i in range(600_000)}}))
    count, growth = rows_and_growth(path)
    assert count == 1
    assert growth < 300


def test_one_document_names_the_other_modes(tmp_path: Path) -> None:
    notes: list[str] = []
    values(tmp_path / "f.txt", "a\n\nb", notes=notes)
    assert "`--text-mode paragraph`" in notes[0]
    assert "`--text-mode line`" in notes[0]


def test_dates_of_parquet_are_told(tmp_path: Path) -> None:
    day = datetime.date(2024, 1, 2)
    table = pa.table({"a": ["x"], "day": [day], "b": [[{"when": day}]], "n": [1]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    notes: list[str] = []
    read(tmp_path / "f.parquet", buffer.getvalue(), notes=notes)
    assert notes[-1] == "Dates and decimals of the 2 columns day, b are read as text."
    report = error(tmp_path / "f.parquet", buffer.getvalue()[:-20])
    assert (report.code, "damaged or cut off" in report.what) == ("DATA-CUT-OFF", True)
    packed = error(tmp_path / "f.parquet.gz", gzip.compress(buffer.getvalue()))
    assert packed.what.startswith("This is a Parquet file inside gzip")


def test_a_comma_before_a_brace_is_called_one(tmp_path: Path) -> None:
    rows = read(tmp_path / "f.jsonl", '{"a": "1"}\n{"a": "2", }\n{"a": [1,]}\n')
    details = [row.detail for row in rows if isinstance(row, Reject)]
    assert details[0].startswith("a comma stands before } at column ")
    assert details[1].startswith("a comma stands before ] at column ")


def test_the_way_out_of_a_wrong_encoding_fits_it(tmp_path: Path) -> None:
    assert "`--encoding cp1252`" in error(tmp_path / "f.jsonl", b'{"a": "\xff"}\n').fix
    odd = '{"a": "x"}\n'.encode("utf-16") + b"\0"
    assert "utf-8-replace" not in error(tmp_path / "f.jsonl", odd).fix


@pytest.mark.parametrize("sample_chars", [1 << 18, 4])
def test_bytes_behind_gzip_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sample_chars: int
) -> None:
    monkeypatch.setattr(reading, "_SAMPLE_CHARS", sample_chars)
    packed = gzip.compress(b'{"a": "1"}\n') + gzip.compress(b'{"a": "2"}\n')
    notes: list[str] = []
    rows = values(tmp_path / "f.jsonl.gz", packed + b"garbage", notes=notes)
    assert rows == [(1, {"a": "1"}), (2, {"a": "2"})]
    assert notes == ["Bytes behind the packed data are not gzip and were not read."]


def test_a_nameless_column_of_words_is_not_called_numbers(tmp_path: Path) -> None:
    notes: list[str] = []
    values(tmp_path / "f.csv", ",prompt,completion\nx,a,b\ny,c,d\n", notes=notes)
    assert notes == ["The first column, without a name, was left out."]


def test_a_table_of_broken_rows_only_is_refused_as_a_table(tmp_path: Path) -> None:
    report = error(tmp_path / "f.csv", 'prompt,completion\n"a,b\n"c,d\n')
    assert report.what == "The table cannot be read."
    assert "quotation mark" in report.why


def test_lines_that_are_arrays_of_messages_are_called_so(tmp_path: Path) -> None:
    line = json.dumps([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])
    report = error(tmp_path / "f.jsonl", f"{line}\n{line}\n")
    assert "line 2, column 1: the array has ended and something follows: an array" in report.why
    report = error(tmp_path / "f.json", f"[{line},\n{line}]\n")
    assert report.what == "The rows are arrays of messages, not objects."
    assert '{"messages": […]}' in report.fix
