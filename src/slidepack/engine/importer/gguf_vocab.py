"""Reads the vocabulary of a GGUF file: tokens, what they are, and which are special."""

import re
from typing import Final

import msgspec
from gguf import TokenType
from tokenizers import AddedToken, Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported

__all__ = ["SPECIAL_ROLES", "Vocabulary", "add_apart", "read_vocabulary"]

SPECIAL_ROLES: Final = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}
"""Hugging Face's names and llama.cpp's."""

_MODELS: Final = ("gpt2", "llama")
_PIECE_DEFAULTS: Final = {"bos": 1, "eos": 2, "unk": 0}
"""What llama.cpp takes for them in a SentencePiece vocabulary that does not say."""
_FILLER: Final = re.compile(r"\[PAD\d+\]")
_WHOLE: Final = (TokenType.CONTROL, TokenType.UNKNOWN)


class Vocabulary(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of a file."""

    model: str
    """`gpt2`: a byte-level BPE; `llama`: SentencePiece's."""
    tokens: list[str]
    """As many as the embedding has rows, or fewer."""
    kinds: list[int]
    """A `TokenType` for each."""
    special: dict[str, int]
    """Ids by role: bos, eos, pad, unk."""

    def ids(self) -> dict[str, int]:
        """Return ids by token, without the names that converters give to rows of no token."""
        return {
            token: number
            for number, token in enumerate(self.tokens)
            if not (self.kinds[number] == TokenType.UNUSED and _FILLER.fullmatch(token))
        }


def read_vocabulary(gguf: GgufFile, rows: int) -> Vocabulary:
    """Return the vocabulary after checking that it does not contradict itself.

    Args:
        gguf: the file.
        rows: of the embedding.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED for another kind of tokenizer, MODEL-BROKEN,
            MODEL-NOT-A-MODEL where there is none.
    """
    tokens = gguf.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "The GGUF file has no tokenizer.",
            why=f"{gguf.path.name}: tokenizer.ggml.tokens is missing",
            fix="Choose a GGUF file of a whole language model.",
        )
    model = gguf.text("tokenizer.ggml.model") or ""
    if model not in _MODELS:
        raise unsupported(
            gguf.path,
            f"its tokenizer is {model or 'not named'}; byte-level BPE (gpt2) and SentencePiece's "
            "(llama) are read",
        )
    kinds = gguf.integers("tokenizer.ggml.token_type") or [int(TokenType.NORMAL)] * len(tokens)
    if len(kinds) != len(tokens):
        raise broken(gguf.path, f"{len(kinds)} token types for {len(tokens)} tokens")
    # Ollama's files of Gemma 3 list a token for images, which has no row.
    while len(tokens) > rows and kinds[len(tokens) - 1] in (*_WHOLE, TokenType.USER_DEFINED):
        tokens, kinds = tokens[:-1], kinds[:-1]
    if len(tokens) > rows:
        raise broken(gguf.path, f"{len(tokens)} tokens and only {rows} embedding rows")
    if len(set(tokens)) != len(tokens):
        raise broken(gguf.path, f"{len(tokens) - len(set(tokens))} tokens occur twice")
    return Vocabulary(
        model=model, tokens=tokens, kinds=kinds, special=_special(gguf, model, len(tokens))
    )


def add_apart(tokenizer: Tokenizer, vocabulary: Vocabulary, contents: dict[int, str]) -> None:
    """Have the tokens that are never made by merging found in the text as they are.

    Args:
        tokenizer: with the whole vocabulary in its model.
        vocabulary: the tokens.
        contents: of those that are written otherwise in the text than in the file.
    """
    special: list[AddedToken] = []
    plain: list[AddedToken] = []
    for number, token in enumerate(vocabulary.tokens):
        kind = vocabulary.kinds[number]
        if kind in _WHOLE:
            special.append(AddedToken(token, special=True, normalized=False))
        elif kind == TokenType.USER_DEFINED:
            content = contents.get(number, token)
            plain.append(AddedToken(content, special=False, normalized=False))
    # All at once: the library builds its search anew at every call.
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(plain)


def _special(gguf: GgufFile, model: str, count: int) -> dict[str, int]:
    special: dict[str, int] = {}
    for role, name in SPECIAL_ROLES.items():
        key = f"tokenizer.ggml.{name}_token_id"
        number = gguf.integer(key)
        if number is None and model == "llama":
            number = _PIECE_DEFAULTS.get(role)
        if number is None:
            continue
        if not 0 <= number < count:
            raise broken(gguf.path, f"{key} is {number} of {count} tokens")
        special[role] = number
    return special
