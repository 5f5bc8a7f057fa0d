"""`slidepack data check --model`: what rows become with a model, and one verdict over all."""

import json
from pathlib import Path

import pytest
from support.data_check import checked, run_check
from support.tiny import chat_rows, save_tiny_model, write_jsonl


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    save_tiny_model(folder)
    return folder


def _long_rows() -> list[dict[str, object]]:
    rows = chat_rows(10)
    turns = [
        {"role": "user", "content": "Say it again. " * 200},
        {"role": "assistant", "content": "Again."},
    ]
    return [*rows, {"messages": turns}]


def test_rows_are_measured_and_the_training_is_planned(tmp_path: Path, model: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", chat_rows(30))
    status, report, _ = checked(str(path), "--model", str(model), "--max-seq-len", "128")
    assert status == 0, report
    with_model = report["with_model"]
    measured = with_model["measured"]
    assert measured["rows"] == report["accepted"] == 30
    assert measured["encoded_rows"] == 30
    assert 0 < measured["supervised_tokens"] < measured["tokens"]
    assert sum(one["rows"] for one in measured["lengths"]["bins"]) == 30
    assert measured["masks"]["disagreeing"] == 0
    assert any(span["learned"] for span in measured["shown"][0]["spans"])
    assert with_model["fit"]["fits"]
    assert with_model["fit"]["memory"].keys() == {"vram", "ram", "disk"}


def test_rows_beyond_the_limit_are_told_with_what_helps(tmp_path: Path, model: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", _long_rows())
    arguments = (str(path), "--model", str(model), "--max-seq-len", "100")
    status, report, _ = checked(*arguments)
    assert (status, report["verdict"]) == (0, "warn")
    codes = [issue["code"] for issue in report["issues"]]
    assert {"too-long", "rows-too-long"} <= set(codes)
    line = next(issue["line"] for issue in report["issues"] if issue["code"] == "too-long")
    assert line == 11
    assert any("--too-long" in fix["option"] for fix in report["with_model"]["fixes"])
    _, cut, _ = checked(*arguments, "--too-long", "split")
    assert "too-long" not in [issue["code"] for issue in cut["issues"]] or (
        cut["with_model"]["measured"]["encoded_rows"] >= 10
    )


def test_a_limit_below_every_row_is_refused_and_named(tmp_path: Path, model: Path) -> None:
    rows = [row for row in _long_rows() if "again" in json.dumps(row)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    status, report, err = checked(str(path), "--model", str(model), "--max-seq-len", "64")
    assert (status, report["verdict"]) == (10, "refuse")
    assert report["error"]["code"] == "DATA-NO-USABLE-ROWS"
    assert "max_seq_len 64" in report["error"]["why"]
    assert "--max-seq-len" in report["error"]["fix"]
    assert "DATA-NO-USABLE-ROWS" in err


def test_a_file_that_is_refused_is_not_measured(tmp_path: Path, model: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", [{"chosen": "a", "rejected": "b"}])
    status, report, _ = checked(str(path), "--model", str(model))
    assert status == 10
    assert "with_model" not in report


def test_it_is_printed_for_people(tmp_path: Path, model: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", _long_rows())
    status, out, _ = run_check(str(path), "--model", str(model), "--max-seq-len", "100")
    assert status == 0
    assert "»" in out
    assert "tokens up to" in out
    assert "Verdict: warn." in out


def test_a_model_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    status, _, err = run_check(str(path), "--model", str(tmp_path / "nothing"))
    assert status != 0
    assert "MODEL-NOT-FOUND" in err
