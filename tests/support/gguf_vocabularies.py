"""GGUF files with a small vocabulary and next to no weights, by the `gguf` package."""

import json
from pathlib import Path
from typing import Any, Final

import gguf
import numpy as np
from gguf import TokenType
from tokenizers import Tokenizer

from slidepack.engine.importer.gguf_file import GgufFile
from slidepack.engine.importer.gguf_tokenizer import write_tokenizer
from support.gguf_files import add_value, finish
from support.vocabularies import pieces_tokenizer

__all__ = ["MORE", "ROWS", "bytes_keys", "ids", "imported", "pieces_keys", "write_vocabulary"]

ROWS: Final = 2048
MORE: Final = (
    "e\u0301 Ω ﬁ \u1e9b\u0323",
    "HELLO'LL it's 12345678 (x)//\n\n/",
    "  two  three   four    ",
    "<note><note> x<note>",
    "a\u2581b ▁▁ c",
    "IdeaPad iPhone15Pro ÀÉîôü ǅ ʰ",
    "",
)
"""Texts that the corpus lacks."""


def write_vocabulary(path: Path, architecture: str = "llama", **keys: Any) -> Path:
    """Write a file with a vocabulary; a key of two underscores stands for a dot."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_context_length(64)
    for key, value in keys.items():
        add_value(writer, f"tokenizer.{key.replace('__', '.')}", value)
    writer.add_tensor("token_embd.weight", np.zeros((1, 32), np.float32))
    finish(writer)
    return path


def package_keys(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return tokens and kinds as llama.cpp's converter writes them."""
    vocab = tokenizer.get_vocab(with_added_tokens=True)
    tokens = [f"[PAD{index}]" for index in range(ROWS)]
    kinds = [int(TokenType.UNUSED)] * ROWS
    for token, index in vocab.items():
        tokens[index], kinds[index] = token, int(TokenType.NORMAL)
    for index, added in tokenizer.get_added_tokens_decoder().items():
        kinds[index] = int(TokenType.CONTROL if added.special else TokenType.USER_DEFINED)
    return {"ggml__tokens": tokens, "ggml__token_type": kinds}


def bytes_keys(tokenizer: Tokenizer) -> dict[str, Any]:
    """Return the keys of a byte-level tokenizer."""
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    lines = [" ".join(pair) for pair in merges]
    return package_keys(tokenizer) | {"ggml__model": "gpt2", "ggml__merges": lines}


def pieces_keys(*, prefix: bool) -> dict[str, Any]:
    """Return the keys of `pieces_tokenizer`."""
    keys = package_keys(pieces_tokenizer(prefix=prefix))
    keys["ggml__token_type"][0] = int(TokenType.UNKNOWN)
    keys["ggml__token_type"][3:259] = [int(TokenType.BYTE)] * 256
    spaces = {} if prefix else {"ggml__add_space_prefix": False}
    scores = [-float(index) for index in range(ROWS)]
    named = {"ggml__model": "llama", "ggml__pre": "default", "ggml__scores": scores}
    return keys | named | spaces


def imported(path: Path, target: Path) -> Tokenizer:
    """Return the tokenizer that the importer makes of a file."""
    target.mkdir()
    write_tokenizer(GgufFile(path), target, ROWS)
    return Tokenizer.from_file(str(target / "tokenizer.json"))


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    """Return the ids of a text with nothing added."""
    return list(tokenizer.encode(text, add_special_tokens=False).ids)
