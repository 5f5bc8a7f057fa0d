"""Rows of one question, one text or one list of tokens."""

import json
from typing import Any

import pytest

from slidepack.engine.data.judge import Judge
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Format,
    Number,
    Reject,
    Row,
    TextRow,
    TokensRow,
    Turn,
    decode_row,
    encode_row,
    first_question,
)

_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)


def _judge(family: Format, value: object) -> Row | Reject:
    row = Judge(family).judge(7, _DECODER.decode(json.dumps(value)))
    if not isinstance(row, Reject):
        assert decode_row(encode_row(row)) == row
    return row


def _chat(*texts: str) -> ChatRow:
    turns = [
        Turn("assistant", text) if index % 2 else Turn("user", text, False)
        for index, text in enumerate(texts)
    ]
    return ChatRow(7, tuple(turns))


@pytest.mark.parametrize(
    ("fields", "question"),
    [
        ({}, "Add."),
        ({"input": None}, "Add."),
        ({"input": ""}, "Add."),
        ({"input": " \n"}, "Add."),
        ({"input": "1+1"}, "Add.\n\n1+1"),
        ({"input": 12}, "Add.\n\n12"),
        ({"input": 1.50, "id": 1, "text": "all of it"}, "Add.\n\n1.5"),
    ],
)
def test_alpaca_questions(fields: dict[str, Any], question: str) -> None:
    assert _judge("alpaca", {"instruction": "Add.", "output": "2", **fields}) == _chat(
        question, "2"
    )


def test_alpaca_system_history_and_blank_instruction() -> None:
    row = _judge("alpaca", {"instruction": "", "input": "x", "output": "y", "system": "s"})
    assert isinstance(row, ChatRow)
    assert row.messages == (Turn("system", "s", False), *_chat("x", "y").messages)
    assert _judge("alpaca", {"instruction": "x", "output": "y", "system": " "}) == _chat("x", "y")
    history = [["a", "b"], ["c", "d"]]
    row = _judge("alpaca", {"instruction": "x", "output": "y", "history": history})
    assert row == _chat("a", "b", "c", "d", "x", "y")
    row = _judge("alpaca", {"instruction": "x", "output": "y", "history": []})
    assert row == _chat("x", "y")


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"output": None}, "no-answer"),
        ({"output": ["a"]}, "not-text"),
        ({"output": {"answer": "a", "score": 1, "actions": []}}, "not-text"),
        ({"output": True}, "not-text"),
        ({"output": float("nan")}, "not-text"),
        ({"output": float("-inf")}, "not-text"),
        ({"output": " "}, "empty-answer"),
        ({"instruction": None}, "no-question"),
        ({"instruction": ["a"]}, "not-text"),
        ({"instruction": " ", "input": ""}, "no-question"),
        ({"input": ["a"]}, "not-text"),
        ({"system": True}, "not-text"),
        ({"history": "x"}, "bad-history"),
        ({"history": [["a"]]}, "bad-history"),
        ({"history": [["a", ""]]}, "bad-history"),
        ({"history": [["a", None]]}, "bad-history"),
    ],
)
def test_alpaca_rows_that_cannot_be_learned(fields: dict[str, Any], reason: str) -> None:
    row = _judge("alpaca", {"instruction": "a", "output": "b"} | fields)
    assert isinstance(row, Reject)
    assert row.reason == reason


@pytest.mark.parametrize("written", ["42", "-0", "1.50", "1E5", "0.10", "9" * 5000])
def test_numbers_stay_as_they_are_written(written: str) -> None:
    judge = Judge("completion")
    row = judge.judge(3, {"prompt": "p", "completion": Number(written)})
    assert row == CompletionRow(3, "p", written)
    assert judge.notes() == ["Rows in which a number was taken as text: 1 (the first is line 3)."]


def test_whole_numbers_of_readers_are_numbers_and_truth_is_none() -> None:
    row = Judge("completion").judge(3, {"prompt": 5, "completion": 10**20})
    assert row == CompletionRow(3, "5", "1" + "0" * 20)
    assert isinstance(Judge("completion").judge(3, {"prompt": "p", "completion": False}), Reject)


def test_completions_keep_white_space() -> None:
    row = _judge("completion", {"prompt": " \n a\t", "completion": "  b \n\n", "extra": 1})
    assert row == CompletionRow(7, " \n a\t", "  b \n\n")
    assert _judge("completion", {"prompt": "", "completion": "b"}) == CompletionRow(7, "", "b")
    assert _judge("completion", {"prompt": "a", "response": "b"}) == CompletionRow(7, "a", "b")


def test_a_conversation_in_two_parts_learns_the_second() -> None:
    prompt = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    more = [{"role": "user", "content": "r"}]
    completion = [{"role": "assistant", "content": "b"}]
    row = _judge("completion", {"prompt": prompt + more, "completion": completion})
    assert isinstance(row, ChatRow)
    assert [turn.content for turn in row.messages] == ["q", "a", "r", "b"]
    assert [turn.train for turn in row.messages] == [False, False, False, True]
    row = _judge("completion", {"prompt": prompt, "completion": more})
    assert isinstance(row, Reject)
    assert row.reason == "no-answer"


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
    row = _judge("completion", value)
    assert isinstance(row, Reject)
    assert row.reason == reason


def test_questions_and_answers() -> None:
    assert _judge("qa", {"question": "q", "answer": 4}) == _chat("q", "4")
    row = _judge("qa", {"question": "q", "context": "c", "answer": "a", "system": "s"})
    assert isinstance(row, ChatRow)
    assert row.messages == (Turn("system", "s", False), *_chat("c\n\nq", "a").messages)
    # Synonyms are taken row by row, the first that is filled.
    judge = Judge("qa")
    assert judge.judge(7, {"question": None, "problem": "p", "answer": "a"}) == _chat("p", "a")
    assert judge.judge(7, {"question": "q", "problem": None, "answer": "a"}) == _chat("q", "a")
    assert judge.ignored() == []
    for fields in ({"question": " "}, {"question": None}, {"answer": None}, {"answer": ["a"]}):
        assert isinstance(_judge("qa", {"question": "q", "answer": "a"} | fields), Reject)


def test_text_alone_asks_nothing() -> None:
    row = _judge("text", {"text": "a"})
    assert not isinstance(row, Reject)
    assert first_question(row) == ""


def test_plain_texts_are_kept_as_they_are() -> None:
    assert _judge("text", {"text": " a\n\n b "}) == TextRow(7, " a\n\n b ")
    for empty in (None, "", " \u200b"):
        row = _judge("text", {"text": empty})
        assert isinstance(row, Reject)
        assert row.reason == "empty-text"
    assert isinstance(_judge("text", {"text": ["a"]}), Reject)


def test_tokens_with_and_without_labels() -> None:
    assert _judge("tokens", {"input_ids": [5, 6]}) == TokensRow(7, (5, 6), (True, True))
    row = _judge("tokens", {"input_ids": [5, 6, 7], "labels": [-100, 6, 7]})
    assert row == TokensRow(7, (5, 6, 7), (False, True, True))
    padded = {"input_ids": [5, 6, 0], "labels": [-100, 6, -100], "attention_mask": [1, 1, 0]}
    assert _judge("tokens", padded) == TokensRow(7, (5, 6), (False, True))
    row = Judge("tokens").judge(7, {"input_ids": [5], "labels": None, "attention_mask": [1]})
    assert row == TokensRow(7, (5,), (True,))


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"input_ids": []}, "empty-text"),
        ({"input_ids": None}, "bad-tokens"),
        ({"input_ids": "5 6"}, "bad-tokens"),
        ({"input_ids": [1, "2"]}, "bad-tokens"),
        ({"input_ids": [1, 2.5]}, "bad-tokens"),
        ({"input_ids": [-1, 2]}, "bad-tokens"),
        ({"labels": [1]}, "bad-tokens"),
        ({"labels": [1, 3]}, "bad-tokens"),
        ({"labels": [-100, -100]}, "no-answer"),
        ({"attention_mask": [1]}, "bad-tokens"),
        ({"attention_mask": [1, 2]}, "bad-tokens"),
        ({"attention_mask": [0, 0]}, "empty-text"),
    ],
)
def test_tokens_that_cannot_be_learned(fields: dict[str, Any], reason: str) -> None:
    row = _judge("tokens", {"input_ids": [1, 2]} | fields)
    assert isinstance(row, Reject)
    assert row.reason == reason


def test_dates_stay_strings_and_broken_text_is_mended_and_counted() -> None:
    judge = Judge("completion")
    assert judge.judge(1, {"prompt": "p", "completion": "2024-01-01"}) == CompletionRow(
        1, "p", "2024-01-01"
    )
    assert judge.notes() == []
    assert judge.judge(2, {"prompt": "a\0", "completion": "x\ud83dy"}) == CompletionRow(
        2, "a", "x\ufffdy"
    )
    judge.judge(3, {"prompt": "\0", "completion": ""})
    judge.judge(4, {"prompt": "\0", "completion": "honest \ufffd"})
    assert judge.notes() == [
        "Rows out of which NUL characters were taken: 2 (the first is line 2).",
        "Rows in which broken characters became U+FFFD: 1 (the first is line 2).",
    ]
    assert judge.repaired == 2


def test_preference_pairs_are_rejected_by_name() -> None:
    row = _judge("preference", {"prompt": "p", "chosen": "a", "rejected": "b"})
    assert isinstance(row, Reject)
    assert row.reason == "preference-pair"


@pytest.mark.parametrize(
    "word", ["Noinput", "<noinput>", "<No input>", " noinput.\n", "NO_INPUT", "[no input]"]
)
def test_a_word_for_no_input_is_none_and_counted(word: str) -> None:
    judge = Judge("alpaca")
    row = judge.judge(7, {"instruction": "Add.", "input": word, "output": "2"})
    assert row == _chat("Add.", "2")
    assert judge.repairs == {"no-input": 1}
    assert "input only says that there is none" in judge.notes()[0]
    row = judge.judge(8, {"instruction": "", "input": word, "output": "2"})
    assert isinstance(row, Reject)
    assert row.reason == "no-question"


@pytest.mark.parametrize("text", ["None", "N/A", "no inputs", "What is noinput?", "no"])
def test_other_short_inputs_are_kept(text: str) -> None:
    row = _judge("alpaca", {"instruction": "Add.", "input": text, "output": "2"})
    assert row == _chat(f"Add.\n\n{text}", "2")


def test_a_history_in_a_table_of_texts_is_read() -> None:
    judge = Judge("alpaca")
    row = {"instruction": "c", "output": "d"}
    assert judge.judge(7, row | {"history": "[]"}) == _chat("c", "d")
    assert judge.judge(7, row | {"history": '[["a", "b"]]'}) == _chat("a", "b", "c", "d")
    assert judge.repairs == {"json-in-text": 2}
    for bad in ('[["a", "b"]', '[["a"]]', "none"):
        found = judge.judge(7, row | {"history": bad})
        assert isinstance(found, Reject)
        assert found.reason == "bad-history"


def test_truth_is_a_mask_and_no_token() -> None:
    masked = {"input_ids": [0, 5, 6], "attention_mask": [False, True, True]}
    assert _judge("tokens", masked) == TokensRow(7, (5, 6), (True, True))
    for fields in ({"input_ids": [True, False]}, {"input_ids": [1, 0], "labels": [True, False]}):
        row = _judge("tokens", fields)
        assert isinstance(row, Reject)
        assert row.reason == "bad-tokens"
