"""Tokenizer files of every vintage, and templates as `transformers` reads them."""

import json
from pathlib import Path
from typing import Any

import pytest
from support.tiny import TEMPLATE, byte_tokenizer, save_tokenizer
from transformers import AutoTokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Turn
from slidepack.engine.data.tokenizer import load_tokenizer

TURNS = (Turn("system", "Be 'kind' <&>."), Turn("user", "Hi"), Turn("assistant", "Yo"))


def _write(folder: Path, **config: Any) -> Path:
    save_tokenizer(folder)
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | config))
    return folder


@pytest.mark.parametrize(
    "template",
    [
        TEMPLATE,
        "{% for m in messages %}{{ m | tojson }}\n{% endfor %}",
        "{{ messages | tojson(indent=2) }}{{ messages | tojson(separators=(',', ':')) }}",
        "{% if tools is not none %}tools{% endif %}{% if documents is not none %}d{% endif %}x",
        "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
        "  {% for m in messages %}\n    {{ m.role }}\n  {% endfor %}\n",
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}",
        "{{ bos_token }}{{ eos_token }}{{ unk_token }}{% if pad_token is defined %}p{% endif %}",
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}"
        "{{ ns.n }}{{ strftime_now('%Y') }}",
    ],
)
@pytest.mark.parametrize("prompt", [False, True])
def test_templates_render_as_in_transformers(tmp_path: Path, template: str, prompt: bool) -> None:
    folder = _write(tmp_path, chat_template=template, bos_token="<|start|>")
    judge = AutoTokenizer.from_pretrained(folder)
    messages = [{"role": turn.role, "content": turn.content} for turn in TURNS]
    expected = judge.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert load_tokenizer(folder).render(TURNS, prompt=prompt) == expected


def test_a_saved_cut_off_or_padding_is_not_obeyed(tmp_path: Path) -> None:
    raw = byte_tokenizer()
    raw.enable_truncation(4)
    raw.enable_padding(length=8)
    folder = _write(tmp_path)
    raw.save(str(folder / "tokenizer.json"))
    assert len(load_tokenizer(folder).encode("x" * 50)) == 50
    assert len(load_tokenizer(folder).encode("x")) == 1


def test_special_tokens_may_be_objects(tmp_path: Path) -> None:
    folder = _write(tmp_path, eos_token={"content": "<|pad|>", "lstrip": False}, pad_token=None)
    assert (load_tokenizer(folder).eos_token, load_tokenizer(folder).eos_id) == ("<|pad|>", 2)


def test_named_templates_take_the_default_and_a_file_of_its_own_wins(tmp_path: Path) -> None:
    named = [{"name": ["odd"]}, "odd", {"name": "default", "template": "named"}]
    folder = _write(tmp_path, chat_template=named)
    assert load_tokenizer(folder).render((), prompt=False) == "named"
    (folder / "chat_template.jinja").write_text("file")
    assert load_tokenizer(folder).render((), prompt=False) == "file"
    (folder / "chat_template.jinja").unlink()
    for none in ([], [{"name": "rag", "template": "x"}], "", None, 5):
        assert not load_tokenizer(_write(tmp_path, chat_template=none)).has_template


@pytest.mark.parametrize(
    ("file", "content"),
    [
        ("tokenizer.json", None),
        ("tokenizer.json", b"{}"),
        ("tokenizer.json", b"\xff\xfe"),
        ("tokenizer_config.json", None),
        ("tokenizer_config.json", b"[]"),
        ("tokenizer_config.json", b"{"),
        ("tokenizer_config.json", b"[" * 100_000),
        ("tokenizer_config.json", b"{}"),
        ("tokenizer_config.json", b'{"eos_token": 5}'),
        ("tokenizer_config.json", b'{"eos_token": "<|nowhere|>"}'),
        ("chat_template.jinja", b"{% for %}"),
        ("chat_template.jinja", b"{% if x %}"),
        ("chat_template.jinja", b"\xff"),
        ("chat_template.jinja", b"{{ '" + b"(" * 50),
        ("chat_template.jinja", b"{{ " + b"(" * 20_000 + b" }}"),
    ],
)
def test_broken_files_are_a_broken_model(tmp_path: Path, file: str, content: bytes | None) -> None:
    folder = _write(tmp_path)
    if content is None:
        (folder / file).unlink()
    else:
        (folder / file).write_bytes(content)
    with pytest.raises(SlidepackError) as caught:
        load_tokenizer(folder)
    assert caught.value.report.code == "MODEL-BROKEN"


def test_the_vocabulary_reaches_to_the_highest_id(tmp_path: Path) -> None:
    assert load_tokenizer(_write(tmp_path)).vocab_size == 259
    path = tmp_path / "tokenizer.json"
    saved = json.loads(path.read_text())
    saved["model"]["vocab"]["far"] = 999
    path.write_text(json.dumps(saved))
    assert load_tokenizer(tmp_path).vocab_size == 1000
    assert load_tokenizer(tmp_path).decode([0, 3, 1]) != ""
