"""Public data sets and shapes of files that break other tools: their structure, in small.

The numbers are those of `product.md` 4.1 (T07 and on) and 4.2.
"""

import csv
import io
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from slidepack.engine.data.check import judge_file
from slidepack.engine.data.report import CheckOptions, DataReport
from slidepack.engine.data.rows import ChatRow, CompletionRow, Row, Turn, decode_row

TALK = [{"content": "q", "role": "user"}, {"content": "a", "role": "assistant"}]


def _judge(
    folder: Path, data: bytes | str | list[Any], *, form: str | None = None, parquet: bool = False
) -> tuple[DataReport, list[Row]]:
    path = folder / "data"
    if parquet:
        assert isinstance(data, list)
        pq.write_table(pa.Table.from_pylist(data), path)
    else:
        if isinstance(data, list):
            data = "".join(json.dumps(row) + "\n" for row in data)
        path.write_bytes(data if isinstance(data, bytes) else data.encode())
    report = judge_file(path, folder / "rows", folder / "rejects", CheckOptions(form=form))
    return report, [decode_row(line) for line in (folder / "rows").read_bytes().splitlines()]


def _texts(rows: list[Row]) -> list[list[str]]:
    return [[turn.content for turn in row.messages] for row in rows if isinstance(row, ChatRow)]


def _rejects(report: DataReport) -> dict[int, str]:
    return {issue.line: issue.code for issue in report.issues if issue.level == "reject"}


def _csv(*rows: list[str]) -> str:
    file = io.StringIO()
    csv.writer(file).writerows(rows)
    return file.getvalue()


def test_t07_columns_of_mixed_types_are_ignored(tmp_path: Path) -> None:
    rows = [{"id": 1, "instruction": "a", "output": "b"}]
    rows.append({"id": "x", "instruction": "c", "output": "d"})
    report, read = _judge(tmp_path, rows)
    assert (report.accepted, report.ignored_columns) == (2, ("id",))
    assert _texts(read) == [["a", "b"], ["c", "d"]]


def test_t08_outputs_of_four_types(tmp_path: Path) -> None:
    rows = [{"instruction": f"i{n}", "output": out} for n, out in enumerate(["b", 42, None, ["x"]])]
    report, read = _judge(tmp_path, rows)
    assert _texts(read) == [["i0", "b"], ["i1", "42"]]
    assert _rejects(report) == {3: "no-answer", 4: "not-text"}
    assert (report.repaired, report.repairs) == (1, {"number": 1})
    assert report.verdict == "refuse"
    assert report.error is not None
    assert report.error.code == "DATA-TOO-MANY-REJECTED"


def test_t09_content_as_text_and_as_parts(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "q"}]
    rows = [{"messages": TALK}, {"messages": [{"role": "user", "content": parts}, TALK[1]]}]
    assert _texts(_judge(tmp_path, rows)[1]) == [["q", "a"], ["q", "a"]]


def test_t12_nan_in_a_column_that_is_not_used(tmp_path: Path) -> None:
    report, _ = _judge(tmp_path, '{"prompt": "p", "completion": "c", "score": NaN}\n')
    assert (report.verdict, report.ignored_columns) == ("ok", ("score",))


def test_t14_arguments_of_mixed_types_stay_json(tmp_path: Path) -> None:
    arguments = [{"x": 1}, {"x": "1", "y": None}, {"x": [1.0, {"z": True}]}]
    rows = []
    for made in arguments:
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": made}}
        rows.append({"messages": [TALK[0], {"role": "assistant", "tool_calls": [call]}]})
    report, read = _judge(tmp_path, rows)
    assert report.accepted == 3
    kept = [json.loads(row.messages[1].tool_calls) for row in read if isinstance(row, ChatRow)]
    assert [calls[0]["function"]["arguments"] for calls in kept] == arguments


def test_t15_answers_of_a_table_that_look_like_nothing(tmp_path: Path) -> None:
    answers = ["NA", "", "null", "None"]
    data = _csv(["instruction", "output"], *[[f"i{n}", text] for n, text in enumerate(answers)])
    report, read = _judge(tmp_path, data)
    assert [texts[1] for texts in _texts(read)] == ["NA", "null", "None"]
    assert list(_rejects(report)) == [3]
    assert report.verdict == "warn"


def test_t19_the_index_of_a_table_is_listed_as_ignored(tmp_path: Path) -> None:
    for header in ("Unnamed: 0", ""):
        data = _csv([header, "prompt", "completion"], ["0", "p", "c"], ["1", "q", "d"])
        report, read = _judge(tmp_path, data)
        assert (report.family, report.accepted) == ("completion", 2)
        assert report.columns == {"prompt": "prompt", "completion": "completion"}
        told = (*report.ignored_columns, *report.notes)
        assert any(header in text for text in told)
        assert read[0] == CompletionRow(2, "p", "c")


def test_t25_rows_with_different_columns(tmp_path: Path) -> None:
    rows: list[Any] = [
        {"instruction": "i", "output": "o"},
        {"instruction": "i", "input": "x", "output": "o", "source": "s"},
        {"output": "o", "system": "s", "instruction": "i"},
    ]
    report, read = _judge(tmp_path, rows)
    assert _texts(read) == [["i", "o"], ["i\n\nx", "o"], ["s", "i", "o"]]
    assert report.ignored_columns == ("source",)
    report, _ = _judge(tmp_path, [*rows, {"messages": TALK}])
    assert report.verdict == "ask"


def test_t30_whole_numbers_as_answers(tmp_path: Path) -> None:
    rows = [{"question": f"{n} + {n}?", "answer": 2 * n} for n in range(20)]
    for parquet in (False, True):
        report, read = _judge(tmp_path, rows, parquet=parquet)
        assert (report.accepted, report.repaired, report.verdict) == (20, 20, "ok")
        assert "a number was taken as text: 20" in report.notes[-1]
        assert _texts(read)[7] == ["7 + 7?", "14"]


def test_1_ultrachat(tmp_path: Path) -> None:
    more = [{"content": "r", "role": "user"}]
    rows = [{"prompt": "q", "prompt_id": "f0", "messages": TALK + more * (n % 2)} for n in range(4)]
    for parquet in (False, True):
        report, read = _judge(tmp_path, rows, parquet=parquet)
        assert (report.family, report.accepted) == ("chat", 4)
        assert report.ignored_columns == ("prompt", "prompt_id")
        assert report.repairs == {"trailing-user-turn": 2}
        assert _texts(read) == [["q", "a"]] * 4


def test_2_glaive_transcripts_are_refused(tmp_path: Path) -> None:
    chat = "USER: hi\n\n\nASSISTANT: <functioncall> {} <|endoftext|>\n\n\nFUNCTION RESPONSE: {}"
    report, _ = _judge(tmp_path, [{"system": "SYSTEM: You help.", "chat": chat}] * 3)
    assert (report.verdict, report.accepted) == ("refuse", 0)
    assert report.issues[0].code == "DATA-TRANSCRIPT-UNSUPPORTED"


def test_3_lmsys(tmp_path: Path) -> None:
    row = {
        "conversation_id": "c",
        "model": "vicuna",
        "conversation": TALK,
        "turn": 1,
        "language": "English",
        "openai_moderation": [{"categories": {"hate": False}, "flagged": False}],
        "redacted": False,
    }
    report, read = _judge(tmp_path, [row, row | {"turn": 2}], parquet=True)
    assert (report.family, report.columns) == ("chat", {"messages": "conversation"})
    assert len(report.ignored_columns) == 6
    assert _texts(read) == [["q", "a"]] * 2


def test_4_llava(tmp_path: Path) -> None:
    talk = [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "a"}]
    rows = [{"id": 7, "image": "x.jpg", "conversations": talk}]
    rows.append({"id": "0007", "image": "y.jpg", "conversations": talk})
    report, _ = _judge(tmp_path, json.dumps(rows))
    assert (report.family, report.accepted, report.verdict) == ("sharegpt", 2, "warn")
    assert {issue.code for issue in report.issues} == {"media-tag", "duplicate-row"}
    assert report.ignored_columns == ("id", "image")


def test_5_openhermes(tmp_path: Path) -> None:
    talk = [
        {"from": "human", "value": "q", "weight": None},
        {"from": "gpt", "value": "a", "weight": None},
        {"from": "human", "value": "q", "weight": 0.0},
        {"from": "gpt", "value": "b", "weight": 1.0},
    ]
    row = {"conversations": talk, "system_prompt": None, "model": None, "category": "orca"}
    row |= {"views": None, "hash": None, "skip_prompt_formatting": None}
    for parquet in (False, True):
        report, read = _judge(tmp_path, [row] * 2, parquet=parquet)
        assert (report.family, report.accepted) == ("sharegpt", 2)
        turns = [Turn("user", "q", False), Turn("assistant", "a")]
        turns += [Turn("user", "q", False), Turn("assistant", "b")]
        assert read[0] == ChatRow(read[0].line, tuple(turns))


def test_7_dolly(tmp_path: Path) -> None:
    row = {"instruction": "i", "context": "", "response": "r", "category": "open_qa"}
    report, read = _judge(tmp_path, [row, row | {"context": "c"}])
    assert (report.family, report.ignored_columns) == ("alpaca", ("category",))
    assert _texts(read) == [["i", "r"], ["i\n\nc", "r"]]
    assert b"open_qa" not in (tmp_path / "rows").read_bytes()


def test_8_alpaca_with_its_own_text(tmp_path: Path) -> None:
    rows = [
        {"instruction": f"i{n}", "input": "", "output": out, "text": f"Below is … {out}"}
        for n, out in enumerate(["o"] * 9 + [""])
    ]
    report, read = _judge(tmp_path, rows)
    assert (report.family, report.verdict) == ("alpaca", "warn")
    assert report.ignored_columns == ("text",)
    assert _rejects(report) == {10: "empty-answer"}
    assert len(read) == 9


def test_10_ultrafeedback(tmp_path: Path) -> None:
    other = [TALK[0], {"content": "b", "role": "assistant"}]
    row = {"prompt": "q", "prompt_id": "f", "chosen": TALK, "rejected": other, "messages": TALK}
    report, _ = _judge(tmp_path, [row | {"score_chosen": 8.5}] * 2, parquet=True)
    assert (report.family, report.verdict) == ("preference", "refuse")
    assert report.issues[0].code == "DATA-PREFERENCE-UNSUPPORTED"
    # Read as what it is besides, the prompt stands once.
    report, read = _judge(tmp_path, [row] * 2, form="chat")
    assert _texts(read) == [["q", "a"]] * 2


def test_11_orca_pairs(tmp_path: Path) -> None:
    report, _ = _judge(tmp_path, [{"system": "", "question": "q", "chosen": "a", "rejected": "b"}])
    assert report.issues[0].code == "DATA-PREFERENCE-UNSUPPORTED"


def test_14_openmath_as_a_table_with_cells_of_many_lines(tmp_path: Path) -> None:
    solution = '\\begin{aligned}\nx &= 1, \\\\\n"y" &= 2\n\\end{aligned}'
    header = ["Unnamed: 0", "expected_answer", "problem", "generated_solution", "pass_rate"]
    data = _csv(header, ["0", "1", "Find $x$.", solution, "n/a"], ["1", "2", "p", "s", "0.5"])
    report, read = _judge(tmp_path, data)
    assert (report.family, report.accepted) == ("qa", 2)
    assert {"expected_answer", "pass_rate"} <= set(report.ignored_columns)
    assert any("Unnamed: 0" in text for text in (*report.ignored_columns, *report.notes))
    assert _texts(read)[0] == ["Find $x$.", solution]


def test_15_a_nested_column_that_changes_its_type(tmp_path: Path) -> None:
    rows = [
        {"id": f"{n}", "question": f"q{n}", "answer": "a", "metadata": {"o_wiki_title": title}}
        for n, title in enumerate(["Tower"] * 1231 + [1984])
    ]
    report, _ = _judge(tmp_path, rows)
    assert (report.accepted, report.verdict) == (1232, "ok")


def test_17_a_nested_answer(tmp_path: Path) -> None:
    nested = {"answer": "a", "score": 1.5, "actions": []}
    report, _ = _judge(tmp_path, [{"question": "q", "answer": nested}])
    assert report.reasons == {"not-text": 1}
    report, _ = _judge(tmp_path, [{"question": "q", "pos_answer": nested}])
    assert report.issues[0].code == "DATA-FORMAT-UNKNOWN"


def test_18_odd_orders_of_roles(tmp_path: Path) -> None:
    human = {"from": "human", "value": "h"}
    gpt = {"from": "gpt", "value": "a"}
    talks = [[human, human, gpt], [human], [gpt]]
    report, read = _judge(tmp_path, [{"conversations": talk} for talk in talks])
    assert _texts(read) == [["h", "h", "a"], ["a"]]
    assert _rejects(report) == {2: "no-answer"}


def test_20_turns_that_say_nothing(tmp_path: Path) -> None:
    empties = ["\u200b", None, [], [None], [{"type": "text", "text": "  "}]]
    rows = [{"messages": [TALK[0], {"role": "assistant", "content": each}]} for each in empties]
    report, _ = _judge(tmp_path, rows)
    assert report.reasons == {"empty-answer": len(empties)}
    assert all("turn 2" in issue.message for issue in report.issues if issue.level == "reject")
