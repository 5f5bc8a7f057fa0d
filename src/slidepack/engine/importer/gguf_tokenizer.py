"""Builds a Hugging Face tokenizer from the vocabulary inside a GGUF file."""

import json
from pathlib import Path
from typing import Any, Final

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported

SUPPORTED_PRE_TOKENIZERS: Final = ("gpt-2", "smollm")

_CONTROL: Final = 3
_USER_DEFINED: Final = 4

_ROLES: Final = {"bos": "bos", "eos": "eos", "pad": "padding", "unk": "unknown"}


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
    tokens = _read_tokens(gguf, vocab_size)
    special = {role: _token_id(gguf, f"{key}_token_id", tokens) for role, key in _ROLES.items()}
    tokenizer = _build(gguf, tokens)
    prefix = [special["bos"]] if gguf.flag("tokenizer.ggml.add_bos_token") else []
    suffix = [special["eos"]] if gguf.flag("tokenizer.ggml.add_eos_token") else []
    _set_template(gguf, tokenizer, tokens, prefix, suffix)
    # Not the library's own save(), which hides why a disk refused.
    (target / "tokenizer.json").write_text(tokenizer.to_str(pretty=True), encoding="utf-8")
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": bool(prefix),
        "add_eos_token": bool(suffix),
        "clean_up_tokenization_spaces": False,
        "model_max_length": gguf.integer("llama.context_length"),
    }
    config |= {f"{role}_token": tokens[i] for role, i in special.items() if i is not None}
    template = gguf.text("tokenizer.chat_template")
    if template:
        config["chat_template"] = template
    _write_json(target / "tokenizer_config.json", config)
    _write_json(target / "generation_config.json", _generation(gguf, tokens, special))


def _read_tokens(gguf: GgufFile, vocab_size: int) -> list[str]:
    tokens = gguf.texts("tokenizer.ggml.tokens")
    if not tokens:
        raise SlidepackError(
            "MODEL-NOT-A-MODEL",
            "The GGUF file has no tokenizer.",
            why=f"{gguf.path.name}: tokenizer.ggml.tokens is missing",
            fix="Choose a GGUF file of a whole language model.",
        )
    kind = gguf.text("tokenizer.ggml.model")
    if kind != "gpt2":
        raise unsupported(
            gguf.path,
            f"its tokenizer is {kind or 'not named'}; only byte-level BPE (gpt2) is read",
        )
    if len(tokens) > vocab_size:
        raise broken(gguf.path, f"{len(tokens)} tokens and only {vocab_size} embedding rows")
    if len(set(tokens)) != len(tokens):
        raise broken(gguf.path, f"{len(tokens) - len(set(tokens))} tokens occur twice")
    return tokens


def _build(gguf: GgufFile, tokens: list[str]) -> Tokenizer:
    merges: list[tuple[str, str]] = []
    known = set(tokens)
    for line, merge in enumerate(gguf.texts("tokenizer.ggml.merges")):
        left, _, right = merge.partition(" ")
        if not right or not known.issuperset((left, right, left + right)):
            raise broken(gguf.path, f"merge {line} ({merge!r}) makes no token of the vocabulary")
        merges.append((left, right))
    vocabulary = {token: number for number, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(gguf)
    tokenizer.decoder = decoders.ByteLevel()
    kinds = gguf.integers("tokenizer.ggml.token_type")
    if kinds and len(kinds) != len(tokens):
        raise broken(gguf.path, f"{len(kinds)} token types for {len(tokens)} tokens")
    for token, kind in zip(tokens, kinds, strict=False):
        if kind == _CONTROL:
            tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False)])
        elif kind == _USER_DEFINED:
            tokenizer.add_tokens([AddedToken(token, special=False, normalized=False)])
    return tokenizer


def _pre_tokenizer(gguf: GgufFile) -> pre_tokenizers.PreTokenizer:
    name = gguf.text("tokenizer.ggml.pre") or "gpt-2"
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if name == "gpt-2":
        return words
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, words])
    raise unsupported(
        gguf.path,
        f"its pre-tokenizer is {name}",
        fix="Add the model's Hugging Face folder instead; of GGUF files, these pre-tokenizers are "
        f"read: {', '.join(SUPPORTED_PRE_TOKENIZERS)}.",
    )


def _set_template(
    gguf: GgufFile,
    tokenizer: Tokenizer,
    tokens: list[str],
    prefix: list[int | None],
    suffix: list[int | None],
) -> None:
    ids: list[int] = []
    for number in (*prefix, *suffix):
        if number is None:
            raise broken(gguf.path, "it wants a begin or end token added and names none")
        ids.append(number)
    if not ids:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
        return
    names = [f"{tokens[number]}:0" for number in ids]
    pieces = [*names[: len(prefix)], "$A:0", *names[len(prefix) :]]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, special_tokens=[(tokens[number], number) for number in set(ids)]
    )


def _generation(
    gguf: GgufFile, tokens: list[str], special: dict[str, int | None]
) -> dict[str, Any]:
    config: dict[str, Any] = {
        f"{role}_token_id": special[role]
        for role in ("bos", "eos", "pad")
        if special[role] is not None
    }
    # A chat model may end its turns with another token than its documents.
    turn_end = _token_id(gguf, "eot_token_id", tokens)
    if turn_end is not None and turn_end != special["eos"]:
        ends = [number for number in (special["eos"], turn_end) if number is not None]
        config["eos_token_id"] = ends
    return config


def _token_id(gguf: GgufFile, key: str, tokens: list[str]) -> int | None:
    number = gguf.integer(f"tokenizer.ggml.{key}")
    if number is not None and not 0 <= number < len(tokens):
        raise broken(gguf.path, f"tokenizer.ggml.{key} is {number} of {len(tokens)} tokens")
    return number


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
