"""Tables of text: what a cell says is what is learned, and every row has its line."""

from pathlib import Path

import pytest
from support.reading import error, read, values

from slidepack.engine.data import csv_table
from slidepack.engine.data.reading import RawRow
from slidepack.engine.data.rows import Reject

HEADER = "prompt,completion\n"


def test_words_that_other_loaders_take_for_nothing_stay_words(tmp_path: Path) -> None:
    words = ["NA", "", "null", "None", "nan", "007", "1.50", "true", "2024-01-01", " x "]
    data = HEADER + "".join(f"q,{word}\n" for word in words)
    rows = values(tmp_path / "f.csv", data)
    assert rows == [(n, {"prompt": "q", "completion": w}) for n, w in enumerate(words, start=2)]


@pytest.mark.parametrize(
    ("separator", "note"),
    [
        (",", []),
        (";", ["The table's columns are separated by semicolons."]),
        ("\t", ["The table's columns are separated by tabs."]),
        ("|", ["The table's columns are separated by bars."]),
    ],
)
@pytest.mark.parametrize("name", ["f.csv", "f.tsv", "f"])
def test_the_separator_is_found_by_trying(
    tmp_path: Path, name: str, separator: str, note: list[str]
) -> None:
    rows = [("prompt", "completion"), ("a, b; c", "d"), ("e", '"x|y"'), ("f", "g\th")]
    quoted = "\n".join(
        separator.join('"' + cell.replace('"', '""') + '"' for cell in row) for row in rows
    )
    notes: list[str] = []
    assert values(tmp_path / name, quoted, notes=notes) == [
        (2, {"prompt": "a, b; c", "completion": "d"}),
        (3, {"prompt": "e", "completion": '"x|y"'}),
        (4, {"prompt": "f", "completion": "g\th"}),
    ]
    assert notes == note


def test_commas_in_cells_do_not_outvote_the_header(tmp_path: Path) -> None:
    data = "question;answer\n" + "Well, what is it, really?;It is this, that, and more\n" * 20
    assert values(tmp_path / "f.csv", data)[0][1] == {
        "question": "Well, what is it, really?",
        "answer": "It is this, that, and more",
    }


def test_excel_tells_its_separator(tmp_path: Path) -> None:
    data = "sep=;\r\nprompt;completion\r\na;b\r\n"
    assert values(tmp_path / "f.csv", data) == [(3, {"prompt": "a", "completion": "b"})]


def test_a_table_of_one_column(tmp_path: Path) -> None:
    data = 'text\n"Hello, world"\nHi; there\n\nlast, and | all\n'
    assert values(tmp_path / "f.csv", data) == [
        (2, {"text": "Hello, world"}),
        (3, {"text": "Hi; there"}),
        (5, {"text": "last, and | all"}),
    ]


def test_tabs_without_quoting(tmp_path: Path) -> None:
    data = 'prompt\tcompletion\n"Hi" she said\t5" wide\n"open\tx\n'
    notes: list[str] = []
    assert values(tmp_path / "f.tsv", data, notes=notes) == [
        (2, {"prompt": '"Hi" she said', "completion": '5" wide'}),
        (3, {"prompt": '"open', "completion": "x"}),
    ]
    assert "Quotation marks do not quote in this table" in notes[1]


@pytest.mark.parametrize("name", ["", "Unnamed: 0"])
def test_the_index_of_pandas_is_left_out_and_told(tmp_path: Path, name: str) -> None:
    notes: list[str] = []
    data = f"{name},prompt,completion\n0,a,b\n1,c,d\n"
    assert values(tmp_path / "f.csv", data, notes=notes) == [
        (2, {"prompt": "a", "completion": "b"}),
        (3, {"prompt": "c", "completion": "d"}),
    ]
    called = f"called {name!r}" if name else "without a name"
    assert notes == [f"The first column, {called}, holds row numbers and was left out."]


def test_a_row_of_another_width_is_rejected_with_its_line(tmp_path: Path) -> None:
    rows = read(tmp_path / "f.csv", HEADER + "a,b\nc\nd,e,f\ng,h\n")
    assert [type(row) for row in rows] == [RawRow, Reject, Reject, RawRow]
    short, long = rows[1], rows[2]
    assert isinstance(short, Reject)
    assert (short.line, short.reason) == (3, "wrong-cell-count")
    assert "1 cells, and the header has 2" in short.detail
    assert isinstance(long, Reject)
    assert (long.line, long.reason) == (4, "wrong-cell-count")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_rows_over_many_lines_keep_the_line_on_which_they_start(tmp_path: Path, end: str) -> None:
    data = HEADER + 'a,"one\ntwo\n\nfour"\n\nb,c\n"x\ny",z'
    assert values(tmp_path / "f.csv", data.replace("\n", end)) == [
        (2, {"prompt": "a", "completion": "one\ntwo\n\nfour"}),
        (7, {"prompt": "b", "completion": "c"}),
        (8, {"prompt": "x\ny", "completion": "z"}),
    ]


def test_a_quote_that_never_closes_costs_its_own_line_only(tmp_path: Path) -> None:
    rows = read(tmp_path / "f.csv", HEADER + 'a,b\nc,"never closed\nd,e\nf,"g\nh"\n')
    assert rows == [
        RawRow(2, {"prompt": "a", "completion": "b"}),
        Reject(
            line=3,
            reason="broken-quote",
            detail='a quotation mark opens here and is not closed: c,"never closed',
        ),
        RawRow(4, {"prompt": "d", "completion": "e"}),
        RawRow(5, {"prompt": "f", "completion": "g\nh"}),
    ]


def test_a_quote_that_opens_late_in_a_long_row_is_placed(tmp_path: Path) -> None:
    rows = read(tmp_path / "f.csv", HEADER + '"fine\nfine","open\nd,e\n')
    assert rows[0] == Reject(
        line=3,
        reason="broken-quote",
        detail="a quotation mark opens here and is not closed, in a row that begins on line 2: "
        'fine","open',
    )
    assert rows[1:] == [RawRow(4, {"prompt": "d", "completion": "e"})]


def test_text_behind_a_quote_is_rejected(tmp_path: Path) -> None:
    rows = read(tmp_path / "f.csv", HEADER + 'a,"b" c\nd,e\n' + "x,y\n" * 3)
    assert isinstance(rows[0], Reject)
    assert (rows[0].line, rows[0].reason) == (2, "broken-quote")
    assert rows[1] == RawRow(3, {"prompt": "d", "completion": "e"})


def test_a_quote_that_swallows_a_large_file_is_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "MAX_RECORD_CHARS", 1000)
    rows = read(tmp_path / "f.csv", HEADER + 'a,"open\n' + "b,c\n" * 2000)
    assert isinstance(rows[0], Reject)
    assert (rows[0].line, rows[0].reason) == (2, "broken-quote")
    assert [row.line for row in rows] == list(range(2, 2003))


def test_quotes_broken_everywhere_are_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "_MAX_RETRIED_CHARS", 100_000)
    refused = error(tmp_path / "f.csv", HEADER + 'x","z\n' * 3000)
    assert refused.code == "DATA-FORMAT-UNKNOWN"
    assert "a quotation mark opens and is not closed: x" in refused.why


def test_a_cell_of_a_megabyte(tmp_path: Path) -> None:
    long = "word " * 200_000
    assert values(tmp_path / "f.csv", f'{HEADER}a,"{long}"\n')[0][1]["completion"] == long


def test_a_line_that_is_too_long_is_refused_with_its_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csv_table, "MAX_RECORD_CHARS", 1000)
    assert "line 3 is longer" in error(tmp_path / "f.csv", HEADER + "a,b\n" + "x" * 2000).why


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("prompt,prompt,completion", "more than one column is called 'prompt'"),
        ("prompt,,completion", "the name of column 2 is empty"),
        ("1,2", "the name of column 1 is a number: '1'"),
        ("What is the capital of France?,Paris", "the name of column 1 is a sentence"),
        ("a,Water is wet because it is made of molecules", "the name of column 2 is too long"),
        (f"a,{'x' * 100}", "the name of column 2 is too long"),
    ],
)
def test_a_first_line_without_names_is_refused(tmp_path: Path, header: str, why: str) -> None:
    refused = error(tmp_path / "f.csv", f"{header}\n{header}\n")
    assert refused.code == "DATA-FORMAT-UNKNOWN"
    assert f"f.csv: line 1: {why}" in refused.why
    assert refused.fix


def test_a_header_alone_is_empty(tmp_path: Path) -> None:
    assert error(tmp_path / "f.csv", HEADER).code == "DATA-EMPTY"


def test_json_called_csv_is_json(tmp_path: Path) -> None:
    assert values(tmp_path / "f.csv", '{"a": "b"}\n{"a": "c"}\n') == [
        (1, {"a": "b"}),
        (2, {"a": "c"}),
    ]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-32"])
def test_unicode_of_every_width(tmp_path: Path, encoding: str) -> None:
    data = (HEADER + "grün,木\n").encode(encoding)
    assert values(tmp_path / "f.csv", data) == [(2, {"prompt": "grün", "completion": "木"})]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_a_long_cell_of_commas_does_not_make_them_separate(tmp_path: Path, separator: str) -> None:
    long = "a, b\n" * 40_000
    data = f'prompt{separator}completion\n"{long}"{separator}"c"\n' * 1
    ((_, row),) = values(tmp_path / "f.csv", data)
    assert row == {"prompt": long, "completion": "c"}
