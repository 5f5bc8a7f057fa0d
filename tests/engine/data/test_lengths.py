"""Lengths against the limit, and what becomes of rows that are too long."""

import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.chat_templates import save_chat_tokenizer, save_published
from tokenizers import Tokenizer, processors

from slidepack.engine.contract.job import TooLong
from slidepack.engine.data.lengths import LengthBin, LengthReport, length_report
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.rows import ChatRow, CompletionRow, Reject, Row, TextRow, TokensRow, Turn
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.data.too_long import encode_rows


def _report(lengths: list[int], limit: int) -> LengthReport:
    return length_report(Counter(lengths), limit)


def test_a_report_counts_rows_and_tokens_over_the_limit() -> None:
    report = _report([10] * 96 + [100, 200, 300, 5000], 200)
    assert (report.rows, report.tokens, report.longest) == (100, 960 + 5600, 5000)
    assert (report.rows_over, report.tokens_over) == (2, 100 + 4800)
    assert (report.tokens_in_rows_over, report.shortest_over) == (5300, 300)
    assert report.share_of_rows_over == 0.02
    assert report.quantiles == {"p50": 10, "p90": 10, "p95": 10, "p99": 300}
    assert report.suggested == 320
    assert report.bins == tuple(
        LengthBin(upto, rows) for upto, rows in [(16, 96), (128, 1), (256, 1), (512, 1), (8192, 1)]
    )


def test_no_rows_are_no_lengths() -> None:
    report = length_report({}, 64)
    assert (report.rows, report.longest, report.suggested, report.bins) == (0, 0, 64, ())
    assert (report.rows_over, report.shortest_over) == (0, 0)
    assert report.share_of_rows_over == 0.0


@given(st.lists(st.integers(1, 10_000), min_size=1, max_size=200))
def test_the_suggestion_holds_99_percent_and_is_the_shortest_round_one(lengths: list[int]) -> None:
    report = _report(lengths, 512)

    def held(limit: int) -> float:
        return sum(length <= limit for length in lengths) / len(lengths)

    assert report.suggested % 64 == 0
    assert held(report.suggested) >= 0.99
    assert report.suggested == 64 or held(report.suggested - 64) < 0.99
    assert sum(bar.rows for bar in report.bins) == len(lengths)


@pytest.fixture
def tokenizer(tmp_path: Path) -> ChatTokenizer:
    return load_tokenizer(save_published(tmp_path, "ChatML", marks=False))


def _kept(row: Row, tokenizer: ChatTokenizer, limit: int, policy: TooLong) -> list[EncodedRow]:
    samples = encode_rows(row, tokenizer, limit, policy)
    kept = [sample for sample in samples if isinstance(sample, EncodedRow)]
    assert kept == samples, samples
    assert all(len(sample.ids) <= limit and sample.num_supervised for sample in kept)
    assert not any(sample.supervised[0] for sample in kept)
    return kept


def _dropped(row: Row, tokenizer: ChatTokenizer, limit: int, policy: TooLong) -> Reject:
    (reject,) = encode_rows(row, tokenizer, limit, policy)
    assert isinstance(reject, Reject)
    return reject


LONG_ANSWER = ChatRow(3, (Turn("user", "q", False), Turn("assistant", "x" * 100)))
LONG_QUESTION = ChatRow(3, (Turn("user", "q" * 100, False), Turn("assistant", "x")))


def test_long_rows_are_dropped_and_counted_where_nothing_else_is_wanted(
    tokenizer: ChatTokenizer,
) -> None:
    reject = _dropped(LONG_ANSWER, tokenizer, 64, "drop")
    assert (reject.line, reject.reason) == (3, "too-long")
    assert reject.detail.endswith("tokens, the limit is 64")


def test_cut_rows_keep_their_start(tokenizer: ChatTokenizer) -> None:
    (whole,) = _kept(LONG_ANSWER, tokenizer, 1000, "cut")
    (cut,) = _kept(LONG_ANSWER, tokenizer, 64, "cut")
    assert cut.ids == whole.ids[:64]
    assert cut.supervised == whole.supervised[:64]


def test_a_row_that_teaches_nothing_once_it_is_cut_is_dropped_and_names_the_limit(
    tokenizer: ChatTokenizer,
) -> None:
    reject = _dropped(LONG_QUESTION, tokenizer, 64, "cut")
    assert reject.reason == "too-long"
    assert reject.detail.endswith("nothing to learn in the first 64")


def _talk(exchanges: int, system: bool = True) -> ChatRow:
    turns = [Turn("system", "Be brief.", False)] if system else []
    for index in range(exchanges):
        turns += [Turn("user", f"q{index}", False), Turn("assistant", f"a{index}")]
    return ChatRow(9, tuple(turns))


@pytest.mark.parametrize("system", [True, False])
def test_conversations_are_divided_before_questions_and_each_part_has_the_system_turn(
    tokenizer: ChatTokenizer, system: bool
) -> None:
    row = _talk(20, system)
    (whole,) = _kept(row, tokenizer, 10_000, "split")
    parts = _kept(row, tokenizer, 120, "split")
    assert len(parts) > 3
    texts = [tokenizer.decode(list(part.ids), special=True) for part in parts]
    start = "<|im_start|>system\nBe brief.<|im_end|>\n" if system else ""
    assert all(text.startswith(f"{start}<|im_start|>user\nq") for text in texts)
    assert all(text.endswith("<|im_end|>") for text in texts)
    # Every answer is learned exactly once.
    assert sum(part.num_supervised for part in parts) == whole.num_supervised
    assert [f"a{i}<" in "".join(texts) for i in range(20)] == [True] * 20
    assert {part.line for part in parts} == {9}


@pytest.mark.full
def test_pieces_of_a_conversation_are_as_long_as_they_can_be(tokenizer: ChatTokenizer) -> None:
    row = _talk(200)
    for limit in (120, 333, 1000, 2048):
        pieces = _kept(row, tokenizer, limit, "split")
        # One exchange of these has no more than 56 characters, each of which is a token.
        assert all(len(piece.ids) > limit - 56 for piece in pieces[:-1])


def test_dividing_a_long_conversation_takes_few_renders(
    tokenizer: ChatTokenizer, tmp_path: Path
) -> None:
    class Counting(ChatTokenizer):
        renders = 0

        def render(self, messages: tuple[Turn, ...], *, prompt: bool, tools: str = "") -> str:
            self.renders += len(messages)
            return super().render(messages, prompt=prompt, tools=tools)

    folder = save_published(tmp_path / "counting", "ChatML", marks=False)
    counting = Counting(
        Tokenizer.from_file(str(folder / "tokenizer.json")),
        special_tokens={"eos_token": "<|im_end|>"},
        template_source=tokenizer.template_source,
    )
    turns = [Turn("user", "q", False), Turn("assistant", "a", False)] * 299
    row = ChatRow(1, (*turns, Turn("user", "q", False), Turn("assistant", "a")))
    assert isinstance(encode_rows(row, counting, 9000, "split")[-1], EncodedRow)
    assert counting.renders < 20 * len(row.messages)


def test_an_exchange_that_is_too_long_by_itself_is_dropped_alone(tokenizer: ChatTokenizer) -> None:
    row = ChatRow(4, (*_talk(1).messages, *LONG_ANSWER.messages, *_talk(1, False).messages))
    samples = encode_rows(row, tokenizer, 80, "split")
    assert [isinstance(sample, Reject) for sample in samples] == [False, False, True]
    reject = samples[-1]
    assert isinstance(reject, Reject)
    assert (reject.line, reject.reason) == (4, "too-long")


def test_a_call_and_what_the_tool_says_stay_with_the_question(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(save_published(tmp_path / "qwen", "Qwen2.5", marks=False))
    exchange = (
        Turn("user", "q", False),
        Turn("assistant", "look"),
        Turn("tool", "t", False),
        Turn("assistant", "a"),
        Turn("user", "more", False),
        Turn("user", "and more", False),
        Turn("assistant", "b"),
    )
    parts = _kept(ChatRow(1, exchange * 5), tokenizer, 260, "split")
    assert len(parts) > 3
    for part in parts:
        text = tokenizer.decode(list(part.ids), special=True)
        first = text.removeprefix("<|im_start|>system\nYou are Qwen. You help.<|im_end|>\n")
        assert first.startswith(("<|im_start|>user\nq<", "<|im_start|>user\nmore<"))


def test_a_prompt_and_its_completion_are_not_divided(tokenizer: ChatTokenizer) -> None:
    assert _dropped(CompletionRow(1, "p" * 80, "c" * 80), tokenizer, 64, "split").line == 1


@pytest.mark.parametrize("length", [64, 65, 127, 200, 1000])
def test_texts_are_divided_into_even_pieces_that_start_as_texts_do(
    tmp_path: Path, length: int
) -> None:
    folder = save_chat_tokenizer(tmp_path, ("<s>", "</s>"), None, "</s>", "<s>")
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    raw.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    text = "".join(random.Random(length).choices("bcdfg", k=length))
    pieces = _kept(TextRow(2, text), tokenizer, 64, "split")
    assert "".join(tokenizer.decode(list(piece.ids)) for piece in pieces) == text
    assert all(piece.ids[0] == 0 for piece in pieces)
    assert pieces[-1].ids[-1] == 1
    assert all(all(piece.supervised[1:]) for piece in pieces)
    sizes = [len(piece.ids) for piece in pieces]
    assert max(sizes) - min(sizes) < len(pieces)


def test_every_token_of_a_text_is_learned_and_its_end(tokenizer: ChatTokenizer) -> None:
    (sample,) = _kept(TextRow(1, "some text"), tokenizer, 64, "drop")
    assert tokenizer.decode(list(sample.ids), special=True) == "some text<|endoftext|>"
    assert sample.supervised == (False, *[True] * (len(sample.ids) - 1))
    assert _dropped(TextRow(1, ""), tokenizer, 64, "drop").reason == "nothing-to-learn"


def test_ready_made_tokens_keep_their_labels_and_stay_in_the_vocabulary(
    tokenizer: ChatTokenizer,
) -> None:
    (sample,) = _kept(TokensRow(1, (5, 6, 7), (True, False, True)), tokenizer, 64, "drop")
    assert (sample.ids, sample.supervised) == ((5, 6, 7), (False, False, True))
    top = tokenizer.vocab_size
    for odd in (top, -1):
        reject = _dropped(TokensRow(1, (5, odd), (True, True)), tokenizer, 64, "drop")
        assert reject.reason == "token-beyond-vocabulary"
        assert reject.detail == f"it holds token {odd}, the model's vocabulary ends at {top - 1}"
    row = TokensRow(1, tuple([7] * 200), tuple([False] * 100 + [True] * 100))
    pieces = _kept(row, tokenizer, 64, "split")
    assert [piece.num_supervised for piece in pieces] == [49, 49]
