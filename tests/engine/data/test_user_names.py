"""What is wrong with a file is said of the name that its user knows, not of where it is kept."""

import gzip
from pathlib import Path

import pytest

from slidepack.engine.data.check import judge_file
from slidepack.engine.data.report import CheckOptions, DataReport
from slidepack.engine.data.several import judge_files

_GOOD = b'{"prompt": "p", "completion": "c"}\n'
_BAD = {
    "broken": (".jsonl", b'{"prompt": \n', "DATA-NOT-JSON"),
    "broken-array": (".json", b'[{"prompt": "p"}, {', "DATA-NOT-JSON"),
    "no-rows": (".jsonl", b"", "DATA-EMPTY"),
    "blank": (".csv", b" \n", "DATA-EMPTY"),
    "header-only": (".csv", b"prompt,completion\n", "DATA-EMPTY"),
    "zip": (".jsonl", b"PK\x03\x04" + bytes(50), "DATA-FORMAT-UNKNOWN"),
    "not-parquet": (".parquet", b"abc", "DATA-FORMAT-UNKNOWN"),
    "damaged-parquet": (".parquet", b"PAR1" + bytes(50), "DATA-CUT-OFF"),
    "page": (".json", b"<!doctype html><html>", "DATA-FORMAT-UNKNOWN"),
    "turns": (".json", b'[[{"role": "user", "content": "c"}]]', "DATA-FORMAT-UNKNOWN"),
    "script": (".py", b"print('hello')\n", "DATA-AMBIGUOUS"),
    "cut-gzip": (".jsonl.gz", gzip.compress(_GOOD * 50)[:30], "DATA-CUT-OFF"),
}


def _judge(folder: Path, files: list[tuple[str, bytes]]) -> DataReport:
    """Judge files as they are kept: under their numbers and suffixes."""
    kept = []
    for number, (name, data) in enumerate(files):
        path = folder / f"{number:03d}.{name.partition('.')[2]}"
        path.write_bytes(data)
        kept.append((name, path))
    return judge_files(kept, folder / "rows.jsonl", folder / "rejects.jsonl", CheckOptions())


@pytest.mark.parametrize("others", [0, 1])
@pytest.mark.parametrize("case", _BAD)
def test_an_error_names_the_file_as_its_user_does(tmp_path: Path, case: str, others: int) -> None:
    suffix, data, code = _BAD[case]
    files = [(f"friend {number}{suffix}", data) for number in range(others)]
    report = _judge(tmp_path, [*files, (f"my talks{suffix}", data)])
    assert report.error is not None
    assert report.error.code == code
    shown = f"{report.error.line()} {[issue.message for issue in report.issues]}"
    assert ("friend 0" if others else "my talks") in report.error.why, report.error
    assert "my talks" in shown
    assert "000" not in shown and "001" not in shown


@pytest.mark.parametrize(
    ("name", "suffix", "family"),
    [("table.txt", ".csv", "completion"), ("notes", ".txt", "text"), ("a.csv", ".TXT", "text")],
)
def test_the_suffix_of_the_path_tells_the_kind(
    tmp_path: Path, name: str, suffix: str, family: str
) -> None:
    path = tmp_path / f"000{suffix}"
    path.write_text("prompt,completion\np,c\np q,c\n")
    rows, rejects = tmp_path / "rows", tmp_path / "rejects"
    assert judge_file(path, rows, rejects, name=name).family == family


@pytest.mark.parametrize("name", ["talks.jsonl", "of: line 9.jsonl", "line 9.jsonl", "; line 9"])
def test_a_line_in_the_name_is_not_the_line_of_the_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / "000.jsonl"
    path.write_bytes(b'{"prompt": ')
    report = judge_file(path, tmp_path / "rows", tmp_path / "rejects", name=name)
    assert report.error is not None and "line 1" in report.error.why
    assert [issue.line for issue in report.issues if issue.level == "error"] == [1]
