"""Parquet and Arrow: nested rows, values as text, numbers of rows, and damaged files."""

import datetime
import decimal
import io
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.reading import error, read, rows_and_growth, values

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.reading import RawRow, read_rows
from slidepack.engine.data.rows import Number, Reject

CHAT = [
    {"messages": [{"role": "user", "content": f"q{i} ü"}, {"role": "assistant", "content": "a"}]}
    for i in range(600)
]


def _parquet(table: pa.Table, **options: Any) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(table, buffer, **options)
    return buffer.getvalue()


def _arrow(table: pa.Table, compression: str | None = None) -> bytes:
    buffer = io.BytesIO()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(buffer, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=100)
    return buffer.getvalue()


def _stream(table: pa.Table) -> bytes:
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=100)
    return buffer.getvalue()


WRITERS = {
    "parquet": _parquet,
    "parquet-groups": lambda table: _parquet(table, row_group_size=7, compression="zstd"),
    "feather": _arrow,
    "feather-lz4": lambda table: _arrow(table, "lz4"),
    "stream": _stream,
}


@pytest.mark.parametrize("writer", WRITERS)
def test_conversations_come_back_with_the_number_of_their_row(tmp_path: Path, writer: str) -> None:
    notes: list[str] = []
    told: list[int] = []
    data = WRITERS[writer](pa.Table.from_pylist(CHAT))
    rows = values(tmp_path / "f", data, notes=notes, on_bytes=told.append)
    assert rows == list(enumerate(CHAT, start=1))
    assert notes == ["The file has no lines; line numbers count its rows from 1."]
    assert told == sorted(set(told))
    assert told[-1] == len(data)


_MOMENT = datetime.datetime(2024, 1, 2, 3, 4, 5)
_CASES: list[tuple[Any, Any]] = [
    (pa.array(["NA", None, ""]), ["NA", None, ""]),
    (pa.array(["a", None, "b"], pa.large_string()), ["a", None, "b"]),
    (pa.array(["a", None, "a"]).dictionary_encode(), ["a", None, "a"]),
    (pa.array([1, None, -(2**63)]), [Number("1"), None, Number(str(-(2**63)))]),
    (pa.array([2**64 - 1], pa.uint64()), [Number(str(2**64 - 1))]),
    (pa.array([0.1, 1.0, 1e300]), [Number("0.1"), Number("1.0"), Number("1e+300")]),
    (pa.array([float("nan"), -0.0, None]), [Number("NaN"), Number("-0.0"), None]),
    (pa.array([0.1, 2.0, None], pa.float32()), [Number("0.1"), Number("2.0"), None]),
    (pa.array([float("inf")], pa.float32()), [Number("Infinity")]),
    (pa.array([True, None, False]), [True, None, False]),
    (pa.array([b"gr\xc3\xbcn", None]), ["grün", None]),
    (pa.array([_MOMENT, None], pa.timestamp("ns")), ["2024-01-02T03:04:05", None]),
    (pa.array([_MOMENT], pa.timestamp("us", "UTC")), ["2024-01-02T03:04:05Z"]),
    (
        pa.array([_MOMENT.replace(microsecond=120_000)], pa.timestamp("us")),
        ["2024-01-02T03:04:05.12"],
    ),
    (pa.array([_MOMENT.date()]), ["2024-01-02"]),
    (pa.array([_MOMENT.time()]), ["03:04:05"]),
    (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
    (pa.array([[1.5], None, []]), [[Number("1.5")], None, []]),
    (pa.array([[["a"], None]]), [[["a"], None]]),
    (pa.array([{"a": 1, "b": "x"}, None]), [{"a": Number("1"), "b": "x"}, None]),
    (
        pa.array([[("k", 1.5)], None], pa.map_(pa.string(), pa.float64())),
        [{"k": Number("1.5")}, None],
    ),
    (pa.array([None, None], pa.null()), [None, None]),
    (
        pa.array([[{"d": "x", "t": _MOMENT}]]),
        [[{"d": "x", "t": "2024-01-02T03:04:05"}]],
    ),
]


@pytest.mark.parametrize("case", _CASES, ids=lambda case: f"{case[0].type}-{len(case[0])}")
@pytest.mark.parametrize("writer", ["parquet", "feather"])
def test_values_keep_what_they_say(tmp_path: Path, case: tuple[Any, Any], writer: str) -> None:
    array, expected = case
    data = WRITERS[writer](pa.table({"x": array}))
    assert [value["x"] for _, value in values(tmp_path / "f", data)] == expected


_TURN = pa.struct([("from", pa.string()), ("value", pa.string()), ("weight", pa.null())])
_INNER = pa.struct([("a", pa.null()), ("l", pa.list_(pa.null())), ("t", pa.list_(_TURN))])
_TURN_VALUE = {"from": "a", "value": "b", "weight": None}
_INNER_VALUE = {"a": None, "l": [None] * 3, "t": [_TURN_VALUE] * 2}
_RATED = pa.struct([("score", pa.float32()), ("weight", pa.null())])


def _with_nulls(size: int) -> list[Any]:
    """Return lists of none to three turns, and nulls."""
    return [[_TURN_VALUE] * (i % 4) if i % 5 else None for i in range(size)]


_WITH_NULLS: dict[str, Any] = {
    "list": pa.array(_with_nulls(700), pa.list_(_TURN)),
    "large_list": pa.array(_with_nulls(700), pa.large_list(_TURN)),
    "fixed_size_list": pa.array([[_TURN_VALUE] * 3, None] * 350, pa.list_(_TURN, 3)),
    "struct": pa.array([_INNER_VALUE, None] * 350, _INNER),
    "nested": pa.array([[_INNER_VALUE] * 2, [], None, [None]] * 175, pa.list_(_INNER)),
    "rated": pa.array([[{"score": 0.5, "weight": None}] * 2, []] * 350, pa.list_(_RATED)),
    "no-items": pa.array([[], None] * 350, pa.list_(_TURN)),
    "list-of-null": pa.array([[None] * 5, [], None] * 250, pa.list_(pa.null())),
    "fixed-of-null": pa.array([[None] * 3] * 700, pa.list_(pa.null(), 3)),
}


def _numbers_as_texts(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers_as_texts(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_numbers_as_texts(item) for item in value]
    return Number(str(value)) if isinstance(value, float) else value


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("shape", _WITH_NULLS)
def test_fields_that_are_null_in_every_row(tmp_path: Path, writer: str, shape: str) -> None:
    array = _WITH_NULLS[shape]
    rows = values(tmp_path / "f", WRITERS[writer](pa.table({"x": array})))
    assert [value["x"] for _, value in rows] == _numbers_as_texts(array.to_pylist())


@pytest.mark.parametrize("writer", WRITERS)
def test_texts_of_turns_may_stand_in_a_dictionary(tmp_path: Path, writer: str) -> None:
    size = 600
    names = pa.array([("human", "gpt", None)[i % 3] for i in range(size)]).dictionary_encode()
    turns = pa.StructArray.from_arrays([names, pa.nulls(size)], names=["from", "weight"])
    lists = pa.ListArray.from_arrays(pa.array(range(0, size + 1, 2), pa.int32()), turns)
    rows = values(tmp_path / "f", WRITERS[writer](pa.table({"x": lists})))
    assert [value["x"] for _, value in rows] == lists.to_pylist()


def test_bytes_that_are_no_text_cost_their_row_only(tmp_path: Path) -> None:
    table = pa.table({"a": ["1", "2", "3"], "b": [b"x", b"\xff", b"z"]})
    rows = read(tmp_path / "f", _parquet(table))
    assert rows[0] == RawRow(1, {"a": "1", "b": "x"})
    assert isinstance(rows[1], Reject)
    assert (rows[1].line, rows[1].reason) == (2, "not-text")
    assert "the column b" in rows[1].detail
    assert rows[2] == RawRow(3, {"a": "3", "b": "z"})


def test_strings_that_are_no_text_cost_their_row_only(tmp_path: Path) -> None:
    broken = pa.array([b"x", b"\xff\xfe", b"z"]).view(pa.string())
    rows = read(tmp_path / "f", _parquet(pa.table({"a": broken})))
    assert [(type(row), row.line) for row in rows] == [(RawRow, 1), (Reject, 2), (RawRow, 3)]


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    table = pa.Table.from_arrays([pa.array(["1"]), pa.array(["2"])], names=["a", "a"])
    assert "called 'a'" in error(tmp_path / "f", _parquet(table)).why


def test_a_table_without_rows_is_empty(tmp_path: Path) -> None:
    for writer in WRITERS.values():
        data = writer(pa.table({"a": pa.array([], pa.string())}))
        assert error(tmp_path / "f", data).code == "DATA-EMPTY"


@pytest.mark.parametrize("writer", WRITERS)
def test_a_file_that_breaks_off_is_refused(tmp_path: Path, writer: str) -> None:
    data = WRITERS[writer](pa.Table.from_pylist(CHAT))
    for size in (8, 30, len(data) // 2, len(data) - 9):
        refused = error(tmp_path / "f", data[:size])
        assert refused.code in ("DATA-CUT-OFF", "DATA-EMPTY")
        assert refused.why.startswith("f")


def test_wrong_bytes_never_end_in_a_traceback(tmp_path: Path) -> None:
    rng = random.Random(3)
    path = tmp_path / "f"
    for writer in WRITERS.values():
        data = writer(pa.Table.from_pylist(CHAT[:20]))
        for _ in range(40):
            spoilt = bytearray(data)
            for _ in range(rng.randrange(1, 4)):
                spoilt[rng.randrange(len(spoilt))] ^= 1 << rng.randrange(8)
            path.write_bytes(spoilt)
            try:
                assert list(read_rows(path))
            except SlidepackError as refused:
                assert refused.report.why


@pytest.mark.parametrize("use_dictionary", [False, True])
def test_one_large_group_of_rows_is_read_in_bounded_memory(
    tmp_path: Path, use_dictionary: bool
) -> None:
    path = tmp_path / "f.parquet"
    words = [f"{i} " + "word " * 4000 for i in range(50)]
    table = pa.table(
        {"prompt": ["q"] * 10_000, "completion": [words[i % 50] for i in range(10_000)]}
    )
    pq.write_table(
        table, path, row_group_size=10_000, compression="none", use_dictionary=use_dictionary
    )
    count, grown_mib = rows_and_growth(path)
    path.unlink()
    assert count == 10_000
    # PyArrow itself is 70.
    assert grown_mib < 200


def test_reading_text_loads_no_pyarrow() -> None:
    code = (
        "import sys, slidepack.engine.data.check; "
        "assert not {'pyarrow', 'numpy'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
