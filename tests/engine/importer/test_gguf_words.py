"""Each pre-tokenizer that a GGUF file may name divides text as llama.cpp documents."""

from pathlib import Path

import pytest
import regex  # type: ignore[import-untyped]  # it ships no types
from gguf import TokenType
from support.corpus import corpus
from support.gguf_vocabularies import MORE, bytes_keys, ids, imported, write_vocabulary
from support.vocabularies import ORIGINAL_WORDS, bytes_tokenizer
from transformers.convert_slow_tokenizer import bytes_to_unicode

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.families.gguf_words import PRE_TOKENIZERS, pre_tokenizer

GPT_2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA_3 = (
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN_2 = LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}")
LLAMA_CPP_WORDS: dict[str, tuple[str, ...]] = {
    "gpt-2": (GPT_2,),
    "smollm": (r"\p{N}", GPT_2),
    "llama-bpe": (LLAMA_3,),
    "qwen2": (QWEN_2,),
    "deepseek-r1-qwen": (QWEN_2,),
    "tekken": (str(ORIGINAL_WORDS["tekken"]),),
    "default": (r"[\p{P}\$\+<=>\^~\|]+", GPT_2, r"\p{N}+", r"[0-9][0-9][0-9]"),
}
"""llama.cpp's own expressions, which spell out cases that others leave to a flag."""
BYTE_OF = {symbol: byte for byte, symbol in bytes_to_unicode().items()}


def pieces_of(expression: str, text: str) -> list[str]:
    pieces: list[str] = []
    end = 0
    for match in regex.finditer(expression, text):
        pieces += [text[end : match.start()], match.group()]
        end = match.end()
    return [piece for piece in [*pieces, text[end:]] if piece]


@pytest.mark.parametrize("name", [known.name for known in PRE_TOKENIZERS])
def test_words_of_each_way(name: str, tmp_path: Path) -> None:
    """Words by another engine of regular expressions, one expression behind the other."""
    keys = bytes_keys(bytes_tokenizer("gpt-2"))
    found = imported(
        write_vocabulary(tmp_path / "m.gguf", ggml__pre=name, **keys), tmp_path / "out"
    )
    assert found.pre_tokenizer is not None
    way = LLAMA_CPP_WORDS[name]
    for text in [*corpus(500), *MORE]:
        words = [text] if text else []
        for expression in way:
            words = [piece for word in words for piece in pieces_of(expression, word)]
        byte_words = [word.encode() for word in words]
        ours = [
            bytes(BYTE_OF[symbol] for symbol in word)
            for word, _ in found.pre_tokenizer.pre_tokenize_str(text)
        ]
        assert ours == byte_words, repr(text)


def test_a_whole_word_of_llama_3_is_not_merged(tmp_path: Path) -> None:
    """A token that no merge makes is found where a word is that token, and only there."""
    original = bytes_tokenizer("llama-bpe")
    keys = bytes_keys(original)
    place = keys["ggml__tokens"].index("[PAD2047]")
    keys["ggml__tokens"][place], keys["ggml__token_type"][place] = "zqxj", int(TokenType.NORMAL)
    found = imported(
        write_vocabulary(tmp_path / "a.gguf", ggml__pre="llama-bpe", **keys), tmp_path / "a"
    )
    assert ids(found, "zqxj") == [place] and place not in ids(found, "zqxjk")
    found = imported(
        write_vocabulary(tmp_path / "b.gguf", ggml__pre="qwen2", **keys), tmp_path / "b"
    )
    assert len(ids(found, "zqxj")) == 4


def test_unknown_ways_are_refused_by_name(tmp_path: Path) -> None:
    keys = bytes_keys(bytes_tokenizer("gpt-2"))
    for pre, word in (("poro-chat", "poro-chat"), (None, "tokenizer.ggml.pre is missing")):
        named = {} if pre is None else {"ggml__pre": pre}
        path = write_vocabulary(tmp_path / f"{pre}.gguf", **named, **keys)
        with pytest.raises(SlidepackError) as caught:
            imported(path, tmp_path / f"out-{pre}")
        report = caught.value.report
        assert report.code == "MODEL-UNSUPPORTED"
        assert word in report.why and "llama-bpe, qwen2" in report.fix
    # Files from before that key, of an architecture whose models all divide text in one way.
    path = write_vocabulary(tmp_path / "old.gguf", "qwen2", **keys)
    assert imported(path, tmp_path / "old").normalizer is not None
    assert pre_tokenizer("llama-v3") is pre_tokenizer("llama-bpe")
