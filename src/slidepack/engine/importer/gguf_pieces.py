"""Builds SentencePiece's kind of tokenizer, as of Llama 2, Mistral and Gemma, from a GGUF file."""

import math
from collections.abc import Iterator
from typing import Final

from gguf import TokenType
from tokenizers import Tokenizer, decoders, models, normalizers

from slidepack.engine.importer.gguf_file import GgufFile, broken, unsupported
from slidepack.engine.importer.gguf_vocab import Vocabulary, add_apart

__all__ = ["build_pieces"]

_SPACE: Final = "▁"
_BYTES: Final = tuple(f"<0x{value:02X}>" for value in range(256))


def build_pieces(gguf: GgufFile, vocabulary: Vocabulary) -> Tokenizer:
    """Return the tokenizer, without what it adds at the start or end of a text.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED, MODEL-BROKEN.
    """
    if gguf.flag("tokenizer.ggml.remove_extra_whitespaces"):
        raise unsupported(gguf.path, "its tokenizer drops spaces (remove_extra_whitespaces)")
    # A space is written as it is in the text, where tokens of the user's are looked for.
    contents = {
        number: token.replace(_SPACE, " ")
        for number, token in enumerate(vocabulary.tokens)
        if vocabulary.kinds[number] == TokenType.USER_DEFINED
    }
    ids = {contents.get(number, token): number for token, number in vocabulary.ids().items()}
    if len(ids) != len(vocabulary.ids()):
        raise broken(gguf.path, "two of its tokens are the same text")
    if any(token not in ids for token in _BYTES):
        raise unsupported(gguf.path, "its tokenizer has no token for each byte")
    unknown = vocabulary.tokens[vocabulary.special["unk"]]
    tokenizer = Tokenizer(
        models.BPE(
            vocab=ids,
            merges=_merges(gguf, vocabulary),
            unk_token=unknown if unknown in ids else None,
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    prefix = gguf.flag("tokenizer.ggml.add_space_prefix") is not False
    _set_spaces(tokenizer, prefix=prefix)
    add_apart(tokenizer, vocabulary, contents)
    return tokenizer


def _set_spaces(tokenizer: Tokenizer, *, prefix: bool) -> None:
    written = normalizers.Replace(" ", _SPACE)
    read = [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if prefix:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(_SPACE), written])
        tokenizer.decoder = decoders.Sequence([*read, decoders.Strip(" ", 1, 0)])
    else:
        tokenizer.normalizer = written
        tokenizer.decoder = decoders.Sequence(read)


def _merges(gguf: GgufFile, vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """Return the merges that the scores mean: whatever makes the piece of the highest score.

    Pieces of one score are sorted as `transformers` does, whose files most models come from.
    """
    scores = gguf.numbers("tokenizer.ggml.scores")
    if len(scores) != len(vocabulary.tokens):
        # Tokens without a row were cut off.
        if len(scores) < len(vocabulary.tokens):
            raise broken(gguf.path, f"{len(scores)} scores for {len(vocabulary.tokens)} tokens")
        scores = scores[: len(vocabulary.tokens)]
    if not all(map(math.isfinite, scores)):
        raise broken(gguf.path, "a token's score is not finite")
    pieces = {
        token: number
        for number, token in enumerate(vocabulary.tokens)
        if vocabulary.kinds[number] == TokenType.NORMAL
    }
    ranked = sorted(
        _pairs(pieces),
        key=lambda pair: (scores[pieces[pair[0] + pair[1]]], len(pair[0]), len(pair[1])),
        reverse=True,
    )
    return ranked


def _pairs(pieces: dict[str, int]) -> Iterator[tuple[str, str]]:
    for piece in pieces:
        pairs = [
            (piece[:cut], piece[cut:])
            for cut in range(1, len(piece))
            if piece[:cut] in pieces and piece[cut:] in pieces
        ]
        yield from sorted(pairs, key=lambda pair: (pieces[pair[0]], pieces[pair[1]]))
