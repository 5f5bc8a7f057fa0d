"""Tokenizers in GGUF files: whoever reads the file divides text as the trainer did."""

import itertools
import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from gguf import TokenType
from support.exports import (
    MERGES,
    USER_DEFINED,
    VOCAB,
    export,
    merging_tokenizer,
    random_adapter,
    save_exportable,
    save_merging_tokenizer,
    save_pieces,
)
from transformers import AutoTokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.tokenizer import load_tokenizer
from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer

TEXTS = (
    "hello hello, the hell of it: he'll tell",
    "🙂🚀👩‍👩‍👧 flags 🇫🇷 and \u200d joins",
    "今天天气很好 日本語のテキスト 한국어",
    "def f(x):\n\treturn x**2  # 12345 67\n\n\n\r\n",
    "   leading, trailing   \t \n ",
    "<|start|>user\nhello<|end|>\n<note>inside<note><|pad|>",
    "naïve café — “quotes” … ½ ١٢٣",
    "\x00\x07 control",
    "",
)


def _fields(path: Path) -> dict[str, Any]:
    return {key: field.contents() for key, field in gguf.GGUFReader(path).fields.items()}


def _exported(tmp_path: Path, base: Path) -> Path:
    result = tmp_path / "result"
    random_adapter(base, result)
    done = export(result, base, tmp_path / "out", "gguf", verify=False)
    return tmp_path / "out" / next(iter(done.files))


@pytest.mark.parametrize("pre", ["gpt-2", "smollm"])
def test_the_importer_finds_the_same_tokens(tmp_path: Path, pre: str) -> None:
    base = save_exportable(tmp_path / "base", "llama", pre=pre)
    path = _exported(tmp_path, base)
    again = tmp_path / "again"
    again.mkdir()
    write_tokenizer(GgufFile(path), again, VOCAB)
    before, after = load_tokenizer(base), load_tokenizer(again)
    for text in TEXTS:
        assert after.encode(text) == before.encode(text), text
        assert after.encode(text, special=True) == before.encode(text, special=True)
    assert after.template_source == before.template_source
    assert (after.eos_token, after.eos_id) == (before.eos_token, before.eos_id)


@pytest.mark.parametrize("pre", ["qwen2", "llama-bpe"])
def test_transformers_finds_the_same_tokens(tmp_path: Path, pre: str) -> None:
    base = save_exportable(tmp_path / "base", "qwen2" if pre == "qwen2" else "llama", pre=pre)
    path = _exported(tmp_path, base)
    assert _fields(path)["tokenizer.ggml.pre"] == pre
    theirs: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    before = load_tokenizer(base)
    # It divides by its own rule for a family, so whole texts are compared where all rules agree.
    for text in ("hello", "hell", "a", "hello the hello a", "今天", "🙂"):
        assert theirs.encode(text, add_special_tokens=False) == before.encode(text), text


def test_kinds_and_merges(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    fields = _fields(_exported(tmp_path, base))
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert len(tokens) == len(kinds) == VOCAB and len(set(tokens)) == VOCAB
    of = dict(zip(tokens, kinds, strict=True))
    assert of["<|end|>"] == TokenType.CONTROL
    assert of[USER_DEFINED] == TokenType.USER_DEFINED
    assert of["hello"] == TokenType.NORMAL
    assert of[f"[PAD{VOCAB - 1}]"] == TokenType.UNUSED
    assert fields["tokenizer.ggml.merges"] == [" ".join(pair) for pair in MERGES]


def test_the_end_of_a_turn_is_told_apart_from_the_end_of_text(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    (base / "generation_config.json").write_text(json.dumps({"eos_token_id": [1, 2]}))
    config = json.loads((base / "tokenizer_config.json").read_text())
    config["chat_template"] = config["chat_template"].replace("<|end|>", "<|pad|>")
    (base / "tokenizer_config.json").write_text(json.dumps(config))
    fields = _fields(_exported(tmp_path, base))
    assert fields["tokenizer.ggml.eos_token_id"] == 1
    assert fields["tokenizer.ggml.eot_token_id"] == 2


def _highest_score_first(text: str, scores: dict[str, float]) -> list[str]:
    """Merge neighbours whose piece has the highest score, the leftmost first, as llama.cpp does."""
    parts = list(text)
    while True:
        pairs = [(a + b, -i) for i, (a, b) in enumerate(itertools.pairwise(parts))]
        known = [(scores[piece], at) for piece, at in pairs if piece in scores]
        if not known:
            return parts
        at = -max(known)[1]
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_scored_by_their_merges(tmp_path: Path, prefix: bool) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    tokenizer = save_pieces(base, prefix=prefix)
    fields = _fields(_exported(tmp_path, base))
    assert fields["tokenizer.ggml.model"] == "llama"
    assert fields["tokenizer.ggml.add_space_prefix"] == prefix
    assert fields["tokenizer.ggml.unknown_token_id"] == 0
    tokens, kinds = fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"]
    assert kinds[:4] == [TokenType.UNKNOWN, *[TokenType.CONTROL] * 2, TokenType.BYTE]
    scored = zip(tokens, fields["tokenizer.ggml.scores"], kinds, strict=True)
    scores = {token: score for token, score, kind in scored if kind == TokenType.NORMAL}
    for text in ("hello hello", "lllo he llo", "hehello", "ll l lllllo"):
        prepared = ("▁" if prefix else "") + text.replace(" ", "▁")
        expected = tokenizer.encode(text, add_special_tokens=False).tokens
        assert _highest_score_first(prepared, scores) == expected


@pytest.mark.parametrize("fault", ["split", "lowercase", "kind", "no merges"])
def test_what_llama_cpp_would_divide_otherwise_is_refused(tmp_path: Path, fault: str) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    source = json.loads((base / "tokenizer.json").read_text())
    if fault == "split":
        source["pre_tokenizer"]["use_regex"] = False
    elif fault == "lowercase":
        source["normalizer"] = {"type": "Lowercase"}
    elif fault == "kind":
        source["model"] = {"type": "WordLevel", "vocab": source["model"]["vocab"], "unk_token": "a"}
    else:
        source["model"]["merges"] = []
    (base / "tokenizer.json").write_text(json.dumps(source))
    with pytest.raises(SlidepackError) as caught:
        _exported(tmp_path, base)
    report = caught.value.report
    assert report.code == "MODEL-UNSUPPORTED" and "smollm" in report.fix
    assert not (tmp_path / "out").exists()


def test_older_files_write_a_merge_as_one_text(tmp_path: Path) -> None:
    base = save_exportable(tmp_path / "base", "llama")
    source = json.loads((base / "tokenizer.json").read_text())
    source["model"]["merges"] = [" ".join(pair) for pair in MERGES]
    (base / "tokenizer.json").write_text(json.dumps(source))
    fields = _fields(_exported(tmp_path, base))
    assert fields["tokenizer.ggml.merges"] == [" ".join(pair) for pair in MERGES]


def test_the_tests_tokenizer_merges(tmp_path: Path) -> None:
    save_merging_tokenizer(tmp_path)
    assert merging_tokenizer().encode("hello a").tokens == ["hello", "Ġa"]
