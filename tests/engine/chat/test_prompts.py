"""What is read and where answers end, against transformers' own tokenizer and template."""

import json
from pathlib import Path

import pytest
from support.chats import Chat, chat_model, full_tokenizer, peft_adapter
from support.tiny import save_tokenizer
from transformers import AutoTokenizer

from slidepack.engine.chat.contract import Ask, Message
from slidepack.engine.chat.prompts import end_ids, prompt_ids
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.export.stand_in import write_stand_in

DATED = (
    "{{ 'Today is ' + strftime_now('%d %b %Y') + '\n' }}{% for m in messages %}"
    "{{ '<|start|>' + m['role'] + '\n' + m['content'] + '<|pad|>\n' }}{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|start|>assistant\n' }}{% endif %}"
)
TALK = (
    Message(role="system", content="Be brief."),
    Message(role="user", content="Wie heißt du?"),
    Message(role="assistant", content="Slidepack."),
    Message(role="user", content="And since when? 世界"),
)


def _with_template(folder: Path, template: str | None) -> Path:
    model = chat_model(folder)
    save_tokenizer(model, template=template)
    full_tokenizer().save(str(model / "tokenizer.json"))
    return model


@pytest.mark.parametrize("tools", ["", '[{"type": "function", "function": {"name": "look"}}]'])
def test_a_conversation_is_rendered_as_transformers_does(tmp_path: Path, tools: str) -> None:
    model = _with_template(tmp_path / "model", DATED)
    ask = Ask(id="a", messages=TALK, tools=tools)
    ours = prompt_ids(ask, load_tokenizer(model), 301, 4096)
    judge = AutoTokenizer.from_pretrained(model)
    theirs = judge.apply_chat_template(
        [{"role": turn.role, "content": turn.content} for turn in TALK],
        tools=json.loads(tools) if tools else None,
        add_generation_prompt=True,
        return_dict=False,
    )
    assert ours == theirs


def test_the_token_that_ends_a_turn_in_the_template_ends_an_answer(tmp_path: Path) -> None:
    model = _with_template(tmp_path / "model", DATED)
    tokenizer = load_tokenizer(model)
    (pad,) = tokenizer.encode("<|pad|>")
    assert pad != tokenizer.eos_id
    assert end_ids(model, tokenizer) == {tokenizer.eos_id, pad}
    (model / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 8]}))
    assert end_ids(model, tokenizer) == {tokenizer.eos_id, pad, 7, 8}


def test_an_adapter_brings_the_template_that_it_was_trained_with(tmp_path: Path) -> None:
    model = _with_template(tmp_path / "model", None)
    own = "{% for m in messages %}{{ m['content'] + '|' }}{% endfor %}{{ '>' }}"
    peft_adapter(model, tmp_path / "tuned")
    write_stand_in(tmp_path / "tuned", own, frozenset())
    peft_adapter(model, tmp_path / "plain")
    chat = Chat(model, {"tuned": tmp_path / "tuned", "plain": tmp_path / "plain"})
    turn = Message(role="user", content="Hi")
    chat.engine.ask(Ask(id="a", voices=("tuned", "plain", "base"), messages=(turn,), max_tokens=4))
    chat.run()
    assert chat.done("a", "tuned").prompt_tokens == len("Hi|>")
    stand_in = len(chat.tokenizer.encode("### Instruction:\nHi\n\n### Response:\n"))
    assert chat.done("a", "plain").prompt_tokens == stand_in
    assert chat.done("a", "base").prompt_tokens == stand_in
