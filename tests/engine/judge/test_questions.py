"""Which rows a model is judged by, what is asked of each, and when answers are labels."""

from pathlib import Path

import pytest
from support.tiny import save_tokenizer

from slidepack.engine.data.masking import encode_prompt
from slidepack.engine.data.rows import ChatRow, CompletionRow, Row, TextRow, Turn
from slidepack.engine.data.split import Split
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.data.too_long import encode_rows
from slidepack.engine.judge.questions import JudgeRows, Questions


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    save_tokenizer(tmp_path)
    return load_tokenizer(tmp_path)


def _chat(number: int, answer: str, *before: Turn) -> ChatRow:
    asked = Turn("user", f"What is {number}?", False)
    return ChatRow(number, (*before, asked, Turn("assistant", answer)))


def _collect(
    tokenizer: ChatTokenizer, rows: list[tuple[Row, Split]], most: int = 32, limit: int = 200
) -> Questions:
    kept = JudgeRows(most)
    for row, split in rows:
        kept.see(row, split, encode_rows(row, tokenizer, limit))
    return kept.questions(tokenizer, limit, tokenizer.vocab_size)


def test_test_rows_are_asked_and_selection_rows_where_there_are_none(
    tokenizer: ChatTokenizer,
) -> None:
    rows: list[tuple[Row, Split]] = [(_chat(n, f"It is {n}"), "selection") for n in range(5)]
    assert _collect(tokenizer, rows).split == "selection"
    rows += [(_chat(n, f"It is {n}"), "test") for n in range(5, 9)]
    rows += [(_chat(n, f"It is {n}"), "train") for n in range(9, 20)]
    found = _collect(tokenizer, rows, most=3)
    assert (found.split, [row.line for row in found.rows]) == ("test", [5, 6, 7])
    assert _collect(tokenizer, rows, most=0).rows == ()


def test_the_prompt_is_what_stands_before_the_last_answer(tokenizer: ChatTokenizer) -> None:
    row = _chat(7, "seven", Turn("user", "Hello", False), Turn("assistant", "Hi"))
    (judged,) = _collect(tokenizer, [(row, "test")]).rows
    short = judged.short
    assert short is not None
    assert short.question == "What is 7?"
    text = tokenizer.decode(list(short.prompt), special=True)
    assert text == tokenizer.render(row.messages[:-1], prompt=True)
    assert tokenizer.decode(list(short.expected), special=True) == "seven<|end|>"
    # Training learns both answers of it.
    assert judged.samples[0].num_supervised > len(short.expected)
    plain = CompletionRow(1, "2 + 2 = ", "4")
    (judged,) = _collect(tokenizer, [(plain, "test")]).rows
    assert judged.short is not None
    assert list(judged.short.prompt) == encode_prompt(plain, tokenizer)


@pytest.mark.parametrize(
    "row",
    [
        _chat(1, "x" * 17),
        TextRow(1, "no question"),
        CompletionRow(1, " ", "yes"),
        ChatRow(1, (Turn("user", "a", False), Turn("assistant", "b", reasoning="c"))),
    ],
    ids=["long", "text", "nothing-asked", "reasoned"],
)
def test_what_has_no_short_answer_is_measured_by_its_tokens_alone(
    tokenizer: ChatTokenizer, row: Row
) -> None:
    kept = JudgeRows(4)
    samples = encode_rows(row, tokenizer, 200)
    if isinstance(row, ChatRow) and row.messages[-1].reasoning:
        # The tiny template drops what was thought, so training would leave this row out.
        samples = encode_rows(_chat(1, "b"), tokenizer, 200)
    kept.see(row, "test", samples)
    (judged,) = kept.questions(tokenizer, 200).rows
    assert judged.short is None
    assert judged.samples


def test_sixteen_tokens_are_short(tokenizer: ChatTokenizer) -> None:
    (judged,) = _collect(tokenizer, [(_chat(1, "x" * 16), "test")]).rows
    assert judged.short is not None


def test_few_answers_that_repeat_are_labels(tokenizer: ChatTokenizer) -> None:
    rows: list[tuple[Row, Split]] = [
        (_chat(n, ("good", "bad")[n % 2]), "test" if n < 4 else "train") for n in range(20)
    ]
    found = _collect(tokenizer, rows)
    assert found.labels == ("bad", "good")
    for row in found.rows:
        short = row.short
        assert short is not None
        assert short.label is not None
        ends = [one.ids[len(short.prompt) :] for one in short.candidates]
        assert ends[short.label] == short.expected
        assert [tokenizer.decode(list(end)) for end in ends] == ["bad", "good"]


@pytest.mark.parametrize(
    "answers",
    [
        ["same"] * 40,
        [f"{n}" for n in range(11)] * 10,
        ["good", "bad", "good"],
        ["good", "bad"] * 10 + ["A story that is much too long for a label, " * 3] * 4,
    ],
    ids=["one", "many", "rare", "mixed"],
)
def test_other_answers_are_free(tokenizer: ChatTokenizer, answers: list[str]) -> None:
    rows: list[tuple[Row, Split]] = [(_chat(n, one), "test") for n, one in enumerate(answers)]
    found = _collect(tokenizer, rows)
    assert found.labels == ()
    assert all(not row.short.candidates for row in found.rows if row.short)


def test_the_digest_is_of_all_that_is_asked(tokenizer: ChatTokenizer) -> None:
    rows: list[tuple[Row, Split]] = [(_chat(n, ("A", "B")[n % 2]), "test") for n in range(20)]
    digest = _collect(tokenizer, rows).digest
    assert _collect(tokenizer, rows).digest == digest
    assert _collect(tokenizer, rows, most=19).digest != digest
    assert _collect(tokenizer, [*rows, (_chat(20, "C"), "train")] * 4).digest != digest
    assert _collect(tokenizer, [(_chat(99, "A"), "test"), *rows[1:]]).digest != digest
