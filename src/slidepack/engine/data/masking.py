"""Rows to token ids with a loss mask: what of a row is learned, and nothing beside it.

Of a conversation only what the assistant says and its end is learned. It is rendered as a whole,
and cut where answers start and end: a trained position always follows exactly the ids that it will
follow in use, and masks never depend on the value of an id. Two ways of finding the answers must
agree (`chat_mask`, `mask_check`). Of a prompt and its completion, the completion is learned and an
end; of a text, all of it and an end; of ready-made ids, what their maker marked.

Control tokens in the data: programs that serve a model read `<|im_end|>` in a message as the
control token that it spells, so such a message can end its own turn and forge the next one. A
conversation that holds a token with which the template marks turns is therefore left out and
reported. Prompt and completion are joined as they are: who writes control tokens there means them.
"""

import msgspec

from slidepack.engine.data.chat_mask import UnfitError, encode_sample, find_samples
from slidepack.engine.data.mask_check import check_masks
from slidepack.engine.data.rows import (
    ChatRow,
    CompletionRow,
    Reject,
    Row,
    TextRow,
    TokensRow,
    clip,
)
from slidepack.engine.data.template import TemplateRejectedError
from slidepack.engine.data.tokenizer import ChatTokenizer


class EncodedRow(msgspec.Struct, frozen=True):
    """Token ids and, for each, whether the loss counts its prediction."""

    line: int
    ids: tuple[int, ...]
    supervised: tuple[bool, ...]
    """Same length as `ids`."""

    @property
    def num_supervised(self) -> int:
        """Tokens the loss counts."""
        return sum(self.supervised)


def encode_whole(row: Row, tokenizer: ChatTokenizer) -> list[EncodedRow | Reject]:
    """Encode a row, however long it becomes.

    Mostly one sample; several where the template shows earlier answers otherwise than the last. A
    row that the template refuses, or of which nothing is learned, becomes one `Reject`.

    Raises:
        SlidepackError: MODEL-NO-CHAT-TEMPLATE for a conversation where no template was wanted, or
            MODEL-BROKEN for a template beyond its limits.
    """
    try:
        samples = _encode(row, tokenizer)
    except TemplateRejectedError as error:
        return [Reject(line=row.line, reason="template-refused", detail=clip(error))]
    except UnfitError as error:
        return [Reject(line=row.line, reason=error.reason, detail=error.detail)]
    learned: list[EncodedRow | Reject] = [s for s in samples if s.num_supervised]
    if not learned:
        return [Reject(line=row.line, reason="nothing-to-learn", detail="no token is supervised")]
    return learned


def encode_prompt(row: Row, tokenizer: ChatTokenizer) -> list[int]:
    """Return the ids that stand before the row's first answer; none where nothing is asked.

    Raises:
        TemplateRejectedError: the template refused the conversation.
        SlidepackError: MODEL-NO-CHAT-TEMPLATE or MODEL-BROKEN.
    """
    if isinstance(row, CompletionRow):
        return _encode_open(row.prompt, tokenizer)
    if not isinstance(row, ChatRow):
        return []
    before = []
    for turn in row.messages:
        if turn.role == "assistant":
            break
        before.append(turn)
    return tokenizer.encode(tokenizer.render(tuple(before), prompt=True, tools=row.tools))


def start_ids(tokenizer: ChatTokenizer) -> list[int]:
    """Return the ids that the tokenizer puts before a text."""
    return _encode_open("", tokenizer)


def _encode(row: Row, tokenizer: ChatTokenizer) -> list[EncodedRow]:
    if isinstance(row, ChatRow):
        samples = find_samples(row, tokenizer)
        for sample in samples:
            check_masks(row, sample, tokenizer)
        return [_encoded(row.line, *encode_sample(sample, tokenizer)) for sample in samples]
    if isinstance(row, CompletionRow):
        return [_encode_completion(row, tokenizer)]
    if isinstance(row, TextRow):
        return [_encode_text(row, tokenizer)]
    return [_take_tokens(row, tokenizer)]


def _encode_open(text: str, tokenizer: ChatTokenizer) -> list[int]:
    """Return the ids of a text that goes on: with the tokenizer's start tokens, without its end."""
    ids = tokenizer.encode(text, special=True)
    closed = ids[-1:] == [tokenizer.eos_id] and not text.endswith(tokenizer.eos_token)
    return ids[:-1] if closed else ids


def _encode_completion(row: CompletionRow, tokenizer: ChatTokenizer) -> EncodedRow:
    prompt = _encode_open(row.prompt, tokenizer)
    through = _encode_open(row.prompt + row.completion, tokenizer)
    answer = through[len(prompt) :]
    if through[: len(prompt)] != prompt:
        # A token would straddle the start of the completion; in use the prompt ends there.
        answer = tokenizer.encode(row.completion)
    if answer[-1:] != [tokenizer.eos_id]:
        answer = [*answer, tokenizer.eos_id]
    supervised = [False] * len(prompt) + [True] * len(answer)
    return _encoded(row.line, prompt + answer, supervised)


def _encode_text(row: TextRow, tokenizer: ChatTokenizer) -> EncodedRow:
    ids = _encode_open(row.text, tokenizer)
    if ids[-1:] != [tokenizer.eos_id]:
        ids = [*ids, tokenizer.eos_id]
    given = len(start_ids(tokenizer))
    return _encoded(row.line, ids, [False] * given + [True] * (len(ids) - given))


def _take_tokens(row: TokensRow, tokenizer: ChatTokenizer) -> EncodedRow:
    beyond = next((i for i in row.ids if not 0 <= i < tokenizer.vocab_size), None)
    if beyond is not None:
        raise UnfitError(
            "token-beyond-vocabulary",
            f"it holds token {beyond}, the model's vocabulary ends at {tokenizer.vocab_size - 1}",
        )
    if len(row.ids) != len(row.supervised):
        raise UnfitError(
            "labels-do-not-match", f"{len(row.ids)} ids have {len(row.supervised)} labels"
        )
    return _encoded(row.line, list(row.ids), list(row.supervised))


def _encoded(line: int, ids: list[int], supervised: list[bool]) -> EncodedRow:
    # The first token of a row has no left neighbour, so nothing predicts it.
    return EncodedRow(line, tuple(ids), (False, *supervised[1:]))
