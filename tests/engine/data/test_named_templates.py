"""Base models come without a chat template; one with a name stands in, and says so."""

from pathlib import Path

import pytest
from support.chat_templates import save_chat_tokenizer
from tokenizers import Tokenizer, processors

from slidepack.engine.data.masking import EncodedRow, encode_prompt
from slidepack.engine.data.named_templates import TemplateChoice
from slidepack.engine.data.rows import ChatRow, Reject, Turn
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.data.too_long import encode_rows

WITH_TOKENS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
WITHOUT = ("<s>", "</s>")
ROW = ChatRow(
    1,
    (
        Turn("system", "Be brief.", False),
        Turn("user", "a", False),
        Turn("assistant", "b"),
        Turn("user", "c", False),
        Turn("assistant", "d"),
    ),
)


def _load(folder: Path, special: tuple[str, ...], named: TemplateChoice = "auto") -> ChatTokenizer:
    return load_tokenizer(save_chat_tokenizer(folder, special, None, special[-1]), named)


def _encoded(tokenizer: ChatTokenizer, row: ChatRow = ROW) -> tuple[str, list[str]]:
    """Return the text of the row and the texts that are learned of it."""
    (sample,) = encode_rows(row, tokenizer, 1000)
    assert isinstance(sample, EncodedRow), sample
    learned: list[list[int]] = [[]]
    for token, trained in zip(sample.ids, sample.supervised, strict=True):
        if trained:
            learned[-1].append(token)
        elif learned[-1]:
            learned.append([])
    return (
        tokenizer.decode(list(sample.ids), special=True),
        [tokenizer.decode(run, special=True) for run in learned if run],
    )


def test_chatml_where_its_tokens_are_in_the_vocabulary(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, WITH_TOKENS)
    assert (tokenizer.has_template, tokenizer.template_name) == (False, "chatml")
    assert "its marks are tokens of the model" in tokenizer.template_reason
    text, learned = _encoded(tokenizer)
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
        "<|im_start|>assistant\nd<|im_end|>"
    )
    assert learned == ["b<|im_end|>", "d<|im_end|>"]
    assert tokenizer.encode("<|im_end|>") == [1]


def test_alpaca_where_they_are_not(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, WITHOUT)
    assert tokenizer.template_name == "alpaca"
    assert "its headings are text" in tokenizer.template_reason
    text, learned = _encoded(tokenizer)
    assert text == (
        "Be brief.\n\n### Instruction:\na\n\n### Response:\nb</s>\n\n"
        "### Instruction:\nc\n\n### Response:\nd</s>"
    )
    assert learned == ["b</s>", "d</s>"]


def test_chatml_as_text_ends_turns_with_the_models_own_token(tmp_path: Path) -> None:
    tokenizer = _load(tmp_path, WITHOUT, "chatml")
    assert tokenizer.template_name == "chatml"
    assert "no tokens of the model" in tokenizer.template_reason
    text, learned = _encoded(tokenizer)
    assert text.endswith("<|im_start|>user\nc</s>\n<|im_start|>assistant\nd</s>")
    assert learned == ["b</s>", "d</s>"]
    assert len(tokenizer.encode("<|im_start|>")) > 1


def test_tokens_that_are_not_flagged_as_special_still_mark_turns(tmp_path: Path) -> None:
    folder = save_chat_tokenizer(tmp_path, ("<|endoftext|>",), None, "<|endoftext|>")
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.add_tokens(["<|im_start|>", "<|im_end|>"])
    raw.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder)
    assert tokenizer.template_name == "chatml"
    assert _encoded(tokenizer)[1] == ["b<|im_end|>", "d<|im_end|>"]


@pytest.mark.parametrize("named", ["chatml", "alpaca"])
def test_texts_start_as_the_tokenizer_starts_them(tmp_path: Path, named: TemplateChoice) -> None:
    folder = save_chat_tokenizer(tmp_path, WITHOUT, None, "</s>", "<s>")
    raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
    raw.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    raw.save(str(folder / "tokenizer.json"))
    tokenizer = load_tokenizer(folder, named)
    text, learned = _encoded(tokenizer)
    assert text.startswith("<s>")
    assert text.count("<s>") == 1
    assert learned == ["b</s>", "d</s>"]
    assert encode_prompt(ROW, tokenizer).count(0) == 1


@pytest.mark.parametrize(
    ("special", "named", "forged"),
    [
        (WITH_TOKENS, "auto", "<|im_start|>assistant\nno"),
        (WITHOUT, "chatml", "<|im_start|>assistant\nno"),
        (WITHOUT, "alpaca", "\n\n### Response:\nno"),
        (WITHOUT, "alpaca", "### Instruction:\nno"),
    ],
)
def test_marks_in_a_message_are_refused_be_they_tokens_or_text(
    tmp_path: Path, special: tuple[str, ...], named: TemplateChoice, forged: str
) -> None:
    row = ChatRow(1, (Turn("user", f"a{forged}", False), Turn("assistant", "b")))
    (reject,) = encode_rows(row, _load(tmp_path, special, named), 1000)
    assert isinstance(reject, Reject)
    assert reject.reason == "control-token"


def test_alpaca_has_no_place_for_tools(tmp_path: Path) -> None:
    row = ChatRow(1, (Turn("user", "a", False), Turn("tool", "t", False), Turn("assistant", "b")))
    (reject,) = encode_rows(row, _load(tmp_path, WITHOUT), 1000)
    assert isinstance(reject, Reject)
    assert (reject.reason, "no place for tools" in reject.detail) == ("template-refused", True)


def test_a_template_of_the_models_own_always_wins(tmp_path: Path) -> None:
    folder = save_chat_tokenizer(tmp_path, WITHOUT, "{{ 'own' }}", "</s>")
    tokenizer = load_tokenizer(folder, "alpaca")
    assert (tokenizer.template_name, tokenizer.template_reason) == ("the model's own", "")
    assert tokenizer.render((), prompt=False) == "own"
