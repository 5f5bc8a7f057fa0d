"""The layouts that pandas writes a table in: each is read whole, told, or stays what it is."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.reading import error, read, rows_and_growth, values

from slidepack.engine.data import json_array
from slidepack.engine.data.check import judge_file
from slidepack.engine.data.rows import Reject

ROWS = [{"prompt": f"p{i}", "completion": f"c{i}"} for i in range(3)]
_NUMBERED = {name: {str(i): row[name] for i, row in enumerate(ROWS)} for name in ROWS[0]}
_SPLIT = {
    "columns": list(ROWS[0]), "index": [0, 1, 2], "data": [list(row.values()) for row in ROWS],
}  # fmt: skip
_LAYOUTS: dict[str, tuple[Any, str]] = {
    "columns": (_NUMBERED, "by columns with numbered cells, as pandas writes it"),
    "split": (_SPLIT, "names of its columns apart, as pandas splits it"),
    "index": ({str(i): row for i, row in enumerate(ROWS)}, "a numbered row in each field"),
    "table": ({"schema": {"fields": [1]}, "data": ROWS}, "in the field data"),
}


@pytest.mark.parametrize("layout", _LAYOUTS)
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("chunk", [1, 7, 1 << 20])
def test_each_layout_is_unwrapped_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str, indent: int | None, chunk: int
) -> None:
    monkeypatch.setattr(json_array, "CHUNK_CHARS", chunk)
    value, told = _LAYOUTS[layout]
    notes: list[str] = []
    found = values(tmp_path / "f.json", json.dumps(value, indent=indent), notes=notes)
    assert found == list(enumerate(ROWS, start=1))
    assert len(notes) == 1
    assert told in notes[0]


@pytest.mark.parametrize("layout", ["columns", "split", "index"])
def test_texts_with_raw_tabs_are_unwrapped_too(tmp_path: Path, layout: str) -> None:
    text = json.dumps(_LAYOUTS[layout][0]).replace("p1", "p\t1")
    rows = [value["prompt"] for _, value in values(tmp_path / "f.json", text)]
    assert rows == ["p0", "p\t1", "p2"]


def test_what_stands_beside_a_split_table_is_named(tmp_path: Path) -> None:
    notes: list[str] = []
    values(tmp_path / "f.json", json.dumps(_SPLIT), notes=notes)
    assert notes[0].endswith(" Not read: index.")


def test_odd_rows_of_a_split_table_are_rejected(tmp_path: Path) -> None:
    split = {"columns": ["a", "b"], "data": [["1", "2"], ["3"], ["4", "5", "6"]]}
    good, short, long = read(tmp_path / "f.json", json.dumps(split))
    assert not isinstance(good, Reject)
    for line, row in ((2, short), (3, long)):
        assert isinstance(row, Reject)
        assert (row.line, row.reason) == (line, "wrong-cell-count")
    twice = {"columns": ["a", "a"], "data": [["1", "2"]]}
    (row,) = read(tmp_path / "f.json", json.dumps(twice))
    assert isinstance(row, Reject)
    assert row.reason == "name-twice"


@pytest.mark.parametrize(
    "value",
    [
        {"prompt": {"0": "a"}, "completion": {"1": "b"}},
        {"prompt": {"0": "a"}, "completion": "b"},
        {"prompt": {"x": "a"}, "completion": {"x": "b"}},
        {"prompt": {}, "completion": {}},
        {"columns": ["a", 1], "data": [["1", "2"]]},
        {"columns": [], "data": []},
        {"0": {"a": "b"}, "one": {"a": "b"}},
    ],
)
def test_what_is_none_of_them_stays_one_row(tmp_path: Path, value: Any) -> None:
    ((line, found),) = values(tmp_path / "f.json", json.dumps(value))
    assert (line, list(found)) == (1, list(value))


def test_arrays_of_cells_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "f.json"
    path.write_text(json.dumps(_SPLIT["data"]))
    report = judge_file(path, tmp_path / "r", tmp_path / "j")
    assert (report.verdict, report.reasons) == ("refuse", {"no-known-form": 3})


@pytest.mark.parametrize("layout", ["columns", "lists", "split", "index", "container"])
def test_large_tables_take_bounded_memory(tmp_path: Path, layout: str) -> None:
    path = tmp_path / "f.json"
    cell = json.dumps("word " * 400)
    row = f'{{"prompt":{cell},"completion":{cell}}}'
    match layout:
        case "columns":
            column = ",".join(f'"{i}":{cell}' for i in range(15_000))
            text = f'{{"prompt":{{{column}}},"completion":{{{column}}}}}'
        case "lists":
            column = ",".join([cell] * 15_000)
            text = f'{{"prompt":[{column}],"completion":[{column}]}}'
        case "container":
            text = f'{{"x":[{",".join([cell] * 15_000)}],"data":[{",".join([row] * 15_000)}]}}'
        case "split":
            text = f'{{"columns":["a","b"],"data":[{",".join([f"[{cell},{cell}]"] * 15_000)}]}}'
        case _:
            text = f"{{{','.join(f'{json.dumps(str(i))}:{row}' for i in range(15_000))}}}"
    path.write_text(text)
    assert path.stat().st_size > 50e6
    count, growth_mib = rows_and_growth(path)
    assert count == 15_000
    assert growth_mib < 40


def test_a_wrong_comma_in_a_column_is_placed(tmp_path: Path) -> None:
    why = error(tmp_path / "f.json", '{"prompt": {"0": "a",\n"1": "b",}}').why
    assert "line 2, column 10: a comma stands before }" in why
