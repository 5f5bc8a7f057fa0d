"""Files that are no UTF-8: what is guessed, what is asked, and what is replaced."""

import json
from pathlib import Path

import pytest
from support.reading import error, values

from slidepack.engine.data.encoding import ENCODINGS

FRENCH = "prompt,completion\nÇa va ?,“Très bien” — merci à l'été\nGrüße,Straße 5 €\n"


def test_windows_text_is_guessed_with_a_preview(tmp_path: Path) -> None:
    notes: list[str] = []
    rows = values(tmp_path / "f.csv", FRENCH.encode("cp1252"), notes=notes)
    assert rows[0] == (2, {"prompt": "Ça va ?", "completion": "“Très bien” — merci à l'été"})
    assert rows[1] == (3, {"prompt": "Grüße", "completion": "Straße 5 €"})
    (note,) = notes
    assert "not UTF-8 (f.csv: line 2, byte 18: " in note
    assert "cp1252" in note
    assert "Ça va ?,“Très bien”" in note


def test_windows_text_in_a_text_file(tmp_path: Path) -> None:
    text = "Ein ganz normaler Satz über Äpfel.\n" * 3
    assert values(tmp_path / "f.txt", text.encode("latin-1")) == [(1, {"text": text})]


@pytest.mark.parametrize(
    "data",
    [
        "grün 木 ".encode() * 50 + b"\xe9",
        "ein Satz über Äpfel ".encode("cp1252") + b"\x81",
        "ein Satz über Äpfel ".encode("cp1252") + b"\x01",
        ("一二三四五六七八九十" * 5).encode("gbk"),
        "Привет, как дела?".encode("cp1251"),
        "カタカナのテキスト".encode("shift_jis"),
    ],
)
def test_what_may_be_something_else_is_not_guessed(tmp_path: Path, data: bytes) -> None:
    refused = error(tmp_path / "f.txt", data + b"\n")
    assert refused.code == "DATA-ENCODING"
    assert "line 1, byte " in refused.why
    assert "utf-8-replace" in refused.fix


def test_json_is_never_guessed(tmp_path: Path) -> None:
    data = '{"a": "x"}\n{"a": "é"}\n'.encode("cp1252")
    refused = error(tmp_path / "f.jsonl", data)
    assert refused.code == "DATA-ENCODING"
    assert "f.jsonl: line 2, byte 18:" in refused.why
    assert "cp1252" in refused.fix
    assert "utf-8-replace" in refused.fix


@pytest.mark.parametrize("encoding", [name for name in ENCODINGS if name.startswith(("utf-", "g"))])
@pytest.mark.parametrize("name", ["f.jsonl", "f.json", "f.csv", "f.txt"])
def test_an_encoding_that_is_named_is_used(tmp_path: Path, encoding: str, name: str) -> None:
    row = {"text": "grün 木"}
    data = {
        "f.jsonl": json.dumps(row, ensure_ascii=False) + "\n",
        "f.json": json.dumps([row], ensure_ascii=False),
        "f.csv": "text\ngrün 木\n",
        "f.txt": "grün 木",
    }[name]
    packed = data.encode(encoding.removesuffix("-replace"))
    assert values(tmp_path / name, packed, encoding=encoding)[0][1] == row


def test_other_scripts_of_eight_bits(tmp_path: Path) -> None:
    for encoding in ("cp1251", "koi8-r"):
        data = '{"a": "Привет"}\n'.encode(encoding)
        assert values(tmp_path / "f", data, encoding=encoding) == [(1, {"a": "Привет"})]


def test_an_encoding_that_there_is_not(tmp_path: Path) -> None:
    for encoding in ("rot13", "utf-9", "", "zlib"):
        refused = error(tmp_path / "f", "{}", encoding=encoding)
        assert refused.code == "DATA-ENCODING"
        assert "cp1252" in refused.fix


@pytest.mark.parametrize(
    ("name", "data", "row"),
    [
        ("f.jsonl", b'{"a": "x"}\n{"a": "\xffy\xe6"}\n{"a": "z"}\n', (2, {"a": "\ufffdy\ufffd"})),
        ("f.json", b'[{"a": "x"},\n{"a": "\xff"}\n, 1]', (2, {"a": "\ufffd"})),
        ("f.csv", b"a,b\nx\xff,y\nz,z\n", (2, {"a": "x\ufffd", "b": "y"})),
        ("f.txt", b"x\ny\xff\xffz\n", (2, {"text": "y\ufffd\ufffdz"})),
    ],
)
def test_broken_bytes_are_replaced_when_asked_for_and_counted(
    tmp_path: Path, name: str, data: bytes, row: tuple[int, object]
) -> None:
    notes: list[str] = []
    rows = values(tmp_path / name, data, encoding="utf-8-replace", text_mode="line", notes=notes)
    assert row in rows
    assert "Lines in which bytes that are not UTF-8 became U+FFFD: 1, the first is line 2." in notes


def test_whole_text_is_not_said_to_be_mended(tmp_path: Path) -> None:
    notes: list[str] = []
    assert values(tmp_path / "f", '{"a": "木"}\n', encoding="utf-8-replace", notes=notes)
    assert notes == []
