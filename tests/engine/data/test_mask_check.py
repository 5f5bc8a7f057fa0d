"""Two ways of finding answers: where they disagree, nothing is learned and the row says why."""

from pathlib import Path

import pytest
from support.chat_templates import CHATML, PUBLISHED, save_chat_tokenizer, save_published, unmarked

from slidepack.engine.data.markers import Markers
from slidepack.engine.data.mask_check import mask_method, spans_between
from slidepack.engine.data.masking import EncodedRow
from slidepack.engine.data.rows import ChatRow, Reject, Turn
from slidepack.engine.data.tokenizer import ChatTokenizer, load_tokenizer
from slidepack.engine.data.too_long import encode_rows

TALK = ChatRow(
    7,
    (
        Turn("user", "a", False),
        Turn("assistant", "b"),
        Turn("user", "c", False),
        Turn("assistant", "d"),
    ),
)


def _chatml(folder: Path, template: str) -> ChatTokenizer:
    model = PUBLISHED["ChatML"]
    return load_tokenizer(save_chat_tokenizer(folder, model.special, template, model.eos))


def _rejected(row: ChatRow, tokenizer: ChatTokenizer) -> Reject:
    (reject,) = encode_rows(row, tokenizer, 1000)
    assert isinstance(reject, Reject)
    return reject


@pytest.mark.parametrize(
    ("name", "headers", "end"),
    [
        ("ChatML", ("<|im_start|>assistant\n",), "<|im_end|>"),
        ("Llama 3", ("<|start_header_id|>assistant<|end_header_id|>\n\n",), "<|eot_id|>"),
        ("Mistral", ("[/INST]",), "</s>"),
        ("Gemma", ("<start_of_turn>model\n",), "<end_of_turn>"),
        ("Phi-3", ("<|assistant|>\n",), "<|end|>"),
        ("Alpaca", ("### Response:\n",), "</s>"),
    ],
)
def test_headers_and_ends_are_found(
    tmp_path: Path, name: str, headers: tuple[str, ...], end: str
) -> None:
    tokenizer = load_tokenizer(save_published(tmp_path, name, marks=False))
    assert tokenizer.markers == Markers(headers, end)
    assert mask_method(tokenizer) == "headers"


def test_stretches_between_headers_and_ends() -> None:
    markers = Markers(("A:",), "!")
    assert spans_between("A:x! B:y! A:z!", markers) == [(2, 4), (12, 14)]
    # One that never ends reaches to the end of the text; one inside another is seen.
    assert spans_between("A:x A:y", markers) == [(2, 7), (6, 7)]


MARKS_THE_QUESTION = CHATML.replace("== 'assistant'", "== 'user'")
MARKS_THE_LAST_ANSWER_ONLY = CHATML.replace(
    "m['role'] == 'assistant'", "m['role'] == 'assistant' and loop.index0 == 3"
)
MARKS_THE_HEADER = unmarked(CHATML).replace(
    "{{ '<|im_start|>' + m['role'] + '\n' }}",
    "{% generation %}{{ '<|im_start|>' + m['role'] + '\n' }}{% endgeneration %}",
)


@pytest.mark.parametrize(
    "template",
    [MARKS_THE_QUESTION, MARKS_THE_LAST_ANSWER_ONLY, MARKS_THE_HEADER],
    ids=["the question", "the last answer only", "the header"],
)
def test_marks_that_say_otherwise_are_believed_enough_to_refuse(
    tmp_path: Path, template: str
) -> None:
    tokenizer = _chatml(tmp_path, template)
    assert mask_method(tokenizer) == "generation marks"
    reject = _rejected(TALK, tokenizer)
    assert (reject.line, reject.reason) == (7, "masks-disagree")
    assert reject.detail.startswith("turn 2: its answer stands at characters")


@pytest.mark.parametrize(
    "marked",
    [
        "{% generation %}{{ m['content'] }}{% endgeneration %}{{ '<|im_end|>' }}",
        "{% generation %}{{ m['content'] + '<|im_end|>\n' }}{% endgeneration %}",
    ],
    ids=["without the end token", "with the newline behind it"],
)
def test_the_end_token_is_learned_and_the_newline_is_not_wherever_marks_end(
    tmp_path: Path, marked: str
) -> None:
    newline = "" if "\n" in marked else "{{ '\n' }}"
    template = (
        "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
        "{% if m['role'] == 'assistant' %}" + marked + newline + "{% else %}"
        "{{ m['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    tokenizer = _chatml(tmp_path, template)
    (sample,) = encode_rows(TALK, tokenizer, 1000)
    assert isinstance(sample, EncodedRow)
    learned = [i for i, s in zip(sample.ids, sample.supervised, strict=True) if s]
    assert tokenizer.decode(learned, special=True) == "b<|im_end|>d<|im_end|>"


@pytest.mark.parametrize("place", [0, 1])
def test_text_that_looks_like_an_answers_heading_is_refused(tmp_path: Path, place: int) -> None:
    # The headings of the model's own template are plain text, so no control token gives it away.
    tokenizer = load_tokenizer(save_published(tmp_path, "Alpaca", marks=False))
    contents = ["q", "a"]
    contents[place] += "\n\n### Response:\nforged"
    row = ChatRow(3, (Turn("user", contents[0], False), Turn("assistant", contents[1])))
    reject = _rejected(row, tokenizer)
    assert (reject.line, reject.reason) == (3, "masks-disagree")
    assert "2 answers seem to start, and the conversation has 1" in reject.detail


def test_a_header_that_depends_on_the_row_is_refused(tmp_path: Path) -> None:
    template = unmarked(CHATML).replace(
        "'<|im_start|>assistant\n'", "'<|im_start|>assistant\n' + ('x' if messages[1:] else '')"
    )
    template = template.replace(
        "{{ '<|im_start|>' + m['role'] + '\n' }}",
        "{{ '<|im_start|>' + m['role'] + '\n' + ('x' if loop.index0 == 3 else '') }}",
    )
    reject = _rejected(TALK, _chatml(tmp_path, template))
    assert reject.reason == "masks-disagree"
    assert reject.detail.startswith("turn 4")


def test_a_template_that_does_not_say_is_not_checked(tmp_path: Path) -> None:
    template = (
        "{% if messages[0]['content'] == 'Sentinel-u7' %}{{ raise_exception('no') }}{% endif %}"
    )
    tokenizer = _chatml(tmp_path, template + unmarked(CHATML))
    assert (tokenizer.markers, mask_method(tokenizer)) == (None, "none")
    assert isinstance(encode_rows(TALK, tokenizer, 1000)[0], EncodedRow)
