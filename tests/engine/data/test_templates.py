"""Masks of well-known models' templates, judged by transformers' own assistant masks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chat_templates import PUBLISHED, SMOLLM2, save_chat_tokenizer, save_published, unmarked
from transformers import AutoTokenizer

from slidepack.engine.data.mask_check import mask_method
from slidepack.engine.data.masking import EncodedRow, encode_prompt
from slidepack.engine.data.rows import ChatRow, Reject, Turn
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.data.too_long import encode_rows

TOOLS = '[{"type": "function", "function": {"name": "weather", "parameters": {"x": 1}}}]'
CALLS = (
    '[{"type": "function", "id": "c1", "function": '
    '{"name": "weather", "arguments": "{\\"city\\": \\"Bern\\", \\"days\\": 2}"}}]'
)


def _user(text: str) -> Turn:
    return Turn("user", text, False)


def _answer(text: str, **more: Any) -> Turn:
    return Turn("assistant", text, **more)


TALKS = {
    "one answer": ChatRow(1, (_user("Hi"), _answer("hello there"))),
    "three answers": ChatRow(
        1,
        (_user("a"), _answer("hello"), _user("b\n\n"), _answer("木 🙂"), _user("c"), _answer("d")),
    ),
    "ends with a question": ChatRow(1, (_user("a"), _answer("b"), _user("c"))),
    "one answer is context": ChatRow(
        1, (_user("a"), _answer("wrong", train=False), _user("c"), _answer("right"))
    ),
}
SYSTEM = ChatRow(1, (Turn("system", "Be brief.", False), _user("a"), _answer("hello")))


def _messages(row: ChatRow, count: int) -> list[dict[str, Any]]:
    messages = []
    for turn in row.messages[:count]:
        message: dict[str, Any] = {"role": turn.role, "content": turn.content}
        if turn.reasoning:
            message["reasoning_content"] = turn.reasoning
        if turn.tool_calls:
            message["tool_calls"] = json.loads(turn.tool_calls)
            for call in message["tool_calls"]:
                call["function"]["arguments"] = json.loads(call["function"]["arguments"])
        messages.append(message)
    return messages


class Judge:
    """transformers, with a template that marks the answers."""

    def __init__(self, folder: Path, name: str) -> None:
        self._tokenizer: Any = AutoTokenizer.from_pretrained(
            save_published(folder, name, marks=True)
        )

    def judge(self, row: ChatRow, count: int) -> tuple[list[int], list[bool]]:
        """Return ids and mask of the first turns of a row."""
        found = self._tokenizer.apply_chat_template(
            _messages(row, count),
            tools=json.loads(row.tools) if row.tools else None,
            return_assistant_tokens_mask=True,
            return_dict=True,
        )
        return found["input_ids"], [bool(x) for x in found["assistant_masks"]]


def _accepted(row: ChatRow, tokenizer: ChatTokenizer) -> list[EncodedRow]:
    samples = encode_rows(row, tokenizer, 1 << 20)
    kept = [sample for sample in samples if isinstance(sample, EncodedRow)]
    assert kept == samples, samples
    return kept


def _runs(mask: list[bool]) -> list[tuple[int, int]]:
    """Return start and end of each stretch of learned tokens."""
    edges = [i for i in range(1, len(mask) + 1) if (i < len(mask) and mask[i]) != mask[i - 1]]
    return list(zip(edges[::2], edges[1::2], strict=True))


def _compare(row: ChatRow, sample: EncodedRow, judge: Judge, turns: list[int]) -> None:
    """Compare a sample that teaches the answers at `turns` with the judge."""
    ids, mask = judge.judge(row, turns[-1] + 1)
    assert list(sample.ids) == ids[: len(sample.ids)]
    answers = [i for i, turn in enumerate(row.messages) if turn.role == "assistant"]
    runs = dict(zip(answers, _runs(mask), strict=False))
    assert _runs(list(sample.supervised)) == [runs[turn] for turn in turns]


@pytest.mark.parametrize("marks", [False, True], ids=["headers", "marks"])
@pytest.mark.parametrize("talk", TALKS)
@pytest.mark.parametrize("name", [name for name in PUBLISHED if name != "Qwen3"])
def test_ids_and_masks_equal_transformers(
    tmp_path: Path, name: str, talk: str, marks: bool
) -> None:
    row = TALKS[talk]
    judge = Judge(tmp_path / "judge", name)
    tokenizer = load_tokenizer(save_published(tmp_path / "ours", name, marks=marks))
    assert mask_method(tokenizer) == ("generation marks" if marks else "headers")
    (sample,) = _accepted(row, tokenizer)
    trained = [i for i, t in enumerate(row.messages) if t.role == "assistant" and t.train]
    _compare(row, sample, judge, trained)
    prompt = encode_prompt(row, tokenizer)
    assert list(sample.ids[: len(prompt)]) == prompt


@pytest.mark.parametrize("marks", [False, True], ids=["headers", "marks"])
@pytest.mark.parametrize("talk", TALKS)
def test_answers_that_change_once_the_talk_goes_on_get_samples_of_their_own(
    tmp_path: Path, talk: str, marks: bool
) -> None:
    # Qwen 3 opens the last answer with a thought, be it empty, and only the last.
    row = TALKS[talk]
    judge = Judge(tmp_path / "judge", "Qwen3")
    tokenizer = load_tokenizer(save_published(tmp_path / "ours", "Qwen3", marks=marks))
    samples = _accepted(row, tokenizer)
    trained = [i for i, t in enumerate(row.messages) if t.role == "assistant" and t.train]
    assert len(samples) == len(trained)
    for sample, turn in zip(samples, trained, strict=True):
        _compare(row, sample, judge, [turn])


@pytest.mark.parametrize("form", ["in a field", "in the text"])
def test_thoughts_are_learned_where_they_are_thought_and_dropped_afterwards(
    tmp_path: Path, form: str
) -> None:
    def answer(thought: str, text: str) -> Turn:
        if form == "in a field":
            return _answer(text, reasoning=thought)
        return _answer(f"<think>\n{thought}\n</think>\n\n{text}")

    row = ChatRow(1, (_user("a"), answer("first", "x"), _user("b"), answer("second", "y")))
    tokenizer = load_tokenizer(save_published(tmp_path / "ours", "Qwen3", marks=False))
    judge = Judge(tmp_path / "judge", "Qwen3")
    first, second = _accepted(row, tokenizer)
    _compare(row, first, judge, [1])
    _compare(row, second, judge, [3])
    assert "first" in tokenizer.decode(list(first.ids))
    assert "first" not in tokenizer.decode(list(second.ids))
    assert _learned(second, tokenizer) == ["<think>\nsecond\n</think>\n\ny<|im_end|>"]


@given(
    st.lists(st.tuples(st.text(max_size=12), st.text(max_size=12), st.booleans()), min_size=1),
    st.sampled_from(["ChatML", "Llama 3", "Mistral", "Gemma", "Alpaca"]),
)
def test_whatever_is_said_only_answers_and_their_ends_are_learned(
    loaded: dict[str, ChatTokenizer], said: list[tuple[str, str, bool]], name: str
) -> None:
    turns = [
        turn for ask, say, train in said for turn in (_user(ask), Turn("assistant", say, train))
    ]
    tokenizer = loaded[name]
    (sample,) = encode_rows(ChatRow(1, tuple(turns)), tokenizer, 1 << 20)
    trimmed = name in ("Llama 3", "Gemma")
    expected = [
        (" " if name == "Mistral" else "") + (say.strip() if trimmed else say)
        for _, say, train in said
        if train
    ]
    if isinstance(sample, Reject):
        assert (sample.reason, expected) == ("nothing-to-learn", [])
        return
    assert tokenizer.markers is not None
    assert _learned(sample, tokenizer) == [text + tokenizer.markers.end for text in expected]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ChatTokenizer]:
    folder = tmp_path_factory.mktemp("published")
    return {
        name: load_tokenizer(save_published(folder / name, name, marks=False)) for name in PUBLISHED
    }


def _learned(sample: EncodedRow, tokenizer: ChatTokenizer) -> list[str]:
    return [
        tokenizer.decode(list(sample.ids[start:end]), special=True)
        for start, end in _runs(list(sample.supervised))
    ]


@pytest.mark.parametrize("name", ["Qwen2.5", "Qwen3"])
def test_tools_their_calls_and_what_they_say(tmp_path: Path, name: str) -> None:
    row = ChatRow(
        1,
        (
            Turn("system", "s", False),
            _user("Weather?"),
            _answer("", tool_calls=CALLS),
            Turn("tool", '{"sun": true}', False, tool_call_id="c1", name="weather"),
            _answer("Sun."),
        ),
        TOOLS,
    )
    judge = Judge(tmp_path / "judge", name)
    tokenizer = load_tokenizer(save_published(tmp_path / "ours", name, marks=False))
    samples = _accepted(row, tokenizer)
    learned = [text for sample in samples for text in _learned(sample, tokenizer)]
    assert len(learned) == 2
    # Arguments are an object, not JSON in a string.
    assert '{"name": "weather", "arguments": {"city": "Bern", "days": 2}}' in learned[0]
    assert learned[1].endswith("Sun.<|im_end|>")
    if name == "Qwen2.5":
        _compare(row, samples[0], judge, [2, 4])
    else:
        _compare(row, samples[0], judge, [2])
        _compare(row, samples[1], judge, [4])


@pytest.mark.parametrize(
    ("name", "row", "reason", "detail"),
    [
        ("Gemma", SYSTEM, "template-refused", "System role not supported"),
        (
            "Gemma",
            ChatRow(1, (_user("a"), _user("b"), _answer("c"))),
            "template-refused",
            "must alternate",
        ),
        (
            "Mistral",
            ChatRow(1, (_user("a"), _user("b"), _answer("c"))),
            "template-refused",
            "must alternate",
        ),
        (
            "Llama 3",
            ChatRow(1, (_user("a"), _answer("b", reasoning="because"))),
            "template-drops-text",
            "turn 2 (assistant): the prompt lacks its reasoning",
        ),
        (
            "Llama 3",
            ChatRow(1, (_user("a"), _answer("b", tool_calls=CALLS))),
            "template-drops-text",
            "turn 2 (assistant): the prompt lacks its tool calls",
        ),
        (
            "Llama 3",
            ChatRow(1, (_user("a"), _answer("b")), TOOLS),
            "template-drops-text",
            "the tool weather",
        ),
    ],
)
def test_what_a_template_has_no_place_for_is_refused(
    tmp_path: Path, name: str, row: ChatRow, reason: str, detail: str
) -> None:
    tokenizer = load_tokenizer(save_published(tmp_path, name, marks=False))
    (reject,) = encode_rows(row, tokenizer, 1000)
    assert isinstance(reject, Reject)
    assert reject.reason == reason
    assert detail in reject.detail


def test_mistral_merges_the_system_turn_into_the_first_question(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_published(tmp_path / "ours", "Mistral", marks=False))
    (sample,) = _accepted(SYSTEM, tokenizer)
    _compare(SYSTEM, sample, Judge(tmp_path / "judge", "Mistral"), [2])
    text = tokenizer.decode(list(sample.ids), special=True)
    assert text == "<s>[INST] Be brief.\n\na[/INST] hello</s>"
    assert text.count("<s>") == 1


def test_our_words_say_what_the_published_template_of_smollm2_says(
    tmp_path: Path, smollm2_folder: Path
) -> None:
    ours = load_tokenizer(
        save_chat_tokenizer(tmp_path, PUBLISHED["SmolLM2"].special, unmarked(SMOLLM2), "<|im_end|>")
    )
    original = load_tokenizer(smollm2_folder)
    for row in [*TALKS.values(), SYSTEM]:
        for prompt in (False, True):
            assert ours.render(row.messages, prompt=prompt) == original.render(
                row.messages, prompt=prompt
            )
