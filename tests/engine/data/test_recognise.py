"""Rows of each format: what is taken, what is mended, what is refused and why."""

import json
from typing import Any

import pytest

from slidepack.engine.data.recognise import RowConverter, formats_of
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Format,
    Number,
    Reject,
    Row,
    Turn,
    clip,
    mend_text,
)


def _convert(form: Format, value: object) -> Row | Reject:
    text = json.dumps(value)
    decoder = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)
    return RowConverter(form).convert(7, decoder.decode(text))


def _chat(*turns: dict[str, Any]) -> Row | Reject:
    return _convert("chat", {"messages": list(turns)})


def _turn(role: str, content: object, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


USER = _turn("user", "q")
ANSWER = _turn("assistant", "a")


def _reason(row: Row | Reject) -> str:
    assert isinstance(row, Reject), row
    assert row.line == 7
    assert row.detail
    assert "\n" not in row.detail
    return row.reason


def test_every_role_is_taken() -> None:
    row = _chat(_turn("developer", "d"), _turn("system", "s"), USER, _turn("tool", "t"), ANSWER)
    assert row == ChatRow(
        7,
        (
            Turn("system", "d", False),
            Turn("system", "s", False),
            Turn("user", "q", False),
            Turn("tool", "t", False),
            Turn("assistant", "a", True),
        ),
    )


def test_same_role_in_a_row_and_a_last_user_turn_are_kept() -> None:
    row = _chat(USER, _turn("user", "again"), ANSWER, _turn("assistant", "b"), _turn("user", "bye"))
    assert isinstance(row, ChatRow)
    assert [turn.content for turn in row.messages] == ["q", "again", "a", "b", "bye"]
    assert [turn.train for turn in row.messages] == [False, False, True, True, False]


@pytest.mark.parametrize(
    ("marks", "trained"),
    [
        ({}, True),
        ({"weight": 1}, True),
        ({"weight": 1.0}, True),
        ({"weight": None, "train": None}, True),
        ({"weight": True}, True),
        ({"train": True}, True),
        ({"loss_weight": 1.0}, True),
        ({"loss_weight": 0.0, "weight": 1}, False),
        ({"weight": 0}, False),
        ({"weight": 0.0}, False),
        ({"weight": False}, False),
        ({"train": False}, False),
        ({"weight": 1, "train": False}, False),
    ],
)
def test_marks_say_which_answers_are_trained(marks: dict[str, Any], trained: bool) -> None:
    row = _chat(USER, _turn("assistant", "first", **marks), USER, ANSWER)
    assert isinstance(row, ChatRow)
    assert [turn.train for turn in row.messages] == [False, trained, False, True]


@pytest.mark.parametrize(
    "marks",
    [
        {"weight": 2},
        {"weight": 0.5},
        {"weight": "1"},
        {"weight": []},
        {"weight": {"a": 1}},
        {"weight": float("nan")},
        {"weight": "\ud83d"},
        {"train": "yes"},
        {"train": 1},
        {"train": {}},
    ],
)
def test_odd_marks_are_refused(marks: dict[str, Any]) -> None:
    assert _reason(_chat(USER, _turn("assistant", "a", **marks))) == "bad-weight"


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}]
    row = _chat(_turn("user", parts), ANSWER)
    assert isinstance(row, ChatRow)
    assert row.messages[0].content == "a b"
    # LLaMA-Factory says `value`.
    row = _chat(_turn("user", [{"type": "text", "value": "c"}]), ANSWER)
    assert isinstance(row, ChatRow)
    assert row.messages[0].content == "c"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "bad-content"),
        ([None], "bad-content"),
        (["a"], "bad-content"),
        ([{"type": "image_url", "image_url": "x"}], "bad-content"),
        ([{"type": "text", "text": None}], "bad-content"),
        ([{"type": ["text"], "text": "a"}], "bad-content"),
        ({"text": "a"}, "bad-content"),
        (True, "bad-content"),
        (float("nan"), "bad-content"),
        ("", "empty-answer"),
        ([], "empty-answer"),
        ("  \n\t", "empty-answer"),
        ("\u200b", "empty-answer"),
        ("\ufeff\u200c \u200d\u2060", "empty-answer"),
        ("\0\0", "empty-answer"),
        ([{"type": "text", "text": "  "}], "empty-answer"),
    ],
)
def test_answers_that_say_nothing_are_refused(content: object, reason: str) -> None:
    assert _reason(_chat(USER, _turn("assistant", content))) == reason


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ([], "not-an-object"),
        ("text", "not-an-object"),
        (5, "not-an-object"),
        (None, "not-an-object"),
        ({}, "no-messages"),
        ({"messages": None}, "no-messages"),
        ({"messages": []}, "no-messages"),
        ({"messages": {"role": "user"}}, "no-messages"),
        ({"messages": ["a"]}, "bad-message"),
        ({"messages": [None]}, "bad-message"),
        ({"messages": [{}]}, "unknown-role"),
        ({"messages": [_turn("robot", "a")]}, "unknown-role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "unknown-role"),
        ({"messages": [{"role": {"a": 1}, "content": "a"}]}, "unknown-role"),
        ({"messages": [USER]}, "no-answer"),
        ({"messages": [USER, ANSWER | {"weight": 0}]}, "no-answer"),
        ({"messages": [USER, {"role": "assistant", "tool_calls": [{"a": 1}]}]}, "tool-calls"),
    ],
)
def test_conversations_that_cannot_be_learned(value: object, reason: str) -> None:
    assert _reason(_convert("chat", value)) == reason


@pytest.mark.parametrize(
    ("fields", "question"),
    [
        ({}, "Add."),
        ({"input": None}, "Add."),
        ({"input": ""}, "Add."),
        ({"input": " \n"}, "Add."),
        ({"input": "1+1"}, "Add.\n\n1+1"),
        ({"input": 12}, "Add.\n\n12"),
        ({"input": 1.50, "id": 1, "text": "all of it", "history": [["a", "b"]]}, "Add.\n\n1.5"),
    ],
)
def test_alpaca_questions(fields: dict[str, Any], question: str) -> None:
    row = _convert("alpaca", {"instruction": "Add.", "output": "2", **fields})
    assert row == ChatRow(7, (Turn("user", question, False), Turn("assistant", "2")))


def test_alpaca_system_and_blank_instruction() -> None:
    row = _convert("alpaca", {"instruction": "", "input": "x", "output": "y", "system": "s"})
    assert row == ChatRow(
        7, (Turn("system", "s", False), Turn("user", "x", False), Turn("assistant", "y"))
    )
    row = _convert("alpaca", {"instruction": "x", "output": "y", "system": " "})
    assert row == ChatRow(7, (Turn("user", "x", False), Turn("assistant", "y")))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"output": None}, "no-answer"),
        ({"output": ["a"]}, "not-text"),
        ({"output": {"answer": "a", "score": 1}}, "not-text"),
        ({"output": True}, "not-text"),
        ({"output": float("nan")}, "not-text"),
        ({"output": float("-inf")}, "not-text"),
        ({"output": " "}, "empty-answer"),
        ({"instruction": None}, "not-text"),
        ({"instruction": ["a"]}, "not-text"),
        ({"instruction": " ", "input": ""}, "no-question"),
        ({"input": ["a"]}, "not-text"),
        ({"system": True}, "not-text"),
    ],
)
def test_alpaca_rows_that_cannot_be_learned(fields: dict[str, Any], reason: str) -> None:
    assert _reason(_convert("alpaca", {"instruction": "a", "output": "b"} | fields)) == reason


@pytest.mark.parametrize("written", ["42", "-0", "1.50", "1E5", "0.10", "9" * 5000])
def test_numbers_stay_as_they_are_written(written: str) -> None:
    converter = RowConverter("completion")
    row = converter.convert(3, {"prompt": "p", "completion": Number(written)})
    assert row == CompletionRow(3, "p", written)
    assert converter.notes() == [
        "Rows in which a number was taken as text: 1 (the first is line 3)."
    ]


def test_completions_keep_white_space() -> None:
    row = _convert("completion", {"prompt": " \n a\t", "completion": "  b \n\n", "extra": 1})
    assert row == CompletionRow(7, " \n a\t", "  b \n\n")
    assert _convert("completion", {"prompt": "", "completion": "b"}) == CompletionRow(7, "", "b")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"prompt": "a"}, "no-answer"),
        ({"prompt": "a", "completion": "\n"}, "empty-answer"),
        ({"prompt": [{"role": "user"}], "completion": "b"}, "not-text"),
        ({"completion": "b"}, "not-text"),
    ],
)
def test_completions_that_cannot_be_learned(value: object, reason: str) -> None:
    assert _reason(_convert("completion", value)) == reason


def test_dates_stay_strings_and_broken_text_is_mended_and_counted() -> None:
    converter = RowConverter("completion")
    assert converter.convert(1, {"prompt": "p", "completion": "2024-01-01"}) == CompletionRow(
        1, "p", "2024-01-01"
    )
    assert converter.notes() == []
    assert converter.convert(2, {"prompt": "a\0", "completion": "x\ud83dy"}) == CompletionRow(
        2, "a", "x\ufffdy"
    )
    converter.convert(3, {"prompt": "\0", "completion": ""})
    converter.convert(4, {"prompt": "\0", "completion": "honest \ufffd"})
    assert converter.notes() == [
        "Rows out of which NUL characters were taken: 2 (the first is line 2).",
        "Rows in which broken characters became U+FFFD: 1 (the first is line 2).",
    ]


def test_formats_by_fields() -> None:
    assert formats_of({"messages": 1}) == ("chat",)
    assert formats_of({"instruction": 1, "output": 2, "messages": 3}) == ("chat", "alpaca")
    assert formats_of({"prompt": 1, "completion": 2, "x": 3}) == ("completion",)
    assert formats_of({"instruction": 1}) == ()
    assert formats_of([1]) == ()


def test_mend_text() -> None:
    assert mend_text("plain") == "plain"
    assert mend_text("a\0b") == "ab"
    assert mend_text("\udc00木\ud800\0") == "\ufffd木\ufffd"
    assert mend_text("\ufeffa🙂") == "\ufeffa🙂"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\n  b\tc", "a b c"),
        ("x" * 100, "x" * 79 + "…"),
        ("a" + " " * 1000, "a…"),
        ("\x1b[31mred\x00\x7f", "\ufffd[31mred\ufffd\ufffd"),
        ("\ud800", "\ufffd"),
        ({"a": Number("1.50")}, "{'a': 1.50}"),
        (None, "None"),
    ],
)
def test_clip_is_short_and_safe(value: object, shown: str) -> None:
    assert clip(value) == shown


def test_clip_bears_deep_and_huge_values() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(clip(deep)) <= 80
    assert len(clip({str(i): ["x" * 1000] * 1000 for i in range(1000)})) <= 80
