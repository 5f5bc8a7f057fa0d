"""Plain text and Markdown, by document, paragraph and line."""

from pathlib import Path
from typing import Literal

import pytest
from support.reading import error, read, values

from slidepack.engine.data import plain_text
from slidepack.engine.data.reading import RawRow
from slidepack.engine.data.rows import Reject

TEXT = "First line.\r\nSecond, with a comma.\r\n\r\n  \r\nThird.\r\n"


@pytest.mark.parametrize(
    ("mode", "rows"),
    [
        ("document", [(1, TEXT.replace("\r\n", "\n"))]),
        ("paragraph", [(1, "First line.\nSecond, with a comma."), (5, "Third.")]),
        ("line", [(1, "First line."), (2, "Second, with a comma."), (5, "Third.")]),
    ],
)
@pytest.mark.parametrize("name", ["f.txt", "f.md", "f"])
def test_the_three_ways_to_read_a_text(
    tmp_path: Path,
    name: str,
    mode: Literal["document", "paragraph", "line"],
    rows: list[tuple[int, str]],
) -> None:
    notes: list[str] = []
    found = values(tmp_path / name, TEXT, text_mode=mode, notes=notes)
    assert found == [(line, {"text": text}) for line, text in rows]
    assert notes[0].startswith("The file was read as plain text, ")
    assert notes[1:] == (["Blank lines that were skipped: 2."] if mode == "line" else [])


def test_white_space_within_a_text_is_kept(tmp_path: Path) -> None:
    data = "  indented\n\ttab \n"
    assert values(tmp_path / "f.txt", data) == [(1, {"text": data})]
    rows = values(tmp_path / "f.txt", data, text_mode="line")
    assert [value["text"] for _, value in rows] == ["  indented", "\ttab "]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("f.md", "[a link](x)\n\n{braces}\n"),
        ("f.txt", "[1] Smith et al.\n"),
        ("f.txt", "[Verse 1]\nla la\n"),
        ("f.txt", "a,b\n1,2\n"),
        ("f", "Roses are red, violets are blue\nSugar is sweet, so are you\n"),
    ],
)
def test_what_only_looks_like_something_else_is_text(tmp_path: Path, name: str, data: str) -> None:
    assert values(tmp_path / name, data) == [(1, {"text": data})]


def test_json_lines_called_txt_are_json_lines(tmp_path: Path) -> None:
    data = '{"a": "b"}\n{"a": "c"}\n'
    assert values(tmp_path / "f.txt", data) == [(1, {"a": "b"}), (2, {"a": "c"})]
    assert values(tmp_path / "f.txt", '[{"a": "b"}]') == [(1, {"a": "b"})]


def test_a_spoilt_first_line_does_not_make_json_lines_text(tmp_path: Path) -> None:
    rows = read(tmp_path / "f", 'garbage\n{"a": "b"}\n{"a": "c"}\n')
    assert isinstance(rows[0], Reject)
    assert rows[1:] == [RawRow(2, {"a": "b"}), RawRow(3, {"a": "c"})]


def test_a_text_too_long_for_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_text, "MAX_TEXT_CHARS", 100)
    data = "short\n\n" + "x" * 200 + "\nmore\n\n" + "y" * 90 + "\n" + "z" * 90 + "\n\nend\n"
    refused = error(tmp_path / "f.txt", data)
    assert refused.code == "DATA-FORMAT-UNKNOWN"
    assert "by paragraphs or by lines" in refused.fix
    paragraphs = read(tmp_path / "f.txt", data, text_mode="paragraph")
    assert [(row.line, type(row)) for row in paragraphs] == [
        (1, RawRow),
        (3, Reject),
        (6, Reject),
        (9, RawRow),
    ]
    lines = read(tmp_path / "f.txt", data, text_mode="line")
    assert [row.line for row in lines] == [1, 3, 4, 6, 7, 9]
    assert [row.line for row in lines if isinstance(row, Reject)] == [3]
    assert lines[2] == RawRow(4, {"text": "more"})


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32", "utf-32-le"])
def test_unicode_of_every_width(tmp_path: Path, encoding: str) -> None:
    text = "Some text: grün 木 🙂\n"
    assert values(tmp_path / "f.txt", text.encode(encoding)) == [(1, {"text": text})]
