"""Whole files: what is reported, what is written, and that no input breaks the check."""

import hashlib
import json
import os
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.check import check_file, judge_file
from slidepack.engine.data.report import CheckOptions, DataReport, Issue, decode_report
from slidepack.engine.data.rows import ChatRow, Reject, decode_row, encode_row

ALPACA = {"instruction": "a", "output": "b"}
COMPLETION = {"prompt": "a", "completion": "b"}
CHAT = {
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
}


def _jsonl(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _judge(
    folder: Path, data: bytes | str, form: str | None = None, *, allow_rejects: bool = False
) -> DataReport:
    path = folder / "data"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    options = CheckOptions(form=form, allow_rejects=allow_rejects)
    report = judge_file(path, folder / "rows", folder / "rejects", options)
    assert decode_report(msgspec.json.encode(report)) == report
    return report


def _check(folder: Path, data: bytes | str, form: str | None = None) -> DataReport:
    report = _judge(folder, data, form, allow_rejects=True)
    assert report.error is None, report.error
    return report


def _refusal(folder: Path, data: bytes | str, form: str | None = None) -> SlidepackError:
    path = folder / "data"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    with pytest.raises(SlidepackError) as caught:
        check_file(path, folder / "rows", folder / "rejects", CheckOptions(form=form))
    report = _judge(folder, data, form)
    assert report.error == caught.value.report
    assert report.issues[0].code == caught.value.report.code
    assert report.verdict == ("ask" if report.issues[0].code == "DATA-AMBIGUOUS" else "refuse")
    return caught.value


def _of_level(report: DataReport, level: str) -> list[Issue]:
    return [issue for issue in report.issues if issue.level == level]


def _rejects(folder: Path) -> list[Reject]:
    lines = (folder / "rejects").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Reject) for line in lines]


def test_a_report_adds_up(tmp_path: Path) -> None:
    data = (
        _jsonl(CHAT, CHAT | {"id": 5, "source": []}, {"messages": []}) + "broken\n" + _jsonl(CHAT)
    )
    report = _check(tmp_path, data)
    assert (report.family, report.rows, report.accepted, report.rejected) == ("chat", 5, 3, 2)
    assert report.reasons == {"no-messages": 1, "not-json": 1}
    assert report.ignored_columns == ("id", "source")
    assert report.first_questions == ("q", "q", "q")
    shown = [(issue.line, issue.code, issue.message) for issue in _of_level(report, "reject")]
    assert shown == [(row.line, row.reason, row.detail) for row in _rejects(tmp_path)]
    assert [line for line, _, _ in shown] == [3, 4]
    content = (tmp_path / "rows").read_bytes()
    assert report.content_hash == hashlib.sha256(content).hexdigest()
    rows = [decode_row(line) for line in content.splitlines()]
    assert [row.line for row in rows] == [1, 2, 5]
    assert b"".join(map(encode_row, rows)) == content


def test_all_rejects_are_written_and_the_first_are_shown(tmp_path: Path) -> None:
    bad = [{"messages": None, "i": i} for i in range(100)]
    report = _check(tmp_path, _jsonl(*bad, CHAT))
    assert report.rejected == 100
    assert [reject.line for reject in _rejects(tmp_path)] == list(range(1, 101))
    assert len(_of_level(report, "reject")) == 20


def test_a_check_is_deterministic(tmp_path: Path) -> None:
    data = _jsonl(*[CHAT | {f"k{i}": 1, "\ud800": 2} for i in range(200)], {"messages": 1})
    assert _check(tmp_path, data) == _check(tmp_path, data)
    assert len(_check(tmp_path, data).ignored_columns) == 50


def test_keys_of_every_row_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidepack.engine.data.judge.MAX_NAMES", 10)
    report = _check(tmp_path, _jsonl(*[CHAT | {f"k{i:03}": 1} for i in range(100)]))
    assert report.ignored_columns == tuple(f"k{i:03}" for i in range(9))


def test_extra_columns_never_leak(tmp_path: Path) -> None:
    row = ALPACA | {"category": "secret", "text": "secret", "id": "secret", "prompt": "secret"}
    report = _check(tmp_path, _jsonl(row))
    assert report.ignored_columns == ("category", "id", "prompt", "text")
    assert "secret" not in (tmp_path / "rows").read_text()


def test_columns_of_mixed_types_do_not_matter(tmp_path: Path) -> None:
    data = _jsonl(ALPACA | {"id": 1}, ALPACA | {"id": "x"}, ALPACA | {"id": {"a": []}})
    assert _check(tmp_path, data + '{"instruction":"a","output":"b","id":NaN}').accepted == 4


def test_integer_answers_are_text_and_told(tmp_path: Path) -> None:
    report = _check(tmp_path, _jsonl(*[ALPACA | {"output": i} for i in range(3)]))
    assert (report.accepted, report.repaired, report.repairs) == (3, 3, {"number": 3})
    assert report.notes == ("Rows in which a number was taken as text: 3 (the first is line 1).",)


def test_answers_of_all_types(tmp_path: Path) -> None:
    outputs: list[Any] = ["b", 42, None, ["x"], "2024-01-01", "null", "NA", "None"]
    report = _check(tmp_path, _jsonl(*[ALPACA | {"output": output} for output in outputs]))
    rows = [decode_row(line) for line in (tmp_path / "rows").read_bytes().splitlines()]
    answers = [row.messages[-1].content for row in rows if isinstance(row, ChatRow)]
    assert answers == ["b", "42", "2024-01-01", "null", "NA", "None"]
    assert {issue.line: issue.code for issue in _of_level(report, "reject")} == {
        3: "no-answer",
        4: "not-text",
    }


def test_notes_tell_what_was_done(tmp_path: Path) -> None:
    data = json.dumps({"data": [COMPLETION | {"completion": 5}] * 2}).encode("utf-16")
    report = _check(tmp_path, data)
    assert report.accepted == 2
    assert report.notes == (
        "The file is UTF-16 and was read as such.",
        "The rows stand in the field data; line numbers count them from 1.",
        "Rows in which a number was taken as text: 2 (the first is line 1).",
    )


def test_a_report_of_an_earlier_version_loads() -> None:
    old = {
        "format": "chat",
        "rows": 2,
        "usable": 1,
        "rejected": 1,
        "reasons": {"no-answer": 1},
        "first_rejects": [{"line": 2, "reason": "no-answer", "detail": "d"}],
        "ignored_fields": ["id"],
        "first_questions": ["q"],
        "content_hash": "0",
    }
    report = decode_report(json.dumps(old))
    assert (report.family, report.accepted, report.ignored_columns) == ("chat", 1, ("id",))
    assert (report.notes, report.verdict) == ((), "warn")
    assert report.issues == (Issue(line=2, code="no-answer", message="d", level="reject"),)


def test_rows_that_fit_two_formats_are_asked_about(tmp_path: Path) -> None:
    error = _refusal(tmp_path, _jsonl(*[ALPACA | CHAT] * 10)).report
    assert error.code == "DATA-AMBIGUOUS"
    assert "chat 10" in error.why
    assert "alpaca 10" in error.why
    assert "--format" in error.fix
    # What fits best was judged all the same.
    report = _judge(tmp_path, _jsonl(*[ALPACA | CHAT] * 10))
    assert (report.family, report.rows, report.accepted) == ("chat", 10, 10)
    assert [(choice.family, choice.rows) for choice in report.choices] == [
        ("chat", 10),
        ("alpaca", 10),
    ]
    assert _check(tmp_path, _jsonl(*[ALPACA | CHAT] * 10), "alpaca").accepted == 10


def test_the_family_is_that_of_all_rows_not_of_the_first(tmp_path: Path) -> None:
    data = _jsonl(ALPACA, *[COMPLETION | {"n": i} for i in range(200)])
    report = _check(tmp_path, data)
    assert (report.family, report.accepted, report.reasons) == ("completion", 200, {"not-text": 1})
    lines = (tmp_path / "rows").read_bytes().splitlines()
    assert len(lines) == 200
    assert len(_rejects(tmp_path)) == 1
    assert report.ignored_columns == ("instruction", "n", "output")
    # Rows that tell nothing come first.
    data = _jsonl(*[{"x": i} for i in range(40)], *[CHAT] * 300)
    assert (_check(tmp_path, data).family, _check(tmp_path, data).rejected) == ("chat", 40)


def test_mixed_files_are_asked_about_above_one_in_a_hundred(tmp_path: Path) -> None:
    assert _refusal(tmp_path, _jsonl(*[CHAT] * 98, *[ALPACA] * 2)).report.code == "DATA-AMBIGUOUS"
    report = _check(tmp_path, _jsonl(*[CHAT] * 199, ALPACA))
    assert (report.family, report.accepted, report.reasons) == ("chat", 199, {"no-messages": 1})
    # The share is one of all rows, those that are no JSON among them.
    data = _jsonl(*[CHAT] * 50, ALPACA) + "broken\n" * 60
    assert _check(tmp_path, data).family == "chat"
    forced = _check(tmp_path, _jsonl(CHAT, ALPACA), "alpaca")
    assert (forced.accepted, forced.rejected) == (1, 1)


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    assert _refusal(tmp_path, _jsonl(CHAT), "poem").report.code == "DATA-FORMAT-UNKNOWN"
    error = _refusal(tmp_path, _jsonl({"a": "b"}))
    assert error.report.code == "DATA-FORMAT-UNKNOWN"
    assert error.report.why == 'line 1 is {"a": "b"}'


@pytest.mark.parametrize("form", [None, "alpaca"])
def test_no_usable_row_names_the_first_and_why(tmp_path: Path, form: str | None) -> None:
    error = _refusal(tmp_path, "\n" + _jsonl(*[ALPACA | {"output": None}] * 3), form)
    assert error.report.code == "DATA-NO-USABLE-ROWS"
    assert error.exit_code == 10
    assert error.report.what == "None of the 3 rows can be used."
    assert error.report.why == "line 2: no-answer (output is null)"


def test_too_many_rejected_rows_are_refused_unless_the_user_bears_them(tmp_path: Path) -> None:
    bad = ALPACA | {"output": None}
    rows = [ALPACA | {"instruction": f"{i}"} for i in range(7)]
    assert _judge(tmp_path, _jsonl(*rows, *[bad] * 3)).verdict == "warn"
    error = _refusal(tmp_path, _jsonl(*rows, *[bad] * 4)).report
    assert error.code == "DATA-TOO-MANY-REJECTED"
    assert error.what == "4 of the 11 rows cannot be used."
    assert "30%" in error.why
    assert "line 8: no-answer" in error.why
    assert "--allow-rejects" in error.fix
    report = _judge(tmp_path, _jsonl(*rows, *[bad] * 4), allow_rejects=True)
    assert (report.verdict, report.accepted, report.rejected) == ("warn", 7, 4)
    # Nothing at all is never enough.
    assert _judge(tmp_path, _jsonl(bad), allow_rejects=True).verdict == "refuse"


def test_verdicts(tmp_path: Path) -> None:
    rows = [ALPACA | {"instruction": f"{i}"} for i in range(9)]
    report = _judge(tmp_path, _jsonl(*rows))
    assert (report.verdict, report.issues, report.notes) == ("ok", (), ())
    # A number taken as text says the same; what was cut off does not.
    assert _judge(tmp_path, _jsonl(*rows, ALPACA | {"output": 5})).verdict == "ok"
    report = _judge(tmp_path, _jsonl(*rows, ALPACA | {"output": "a\0b"}))
    assert report.verdict == "warn"
    assert [(issue.line, issue.code, issue.count) for issue in report.issues] == [(10, "nul", 1)]
    assert _judge(tmp_path, _jsonl(*rows, CHAT)).verdict == "ask"
    assert _judge(tmp_path, _jsonl({"chosen": "a", "rejected": "b"})).verdict == "refuse"
    report = _judge(tmp_path, _jsonl({"chosen": "a", "rejected": "b"}))
    assert report.error is not None
    assert report.error.code == "DATA-PREFERENCE-UNSUPPORTED"
    assert report.reasons == {"preference-pair": 1}


def test_a_file_that_cannot_be_read_is_a_verdict_too(tmp_path: Path) -> None:
    for data, code in ((b"", "DATA-EMPTY"), (b'[{"a": 1}, {"a"', "DATA-NOT-JSON")):
        report = _judge(tmp_path, data)
        assert (report.verdict, report.accepted) == ("refuse", 0)
        assert [issue.code for issue in report.issues][:1] == [code]
    missing = judge_file(tmp_path / "none", tmp_path / "rows", tmp_path / "rejects")
    assert missing.error is not None
    assert (missing.error.code, missing.rows) == ("DATA-NOT-FOUND", 0)


def test_progress_is_told_in_bytes(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_text(_jsonl(*[CHAT] * 1000))
    told: list[int] = []
    judge_file(path, tmp_path / "rows", tmp_path / "rejects", None, told.append)
    assert told == sorted(told)
    assert told[-1] == path.stat().st_size


@pytest.mark.skipif(os.name != "posix", reason="names of bytes are a matter of POSIX")
def test_a_file_name_that_is_no_text_is_an_error_that_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"bad\xff\x1b[2J.jsonl")
    with pytest.raises(SlidepackError) as caught:
        check_file(path, tmp_path / "rows", tmp_path / "rejects")
    assert "bad?" in caught.value.report.why
    assert msgspec.json.encode(caught.value.report)
    assert "\x1b" not in str(caught.value)
    path.write_text("")
    with pytest.raises(SlidepackError) as caught:
        check_file(path, tmp_path / "rows", tmp_path / "rejects")
    assert caught.value.report.code == "DATA-EMPTY"


_WORDS = [
    *("messages", "role", "content", "weight", "train", "tool_calls", "type", "text"),
    *("instruction", "input", "output", "system", "prompt", "completion", "data", "rows"),
    *("question", "answer", "input_ids", "labels", "chosen", "rejected", "tools", "history"),
    *("user", "assistant", "tool", "developer", "", " ", "\u200b", "\ud83d", "\0", "木"),
]


def _value(rng: random.Random, depth: int) -> Any:
    kind = rng.randrange(12 if depth else 8)
    match kind:
        case 0:
            return rng.choice([None, True, False])
        case 1:
            return rng.choice([0, 1, -1, 10**400, 2**64, 0.5, 1e308, float("nan"), float("inf")])
        case 2 | 3 | 4 | 5 | 6 | 7:
            return rng.choice(_WORDS)
        case 8 | 9:
            return [_value(rng, depth - 1) for _ in range(rng.randrange(4))]
        case _:
            return {rng.choice(_WORDS): _value(rng, depth - 1) for _ in range(rng.randrange(5))}


def _row(rng: random.Random) -> Any:
    """Return a row that is right in most places, so that deep checks are reached."""
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "a", "weight": rng.choice([1, _value(rng, 2)])},
        {"role": _value(rng, 1), "content": _value(rng, 2)},
        {"role": "user", "content": [{"type": "text", "text": _value(rng, 1)}]},
        _value(rng, 3),
    ]
    return rng.choice(
        [
            {"messages": rng.sample(turns, rng.randrange(6))},
            {"instruction": _value(rng, 1), "output": _value(rng, 1), "input": _value(rng, 1)},
            {"prompt": _value(rng, 1), "completion": _value(rng, 1)},
            {"messages": turns[:2]},
            {"text": _value(rng, 1)},
            {"input_ids": [_value(rng, 0), 5], "labels": _value(rng, 1)},
            {"conversations": rng.sample(turns, 2), "tools": _value(rng, 2)},
            _value(rng, 4),
        ]
    )


def _survives(folder: Path, data: bytes, form: str | None, *, allow_rejects: bool) -> str:
    path = folder / "data"
    path.write_bytes(data)
    options = CheckOptions(form=form, allow_rejects=allow_rejects)
    try:
        report = check_file(path, folder / "rows", folder / "rejects", options)
    except SlidepackError as error:
        assert error.report.code.startswith("DATA-")
        assert "\n" not in str(error)
        msgspec.json.encode(error.report)
        return error.report.code
    assert report.rows == report.accepted + report.rejected
    assert report.rejected == len(_rejects(folder)) == sum(report.reasons.values())
    content = (folder / "rows").read_bytes()
    assert len([decode_row(line) for line in content.splitlines()]) == report.accepted > 0
    assert decode_report(msgspec.json.encode(report)) == report
    return str(report.family)


def test_random_json_never_breaks_the_check(tmp_path: Path) -> None:
    rng = random.Random(20)
    seen = set()
    for _ in range(400):
        rows = [_row(rng) for _ in range(rng.randrange(1, 8))]
        text = rng.choice(
            [
                _jsonl(*rows),
                json.dumps(rows, indent=rng.choice([None, 2])),
                json.dumps({rng.choice(["data", "rows", "x"]): rows}),
            ]
        )
        form = rng.choice([None, "chat", "alpaca", "completion", "qa", "text", "tokens"])
        coded = text.encode(rng.choice(["utf-8", "utf-16"]))
        seen.add(_survives(tmp_path, coded, form, allow_rejects=rng.random() < 0.8))
    assert {"chat", "alpaca", "completion", "DATA-NO-USABLE-ROWS", "DATA-AMBIGUOUS"} <= seen


def test_random_bytes_never_break_the_check(tmp_path: Path) -> None:
    rng = random.Random(21)
    seed = _jsonl(CHAT, ALPACA, COMPLETION).encode()
    for _ in range(400):
        data = bytearray(rng.choice([seed, b"[" + seed.replace(b"\n", b","), rng.randbytes(60)]))
        for _ in range(rng.randrange(6)):
            place = rng.randrange(len(data))
            match rng.randrange(3):
                case 0:
                    data[place] = rng.randrange(256)
                case 1:
                    del data[place : place + rng.randrange(20)]
                case _:
                    data[place:place] = rng.choice([b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"]"])
            data = data or bytearray(b" ")
        form = rng.choice([None, "chat", "completion"])
        _survives(tmp_path, bytes(data), form, allow_rejects=True)
