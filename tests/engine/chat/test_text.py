"""Text piece by piece, for byte-level and sentencepiece-like tokenizers."""

import random

import pytest
from support.chats import full_tokenizer
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from slidepack.engine.chat.text import AnswerText, TextPieces

TEXTS = (
    "Grüße, 世界! 👩‍👩‍👧‍👦 and   three spaces\n\n\tand tabs ",
    "नमस्ते दुनिया",
    " starts with a space",
    "e\u0301 \U0001d518\U0001d52b ñ",
)


def sentencepiece_like() -> Tokenizer:
    """Return a tokenizer as Llama 2's: spaces in tokens, bytes for what has none."""
    words = ["▁", "▁a", "▁and", "▁three", "▁spaces", "an", "d", "a", "s", "t", "▁▁", "▁starts", "e"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *words]
    vocab = [(token, -float(len(tokens) - at)) for at, token in enumerate(tokens)]
    tokenizer = Tokenizer(models.Unigram(vocab, unk_id=0, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return tokenizer


TOKENIZERS = {"byte-level": full_tokenizer(), "sentencepiece-like": sentencepiece_like()}


def _pieces(tokenizer: Tokenizer, ids: list[int], before: list[int] | None = None) -> list[str]:
    text = TextPieces(tokenizer.decode, before or [])
    return [*[text.push(token) for token in ids], text.flush()]


def _ids(tokenizer: Tokenizer, *tokens: str) -> list[int]:
    vocab = tokenizer.get_vocab()
    return [vocab[token] for token in tokens]


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("text", TEXTS)
def test_pieces_are_the_text_and_never_half_a_character(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    pieces = _pieces(tokenizer, ids)
    assert "".join(pieces) == tokenizer.decode(ids) == text
    assert not any("\ufffd" in piece for piece in pieces)
    assert sum(map(bool, pieces)) > len(text.split()), "told as it comes, not at the end"


@pytest.mark.parametrize("name", TOKENIZERS)
def test_any_ids_give_the_text_of_all_of_them(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    chance = random.Random(0)
    # One byte that is wrong makes the fallback drop its neighbours too, told or not.
    tokens = [i for text, i in tokenizer.get_vocab().items() if not text.startswith("<0x")]
    for _ in range(200):
        ids = chance.choices(tokens, k=chance.randint(1, 30))
        told = "".join(_pieces(tokenizer, ids))
        assert told == tokenizer.decode(ids).rstrip("\ufffd")


def test_a_character_that_is_cut_off_is_not_told() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("ok 世").ids
    assert "".join(_pieces(tokenizer, ids[:-1])) == "ok "


def test_a_text_that_goes_on_keeps_its_space() -> None:
    tokenizer = TOKENIZERS["sentencepiece-like"]
    before = tokenizer.encode("spaces").ids
    word = _ids(tokenizer, "▁and")
    assert "".join(_pieces(tokenizer, word)) == "and", "an answer begins by itself"
    assert "".join(_pieces(tokenizer, word, before)) == " and"


def test_a_space_behind_a_token_without_text_stays() -> None:
    tokenizer = TOKENIZERS["sentencepiece-like"]
    ids = _ids(tokenizer, "▁a", "</s>", "▁and", "</s>", "▁three")
    assert "".join(_pieces(tokenizer, ids)) == "a and three"


def test_stop_strings_end_the_text_wherever_the_tokens_cut_them() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    chance = random.Random(1)
    for _ in range(300):
        whole = "".join(chance.choice("ab\n#世") for _ in range(30))
        stops = ["".join(chance.choice("ab\n#世") for _ in range(chance.randint(1, 5)))
                 for _ in range(2)]  # fmt: skip
        ends = [at for at in (whole.find(stop) for stop in stops) if at >= 0]
        ids = tokenizer.encode(whole).ids
        text = AnswerText(TextPieces(tokenizer.decode), stops)
        told = ""
        for token in ids:
            told += text.push(token)
            assert whole[: min(ends, default=len(whole))].startswith(told)
            if text.stopped:
                break
        told += text.flush()
        assert text.stopped == bool(ends)
        # Two stops may end at the same token: the one that begins first counts.
        assert told == whole[: min(ends, default=len(whole))] or (
            text.stopped and any(whole.startswith(told + stop) for stop in stops)
        )


def test_what_only_looks_like_a_stop_string_is_told_in_the_end() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    text = AnswerText(TextPieces(tokenizer.decode), ["###"])
    told = "".join(text.push(token) for token in tokenizer.encode("a##").ids)
    assert told == "a"
    assert text.flush() == "##"
    assert not text.stopped
