"""A tokenizer as llama.cpp stores one: tokens, kinds, merges or scores, and special ids."""

from pathlib import Path
from typing import Any, Final

from gguf import GGUFWriter, TokenType

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.tokenizer_config import read_object
from slidepack.engine.export.speech import Speech
from slidepack.engine.families.gguf_words import BYTES, BYTES_BY_WORDS, DIGITS, PRE_TOKENIZERS
from slidepack.engine.shape import ModelShape

__all__ = ["add_tokenizer"]

_SPACE: Final = "▁"
_ROLES: Final = {"bos": "bos", "eos": "eos", "unk": "unk", "pad": "pad"}


def add_tokenizer(writer: GGUFWriter, folder: Path, speech: Speech, shape: ModelShape) -> None:
    """Add the tokenizer and the chat template.

    Args:
        writer: of the file.
        folder: of the model, with its tokenizer.json.
        speech: its special tokens, template and ends of answers.
        shape: of the model; the file has as many tokens as the embedding has rows.

    Raises:
        SlidepackError: MODEL-UNSUPPORTED: llama.cpp would read text otherwise. MODEL-BROKEN.
    """
    source = read_object(folder / "tokenizer.json")
    model = source.get("model")
    if not isinstance(model, dict) or model.get("type") != "BPE":
        raise _unsupported(f"its kind is {(model or {}).get('type')}, not BPE")
    if model.get("byte_fallback"):
        _add_pieces(writer, source, speech, shape.vocab)
    else:
        _add_bytes(writer, source, shape.vocab)
    _add_special(writer, folder, speech, shape.vocab)
    if speech.template:
        writer.add_chat_template(speech.template)


def _add_bytes(writer: GGUFWriter, source: dict[str, Any], vocab: int) -> None:
    """Add a byte-level BPE, which merges by a list of pairs."""
    normalizer = source.get("normalizer")
    # Qwen composes characters first; llama.cpp leaves that to whoever sends the text.
    if normalizer is not None and normalizer.get("type") != "NFC":
        raise _unsupported(f"its text is changed first ({normalizer.get('type')})")
    merges = [f"{left} {right}" for left, right in _merges(source)]
    if not merges:
        raise _unsupported("it merges nothing, and llama.cpp wants merges")
    tokens, kinds = _tokens(source, vocab)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_pre_tokenizer(source.get("pre_tokenizer")))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)


def _add_pieces(writer: GGUFWriter, source: dict[str, Any], speech: Speech, vocab: int) -> None:
    """Add a SentencePiece BPE, which merges whatever makes the piece of the highest score."""
    tokens, kinds = _tokens(source, vocab)
    ranks: dict[str, int] = {}
    for left, right in _merges(source):
        ranks.setdefault(left + right, len(ranks))
    unknown = source["model"].get("unk_token")
    last = float(-len(ranks) - 1)
    scores = []
    for index, token in enumerate(tokens):
        if kinds[index] == TokenType.NORMAL and _is_byte(token):
            kinds[index] = TokenType.BYTE
        elif token == unknown:
            kinds[index] = TokenType.UNKNOWN
        elif kinds[index] == TokenType.USER_DEFINED:
            # llama.cpp looks for these in the text as it was written.
            tokens[index] = token.replace(_SPACE, " ")
        # What no merge makes is a single character, a byte or a token found before merging.
        scores.append(-float(ranks[token]) if token in ranks else last)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_add_space_prefix(speech.first_token("a").startswith(_SPACE))


def _tokens(source: dict[str, Any], vocab: int) -> tuple[list[str], list[TokenType]]:
    tokens = [f"[PAD{index}]" for index in range(vocab)]
    kinds = [TokenType.UNUSED] * vocab
    for token, index in source["model"]["vocab"].items():
        if index < vocab:
            tokens[index], kinds[index] = token, TokenType.NORMAL
    for added in source.get("added_tokens") or []:
        # Gemma 3 1B has a special token for images behind its last row.
        if added["id"] < vocab:
            kind = TokenType.CONTROL if added["special"] else TokenType.USER_DEFINED
            tokens[added["id"]], kinds[added["id"]] = added["content"], kind
    return tokens, kinds


def _merges(source: dict[str, Any]) -> list[tuple[str, str]]:
    pairs: list[tuple[str, str]] = []
    for merge in source["model"]["merges"]:
        # Older files write a pair as one text with a space in it.
        left, right = merge.split(" ", 1) if isinstance(merge, str) else merge
        pairs.append((left, right))
    return pairs


def _pre_tokenizer(source: Any) -> str:
    steps = [] if source is None else source.get("pretokenizers", [source])
    described = tuple(_step(step) for step in steps)
    name = next((known.name for known in PRE_TOKENIZERS if known.steps == described), None)
    if name is None:
        raise _unsupported(f"it divides text by {' and then '.join(described) or 'nothing'}")
    return name


def _step(step: dict[str, Any]) -> str:
    kind = step.get("type")
    if kind == "ByteLevel" and not step.get("add_prefix_space"):
        return BYTES_BY_WORDS if step.get("use_regex", True) else BYTES
    if kind == "Digits" and step.get("individual_digits"):
        return DIGITS
    if kind == "Split" and step.get("behavior") == "Isolated" and not step.get("invert"):
        return str((step.get("pattern") or {}).get("Regex"))
    return str(kind)


def _add_special(writer: GGUFWriter, folder: Path, speech: Speech, vocab: int) -> None:
    ids = {role: speech.special_id(f"{role}_token") for role in _ROLES}
    if ids["bos"] is None:
        # Qwen names it here only; llama.cpp would take a token of its own choice for it.
        ids["bos"] = _number(read_object(folder / "config.json").get("bos_token_id"))
    adders = {
        "bos": writer.add_bos_token_id,
        "eos": writer.add_eos_token_id,
        "unk": writer.add_unk_token_id,
        "pad": writer.add_pad_token_id,
    }
    for role, index in ids.items():
        if index is not None and index < vocab:
            adders[role](index)
    turn_ends = sorted(index for index in speech.end_ids - {ids["eos"]} if index < vocab)
    spoken = [index for index in turn_ends if speech.text_of(index) in speech.template]
    if spoken:
        writer.add_eot_token_id(spoken[0])
    writer.add_add_bos_token(speech.adds_start)
    writer.add_add_eos_token(speech.adds_end)


def _number(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _is_byte(token: str) -> bool:
    return len(token) == 6 and token.startswith("<0x") and token.endswith(">")


def _unsupported(why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-UNSUPPORTED",
        "This model's tokenizer cannot be written as a GGUF file.",
        why=why,
        fix="Export the model as merged or peft; of tokenizers, GGUF files hold SentencePiece's "
        f"and these: {', '.join(known.name for known in PRE_TOKENIZERS)}.",
    )
