"""Bytes and shapes: encodings, lines, arrays, single objects, and where errors are placed."""

import json
import random
import re
import time
from pathlib import Path
from typing import Any

import pytest
from support.reading import rows_and_growth

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data import json_array, json_lines, reading
from slidepack.engine.data.json_array import RawRow
from slidepack.engine.data.reading import read_rows
from slidepack.engine.data.rows import Number, Reject


def _read(path: Path, data: bytes | str) -> list[RawRow | Reject]:
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return list(read_rows(path))


def _values(path: Path, data: bytes | str) -> list[Any]:
    return [(row.line, row.value) for row in _read(path, data) if isinstance(row, RawRow)]


def _error(path: Path, data: bytes | str) -> SlidepackError:
    with pytest.raises(SlidepackError) as caught:
        _read(path, data)
    return caught.value


def _plain(value: Any) -> Any:
    """Turn numbers back into what `json.loads` makes of them."""
    if isinstance(value, Number):
        return json.loads(value.text)
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list) else value


def test_lines_keep_their_numbers_over_crlf_and_blank_lines(tmp_path: Path) -> None:
    data = '{"a": "1"}\r\n\r\n   \r\n{"a": "2"}\r\n{"a": "3"}'
    assert _values(tmp_path / "f", data) == [(1, {"a": "1"}), (4, {"a": "2"}), (5, {"a": "3"})]


@pytest.mark.parametrize(
    ("encoding", "note"),
    [
        ("utf-8-sig", "The file starts with a byte-order mark, which was skipped."),
        ("utf-16", "The file is UTF-16 and was read as such."),
        ("utf-16-le", "The file is UTF-16 and was read as such."),
        ("utf-16-be", "The file is UTF-16 and was read as such."),
        ("utf-32", "The file is UTF-32 and was read as such."),
        ("utf-8", None),
    ],
)
@pytest.mark.parametrize("shape", ["lines", "array", "object"])
def test_every_unicode_encoding_is_read_and_told(
    tmp_path: Path, encoding: str, note: str | None, shape: str
) -> None:
    path = tmp_path / "f.jsonl"
    rows = [{"a": "grün 木 🙂"}, {"a": "\u0a0a\u0d0d"}]
    text = {
        "lines": "".join(json.dumps(row, ensure_ascii=False) + "\r\n" for row in rows),
        "array": json.dumps(rows, ensure_ascii=False, indent=1),
        "object": json.dumps({"data": rows}, ensure_ascii=False, indent=1),
    }[shape]
    path.write_bytes(text.encode(encoding))
    notes: list[str] = []
    assert [row.value for row in read_rows(path, notes) if isinstance(row, RawRow)] == rows
    assert notes[:1] == ([note] if note else notes[:1])


def test_marks_where_files_were_joined_are_skipped(tmp_path: Path) -> None:
    data = '\ufeff{"a": "1"}\n\ufeff{"a": "2"}\n'
    assert _values(tmp_path / "f", data) == [(1, {"a": "1"}), (2, {"a": "2"})]


@pytest.mark.parametrize(
    "data", [b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\xff\xfe", b" " * 9000, b"[]"]
)
def test_nothing_is_empty(tmp_path: Path, data: bytes) -> None:
    assert _error(tmp_path / "f", data).report.code == "DATA-EMPTY"


def test_much_white_space_before_the_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "_SAMPLE_CHARS", 64)
    monkeypatch.setattr(json_array, "CHUNK_CHARS", 64)
    space = "\n" * 5000
    assert _values(tmp_path / "f", space + '["x"]') == [(5001, "x")]
    assert _values(tmp_path / "f", space + '{"a": "x"}') == [(5001, {"a": "x"})]


def test_a_truncated_last_line_is_the_only_loss(tmp_path: Path) -> None:
    rows = _read(tmp_path / "f", '{"a": "1"}\n{"a": "2"}\n{"a": "tru')
    assert [type(row) for row in rows] == [RawRow, RawRow, Reject]
    last = rows[-1]
    assert isinstance(last, Reject)
    assert (last.line, last.reason) == (3, "not-json")
    assert "Unterminated string at column 7, the line breaks off, near" in last.detail


def test_trailing_commas_are_placed(tmp_path: Path) -> None:
    rows = _read(tmp_path / "f", '{"a": "1"}\n{"a": "2",}\n')
    assert isinstance(rows[1], Reject)
    assert (rows[1].line, "column 1" in rows[1].detail) == (2, True)
    error = _error(tmp_path / "f", '[\n{"a": 1},\n{"a": 2},\n]')
    assert "line 4, column 1: a comma stands before ]" in error.report.why
    error = _error(tmp_path / "f", '[\n{"a": 1},\n{"a": 2,}\n]')
    # Python 3.13 points at the comma itself, earlier ones behind it.
    assert re.search("line 3, column (8|9):", error.report.why)
    error = _error(tmp_path / "f", '{\n "data": [\n  {"a": 1},\n ]\n}')
    assert re.search("line (4, column 2|3, column 11):", error.report.why)


@pytest.mark.parametrize(
    ("data", "place"),
    [
        ('[{"a": 1}\n {"a": 2}]', "line 2, column 2: a comma is missing"),
        ('[{"a": 1},\n', "line 2, column 1: Expecting value"),
        ('[{"a": 1}\n', "line 2, column 1: the file ends within the array"),
        ('[1,\n{"a": "x\n"}]', "line 2, column 9: Invalid control character"),
        ('[1,\n{"a": "x', "line 2, column 7: Unterminated string"),
        ("[1]\n  [2]", "line 2, column 3: the array has ended and something follows"),
        ("[", "line 1, column 2: Expecting value"),
        ("[1, , 2]", "line 1, column 5: Expecting value"),
        ("[1, nul]", "line 1, column 5: Expecting value"),
        ("[1" + "[" * 50_000, "line 1, column 3: a comma is missing"),
        ("[1,\n" + "[" * 50_000, "line 2, column 1: a value is nested too deeply"),
    ],
)
def test_errors_in_arrays_name_line_and_column(tmp_path: Path, data: str, place: str) -> None:
    error = _error(tmp_path / "f", data).report
    assert error.code == "DATA-NOT-JSON"
    assert place in error.why


def test_a_deep_line_costs_only_itself(tmp_path: Path) -> None:
    rows = _read(tmp_path / "f", '{"a": ' + "[" * 50_000 + '\n{"a": "2"}\n')
    assert rows[0] == Reject(line=1, reason="not-json", detail="nested too deeply")
    assert rows[1] == RawRow(2, {"a": "2"})


def test_nan_and_long_numbers_are_kept_as_written(tmp_path: Path) -> None:
    data = '{"a": NaN, "b": -Infinity, "c": 1.50, "d": 1e400, "e": ' + "9" * 5000 + "}\n{}"
    ((_, value), _) = _values(tmp_path / "f", data)
    assert [value[name].text for name in "abcd"] == ["NaN", "-Infinity", "1.50", "1e400"]
    assert value["e"] == Number("9" * 5000)


def test_whole_numbers_say_what_is_written(tmp_path: Path) -> None:
    data = '{"a": 42, "b": -7, "c": -0, "d": "-0", "e": [0, -0.0, 18446744073709551616]}\n{}'
    ((_, value), _) = _values(tmp_path / "f", data)
    assert [str(value[name]) for name in "abcd"] == ["42", "-7", "-0", "-0"]
    assert list(map(str, value["e"])) == ["0", "-0.0", "18446744073709551616"]
    # Where a line holds no -0, the fast way to read it gives integers.
    assert _values(tmp_path / "f", '{"a": 42, "b": "1-01"}\n{}')[0][1] == {"a": 42, "b": "1-01"}


def test_half_a_character_is_read(tmp_path: Path) -> None:
    assert _values(tmp_path / "f", '{"a": "x\\ud83d"}\n{}')[0] == (1, {"a": "x\ud83d"})


@pytest.mark.parametrize("name", ["f.json", "f.jsonl", "f.ndjson", "f", "f.data"])
def test_the_shape_is_in_the_file_and_not_in_its_name(tmp_path: Path, name: str) -> None:
    assert _values(tmp_path / name, '[{"a": "1"},\n {"a": "2"}]') == [
        (1, {"a": "1"}),
        (2, {"a": "2"}),
    ]
    assert _values(tmp_path / name, '{"a": "1"}\n{"a": "2"}') == [(1, {"a": "1"}), (2, {"a": "2"})]


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("chunk", [1, 2, 3, 1 << 20])
def test_line_ends_that_straddle_a_chunk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str, chunk: int
) -> None:
    monkeypatch.setattr(json_lines, "CHUNK_BYTES", chunk)
    data = f'{{"a": "1"}}{end}{end}{end}{{"a": "2"}}{end}{{"a": "3"}}'
    assert _values(tmp_path / "f", data) == [(1, {"a": "1"}), (4, {"a": "2"}), (5, {"a": "3"})]


def test_raw_control_characters_in_lines_are_taken(tmp_path: Path) -> None:
    assert _values(tmp_path / "f", '{"a": "x\ty\0z"}\n{}')[0] == (1, {"a": "x\ty\0z"})


@pytest.mark.parametrize(
    ("data", "code"),
    [
        ('{"a": ', "DATA-NOT-JSON"),
        (b"PAR1xxxx", "DATA-CUT-OFF"),
        (b"PK\x03\x04", "DATA-FORMAT-UNKNOWN"),
        (b"\x1f\x8b\x08", "DATA-CUT-OFF"),
        (b"\x00\x01\x02\xff", "DATA-FORMAT-UNKNOWN"),
    ],
)
def test_what_is_none_of_the_formats_is_refused(
    tmp_path: Path, data: bytes | str, code: str
) -> None:
    assert _error(tmp_path / "f", data).report.code == code


def test_no_file_and_no_regular_file(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        with pytest.raises(SlidepackError) as caught:
            list(read_rows(path))
        assert caught.value.report.code == "DATA-NOT-FOUND"


@pytest.mark.parametrize("before", [0, 10, (1 << 20) - 3, (1 << 20) + 7, (2 << 20) + 5])
@pytest.mark.parametrize("bad", [b"\xff", b"\xe6\x9c", b"\xed\xa0\x80", b"\xc3"])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_bad_bytes_are_placed_exactly(tmp_path: Path, before: int, bad: bytes, mark: bytes) -> None:
    line = b'{"a": "' + "木".encode() * 20 + b'"}\r\n'
    good = mark + line * (before // len(line)) + b'{"b": "'
    error = _error(tmp_path / "f", good + bad + b'"}\n').report
    assert error.code == "DATA-ENCODING"
    assert f"line {before // len(line) + 1}, byte {len(good)}:" in error.why


def test_a_cut_character_at_the_end_is_placed(tmp_path: Path) -> None:
    data = '{"a": "x"}\n{"a": "木'.encode()
    good, cut = _read(tmp_path / "f", data[:-1])
    assert good == RawRow(1, {"a": "x"})
    assert isinstance(cut, Reject)
    assert (cut.line, cut.reason) == (2, "not-json")
    assert "cut off within a character" in cut.detail
    wide = '{"a": "x"}\n{"a": "\u0a0a\u0a0a🙂'.encode("utf-16")
    assert f"line 2, byte {len(wide) - 4}:" in _error(tmp_path / "f", wide[:-1]).report.why


def test_one_object_over_many_lines_is_one_row(tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    assert _values(tmp_path / "f", json.dumps(row, indent=2)) == [(1, row)]
    assert _values(tmp_path / "f", json.dumps(row)) == [(1, row)]


def test_a_file_called_json_that_is_none_is_refused(tmp_path: Path) -> None:
    for name, data in (("f.json", "hello\nworld\n"), ("f.jsonl", "a;b\n" * 1000)):
        error = _error(tmp_path / name, data).report
        assert error.code == "DATA-NOT-JSON"
        assert f"{name}: line 1: Expecting value at column 1, near" in error.why


@pytest.mark.parametrize("field", ["data", "train", "rows", "conversations", "examples"])
def test_rows_inside_one_object_are_unwrapped_and_told(tmp_path: Path, field: str) -> None:
    path = tmp_path / "f"
    rows = [{"prompt": str(i), "completion": "x"} for i in range(3)]
    path.write_text(json.dumps({"version": "1.0", field: rows}))
    notes: list[str] = []
    assert list(read_rows(path, notes)) == [RawRow(i + 1, row) for i, row in enumerate(rows)]
    assert notes == [
        f"The rows stand in the field {field}; line numbers count them from 1. Not read: version."
    ]


def test_columns_are_unwrapped_and_told(tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_text(json.dumps({"instruction": ["a", "b"], "output": ["c", "d"]}))
    notes: list[str] = []
    assert list(read_rows(path, notes)) == [
        RawRow(1, {"instruction": "a", "output": "c"}),
        RawRow(2, {"instruction": "b", "output": "d"}),
    ]
    assert "table by columns" in notes[0]


@pytest.mark.parametrize("indent", [None, 1])
def test_one_row_of_tokens_is_no_table(tmp_path: Path, indent: int | None) -> None:
    path = tmp_path / "f.json"
    row = {"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "attention_mask": [1, 1, 1]}
    for one in (row, {"input_ids": [5]}):
        ((line, value),) = _values(path, json.dumps(one, indent=indent))
        assert (line, _plain(value)) == (1, one)
    two = {name: [cells, cells[:2]] for name, cells in row.items()}
    for table in (two, {"input_ids": ["5", "6"]}, {"labels": [5, 6]}, {"input_ids": [5.0, 6]}):
        assert len(_values(path, json.dumps(table, indent=indent))) == 2


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("chunk", [1, 5, 1 << 20])
def test_wrapped_rows_and_tables_of_any_width_are_streamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, indent: int | None, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_CHARS", chunk)
    path = tmp_path / "f.json"
    rows = [{"a": "x", "b": ["y", None]}] * 3
    value = {"n": 1.5, "s": "}]", "o": {"data": [{}]}, "l": [1, []], "train": rows, "z": None}
    assert _values(path, json.dumps(value, indent=indent)) == [(n, rows[0]) for n in (1, 2, 3)]
    for width in (1, 2, 25):
        table = {f"c{n}": [f"{n}.{i}" for i in range(3)] for n in range(width)}
        assert _values(path, json.dumps(table, indent=indent)) == [
            (i + 1, {f"c{n}": f"{n}.{i}" for n in range(width)}) for i in range(3)
        ]


@pytest.mark.parametrize(
    ("data", "why"),
    [
        ('{\n"data": [{"a": 1}, {"a": 2}\n}', "line 3, column 1: a comma is missing"),
        ('{\n"data": [{"a": 1}],\n"b" 2}', "line 3, column 5: a colon is missing"),
        ('{\n"data": [{"a": 1}],\nb: 2}', "line 3, column 1: a name in quotation marks is missing"),
        ('{\n"data": [{"a": 1}]', "line 2, column 19: the file ends within the object"),
    ],
)
def test_errors_in_objects_over_many_lines_are_placed(tmp_path: Path, data: str, why: str) -> None:
    assert why in _error(tmp_path / "f.json", data).report.why


def test_a_first_line_of_megabytes_and_more_after_it(tmp_path: Path) -> None:
    long = {"a": "word " * 500_000}
    data = "".join(json.dumps(row) + "\n" for row in (long, {"a": "2"}))
    assert _values(tmp_path / "f", data) == [(1, long), (2, {"a": "2"})]


@pytest.mark.parametrize(
    "value",
    [
        {"messages": [{"role": "user", "content": "a"}]},
        {"conversations": [{"from": "human", "value": "a"}]},
        {"messages": [{"role": "user"}], "tools": [{"a": "1"}], "documents": [{"a": "1"}]},
        {"instruction": ["a"], "output": ["b", "c"]},
        {"data": ["a", {"b": "c"}], "x": "y"},
        {"data": []},
        {},
    ],
)
def test_what_is_one_row_stays_one_row(tmp_path: Path, value: dict[str, Any]) -> None:
    assert _values(tmp_path / "f", json.dumps(value)) == [(1, value)]


def test_a_line_longer_than_a_row_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (json_lines, json_array):
        monkeypatch.setattr(module, "CHUNK_CHARS", 32, raising=False)
        monkeypatch.setattr(module, "MAX_VALUE_CHARS", 50)
    long = json.dumps({"a": "x" * 200})
    rows = _read(tmp_path / "f", f'{{"a": "1"}}\n{long}\n{{"a": "3"}}\n')
    assert [row.line for row in rows] == [1, 2, 3]
    assert isinstance(rows[1], Reject)
    assert rows[1].reason == "too-big"
    assert _error(tmp_path / "f", long).report.code == "DATA-NOT-JSON"


def test_an_array_that_never_closes_stops_at_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_CHARS", 16)
    monkeypatch.setattr(json_array, "MAX_VALUE_CHARS", 64)
    error = _error(tmp_path / "f", '[{"a": "' + "x" * 5000)
    assert "line 1, column 2: a value is longer than" in error.report.why


def _random_value(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 6)
    match kind:
        case 0:
            return rng.choice([None, True, False])
        case 1:
            return rng.choice([-1, 1]) * rng.randrange(10 ** rng.randrange(1, 12))
        case 2:
            return rng.choice([-1, 1]) * rng.random() * 10.0 ** rng.randrange(-30, 30)
        case 3 | 4 | 5:
            return "".join(
                rng.choice('ab "\\\n\t{}[],:木🙂\u2028\ufeff') for _ in range(rng.randrange(20))
            )
        case 6 | 7:
            return [_random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
        case _:
            return {str(i): _random_value(rng, depth + 1) for i in range(rng.randrange(4))}


@pytest.mark.parametrize("chunk", [1, 2, 3, 7, 31, 1 << 20])
def test_arrays_equal_the_standard_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_CHARS", chunk)
    rng = random.Random(chunk)
    for _ in range(40):
        value = [_random_value(rng) for _ in range(rng.randrange(1, 12))]
        text = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice([None, 1]))
        rows = _values(tmp_path / "f", text)
        assert [_plain(item) for _, item in rows] == json.loads(text)
        starts = [line for line, _ in rows]
        assert starts == sorted(starts)


def test_numbers_that_straddle_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = ["1.5", "-12.25e+10", "3e5", "7E-2", "0", "-0.0", "123456"]
    for chunk in range(1, 12):
        monkeypatch.setattr(json_array, "CHUNK_CHARS", chunk)
        rows = _values(tmp_path / "f", f"[{','.join(numbers)}]")
        assert [item.text for _, item in rows] == numbers


def test_an_array_larger_than_the_chunk(tmp_path: Path) -> None:
    rng = random.Random(5)
    value = [
        {"messages": "x" * rng.randrange(300_000), "n": rng.random(), "i": i} for i in range(30)
    ]
    text = json.dumps(value, indent=1)
    assert len(text) > 3 << 20
    rows = _values(tmp_path / "f", text)
    assert [_plain(item) for _, item in rows] == json.loads(text)
    assert [line for line, _ in rows] == [2 + 5 * i for i in range(30)]


def test_many_small_rows_of_an_array_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "f"
    rows = ['{"prompt": "a", "completion": "b"}'] * 200_000
    path.write_text(f"[{','.join(rows)}]")
    begun = time.process_time()
    assert sum(1 for _ in read_rows(path)) == 200_000
    # Copying the rest of the chunk for each row took minutes.
    assert time.process_time() - begun < 8.0


_FRAMES = {
    "lines": (b"", b"\n", b""),
    "array": (b"[", b",\n", b"]"),
    "array-of-one-line": (b"[", b",", b"]"),
    "wrapped": (b'{"version": 1,\n"data": [', b",", b"]}"),
    "table": (b"prompt,completion\n", b"\n", b""),
}


@pytest.mark.parametrize("shape", _FRAMES)
def test_two_hundred_megabytes_are_read_in_bounded_memory(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "big.jsonl"
    before, between, after = _FRAMES[shape]
    row = json.dumps({"prompt": "q" * 50, "completion": "word " * 4000}).encode()
    if shape == "table":
        path = tmp_path / "big.csv"
        row = b'"q","' + b"word " * 4000 + b'"'
    block = (row + between) * 100
    with path.open("wb") as file:
        file.write(before)
        for _ in range(100):
            file.write(block)
        file.write(row + after)
    assert path.stat().st_size > 200e6
    count, grown_mib = rows_and_growth(path)
    path.unlink()
    assert count == 10_001
    assert grown_mib < 40
