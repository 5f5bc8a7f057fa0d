"""What stands under the name of a data file and is none: it is refused or asked about by name."""

import gzip
import json
from pathlib import Path

import pytest
from support.reading import error, values

from slidepack.engine.data.check import judge_file
from slidepack.engine.data.report import CheckOptions

_POINTER = (
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n"
)
_NAMES = ("f.jsonl", "f.json", "f.csv", "f.parquet", "f.txt", "f.md", "f")


@pytest.mark.parametrize("name", _NAMES)
def test_a_pointer_of_git_lfs_is_named(tmp_path: Path, name: str) -> None:
    found = error(tmp_path / name, _POINTER)
    assert found.code == "DATA-FORMAT-UNKNOWN"
    assert "Git LFS" in found.what
    assert "git lfs pull" in found.fix


@pytest.mark.parametrize("name", [name for name in _NAMES if name != "f.parquet"])
@pytest.mark.parametrize(
    ("page", "what"),
    [
        ("<!DOCTYPE html>\n<html><body>404</body></html>", "an HTML page"),
        ("\n  <!doctype html lang=x>", "an HTML page"),
        ("<HTML>\n<head>", "an HTML page"),
        ('<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>', "an XML document"),
    ],
)
def test_a_page_of_the_web_is_named(tmp_path: Path, name: str, page: str, what: str) -> None:
    for data in (page.encode(), page.encode("utf-8-sig"), page.encode("utf-16")):
        found = error(tmp_path / name, data)
        assert (found.code, found.what) == (
            "DATA-FORMAT-UNKNOWN",
            f"This is {what}, which is not read.",
        )
        assert f"{name} starts with <" in found.why


def test_what_speaks_of_pages_is_no_page(tmp_path: Path) -> None:
    for text in ("<htmlish> is no tag", "Write <!DOCTYPE html> first.", "<think>\nyes\n"):
        assert values(tmp_path / "f.txt", text) == [(1, {"text": text})]
    row = {"prompt": "<html>", "completion": "<!DOCTYPE html>"}
    assert values(tmp_path / "f.jsonl", json.dumps(row)) == [(1, row)]


@pytest.mark.parametrize(
    ("name", "suffix"),
    [
        ("f.yaml", ".yaml"),
        ("f.yml", ".yml"),
        ("f.py", ".py"),
        ("f.TOML", ".TOML"),
        ("f.log", ".log"),
        ("f.html", ".html"),
        ("f.yaml.gz", ".yaml"),
    ],
)
def test_text_of_another_name_is_a_question(tmp_path: Path, name: str, suffix: str) -> None:
    path = tmp_path / name
    data = b"- prompt: a\n  completion: b\n"
    path.write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    report = judge_file(path, tmp_path / "r", tmp_path / "j")
    assert (report.verdict, report.accepted) == ("ask", 0)
    assert report.error is not None
    assert (report.error.code, report.error.what.split()[:3]) == (
        "DATA-AMBIGUOUS",
        ["A", suffix, "file"],
    )
    for mode, form, rows in (("document", None, 1), ("line", None, 2), (None, "text", 1)):
        options = CheckOptions(text_mode=mode, form=form)
        report = judge_file(path, tmp_path / "r", tmp_path / "j", options)
        assert (report.error, report.accepted) == (None, rows)


@pytest.mark.parametrize("name", ["f", "f.txt", "f.TXT", "f.text", "f.md", "f.markdown"])
def test_text_under_its_own_name_is_none(tmp_path: Path, name: str) -> None:
    assert len(values(tmp_path / name, "Once upon a time.\n")) == 1


@pytest.mark.parametrize("name", ["f.dat", "f.yaml", "f.log"])
def test_rows_are_rows_under_any_name(tmp_path: Path, name: str) -> None:
    assert len(values(tmp_path / name, '{"a": "1"}\n{"a": "2"}\n')) == 2
    assert len(values(tmp_path / name, "prompt,completion\na,b\nc,d\n")) == 2


@pytest.mark.parametrize(
    ("start", "fix"),
    [
        (b"PK\x03\x04", "Unpack it, or save the sheet as CSV."),
        (b"\xd0\xcf\x11\xe0", "Save the sheet as CSV."),
        (b"SQLite format 3\0", "Export the table as CSV."),
        (b"%PDF-1.7", "Save its text as .txt."),
        (b"FEA1", "Write it anew with version 2."),
        (_POINTER.encode(), "Get the file itself with `git lfs pull`."),
    ],
)
def test_the_way_out_keeps_its_capitals(tmp_path: Path, start: bytes, fix: str) -> None:
    found = error(tmp_path / "f.jsonl", start + b"\0" * 50)
    assert found.fix == f"{fix} JSON lines, JSON, CSV, TSV, Parquet, Arrow and plain text are read."
