"""Objects in which a name stands twice: decoders keep one value, and we say that there were two."""

import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.reading import read, values

from slidepack.engine.data.json_lines import read_lines
from slidepack.engine.data.judge import Judge
from slidepack.engine.data.reading import RawRow
from slidepack.engine.data.rows import Reject

_GOOD = '{"prompt": "p", "completion": "c"}'
_TWICE = [
    '{"prompt": "a", "prompt": "b", "completion": "c"}',
    '{"prompt":"a","completion":"c","prompt":"b"}',
    '{"prompt" : "a", "prompt"\t:"b", "completion": "c"}',
    '{"prompt": "a", "completion": {"x": [{"prompt": 1, "prompt": 2}]}}',
    '{"prompt": 1.5, "prompt": 2.5}',
    '{"prompt": 1, "prompt": true}',
    '{"prompt": "a \\u0022: b", "prompt": "b \\u003a"}',
    '{"prompt": "a: b", "prompt": "c"}',
    '{"prompt": "a", "prompt": "b", "tab": "\t"}',
]
_SHAPES = {
    "lines": ("f.jsonl", "{0}\n{1}\n{0}\n", 2),
    "array": ("f.json", "[{0},\n{1},\n{0}]", 2),
    "array-of-one-line": ("f.json", "[{0},{1},{0}]", 2),
    "container": ("f.json", '{{"v": 1, "data": [{0}, {1}, {0}]}}', 2),
    "by-number": ("f.json", '{{"0": {0}, "1": {1}, "2": {0}}}', 2),
    "cells": ("f.json", '{{"a": {{"0": {0}, "1": {1}, "2": {0}}}}}', 2),
    "split": ("f.json", '{{"columns": ["a"], "data": [[{0}], [{1}], [{0}]]}}', 2),
}


def _may_hold(shape: str, row: str) -> bool:
    # A raw tab in a string is an error but in lines.
    return shape == "lines" or '"\t"' not in row


@pytest.mark.parametrize("shape", _SHAPES)
@pytest.mark.parametrize("row", _TWICE)
def test_the_row_is_rejected_whatever_the_shape_of_the_file(
    tmp_path: Path, shape: str, row: str
) -> None:
    if not _may_hold(shape, row):
        return
    name, frame, line = _SHAPES[shape]
    found = read(tmp_path / name, frame.format(_GOOD, row))
    assert [type(row) for row in found] == [RawRow, Reject, RawRow]
    reject = found[1]
    assert isinstance(reject, Reject)
    assert (reject.line, reject.reason) == (line, "name-twice")
    assert reject.detail == "prompt stands twice in one object, with values that differ"


@pytest.mark.parametrize("indent", ["", "\n "])
def test_one_object_is_no_exception(tmp_path: Path, indent: str) -> None:
    for text in (
        f'{{"prompt": "a",{indent}"prompt": "b"}}',
        f'{{"data": [{_GOOD}],{indent}"data": [{_GOOD}]}}',
    ):
        (row,) = read(tmp_path / "f.json", text)
        assert isinstance(row, Reject)
        assert (row.line, row.reason) == (1, "name-twice")


def test_the_same_value_twice_loses_nothing(tmp_path: Path) -> None:
    row = '{"id": 7, "id": 7, "prompt": "p"}'
    assert [value["prompt"] for _, value in values(tmp_path / "f", f"{row}\n{row}\n")] == ["p", "p"]


@pytest.mark.parametrize(
    "row",
    [
        '{"prompt": "\\"prompt\\": 1, \\"prompt\\": 2", "completion": "a :: b"}',
        '{"a": {"prompt": 1}, "b": {"prompt": 2}, "prompt": 3}',
        '{"a": 1.5, "b": [2e3, -0.0], "c": null, "d\\u003a": "\\u003a"}',
        '{"a": "caf\\u00e9 :"}',
    ],
)
def test_what_only_looks_like_it_is_taken(tmp_path: Path, row: str) -> None:
    assert len(values(tmp_path / "f", f"{row}\n{row}\n")) == 2


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(':"\\a u0'),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(st.sampled_from(["a", "b", ":", '"', "\\"]), inner), max_size=3)
    ),
    max_leaves=8,
)


def _written(value: object) -> tuple[str, bool]:
    """Return JSON, lists of pairs as objects, and whether two values of a name differ."""
    if isinstance(value, list) and value and all(isinstance(item, tuple) for item in value):
        seen: dict[str, set[str]] = {}
        parts = []
        differs = False
        for name, content in value:
            text, inner = _written(content)
            seen.setdefault(name, set()).add(text)
            differs = differs or inner
            parts.append(f"{json.dumps(name)}:{text}")
        return f"{{{','.join(parts)}}}", differs or any(len(texts) > 1 for texts in seen.values())
    if isinstance(value, list):
        written = [_written(item) for item in value]
        return f"[{','.join(text for text, _ in written)}]", any(inner for _, inner in written)
    return json.dumps(value), False


@given(value=_VALUES)
def test_every_name_that_stands_twice_is_seen(value: object) -> None:
    text, differs = _written(value)
    (row,) = read_lines(io.BytesIO(f'{{"x":{text}}}\n'.encode()), "f")
    assert isinstance(row, RawRow)
    if differs:
        assert row.name_twice is not None


def test_messages_and_calls_in_texts(tmp_path: Path) -> None:
    turn = '{"role": "assistant", "content": "a", "content": "b"}'
    row: Any = Judge("chat").judge(1, {"messages": f"[{turn}]"})
    assert row.reason == "no-messages"
    call = {"from": "function_call", "value": '{"name": "f", "arguments": {"x": 1, "x": 2}}'}
    row = Judge("sharegpt").judge(1, {"conversations": [call]})
    assert row.reason == "bad-tool-calls"


def test_keys_of_a_map_in_parquet(tmp_path: Path) -> None:
    maps = [[("k", "1")], [("k", "1"), ("k", "2")], [("k", "3"), ("k", "3")]]
    table = pa.table({"m": pa.array(maps, pa.map_(pa.string(), pa.string()))})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    found = read(tmp_path / "f.parquet", buffer.getvalue())
    assert found[0] == RawRow(1, {"m": {"k": "1"}})
    assert isinstance(found[1], Reject)
    assert (found[1].line, found[1].reason) == (2, "name-twice")
    assert found[2] == RawRow(3, {"m": {"k": "3"}})
