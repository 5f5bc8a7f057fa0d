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
from slidepack.engine.data.check import DataReport, check_file, detect_format
from slidepack.engine.data.rows import ChatRow, Format, Reject, decode_row, encode_row

ALPACA = {"instruction": "a", "output": "b"}
COMPLETION = {"prompt": "a", "completion": "b"}
CHAT = {
    "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}],
}


def _jsonl(*values: object) -> str:
    return "".join(json.dumps(value) + "\n" for value in values)


def _check(folder: Path, data: bytes | str, form: str | None = None) -> DataReport:
    path = folder / "data"
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return check_file(path, folder / "rows", folder / "rejects", form)


def _refusal(folder: Path, data: bytes | str, form: str | None = None) -> SlidepackError:
    with pytest.raises(SlidepackError) as caught:
        _check(folder, data, form)
    return caught.value


def _rejects(folder: Path) -> list[Reject]:
    lines = (folder / "rejects").read_bytes().splitlines()
    return [msgspec.json.decode(line, type=Reject) for line in lines]


def test_a_report_adds_up(tmp_path: Path) -> None:
    data = _jsonl(CHAT, CHAT | {"id": 5, "tools": []}, {"messages": []}) + "broken\n" + _jsonl(CHAT)
    report = _check(tmp_path, data)
    assert (report.format, report.rows, report.usable, report.rejected) == ("chat", 5, 3, 2)
    assert report.reasons == {"no-messages": 1, "not-json": 1}
    assert report.ignored_fields == ("id", "tools")
    assert report.first_questions == ("q", "q", "q")
    assert report.first_rejects == tuple(_rejects(tmp_path))
    assert [reject.line for reject in report.first_rejects] == [3, 4]
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
    assert len(report.first_rejects) == 20


def test_a_check_is_deterministic(tmp_path: Path) -> None:
    data = _jsonl(*[CHAT | {f"k{i}": 1, "\ud800": 2} for i in range(200)], {"messages": 1})
    assert _check(tmp_path, data) == _check(tmp_path, data)
    assert len(_check(tmp_path, data).ignored_fields) == 50


def test_keys_of_every_row_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slidepack.engine.data.check._COLLECTED_FIELDS", 10)
    report = _check(tmp_path, _jsonl(*[CHAT | {f"k{i:03}": 1} for i in range(100)]))
    assert report.ignored_fields == tuple(f"k{i:03}" for i in range(10))


def test_ignored_fields_of_messages_are_listed(tmp_path: Path) -> None:
    turn = {"role": "assistant", "content": "a", "reasoning": "because", "name": "x"}
    report = _check(tmp_path, _jsonl({"messages": [{"role": "user", "content": "q"}, turn]}))
    assert report.ignored_fields == ("messages[].name", "messages[].reasoning")
    assert "because" not in (tmp_path / "rows").read_text()


def test_extra_columns_never_leak(tmp_path: Path) -> None:
    row = ALPACA | {"category": "secret", "text": "secret", "id": "secret"}
    report = _check(tmp_path, _jsonl(row))
    assert report.ignored_fields == ("category", "id", "text")
    assert "secret" not in (tmp_path / "rows").read_text()


def test_columns_of_mixed_types_do_not_matter(tmp_path: Path) -> None:
    data = _jsonl(ALPACA | {"id": 1}, ALPACA | {"id": "x"}, ALPACA | {"id": {"a": []}})
    assert _check(tmp_path, data + '{"instruction":"a","output":"b","id":NaN}').usable == 4


def test_integer_answers_are_text_and_told(tmp_path: Path) -> None:
    report = _check(tmp_path, _jsonl(*[ALPACA | {"output": i} for i in range(3)]))
    assert report.usable == 3
    assert report.notes == ("Rows in which a number was taken as text: 3 (the first is line 1).",)


def test_answers_of_all_types(tmp_path: Path) -> None:
    outputs: list[Any] = ["b", 42, None, ["x"], "2024-01-01", "null", "NA", "None"]
    report = _check(tmp_path, _jsonl(*[ALPACA | {"output": output} for output in outputs]))
    rows = [decode_row(line) for line in (tmp_path / "rows").read_bytes().splitlines()]
    answers = [row.messages[-1].content for row in rows if isinstance(row, ChatRow)]
    assert answers == ["b", "42", "2024-01-01", "null", "NA", "None"]
    assert {reject.line: reject.reason for reject in report.first_rejects} == {
        3: "no-answer",
        4: "not-text",
    }


def test_notes_tell_what_was_done(tmp_path: Path) -> None:
    data = json.dumps({"data": [COMPLETION | {"completion": 5}] * 2}).encode("utf-16")
    report = _check(tmp_path, data)
    assert report.usable == 2
    assert report.notes == (
        "The file is UTF-16 and was read as such.",
        "The rows stand in the field data; line numbers count them from 1.",
        "Rows in which a number was taken as text: 2 (the first is line 1).",
    )


def test_a_report_of_an_earlier_version_loads() -> None:
    report = {
        "format": "chat",
        "rows": 1,
        "usable": 1,
        "rejected": 0,
        "reasons": {},
        "first_rejects": [],
        "ignored_fields": [],
        "first_questions": ["q"],
        "content_hash": "0",
    }
    assert msgspec.convert(report, DataReport).notes == ()


@pytest.mark.parametrize(
    ("row", "form"), [(CHAT, "chat"), (ALPACA, "alpaca"), (COMPLETION, "completion")]
)
def test_each_format_is_recognised(tmp_path: Path, row: object, form: Format) -> None:
    assert _check(tmp_path, _jsonl(row)).format == form
    assert _check(tmp_path, json.dumps([row], indent=2)).format == form
    assert _check(tmp_path, json.dumps(row, indent=2)).format == form
    assert detect_format(tmp_path / "data") == form


def test_rows_that_fit_two_formats_are_asked_about(tmp_path: Path) -> None:
    error = _refusal(tmp_path, _jsonl(*[ALPACA | CHAT] * 10)).report
    assert error.code == "DATA-AMBIGUOUS"
    assert "chat 10" in error.why
    assert "alpaca 10" in error.why
    assert "--format" in error.fix
    assert _check(tmp_path, _jsonl(*[ALPACA | CHAT] * 10), "alpaca").usable == 10


def test_mixed_files_are_asked_about_above_one_in_a_hundred(tmp_path: Path) -> None:
    assert _refusal(tmp_path, _jsonl(*[CHAT] * 98, *[ALPACA] * 2)).report.code == "DATA-AMBIGUOUS"
    report = _check(tmp_path, _jsonl(*[CHAT] * 199, ALPACA))
    assert (report.format, report.usable, report.reasons) == ("chat", 199, {"no-messages": 1})
    forced = _check(tmp_path, _jsonl(CHAT, ALPACA), "alpaca")
    assert (forced.usable, forced.rejected) == (1, 1)


def test_unknown_formats_are_refused(tmp_path: Path) -> None:
    assert _refusal(tmp_path, _jsonl(CHAT), "csv").report.code == "DATA-FORMAT-UNKNOWN"
    error = _refusal(tmp_path, _jsonl({"text": "a"}))
    assert error.report.code == "DATA-FORMAT-UNKNOWN"
    assert error.report.why == "line 1 is {'text': 'a'}"
    assert _refusal(tmp_path, "1\n2\n").report.code == "DATA-FORMAT-UNKNOWN"


@pytest.mark.parametrize("form", [None, "alpaca"])
def test_no_usable_row_names_the_first_and_why(tmp_path: Path, form: str | None) -> None:
    error = _refusal(tmp_path, "\n" + _jsonl(*[ALPACA | {"output": None}] * 3), form)
    assert error.report.code == "DATA-NO-USABLE-ROWS"
    assert error.exit_code == 10
    assert error.report.what == "None of the 3 rows can be used."
    assert error.report.why == "line 2: no-answer (output is missing or null)"


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
        {"role": "assistant", "content": "a", "weight": _value(rng, 2)},
        {"role": _value(rng, 1), "content": _value(rng, 2)},
        {"role": "user", "content": [{"type": "text", "text": _value(rng, 1)}]},
        _value(rng, 3),
    ]
    return rng.choice(
        [
            {"messages": rng.sample(turns, rng.randrange(6))},
            {"instruction": _value(rng, 1), "output": _value(rng, 1), "input": _value(rng, 1)},
            {"prompt": _value(rng, 1), "completion": _value(rng, 1)},
            _value(rng, 4),
        ]
    )


def _survives(folder: Path, data: bytes, form: str | None) -> str:
    try:
        report = _check(folder, data, form)
    except SlidepackError as error:
        assert error.report.code.startswith("DATA-")
        assert "\n" not in str(error)
        msgspec.json.encode(error.report)
        return error.report.code
    assert report.rows == report.usable + report.rejected
    assert report.rejected == len(_rejects(folder)) == sum(report.reasons.values())
    content = (folder / "rows").read_bytes()
    assert len([decode_row(line) for line in content.splitlines()]) == report.usable > 0
    assert msgspec.json.decode(msgspec.json.encode(report), type=DataReport) == report
    return report.format


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
        form = rng.choice([None, "chat", "alpaca", "completion"])
        seen.add(_survives(tmp_path, text.encode(rng.choice(["utf-8", "utf-16"])), form))
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
        _survives(tmp_path, bytes(data), rng.choice([None, "chat", "completion"]))
