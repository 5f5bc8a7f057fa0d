"""Writes a Hugging Face tokenizer, built from the vocabulary inside a GGUF file."""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, processors

from slidepack.engine.importer.gguf_bytes import build_byte_level, named_pre_tokenizer
from slidepack.engine.importer.gguf_file import GgufFile, broken
from slidepack.engine.importer.gguf_pieces import build_pieces
from slidepack.engine.importer.gguf_vocab import Vocabulary, read_vocabulary

__all__ = ["write_tokenizer"]

_TURN_ENDS: Final = (
    "<|eot_id|>",
    "<|eom_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|end_of_text|>",
    "<|endoftext|>",
    "<end_of_turn>",
    "</s>",
)
"""Published tokens at which an answer ends, where a model's template writes them."""


def write_tokenizer(gguf: GgufFile, target: Path, vocab_size: int) -> None:
    """Write tokenizer.json, tokenizer_config.json and generation_config.json into `target`.

    Args:
        gguf: the file.
        target: an existing folder.
        vocab_size: rows of the embedding; the vocabulary may have fewer tokens, never more.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED for another kind of tokenizer, MODEL-BROKEN for a
            vocabulary that contradicts itself, MODEL-NOT-A-MODEL where there is none.
        OSError: the disk refused.
    """
    vocabulary = read_vocabulary(gguf, vocab_size)
    pieces = vocabulary.model == "llama"
    tokenizer = build_pieces(gguf, vocabulary) if pieces else build_byte_level(gguf, vocabulary)
    adds_start = pieces or named_pre_tokenizer(gguf).adds_start
    start = _added(gguf, vocabulary, "bos", default=adds_start)
    end = _added(gguf, vocabulary, "eos", default=False)
    _set_ends(tokenizer, vocabulary, start, end)
    # Not the library's own save(), which hides why a disk refused.
    (target / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(start),
        "add_eos_token": bool(end),
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.integer(f"{gguf.architecture}.context_length"),
    }
    config |= {f"{role}_token": vocabulary.tokens[i] for role, i in vocabulary.special.items()}
    template = gguf.text("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    _write_json(target / "tokenizer_config.json", config)
    _write_json(target / "generation_config.json", _generation(gguf, vocabulary, template or ""))


def _added(gguf: GgufFile, vocabulary: Vocabulary, role: str, *, default: bool) -> list[int]:
    """Return the token that is put at an end of every text, in a list of one or none."""
    wanted = gguf.flag(f"tokenizer.ggml.add_{role}_token")
    number = vocabulary.special.get(role)
    if number is None:
        if wanted:
            raise broken(gguf.path, f"it wants a token added ({role}) and names none")
        return []
    return [number] if (default if wanted is None else wanted) else []


def _set_ends(
    tokenizer: Tokenizer, vocabulary: Vocabulary, start: list[int], end: list[int]
) -> None:
    if not start and not end:
        if vocabulary.model == "gpt2":
            tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        return
    tokens = vocabulary.tokens
    tokenizer.post_processor = processors.TemplateProcessing(
        single=[
            *(f"{tokens[number]}:0" for number in start),
            "$A:0",
            *(f"{tokens[number]}:0" for number in end),
        ],
        special_tokens=[(tokens[number], number) for number in {*start, *end}],
    )


def _generation(gguf: GgufFile, vocabulary: Vocabulary, template: str) -> dict[str, Any]:
    special = vocabulary.special
    config: dict[str, Any] = {
        f"{role}_token_id": special[role] for role in ("bos", "eos", "pad") if role in special
    }
    # A chat model may end its turns with another token than its documents.
    ends = [special["eos"]] if "eos" in special else []
    ends += _turn_ends(gguf, vocabulary, template)
    ends = list(dict.fromkeys(ends))
    if len(ends) > 1 or (ends and "eos" not in special):
        config["eos_token_id"] = ends
    return config


def _turn_ends(gguf: GgufFile, vocabulary: Vocabulary, template: str) -> list[int]:
    count = len(vocabulary.tokens)
    found: list[int] = []
    for name in ("eot", "eom"):
        key = f"tokenizer.ggml.{name}_token_id"
        number = gguf.integer(key)
        if number is not None and not 0 <= number < count:
            raise broken(gguf.path, f"{key} is {number} of {count} tokens")
        found += [] if number is None else [number]
    written = [token for token in _TURN_ENDS if token in template]
    ids = vocabulary.ids() if written else {}
    return found + [ids[token] for token in written if token in ids]


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
