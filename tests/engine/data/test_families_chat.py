"""Conversations: what is taken, what is mended, what is refused and why."""

import json
from typing import Any

import pytest

from slidepack.engine.data.judge import Judge
from slidepack.engine.data.rows import ChatRow, Number, Reject, Row, Turn

_DECODER = json.JSONDecoder(parse_int=Number, parse_float=Number, parse_constant=Number)


def _judge(value: object, judge: Judge | None = None) -> Row | Reject:
    return (judge or Judge("chat")).judge(7, _DECODER.decode(json.dumps(value)))


def _talk(*turns: dict[str, Any]) -> Row | Reject:
    return _judge({"messages": list(turns)})


def _turns(*turns: dict[str, Any]) -> tuple[Turn, ...]:
    row = _talk(*turns)
    assert isinstance(row, ChatRow), row
    return row.messages


def _say(role: str, content: object, **more: object) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


USER = _say("user", "q")
ANSWER = _say("assistant", "a")


def _reason(row: Row | Reject) -> str:
    assert isinstance(row, Reject), row
    assert row.line == 7
    assert row.detail
    assert "\n" not in row.detail
    return row.reason


def test_every_role_is_taken() -> None:
    turns = _turns(_say("developer", "d"), _say("System", "s"), USER, _say("tool", "t"), ANSWER)
    assert turns == (
        Turn("system", "d", False),
        Turn("system", "s", False),
        Turn("user", "q", False),
        Turn("tool", "t", False),
        Turn("assistant", "a", True),
    )


@pytest.mark.parametrize(
    ("name", "role"),
    [
        *((name, "user") for name in ("human", "user", "input", "Human")),
        *(
            (name, "assistant")
            for name in ("gpt", "assistant", "model", "bot", "chatgpt", "bing", "bard", "output")
        ),
        *((name, "tool") for name in ("tool", "observation", "function")),
        ("system", "system"),
    ],
)
def test_speakers_of_sharegpt_have_many_names(name: str, role: str) -> None:
    talk = [
        {"from": name, "value": "x"},
        {"from": "human", "value": "q"},
        {"from": "gpt", "value": "a"},
    ]
    row = Judge("sharegpt").judge(7, {"conversations": talk})
    assert isinstance(row, ChatRow)
    assert [turn.role for turn in row.messages] == [role, "user", "assistant"]


def test_columns_beside_a_conversation() -> None:
    talk = [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]
    tools = [{"name": "f", "parameters": {"n": 1.50}}]
    row = _judge({"conversations": talk, "system": "s", "tools": json.dumps(tools)})
    assert isinstance(row, ChatRow)
    assert row.messages[0] == Turn("system", "s", False)
    assert json.loads(row.tools) == tools
    row = _judge({"conversations": talk, "system": " ", "tools": "[]"})
    assert isinstance(row, ChatRow)
    assert (len(row.messages), row.tools) == (2, "")
    # The conversation's own system turn stands, and the other is told of.
    judge = Judge("chat")
    row = _judge({"messages": [_say("system", "own"), USER, ANSWER], "system": "s"}, judge)
    assert isinstance(row, ChatRow)
    assert [turn.content for turn in row.messages] == ["own", "q", "a"]
    assert judge.ignored() == ["system (beside a system turn)"]


@pytest.mark.parametrize("tools", ["{", "[1]", 5, {"a": 1}, '{"name": "f"}'])
def test_tools_that_are_no_list_of_tools(tools: object) -> None:
    assert _reason(_judge({"messages": [USER, ANSWER], "tools": tools})) == "bad-tools"


def test_calls_of_tools_are_kept_as_json() -> None:
    arguments = {"id": 1, "x": "1", "y": [1.50, None, {"z": True}], "n": 10**30}
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": arguments}}
    turns = _turns(
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        _say("tool", "4", tool_call_id="c1", name="f"),
        ANSWER,
    )
    assert json.loads(turns[1].tool_calls) == [call]
    assert "1.5," in turns[1].tool_calls
    assert turns[1].train
    assert turns[2] == Turn("tool", "4", False, tool_call_id="c1", name="f")
    # ShareGPT's way, and OpenAI's older one.
    text = json.dumps({"name": "f", "arguments": arguments})
    share = [
        {"from": "human", "value": "q"},
        {"from": "function_call", "value": text},
        {"from": "observation", "value": "4"},
        {"from": "gpt", "value": "a"},
    ]
    row = Judge("sharegpt").judge(7, {"conversations": share})
    assert isinstance(row, ChatRow)
    older = {"role": "assistant", "content": "", "function_call": json.loads(text)}
    for turn in (row.messages[1], _turns(USER, older)[1]):
        (made,) = json.loads(turn.tool_calls)
        assert made == {"type": "function", "function": call["function"]}
        assert turn.content == ""


@pytest.mark.parametrize(
    "calls", [[{"a": 1}], [5], 7, "{", {"name": "f"}, [{"function": {"name": 5}}], [None]]
)
def test_calls_that_name_no_function(calls: object) -> None:
    assert _reason(_talk(USER, _say("assistant", "a", tool_calls=calls))) == "bad-tool-calls"


def test_reasoning_is_kept_apart() -> None:
    for name in ("reasoning_content", "reasoning", "thinking"):
        assert _turns(USER, ANSWER | {name: "because"})[1].reasoning == "because"
    assert _turns(USER, ANSWER | {"reasoning_content": None})[1].reasoning == ""
    assert _turns(USER, _say("assistant", "<think>x</think>a"))[1].content == "<think>x</think>a"


def test_thoughts_and_calls_may_be_parts_of_the_content() -> None:
    call = {"name": "f", "arguments": {"x": 1}}
    for value in (call, json.dumps(call)):
        parts = [
            {"type": "reasoning", "value": "because"},
            {"type": "text", "value": "a"},
            {"type": "tool_call", "value": value},
        ]
        turn = _turns(USER, _say("assistant", parts))[1]
        assert (turn.reasoning, turn.content) == ("because", "a")
        assert json.loads(turn.tool_calls) == [{"type": "function", "function": call}]
        assert _reason(_talk(_say("user", parts), ANSWER)) == "bad-content"
    thinking = [{"type": "thinking", "thinking": "because"}, {"type": "text", "text": "a"}]
    assert _turns(USER, _say("assistant", thinking))[1].reasoning == "because"
    for bad in ("{", 5, None, {"name": 1}):
        row = _talk(USER, _say("assistant", [{"type": "tool_call", "value": bad}]))
        assert _reason(row) == "bad-tool-calls"


def test_two_of_one_role_and_an_answer_that_comes_first_are_kept() -> None:
    turns = _turns(ANSWER, USER, _say("user", "again"), ANSWER, _say("assistant", "b"))
    assert [turn.content for turn in turns] == ["a", "q", "again", "a", "b"]
    assert [turn.train for turn in turns] == [True, False, False, True, True]


def test_what_nobody_answers_is_left_out_and_counted() -> None:
    judge = Judge("chat")
    row = _judge({"messages": [USER, ANSWER, _say("user", "bye"), _say("tool", "")]}, judge)
    assert isinstance(row, ChatRow)
    assert [turn.content for turn in row.messages] == ["q", "a"]
    assert dict(judge.repairs) == {"trailing-user-turn": 1}
    assert judge.repaired == 1


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
    first = _say("assistant", "first", **marks)
    assert [turn.train for turn in _turns(USER, first, USER, ANSWER)] == [
        False, trained, False, True,
    ]  # fmt: skip
    # Readers may also give plain numbers.
    row = Judge("chat").judge(7, {"messages": [USER, first, USER, ANSWER]})
    assert isinstance(row, ChatRow)
    assert row.messages[1].train == trained


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
    assert _reason(_talk(USER, _say("assistant", "a", **marks))) == "bad-weight"


def test_content_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a "}, {"type": "text", "text": "b"}, None]
    assert _turns(_say("user", parts), ANSWER)[0].content == "a b"
    # LLaMA-Factory says `value`.
    assert _turns(_say("user", [{"type": "text", "value": "c"}]), ANSWER)[0].content == "c"


def test_a_list_may_stand_in_a_table_of_texts() -> None:
    judge = Judge("chat")
    row = _judge({"messages": json.dumps([USER, ANSWER])}, judge)
    assert isinstance(row, ChatRow)
    assert dict(judge.repairs) == {"json-in-text": 1}
    assert _reason(_judge({"messages": "[{"})) == "no-messages"


@pytest.mark.parametrize(
    "content",
    [
        *(None, [], [None], "", "  \n\t", "\u200b", "\ufeff\u200c \u200d\u2060", "\0\0"),
        [{"type": "text", "text": "  "}],
    ],
)
def test_turns_that_say_nothing_are_refused_by_number(content: object) -> None:
    row = _talk(USER, _say("assistant", content))
    assert _reason(row) == "empty-answer"
    assert isinstance(row, Reject)
    assert "turn 2" in row.detail
    row = _talk(USER, ANSWER, _say("user", content), ANSWER)
    assert _reason(row) == "empty-turn"
    assert isinstance(row, Reject)
    assert "turn 3" in row.detail
    # A tool may have nothing to say, and so may a system turn.
    assert _turns(_say("system", content), USER, _say("tool", content), ANSWER)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (["a"], "bad-content"),
        ([{"type": "image_url", "image_url": "x"}, {"type": "text", "text": "a"}], "media"),
        ([{"type": "input_audio", "input_audio": {}}], "media"),
        ([{"type": "text", "text": None}], "bad-content"),
        ([{"type": ["text"], "text": "a"}], "bad-content"),
        ({"text": "a"}, "bad-content"),
        (True, "bad-content"),
        (float("nan"), "bad-content"),
    ],
)
def test_content_that_is_no_text_is_refused(content: object, reason: str) -> None:
    assert _reason(_talk(USER, _say("assistant", content))) == reason


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
        ({"messages": "hello"}, "no-messages"),
        ({"messages": {"role": "user"}}, "no-messages"),
        ({"messages": ["a"]}, "bad-message"),
        ({"messages": [None]}, "bad-message"),
        ({"messages": [{}]}, "unknown-role"),
        ({"messages": [_say("robot", "a")]}, "unknown-role"),
        ({"messages": [{"role": ["user"], "content": "a"}]}, "unknown-role"),
        ({"messages": [{"role": {"a": 1}, "content": "a"}]}, "unknown-role"),
        ({"messages": [USER]}, "no-answer"),
        ({"messages": [USER, ANSWER | {"weight": 0}]}, "no-answer"),
    ],
)
def test_conversations_that_cannot_be_learned(value: object, reason: str) -> None:
    assert _reason(_judge(value)) == reason


def test_parts_of_messages_that_no_prompt_sees_are_listed() -> None:
    judge = Judge("chat")
    turn = ANSWER | {"name": "x", "audio": {"id": 1}, "refusal": None}
    _judge({"messages": [USER, turn]}, judge)
    assert judge.ignored() == ["messages[].audio", "messages[].name"]


def test_what_is_said_as_text_is_read() -> None:
    turns = _turns({"role": "user", "text": "q"}, {"from": "gpt", "text": "a"})
    assert turns == (Turn("user", "q", False), Turn("assistant", "a"))


def test_what_a_turn_says_beside_its_content_is_listed() -> None:
    judge = Judge("chat")
    user = {"role": "user", "content": "q", "value": "r", "text": "s", "from": "gpt"}
    answer = _say("assistant", "a", reasoning="t", thinking=["u"], reasoning_content=None)
    row = _judge({"messages": [user, answer]}, judge)
    assert isinstance(row, ChatRow)
    assert row.messages == (Turn("user", "q", False), Turn("assistant", "a", reasoning="t"))
    listed = [f"messages[].{name}" for name in ("from", "text", "thinking", "value")]
    assert judge.ignored() == listed
    # The same thought under two names is one.
    same = Judge("chat")
    _judge({"messages": [USER, _say("assistant", "a", reasoning="t", thinking="t")]}, same)
    assert same.ignored() == []


def test_nan_in_a_call_becomes_null_and_is_counted() -> None:
    judge = Judge("chat")
    calls = [{"function": {"name": "f", "arguments": {"x": float("nan"), "y": 1.50}}}]
    row = _judge({"messages": [USER, _say("assistant", None, tool_calls=calls)]}, judge)
    assert isinstance(row, ChatRow)
    assert '{"x":null,"y":1.5}' in row.messages[1].tool_calls
    assert judge.repairs == {"nan": 1}
