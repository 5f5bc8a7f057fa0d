"""What a report must not hide: columns left out, rows left over, conversations read as text."""

import json
from pathlib import Path
from typing import Any

import pytest

from slidepack.engine.data.check import judge_file
from slidepack.engine.data.report import CheckOptions, DataReport, Issue
from slidepack.engine.data.rows import ChatRow, decode_row

ALPACA = {"instruction": "a", "output": "b"}
TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHARE = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]


def _judge(folder: Path, *rows: Any, form: str | None = None, **columns: str) -> DataReport:
    return _judge_text(folder, "".join(json.dumps(row) + "\n" for row in rows), form, columns)


def _judge_text(
    folder: Path, text: str, form: str | None = None, columns: dict[str, str] | None = None
) -> DataReport:
    path = folder / "data.jsonl"
    path.write_text(text)
    options = CheckOptions(form=form, columns=columns or {}, allow_rejects=True)
    return judge_file(path, folder / "rows", folder / "rejects", options)


def _warnings(report: DataReport) -> dict[str, Issue]:
    return {issue.code: issue for issue in report.issues if issue.level == "warning"}


def _details(report: DataReport) -> list[str]:
    return [issue.message for issue in report.issues if issue.level == "reject"]


def test_alpaca_rows_without_an_instruction_ask_their_input(tmp_path: Path) -> None:
    rows = [ALPACA | {"input": "c"}, {"input": "only", "output": "x", "extra": 1}]
    report = _judge(tmp_path, *rows, ALPACA | {"instruction": None, "input": "i"})
    assert (report.family, report.error, report.accepted) == ("alpaca", None, 3)
    assert report.repairs == {"no-instruction": 2}
    assert "whose input was taken as the question: 2" in report.notes[0]
    assert report.ignored_columns == ("extra",)
    questions = []
    for line in (tmp_path / "rows").read_bytes().splitlines():
        row = decode_row(line)
        assert isinstance(row, ChatRow)
        questions.append(row.messages[0].content)
    assert questions == ["a\n\nc", "only", "i"]
    assert _judge(tmp_path, *rows[1:]).family == "qa"


def test_a_filled_column_is_used_in_its_row_or_ignored(tmp_path: Path) -> None:
    rows = [{"input": "q", "output": "a"}, ALPACA | {"input": "lost"}]
    report = _judge(tmp_path, *rows, form="qa")
    assert report.columns == {"question": "input", "answer": "output"}
    assert report.ignored_columns == ("input",)
    assert "Rows by the column that is their question: input 1, instruction 1." in report.notes


def test_columns_are_those_of_all_rows(tmp_path: Path) -> None:
    report = _judge(tmp_path, *[ALPACA] * 20, *[ALPACA | {"input": "c"}] * 10)
    assert report.columns == {"instruction": "instruction", "input": "input", "output": "output"}
    assert report.ignored_columns == ()


@pytest.mark.parametrize("talk", [TALK, SHARE])
@pytest.mark.parametrize("as_array", [True, False])
def test_messages_as_rows_are_never_text(
    tmp_path: Path, talk: list[dict[str, str]], as_array: bool
) -> None:
    lines = "".join(json.dumps(message) + "\n" for message in talk)
    report = _judge_text(tmp_path, json.dumps(talk) if as_array else lines)
    assert report.error is not None
    assert (report.family, report.accepted) == (None, 0)
    assert report.error.code == "DATA-TRANSCRIPT-UNSUPPORTED"
    assert "one message, not a conversation" in report.error.what
    assert "`messages`" in report.error.fix


def test_messages_among_other_rows_are_not_learned(tmp_path: Path) -> None:
    report = _judge(tmp_path, *[{"text": f"t {i}"} for i in range(300)], TALK[0])
    assert report.error is not None
    assert report.error.code == "DATA-TRANSCRIPT-UNSUPPORTED"
    report = _judge(tmp_path, *[{"messages": TALK}] * 300, TALK[0])
    assert (report.error, report.reasons) == (None, {"no-messages": 1})
    # The user's word stands.
    assert _judge(tmp_path, {"role": "page", "content": "c"}, text="content").accepted == 1


@pytest.mark.parametrize(
    "text",
    [
        "### Human: q ### Assistant: a",
        "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>",
        "<s>[INST] q [/INST] a </s>",
        "<start_of_turn>user\nq<end_of_turn>\n<start_of_turn>model\na",
        "<|start_header_id|>user<|end_header_id|>\n\nq",
        "<|user|>\nq\n<|assistant|>\na",
    ],
)
def test_texts_with_marks_of_chats_are_told(tmp_path: Path, text: str) -> None:
    assert _warnings(_judge(tmp_path, {"text": text}, {"text": "t"}))["transcript"].count == 1


def test_rows_of_no_known_form_are_counted(tmp_path: Path) -> None:
    report = _judge(tmp_path, {"a": 1}, {"b": 2}, 5, {"a": 3})
    assert report.error is not None
    assert report.error.code == "DATA-FORMAT-UNKNOWN"
    assert (report.rows, report.accepted, report.rejected) == (4, 0, 4)
    assert report.reasons == {"no-known-form": 4}
    assert report.ignored_columns == ("a", "b")
    assert report.issues[0].line == 1


def test_an_error_of_a_line_names_it(tmp_path: Path) -> None:
    report = _judge(tmp_path, {"text": "t"}, {"text": None}, *[{"text": ""}] * 3)
    assert report.error is None
    path = tmp_path / "cut.txt"
    path.write_bytes(b"one\ntwo\nthr\xffee\n")
    options = CheckOptions(encoding="utf-8")
    report = judge_file(path, tmp_path / "rows", tmp_path / "rejects", options)
    assert report.error is not None
    assert "line 3" in report.error.why
    assert report.issues[0].line == 3
    report = _judge(tmp_path, {"prompt": "p", "completion": None})
    assert (report.issues[0].code, report.issues[0].line) == ("DATA-NO-USABLE-ROWS", 1)
    assert report.issues[0].message.startswith("The only row cannot be used.")


def test_sides_that_do_not_take_turns_are_told(tmp_path: Path) -> None:
    user, assistant = TALK
    tool = {"role": "tool", "content": "5"}
    system = {"role": "system", "content": "s"}
    odd = [[user, user, assistant], [user, assistant, assistant], [assistant, user, assistant]]
    good = [[system, *TALK, *TALK], [user, assistant, tool, assistant]]
    report = _judge(tmp_path, *[{"messages": talk} for talk in (*odd, *good)])
    assert report.accepted == 5
    issue = _warnings(report)["turns-not-alternating"]
    assert (issue.count, issue.line) == (3, 1)


@pytest.mark.parametrize(
    ("row", "maps"),
    [
        ({"system": "", "question": "q", "chosen": "a", "rejected": "b"},
         {"question": "question", "answer": "chosen"}),
        ({"prompt": "q", "chosen": TALK, "rejected": TALK}, {"messages": "chosen"}),
        ({"prompt": TALK[:1], "chosen": TALK[1:], "rejected": TALK[1:]},
         {"prompt": "prompt", "completion": "chosen"}),
        ({"messages": TALK, "rejected_response": "b"}, {"messages": "messages"}),
    ],
)  # fmt: skip
def test_the_way_out_of_preferences_works(
    tmp_path: Path, row: dict[str, Any], maps: dict[str, str]
) -> None:
    report = _judge(tmp_path, row)
    assert report.error is not None
    named = " ".join(f"--map {role}={column}" for role, column in maps.items())
    assert report.error.fix.endswith(f": {named}.")
    assert _judge(tmp_path, row, **maps).accepted == 1


@pytest.mark.parametrize(
    "row",
    [{"chosen": "a", "rejected": "b"},
     {"input": {"messages": []}, "preferred_output": TALK[1:], "non_preferred_output": TALK[1:]}],
)  # fmt: skip
def test_no_way_out_names_columns_that_are_not_there(tmp_path: Path, row: dict[str, Any]) -> None:
    report = _judge(tmp_path, row)
    assert report.error is not None
    assert "--map" not in report.error.fix


def test_judged_completions_are_called_so(tmp_path: Path) -> None:
    report = _judge(tmp_path, {"prompt": "p", "completion": "c", "label": True})
    assert report.error is not None
    assert report.error.code == "DATA-PREFERENCE-UNSUPPORTED"
    assert "judged completions" in report.error.what
    assert "rows in which label is true" in report.error.fix


def test_messages_speak_json(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [{"output": value} for value in (True, {"answer": None}, None)]
    report = _judge(tmp_path, *[ALPACA | row for row in rows], {"instruction": "a"})
    assert _details(report) == [
        "output is true", 'output is {"answer": null}', "output is null", "output is missing",
    ]  # fmt: skip


def test_odd_weights_and_roles_are_named(tmp_path: Path) -> None:
    user, assistant = TALK
    talks = [[user, assistant | {"weight": "0"}], [{"content": "q"}, assistant], [user, assistant]]
    report = _judge(tmp_path, *[{"messages": talk} for talk in reversed(talks)])
    assert _details(report) == ["turn 1 has no role", "turn 2 has weight the text 0, not 0 or 1"]


@pytest.mark.parametrize("role", ["user", "tool", "system"])
def test_turns_after_the_last_answer_are_called_by_their_role(tmp_path: Path, role: str) -> None:
    report = _judge(tmp_path, {"messages": [*TALK, {"role": role, "content": "x"}]})
    assert report.repairs == {f"trailing-{role}-turn": 1}
    assert f"trailing-{role}-turn" in _warnings(report)


def test_bytes_that_were_replaced_are_a_repair_that_is_told(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    good = b'{"prompt": "p", "completion": "c"}\n'
    path.write_bytes(good + b'{"prompt": "q", "completion": "caf\xe9"}\n')
    options = CheckOptions(encoding="utf-8-replace")
    report = judge_file(path, tmp_path / "out.jsonl", tmp_path / "rejects.jsonl", options)
    assert (report.accepted, report.repaired) == (2, 1)
    assert report.repairs == {"encoding": 1}
    assert report.verdict == "warn"


def test_ignored_columns_that_are_not_listed_are_counted(tmp_path: Path) -> None:
    report = _judge(tmp_path, ALPACA | {f"c{number:03}": "x" for number in range(60)})
    assert len(report.ignored_columns) == 50
    assert "Ignored columns that are not listed: 10." in report.notes
