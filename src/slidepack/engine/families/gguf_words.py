"""How the byte-level tokenizers that llama.cpp knows divide text before they merge.

llama.cpp calls each way a pre-tokenizer and names it in a GGUF file's `tokenizer.ggml.pre`.
"""

from typing import Final

import msgspec

__all__ = ["BYTES", "BYTES_BY_WORDS", "DIGITS", "PRE_TOKENIZERS", "PreTokenizer", "pre_tokenizer"]

BYTES: Final = "bytes"
"""A step that writes bytes as the vocabulary does."""
BYTES_BY_WORDS: Final = "bytes by words"
"""The same behind GPT-2's own regular expression."""
DIGITS: Final = "digits"
"""A step that sets every digit apart."""

_GPT2: Final = (
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"  # and what is left
)
_CASES: Final = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST: Final = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS: Final = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_SMALL: Final = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TEKKEN: Final = (
    rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class PreTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """One way to divide text."""

    name: str
    aliases: tuple[str, ...] = ()
    """Other names of the same way."""
    steps: tuple[str, ...]
    """One behind the other: `BYTES`, `BYTES_BY_WORDS`, `DIGITS`, or a regular expression whose
    matches stand apart."""
    whole_words: bool = False
    """A word that is a token is not merged."""
    adds_start: bool = False
    """A text begins with the start token where the file does not say."""
    composes: bool = False
    """The models published with it compose characters first (NFC); llama.cpp leaves that out."""


PRE_TOKENIZERS: Final = (
    PreTokenizer(name="gpt-2", steps=(BYTES_BY_WORDS,)),
    PreTokenizer(name="smollm", steps=(DIGITS, BYTES_BY_WORDS)),
    PreTokenizer(
        name="llama-bpe",
        aliases=("llama3", "llama-v3", "falcon3"),
        steps=(_CASES + r"\p{N}{1,3}" + _REST, BYTES),
        whole_words=True,
        adds_start=True,
    ),
    PreTokenizer(name="qwen2", steps=(_CASES + r"\p{N}" + _REST, BYTES), composes=True),
    PreTokenizer(name="deepseek-r1-qwen", steps=(_CASES + r"\p{N}" + _REST, BYTES)),
    PreTokenizer(name="tekken", steps=(_TEKKEN, BYTES), whole_words=True, adds_start=True),
    PreTokenizer(
        name="default",
        steps=(r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]", BYTES),
    ),
)


def pre_tokenizer(name: str) -> PreTokenizer | None:
    """Return the way to divide text that a file names, or None where it is not known."""
    for one in PRE_TOKENIZERS:
        if name == one.name or name in one.aliases:
            return one
    return None
