"""Small tokenizers of the kinds that GGUF files hold, trained on the tests' corpus."""

from functools import cache
from typing import Final

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from transformers.tokenization_utils_base import generate_merges

from support.corpus import corpus

__all__ = ["CONTROL", "ORIGINAL_WORDS", "USER_DEFINED", "bytes_tokenizer", "pieces_tokenizer"]

CONTROL: Final = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
USER_DEFINED: Final = "<note>"
_TRAINING_LINES: Final = 1500
_LLAMA_3: Final = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
ORIGINAL_WORDS: Final[dict[str, str | None]] = {
    "gpt-2": None,
    "smollm": None,
    "llama-bpe": _LLAMA_3,
    "qwen2": _LLAMA_3.replace(r"\p{N}{1,3}", r"\p{N}"),
    "tekken": (
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ),
}
"""The expressions in the tokenizer.json files that the models were published with."""


@cache
def bytes_tokenizer(pre: str) -> Tokenizer:
    """Return a byte-level BPE that divides text as the models that are published with `pre`."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "tekken")))
    tokenizer.pre_tokenizer = _words(pre)
    tokenizer.decoder = decoders.ByteLevel()
    if pre == "qwen2":
        tokenizer.normalizer = normalizers.NFC()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=list(CONTROL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus(_TRAINING_LINES), trainer)
    tokenizer.add_tokens([AddedToken(USER_DEFINED, special=False, normalized=False)])
    return tokenizer


def _words(pre: str) -> pre_tokenizers.PreTokenizer:
    expression = ORIGINAL_WORDS[pre]
    if expression is None:
        words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, words]) if pre == "smollm" else words
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(expression), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


@cache
def pieces_tokenizer(*, prefix: bool) -> Tokenizer:
    """Return a tokenizer as `transformers` makes one from a SentencePiece model with bytes.

    Args:
        prefix: whether a space is put before a text (Llama 2) or not (Gemma).
    """
    trained = Tokenizer(models.BPE())
    trained.normalizer = _spaces(prefix=prefix)
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trainer = trainers.BpeTrainer(vocab_size=700, show_progress=False)
    # No published vocabulary has a piece with NUL, which ends a text for llama.cpp.
    lines = [line for line in corpus(_TRAINING_LINES) if "<|" not in line and "\x00" not in line]
    trained.train_from_iterator(lines, trainer)
    learned = sorted(trained.get_vocab().items(), key=lambda item: item[1])
    # SentencePiece puts what it merged first, single characters last.
    pieces = [token for token, _ in learned if len(token) > 1]
    pieces += [token for token, _ in learned if len(token) == 1]
    first = ["<unk>", "<s>", "</s>", *(f"<0x{value:02X}>" for value in range(256))]
    vocab = {token: index for index, token in enumerate([*first, *pieces])}
    scores = {token: -float(index) for index, token in enumerate(pieces)}
    merges = generate_merges({token: vocab[token] for token in pieces}, scores)
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.normalizer = _spaces(prefix=prefix)
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    strip = [decoders.Strip(" ", 1, 0)] if prefix else []
    tokenizer.decoder = decoders.Sequence([*steps, *strip])
    special = [AddedToken(token, special=True, normalized=False) for token in first[:3]]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([AddedToken(USER_DEFINED, special=False, normalized=False)])
    return tokenizer


def _spaces(*, prefix: bool) -> normalizers.Normalizer:
    written = normalizers.Replace(" ", "▁")
    return normalizers.Sequence([normalizers.Prepend("▁"), written]) if prefix else written
