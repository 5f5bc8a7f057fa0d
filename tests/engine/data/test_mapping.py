"""Columns that the user assigns by hand."""

from pathlib import Path

import pytest
from support.tiny import write_jsonl

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.check import check_file, judge_file
from slidepack.engine.data.mapping import mapping_of, parse_columns
from slidepack.engine.data.report import CheckOptions, DataReport
from slidepack.engine.data.rows import ChatRow, CompletionRow, Turn, decode_row


def _check(folder: Path, row: dict[str, object], **options: str) -> DataReport:
    path = write_jsonl(folder / "data.jsonl", [row] * 3)
    form = options.pop("form", None)
    return check_file(
        path, folder / "rows", folder / "rejects", CheckOptions(form=form, columns=options)
    )


def _first(folder: Path) -> object:
    return decode_row((folder / "rows").read_bytes().splitlines()[0])


def test_assignments_are_roles_and_columns() -> None:
    assert parse_columns(["output=a b", "input=x=y"]) == {"output": "a b", "input": "x=y"}
    for bad in (["output"], ["=x"], ["output="], ["output=a", "output=b"]):
        with pytest.raises(SlidepackError) as caught:
            parse_columns(bad)
        assert caught.value.report.code == "DATA-MAPPING-INVALID"


def test_columns_of_any_name_can_be_learned(tmp_path: Path) -> None:
    row: dict[str, object] = {"Frage": "q", "Antwort": "a", "Thema": "secret"}
    assert (
        judge_file(write_jsonl(tmp_path / "x.jsonl", [row]), tmp_path / "r", tmp_path / "j").verdict
        == "refuse"
    )
    report = _check(tmp_path, row, question="Frage", answer="Antwort")
    assert (report.family, report.accepted) == ("qa", 3)
    assert report.columns == {"question": "Frage", "answer": "Antwort"}
    assert report.ignored_columns == ("Thema",)
    assert _first(tmp_path) == ChatRow(1, (Turn("user", "q", False), Turn("assistant", "a")))


def test_a_mapping_answers_the_question_which_column(tmp_path: Path) -> None:
    row: dict[str, object] = {"problem": "p", "solution": "s", "answer": "5"}
    with pytest.raises(SlidepackError, match="DATA-AMBIGUOUS"):
        _check(tmp_path, row)
    report = _check(tmp_path, row, answer="solution")
    assert report.columns == {"question": "problem", "answer": "solution"}
    assert report.ignored_columns == ("answer",)
    assert _first(tmp_path) == ChatRow(1, (Turn("user", "p", False), Turn("assistant", "s")))


def test_a_column_has_one_role(tmp_path: Path) -> None:
    row: dict[str, object] = {"instruction": "i", "input": "x", "output": "o"}
    report = _check(tmp_path, row, instruction="input", output="output")
    assert report.columns == {"instruction": "input", "output": "output"}
    assert report.ignored_columns == ("instruction",)


def test_the_chosen_answers_of_preferences_can_be_learned(tmp_path: Path) -> None:
    row: dict[str, object] = {"prompt": "p", "chosen": "good", "rejected": "bad"}
    with pytest.raises(SlidepackError, match="DATA-PREFERENCE-UNSUPPORTED"):
        _check(tmp_path, row)
    _check(tmp_path, row, prompt="prompt", completion="chosen")
    assert _first(tmp_path) == CompletionRow(1, "p", "good")
    talk = [{"role": "user", "content": "p"}, {"role": "assistant", "content": "good"}]
    _check(tmp_path, row | {"chosen": talk, "rejected": talk}, messages="chosen")
    assert _first(tmp_path) == ChatRow(1, (Turn("user", "p", False), Turn("assistant", "good")))


def test_a_format_alone_is_a_mapping_too(tmp_path: Path) -> None:
    row: dict[str, object] = {"instruction": "i", "output": "o", "text": "all"}
    assert _check(tmp_path, row, form="text").columns == {"text": "text"}
    assert _check(tmp_path, row, form="text", text="output").columns == {"text": "output"}


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({"question": "nothing"}, "Antwort, Frage"),
        ({"question": "frage"}, "Antwort, Frage"),
        ({"magic": "Frage"}, "qa: question, answer, context, system"),
        ({"question": "Frage", "prompt": "Frage"}, "completion: prompt, completion"),
        ({"form": "text", "question": "Frage"}, "whose roles are text"),
        ({"system": "Frage"}, "--format"),
    ],
)
def test_what_cannot_be_mapped_is_explained(
    tmp_path: Path, options: dict[str, str], seen: str
) -> None:
    with pytest.raises(SlidepackError) as caught:
        _check(tmp_path, {"Frage": "q", "Antwort": "a"}, **options)
    assert caught.value.report.code == "DATA-MAPPING-INVALID"
    assert caught.value.exit_code == 10
    assert seen in str(caught.value)


def test_options_are_checked_before_anything_is_read() -> None:
    for options in (CheckOptions(form="poem"), CheckOptions(text_mode="words")):
        with pytest.raises(SlidepackError) as caught:
            mapping_of(options)
        assert caught.value.report.code == "DATA-FORMAT-UNKNOWN"
        assert caught.value.report.fix


def test_a_part_of_an_object_can_be_mapped(tmp_path: Path) -> None:
    row: dict[str, object] = {
        "question": "q",
        "pos_answer": {"answer": "a", "score": 3, "deep": {"er": "x"}},
        "text": None,
    }
    report = _check(tmp_path, row, instruction="question", output="pos_answer.answer")
    assert _first(tmp_path) == ChatRow(1, (Turn("user", "q", False), Turn("assistant", "a")))
    assert report.columns == {"instruction": "question", "output": "pos_answer.answer"}
    assert report.ignored_columns == ("pos_answer.deep", "pos_answer.score", "text")
    both = {"instruction": "pos_answer.deep.er", "output": "pos_answer.answer"}
    report = _check(tmp_path, row, **both)
    assert _first(tmp_path) == ChatRow(1, (Turn("user", "x", False), Turn("assistant", "a")))
    assert report.ignored_columns == ("pos_answer.score", "question", "text")


def test_a_column_with_a_dot_in_its_name_comes_first(tmp_path: Path) -> None:
    row: dict[str, object] = {"q": "q", "a.b": "column", "a": {"b": "part"}}
    _check(tmp_path, row, question="q", answer="a.b")
    assert _first(tmp_path) == ChatRow(1, (Turn("user", "q", False), Turn("assistant", "column")))


def test_rows_without_the_part_are_rejected(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [
        {"q": "q", "a": {"b": "x"}}, {"q": "q", "a": {"c": "x"}}, {"q": "q", "a": "x"}, {"q": "q"},
    ]  # fmt: skip
    path = write_jsonl(tmp_path / "data.jsonl", rows)
    options = CheckOptions(columns={"question": "q", "answer": "a.b"}, allow_rejects=True)
    report = judge_file(path, tmp_path / "rows", tmp_path / "rejects", options)
    assert (report.accepted, report.reasons) == (1, {"no-answer": 3})
    options = CheckOptions(columns={"question": "q", "answer": "a.z"}, allow_rejects=True)
    report = judge_file(path, tmp_path / "rows", tmp_path / "rejects", options)
    assert report.error is not None
    assert report.error.what == "There is no column called a.z."
    assert "COLUMN.PART" in report.error.fix
