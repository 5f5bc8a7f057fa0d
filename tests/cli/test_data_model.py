"""`slidepack data check --model`: what rows become with a model, and one verdict over all."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any

import pytest
from support.data_check import checked, run_check
from support.tiny import chat_rows, save_tiny_model, write_jsonl

from slidepack.cli.data_model import ModelOptions, check_with_model, fit_fixes
from slidepack.cli.fit import Fit, answer_fit, training_spec
from slidepack.cli.fit_machine import DriveOptions, describe_machine
from slidepack.engine.bench_slide.shapes import SHAPES
from slidepack.engine.data.check import judge_file
from slidepack.engine.data.lengths import length_report
from slidepack.engine.data.report import CheckOptions


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
    # The model takes 256 tokens, and the answer stands behind the three thousandth.
    assert report["with_model"]["fixes"] == []


def _fixed(arguments: list[str], fix: dict[str, Any]) -> list[str]:
    """Return the command's arguments with a fix applied."""
    option = {
        "max_seq_len": "--max-seq-len",
        "too_long": "--too-long",
        "batch_size": "--batch",
        "allow_rejects": "--allow-rejects",
    }[fix["setting"]]
    return [*arguments, option] if fix["value"] is True else [*arguments, option, str(fix["value"])]


@pytest.mark.full
def test_every_fix_is_an_option_that_helps(tmp_path: Path, model: Path) -> None:
    turns = [
        {"role": "user", "content": "Say it again."},
        {"role": "assistant", "content": "Again. " * 4},
    ]
    long: dict[str, object] = {"messages": turns * 3}
    path = write_jsonl(tmp_path / "rows.jsonl", [*chat_rows(2), long, long, long])
    arguments = [str(path), "--model", str(model), "--max-seq-len", "100"]
    status, report, _ = checked(*arguments)
    assert (status, report["error"]["code"]) == (10, "DATA-TOO-MANY-REJECTED")
    fixes = report["with_model"]["fixes"]
    assert [fix["setting"] for fix in fixes] == [
        "max_seq_len",
        "too_long",
        "too_long",
        "allow_rejects",
    ]
    for fix in fixes:
        status, fixed, _ = checked(*_fixed(arguments, fix))
        assert (status, fixed["error"]) == (0, None), fix


def test_what_makes_a_training_fit_is_named_and_does() -> None:
    def fit(batch: int, seq: int) -> Fit:
        spec = training_spec("llama-8b", "lora", seq, batch, 1.0)
        host, rates = describe_machine(8.0, 64.0, DriveOptions())
        return answer_fit("llama-8b", "lora", spec, SHAPES["llama-8b"], host, rates)

    large = fit(512, 512)
    fixes = fit_fixes(large, length_report({100: 95, 512: 5}, 512))
    assert [fix.setting for fix in fixes] == ["batch_size", "max_seq_len"]
    for fix in fixes:
        assert isinstance(fix.value, int)
        asked = (fix.value, 512) if fix.setting == "batch_size" else (512, fix.value)
        assert not large.fits and fit(*asked).fits, fix
    # A limit below most rows would leave little to learn.
    (fix,) = fit_fixes(large, length_report({512: 9}, 512))
    assert fix.setting == "batch_size"
    assert fit_fixes(fit(1, 64), length_report({64: 9}, 64)) == []


REPORT = {
    "family", "rows", "accepted", "repaired", "rejected", "reasons", "ignored_columns", "verdict",
    "issues", "error", "with_model",
}  # fmt: skip


@pytest.mark.parametrize(
    ("broken", "code"),
    [
        ("missing", "MODEL-NOT-FOUND"),
        ("a file", "MODEL-NOT-A-MODEL"),
        ("no tokenizer", "MODEL-BROKEN"),
        ("no template that parses", "MODEL-BROKEN"),
        ("another architecture", "MODEL-UNSUPPORTED"),
    ],
)
def test_a_model_that_cannot_be_used_is_a_refusal_in_the_one_object(
    tmp_path: Path, broken: str, code: str
) -> None:
    folder = tmp_path / "model"
    if broken == "a file":
        folder.write_text("x")
    elif broken != "missing":
        save_tiny_model(folder)
    if broken == "no tokenizer":
        (folder / "tokenizer.json").write_text("{")
    if broken == "no template that parses":
        (folder / "chat_template.jinja").write_text("{% for %}")
    if broken == "another architecture":
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "odd", "architectures": ["OddModel"]}
        (folder / "config.json").write_text(json.dumps(config))
    path = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    status, report, err = checked(str(path), "--model", str(folder))
    assert status == 10
    assert report.keys() >= REPORT
    assert (report["rows"], report["accepted"], report["verdict"]) == (3, 3, "refuse")
    assert report["error"]["code"] == report["issues"][0]["code"] == code
    assert report["issues"][0]["level"] == "error"
    assert err.startswith(code)


def test_a_bar_is_shown_on_a_terminal_unless_it_is_not_wanted(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = write_jsonl(tmp_path / "rows.jsonl", chat_rows(3))
    normal = tmp_path / "normal.jsonl"
    report = judge_file(rows, normal, tmp_path / "rejects.jsonl", CheckOptions())
    monkeypatch.setenv("FORCE_COLOR", "1")
    shown = {}
    for progress in (True, False):
        errors = io.StringIO()
        with contextlib.redirect_stderr(errors):
            options = ModelOptions(model=str(model), progress=progress)
            assert check_with_model(normal, report, options).verdict == "ok"
        shown[progress] = errors.getvalue()
    assert "Measuring" in shown[True]
    assert shown[False] == ""


def test_a_limit_below_every_row_is_refused_and_named(tmp_path: Path, model: Path) -> None:
    rows = [row for row in _long_rows() if "again" in json.dumps(row)]
    path = write_jsonl(tmp_path / "rows.jsonl", rows)
    status, report, err = checked(str(path), "--model", str(model), "--max-seq-len", "64")
    assert (status, report["verdict"]) == (10, "refuse")
    assert report["error"]["code"] == "DATA-NO-USABLE-ROWS"
    assert "max_seq_len 64" in report["error"]["why"]
    assert report["error"]["fix"] == "Mend the rows named, or choose another model."
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
    assert status == 10
    assert "MODEL-NOT-FOUND" in err
