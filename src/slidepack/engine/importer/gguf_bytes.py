"""Builds a byte-level BPE tokenizer, as of Llama 3, Qwen and SmolLM, from a GGUF file."""

from typing import Final

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from slidepack.engine.families.gguf_words import (
    BYTES,
    BYTES_BY_WORDS,
    DIGITS,
    PRE_TOKENIZERS,
    PreTokenizer,
    pre_tokenizer,
)
from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.gguf_vocab import Vocabulary, add_apart

__all__ = ["build_byte_level", "named_pre_tokenizer"]

_OF_ARCHITECTURE: Final = {"qwen2": "qwen2", "qwen3": "qwen2"}
"""What files from before `tokenizer.ggml.pre` mean, where the architecture tells."""


def named_pre_tokenizer(gguf: GgufFile) -> PreTokenizer:
    """Return how the file says that text is divided.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED where it names a way that is not known, or none.
    """
    name = gguf.text("tokenizer.ggml.pre") or _OF_ARCHITECTURE.get(gguf.architecture)
    known = None if name is None else pre_tokenizer(name)
    if known is not None:
        return known
    why = f"its pre-tokenizer is {name}"
    if name is None:
        why = "it does not say how it divides text (tokenizer.ggml.pre is missing)"
    raise unsupported(
        gguf.path,
        why,
        fix="Choose a newer file of the model or add its Hugging Face folder; of GGUF files, these "
        f"pre-tokenizers are read: {', '.join(one.name for one in PRE_TOKENIZERS)}.",
    )


def build_byte_level(gguf: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer, without what it adds at the start or end of a text.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED, MODEL-BROKEN.
    """
    way = named_pre_tokenizer(gguf)
    ids = vocabulary.ids()
    merges = _merges(gguf, ids)
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=way.whole_words))
    if way.composes:
        tokenizer.normalizer = normalizers.NFC()
    steps = [_step(step) for step in way.steps]
    tokenizer.pre_tokenizer = steps[0] if len(steps) == 1 else pre_tokenizers.Sequence(steps)
    tokenizer.decoder = decoders.ByteLevel()
    add_apart(tokenizer, vocabulary, {})
    return tokenizer


def _merges(gguf: GgufFile, ids: dict[str, int]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for line, merge in enumerate(gguf.texts("tokenizer.ggml.merges")):
        left, _, right = merge.partition(" ")
        if not right or left not in ids or right not in ids or left + right not in ids:
            raise broken(gguf.path, f"merge {line} ({merge!r}) makes no token of the vocabulary")
        merges.append((left, right))
    return merges


def _step(step: str) -> pre_tokenizers.PreTokenizer:
    if step == DIGITS:
        return pre_tokenizers.Digits(individual_digits=True)
    if step in (BYTES, BYTES_BY_WORDS):
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=step == BYTES_BY_WORDS)
    return pre_tokenizers.Split(Regex(step), behavior="isolated")
