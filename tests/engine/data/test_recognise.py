"""Which family the rows of a file are, and what is asked where two fit."""

from typing import Any

import pytest

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.recognise import Decision, Recogniser
from slidepack.engine.data.rows import Format

TALK = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
SHARE = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
ALPACA = {"instruction": "i", "output": "o"}
COMPLETION = {"prompt": "p", "completion": "c"}


def _decide(*rows: Any) -> Decision:
    recogniser = Recogniser()
    for line, row in enumerate(rows, start=1):
        recogniser.see(line, row)
    return recogniser.decide()


def _error(*rows: Any) -> SlidepackError:
    decision = _decide(*rows)
    assert decision.error is not None, decision
    return decision.error


@pytest.mark.parametrize(
    ("row", "family"),
    [
        ({"messages": TALK}, "chat"),
        ({"messages": TALK, "tools": [], "parallel_tool_calls": True}, "chat"),
        ({"conversation": TALK, "turn": 1, "openai_moderation": [{"flagged": False}]}, "chat"),
        ({"anything at all": TALK, "n": 1}, "chat"),
        ({"conversations": TALK}, "chat"),
        ({"conversations": SHARE, "system": "s", "tools": "[]"}, "sharegpt"),
        ({"messages": SHARE}, "sharegpt"),
        ({"dialog_trace": SHARE, "id": "x"}, "sharegpt"),
        ({"prompt": "q", "prompt_id": "1", "messages": TALK}, "chat"),
        (ALPACA, "alpaca"),
        (ALPACA | {"input": "", "text": "i o"}, "alpaca"),
        (ALPACA | {"system": "s", "history": [["q", "a"]]}, "alpaca"),
        ({"instruction": "i", "context": "", "response": "r", "category": "open_qa"}, "alpaca"),
        ({"query": "q", "response": "r"}, "alpaca"),
        (COMPLETION, "completion"),
        ({"prompt": "p", "response": "r"}, "completion"),
        ({"prompt": TALK[:1], "completion": TALK[1:]}, "completion"),
        ({"question": "q", "answer": "a"}, "qa"),
        ({"Question": "q", "Answer": "a", "Unnamed: 0": "0"}, "qa"),
        ({"problem": "p", "generated_solution": "s", "expected_answer": "5"}, "qa"),
        ({"input": "q", "output": "a"}, "qa"),
        ({"id": "1", "system_prompt": "s", "question": "q", "response": "r"}, "qa"),
        ({"text": "t"}, "text"),
        ({"text": "t", "timestamp": "x", "url": "y"}, "text"),
        ({"input_ids": [1, 2], "labels": [-100, 2], "attention_mask": [1, 1]}, "tokens"),
        ({"input_ids": [1], "text": "t", "messages": TALK}, "tokens"),
        ({"prompt": "p", "chosen": TALK, "rejected": TALK, "messages": TALK}, "preference"),
        ({"system": "", "question": "q", "chosen": "a", "rejected": "b"}, "preference"),
        ({"input": "q", "preferred_output": "a", "non_preferred_output": "b"}, "preference"),
        ({"messages": TALK, "rejected_response": "no"}, "preference"),
        (COMPLETION | {"label": True}, "preference"),
        ({"messages": TALK, "kto_tag": False}, "preference"),
        ({"messages": TALK, "label": False}, "preference"),
        ({"messages": TALK, "label": "spam"}, "chat"),
        ({"chosen_messages": TALK, "rejected_messages": TALK}, "preference"),
    ],
)
def test_each_family_is_known_by_its_rows(row: dict[str, Any], family: Format) -> None:
    decision = _decide(row)
    assert (decision.family, decision.error) == (family, None)
    # The order of columns and other columns change nothing.
    other = {"zz": None, **dict(reversed(row.items())), "category": "secret"}
    assert _decide(other).family == family


def test_columns_that_are_null_do_not_count() -> None:
    # One table of everything: each row has all columns, most of them null.
    chat = {"messages": TALK, "prompt": None, "completion": None}
    text = {"messages": None, "prompt": "p", "completion": "c"}
    assert _decide(*[chat] * 200, text).family == "chat"
    assert _decide(*[chat] * 200, text).error is None
    assert _error(*[chat] * 20, text).report.code == "DATA-AMBIGUOUS"


@pytest.mark.parametrize(
    ("row", "family"),
    [
        ({"messages": None}, "chat"),
        ({"messages": []}, "chat"),
        ({"conversations": []}, "sharegpt"),
        ({"instruction": "i", "output": None}, "alpaca"),
        ({"prompt": "p", "completion": None}, "completion"),
        ({"text": None}, "text"),
    ],
)
def test_rows_without_content_are_known_by_name_where_nothing_else_is_there(
    row: dict[str, Any], family: Format
) -> None:
    assert _decide(row) == _decide(row)
    assert (_decide(row).family, _decide(row).error) == (family, None)
    assert _decide(*[row] * 5, {"question": "q", "answer": "a"}).family == "qa"


def test_the_two_ways_to_write_a_conversation_are_no_question() -> None:
    decision = _decide({"messages": TALK}, {"messages": TALK}, {"conversations": SHARE})
    assert (decision.family, decision.error) == ("chat", None)
    decision = _decide({"messages": TALK}, {"messages": SHARE}, {"conversations": SHARE})
    assert (decision.family, decision.error) == ("sharegpt", None)


@pytest.mark.parametrize(
    ("rows", "families"),
    [
        ([{"messages": TALK} | ALPACA] * 3, ["chat", "alpaca"]),
        ([{"messages": TALK} | COMPLETION] * 3, ["chat", "completion"]),
        ([ALPACA | {"question": "q", "answer": "a"}] * 3, ["alpaca", "qa"]),
        ([{"messages": TALK}] * 2 + [ALPACA] * 3, ["alpaca", "chat"]),
        ([{"conversations": SHARE}] * 3 + [{"text": "t"}], ["sharegpt", "text"]),
    ],
)
def test_two_families_are_a_question(rows: list[Any], families: list[str]) -> None:
    decision = _decide(*rows)
    assert [choice.family for choice in decision.choices] == families
    assert decision.family == families[0]
    assert decision.error is not None
    report = decision.error.report
    assert report.code == "DATA-AMBIGUOUS"
    assert f"--format {' or '.join(families)}" in report.fix
    for choice in decision.choices:
        assert f"{choice.family} {choice.rows}" in report.why


def test_one_row_in_a_hundred_is_no_question() -> None:
    rows = [{"messages": TALK}] * 199
    assert _decide(*rows, ALPACA).error is None
    assert _error(*rows[:98], ALPACA, ALPACA).report.code == "DATA-AMBIGUOUS"


@pytest.mark.parametrize(
    ("row", "maps"),
    [
        ({"problem": "p", "solution": "s", "answer": "5"}, ["answer=answer", "answer=solution"]),
        ({"question": "q", "problem": "p", "answer": "a"}, ["question=question"]),
        (ALPACA | {"response": "r"}, ["output=output", "output=response"]),
        ({"messages": TALK, "messages_de": TALK}, ["messages=messages", "messages=messages_de"]),
    ],
)
def test_two_columns_for_one_role_are_a_question(row: dict[str, Any], maps: list[str]) -> None:
    report = _error(*[row] * 5).report
    assert report.code == "DATA-AMBIGUOUS"
    for text in maps:
        assert f"--map {text}" in report.fix


@pytest.mark.parametrize("value", [{"a": 1}, [1], "text", None, 5, {}, {"instruction": "x"}])
def test_what_fits_nothing_is_shown(value: Any) -> None:
    report = _error(value, {"b": 2}).report
    assert report.code == "DATA-FORMAT-UNKNOWN"
    assert report.why.startswith("line 1 is ")
    assert "--map" in report.fix


def test_nested_and_mixed_columns_that_play_no_role_do_not_matter() -> None:
    rows: list[Any] = [
        {"question": "q", "answer": "a", "metadata": {"o_wiki_title": title}, "id": index}
        for index, title in enumerate(["Tower", 1984, None, ["x"], {"y": 1}])
    ]
    assert _decide(*rows).family == "qa"


def test_transcripts_in_one_text_are_refused_by_name() -> None:
    row = {
        "system": "SYSTEM: You are a helpful assistant with access to the following functions.",
        "chat": "USER: Book a flight.\n\n\nASSISTANT: I cannot. <|endoftext|>\n\n\nUSER: Why?",
    }
    assert _error(*[row] * 3).report.code == "DATA-TRANSCRIPT-UNSUPPORTED"
    assert _decide(*[row] * 3, {"messages": TALK}).family == "chat"
