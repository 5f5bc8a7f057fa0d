"""A tokenizer's way through a GGUF file and back: the same ids for every line of the corpus.

Files come from our own exporter and from the `gguf` package. Beside the original, `transformers`'
reader of GGUF files and SentencePiece's algorithm by the book, told here, are the judges.
"""

import json
import unicodedata
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import regex  # type: ignore[import-untyped]  # it ships no types
from gguf import TokenType
from support.corpus import LINES, corpus
from support.exports import export
from support.gguf_vocabularies import (
    MORE,
    ROWS,
    bytes_keys,
    ids,
    imported,
    pieces_keys,
    write_vocabulary,
)
from support.tiny import TEMPLATE
from support.vocabularies import (
    CONTROL,
    ORIGINAL_WORDS,
    USER_DEFINED,
    bytes_tokenizer,
    pieces_tokenizer,
)
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig

from slidepack.engine.contract.errors import SlidepackError


def same(found: Tokenizer, original: Tokenizer, lines: int = LINES) -> None:
    texts = [*corpus(lines), *MORE]
    theirs = original.encode_batch(texts, add_special_tokens=False)
    ours = found.encode_batch(texts, add_special_tokens=False)
    different = [line for line, a, b in zip(texts, ours, theirs, strict=True) if a.ids != b.ids]
    assert not different, f"{len(different)} lines, such as {different[0]!r}"


@pytest.mark.parametrize("pre", ORIGINAL_WORDS)
def test_byte_level_ids_equal_the_originals(tmp_path: Path, pre: str) -> None:
    original = bytes_tokenizer(pre)
    path = write_vocabulary(
        tmp_path / "m.gguf", ggml__pre=pre, ggml__eos_token_id=2, **bytes_keys(original)
    )
    found = imported(path, tmp_path / "out")
    same(found, original, 2000)
    assert found.get_vocab() == original.get_vocab(), "rows of no token have no names"
    for line in [*corpus(300), *MORE]:
        if pre != "qwen2" or unicodedata.is_normalized("NFC", line):
            assert found.decode(ids(found, line), skip_special_tokens=False) == line


@pytest.mark.parametrize("prefix", [True, False])
@pytest.mark.parametrize("way", ["our exporter", "the package"])
def test_piece_ids_equal_the_originals(tmp_path: Path, prefix: bool, way: str) -> None:
    original = pieces_tokenizer(prefix=prefix)
    if way == "our exporter":
        path = exported(tmp_path, original, {"bos": "<s>", "eos": "</s>", "unk": "<unk>"})
    else:
        path = write_vocabulary(tmp_path / "m.gguf", **pieces_keys(prefix=prefix))
    found = imported(path, tmp_path / "out")
    same(found, original)
    for line in [*corpus(300), *MORE]:
        assert found.decode(ids(found, line)) == original.decode(ids(original, line))
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["bos_token"] == "<s>" and config["eos_token"] == "</s>"


def exported(tmp_path: Path, tokenizer: Tokenizer, special: dict[str, str]) -> Path:
    """Export a model with this tokenizer by our own exporter."""
    base = tmp_path / "result" / "model"
    config = LlamaConfig(
        vocab_size=ROWS,
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_id=2,
    )
    model: Any = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(base)
    tokenizer.save(str(base / "tokenizer.json"))
    named = {f"{role}_token": token for role, token in special.items()}
    (base / "tokenizer_config.json").write_text(json.dumps(named | {"chat_template": TEMPLATE}))
    export(tmp_path / "result", base, tmp_path / "file", "gguf", verify=False)
    return tmp_path / "file" / "model-f16.gguf"


@pytest.mark.parametrize("pre", ORIGINAL_WORDS)
def test_byte_level_ids_survive_our_export(tmp_path: Path, pre: str) -> None:
    original = bytes_tokenizer(pre)
    path = exported(tmp_path, original, {"eos": CONTROL[1], "pad": CONTROL[2]})
    found = imported(path, tmp_path / "out")
    same(found, original)
    config = json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())
    assert config["chat_template"] == TEMPLATE
    assert (config["eos_token"], config["pad_token"]) == (CONTROL[1], CONTROL[2])
    added = {token.content: token.special for token in found.get_added_tokens_decoder().values()}
    assert added == dict.fromkeys(CONTROL, True) | {USER_DEFINED: False}


def by_the_book(
    text: str, scores: dict[str, float], apart: list[str], *, prefix: bool
) -> list[str]:
    """Return SentencePiece's pieces: of all neighbours, those of the highest score merge first."""
    pieces: list[str] = []
    longest_first = "|".join(regex.escape(token) for token in sorted(apart, key=len, reverse=True))
    for part in regex.split(f"({longest_first})", text):
        if part in apart:
            pieces.append(part)
        elif part:
            symbols = list((" " * prefix + part).replace(" ", "▁"))
            while True:
                pairs = [(scores.get(a + b), -i) for i, (a, b) in enumerate(pairwise(symbols))]
                known = [(score, at) for score, at in pairs if score is not None]
                if not known:
                    break
                at = -max(known)[1]
                symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
            pieces += symbols
    return pieces


@pytest.mark.parametrize("prefix", [True, False])
def test_pieces_are_sentencepieces(tmp_path: Path, prefix: bool) -> None:
    keys = pieces_keys(prefix=prefix)
    tokens, kinds = keys["ggml__tokens"], keys["ggml__token_type"]
    # Gemma has runs of spaces among the tokens that are found before anything is merged.
    spaces = [tokens.index("[PAD2047]"), tokens.index("[PAD2046]")]
    for index, token in zip(spaces, ("    ", "  "), strict=True):
        tokens[index], kinds[index] = token, int(TokenType.USER_DEFINED)
    keys["ggml__scores"] = shuffled = list(keys["ggml__scores"])
    shuffled[300:500] = reversed(shuffled[300:500])
    found = imported(write_vocabulary(tmp_path / "m.gguf", **keys), tmp_path / "out")
    normal = int(TokenType.NORMAL)
    scores = {
        token: score
        for token, score, kind in zip(tokens, shuffled, kinds, strict=True)
        if kind == normal
    }
    apart = ["<unk>", "<s>", "</s>", USER_DEFINED, "    ", "  "]
    places = {token: index for index, token in enumerate(tokens)}
    for text in [*corpus(500), *MORE, "a </s>b<s> c"]:
        expected: list[int] = []
        for piece in by_the_book(text, scores, apart, prefix=prefix):
            if piece in places:
                expected.append(places[piece])
            else:
                expected += [3 + byte for byte in piece.encode()]
        assert ids(found, text) == expected, repr(text)


def test_transformers_reads_the_same_ids_of_gemma(tmp_path: Path) -> None:
    keys = pieces_keys(prefix=False)
    (tmp_path / "file").mkdir()
    path = write_vocabulary(tmp_path / "file" / "m.gguf", "gemma2", **keys)
    found = imported(path, tmp_path / "out")
    theirs: Any = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for text in [*corpus(1000), *MORE]:
        assert ids(found, text) == theirs.encode(text, add_special_tokens=False), repr(text)


def test_ends_of_texts(tmp_path: Path) -> None:
    """What a file leaves open is what llama.cpp does then."""
    keys = pieces_keys(prefix=True)
    cases: list[tuple[dict[str, Any], list[int], list[int]]] = [
        ({}, [1], []),
        ({"ggml__add_bos_token": False}, [], []),
        ({"ggml__add_eos_token": True}, [1], [2]),
        ({"ggml__bos_token_id": 2}, [2], []),
    ]
    for number, (extra, start, end) in enumerate(cases):
        path = write_vocabulary(tmp_path / f"{number}.gguf", **(keys | extra))
        found = imported(path, tmp_path / str(number))
        assert found.encode("hello").ids == [*start, *ids(found, "hello"), *end]
        reloaded: Any = AutoTokenizer.from_pretrained(tmp_path / str(number))
        assert reloaded("hello").input_ids == found.encode("hello").ids
    original = bytes_tokenizer("llama-bpe")
    keys = bytes_keys(original) | {"ggml__bos_token_id": 0, "ggml__eos_token_id": 1}
    for pre, start in (("llama-bpe", [0]), ("llama3", [0]), ("qwen2", [])):
        path = write_vocabulary(tmp_path / f"{pre}.gguf", ggml__pre=pre, **keys)
        found = imported(path, tmp_path / pre)
        assert found.encode("hello").ids == [*start, *ids(found, "hello")]


def test_a_turns_end_that_the_template_writes_ends_answers(tmp_path: Path) -> None:
    keys = bytes_keys(bytes_tokenizer("qwen2")) | {"ggml__eos_token_id": 2}
    template = "{% for m in messages %}<|im_start|>{{ m.content }}<|im_end|>{% endfor %}"
    path = write_vocabulary(tmp_path / "m.gguf", ggml__pre="qwen2", chat_template=template, **keys)
    imported(path, tmp_path / "out")
    generation = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert generation == {"eos_token_id": [2, 1]}


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"ggml__scores": [1.0]}, "MODEL-BROKEN", "1 scores for 2048 tokens"),
        ({"ggml__scores": [float("nan")] * ROWS}, "MODEL-BROKEN", "not finite"),
        ({"ggml__remove_extra_whitespaces": True}, "MODEL-UNSUPPORTED", "drops spaces"),
        ({"ggml__token_type": [1, 2]}, "MODEL-BROKEN", "2 token types"),
        ({"ggml__model": "t5"}, "MODEL-UNSUPPORTED", "its tokenizer is t5"),
        ({"ggml__eos_token_id": 2048}, "MODEL-BROKEN", "eos_token_id is 2048 of 2048"),
    ],
)
def test_refused_pieces(tmp_path: Path, change: dict[str, Any], code: str, word: str) -> None:
    path = write_vocabulary(tmp_path / "m.gguf", **(pieces_keys(prefix=True) | change))
    with pytest.raises(SlidepackError) as caught:
        imported(path, tmp_path / "out")
    assert caught.value.report.code == code
    assert word in caught.value.report.why


def test_pieces_without_bytes_are_refused(tmp_path: Path) -> None:
    keys = pieces_keys(prefix=True)
    keys["ggml__tokens"][70] = "another"
    with pytest.raises(SlidepackError, match="no token for each byte"):
        imported(write_vocabulary(tmp_path / "m.gguf", **keys), tmp_path / "out")


def test_a_token_for_images_without_a_row_is_left_out(tmp_path: Path) -> None:
    keys = pieces_keys(prefix=False)
    keys["ggml__tokens"] += ["<image_soft_token>"]
    keys["ggml__token_type"] += [int(TokenType.CONTROL)]
    keys["ggml__scores"] += [0.0]
    found = imported(write_vocabulary(tmp_path / "a.gguf", **keys), tmp_path / "a")
    assert found.token_to_id("<image_soft_token>") is None
    keys["ggml__token_type"][-1] = int(TokenType.NORMAL)
    with pytest.raises(SlidepackError, match="2049 tokens and only 2048 embedding rows"):
        imported(write_vocabulary(tmp_path / "b.gguf", **keys), tmp_path / "b")
