"""Rows to token ids with a loss mask: only what the assistant says, and its end, is learned.

A conversation is rendered as a whole, and cut where answers start and end. An answer's ids are
those that follow the ids of the text before it, so that a trained position always follows exactly
the ids that it will follow in use, and masks never depend on the value of an id.

Control tokens in the data: programs that serve a model read `<|im_end|>` in a message as the
control token that it spells, so such a message can end its own turn and forge the next one. A
conversation that holds a token with which the template marks turns is therefore left out and
reported. Prompt and completion are joined as they are: who writes control tokens there means them.
"""

import msgspec

from slidepack.engine.data.rows import ChatRow, CompletionRow, Reject, Row, clip
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


class _UnfitError(Exception):
    """The row and the model's template do not go together."""

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class _Answer(msgspec.Struct, frozen=True):
    """Where an answer stands in the rendered conversation."""

    start: int
    end: int
    """Behind its end token."""
    end_token: int
    """Where its end token starts."""


def encode_row(row: Row, tokenizer: ChatTokenizer, max_seq_len: int) -> EncodedRow | Reject:
    """Encode a row; one that is too long or that the template refuses becomes a `Reject`.

    Raises:
        SlidepackError: MODEL-NO-CHAT-TEMPLATE for a conversation and a model without template.
    """
    if isinstance(row, CompletionRow):
        encoded = _encode_completion(row, tokenizer)
    else:
        try:
            encoded = _encode_chat(row, tokenizer)
        except TemplateRejectedError as error:
            return Reject(line=row.line, reason="template-refused", detail=clip(error))
        except _UnfitError as error:
            return Reject(line=row.line, reason=error.reason, detail=error.detail)
    if len(encoded.ids) > max_seq_len:
        return Reject(
            line=row.line,
            reason="too-long",
            detail=f"{len(encoded.ids)} tokens, the limit is {max_seq_len}",
        )
    if not encoded.num_supervised:
        return Reject(line=row.line, reason="nothing-to-learn", detail="no token is supervised")
    return encoded


def encode_prompt(row: Row, tokenizer: ChatTokenizer) -> list[int]:
    """Return the ids that stand before the row's first answer.

    Raises:
        TemplateRejectedError: the template refused the conversation.
        SlidepackError: MODEL-NO-CHAT-TEMPLATE.
    """
    if isinstance(row, CompletionRow):
        return _encode_open(row.prompt, tokenizer)
    before = []
    for turn in row.messages:
        if turn.role == "assistant":
            break
        before.append(turn)
    return tokenizer.encode(tokenizer.render(tuple(before), prompt=True))


def _encode_chat(row: ChatRow, tokenizer: ChatTokenizer) -> EncodedRow:
    text = tokenizer.render(row.messages, prompt=False)
    _check_turns(row, text, tokenizer)
    ids: list[int] = []
    supervised: list[bool] = []
    # Each stretch starts at the end token of the answer before, which no token can straddle, so
    # the ids of the stretches are the ids of the whole. That token itself is there already.
    stretch, known = 0, 0
    for answer in _find_answers(row, text, tokenizer):
        before = tokenizer.encode(text[stretch : answer.start])[known:]
        through = tokenizer.encode(text[stretch : answer.end])[known:]
        following = through[len(before) :]
        if through[: len(before)] != before:
            # A token would straddle the start of the answer; in use the prompt ends there.
            following = tokenizer.encode(text[answer.start : answer.end])
        ids += [*before, *following]
        supervised += [False] * len(before) + [True] * len(following)
        stretch, known = answer.end_token, 1
    # What follows the last answer is never predicted and never attended to, so it is left out.
    return _encoded(row.line, ids, supervised)


def _check_turns(row: ChatRow, text: str, tokenizer: ChatTokenizer) -> None:
    """Refuse turns that forge others, and turns that the template leaves out in silence."""
    for index, turn in enumerate(row.messages, start=1):
        for token in tokenizer.control_tokens:
            if token in turn.content:
                raise _UnfitError("control-token", f"turn {index} holds {clip(token)}")
        # Templates may change what tools say (as JSON, say); the other roles' text stays.
        if turn.role != "tool" and turn.content.strip() not in text:
            raise _UnfitError(
                "template-drops-text", f"turn {index} ({turn.role}) is not in the prompt as it is"
            )


def _find_answers(row: ChatRow, text: str, tokenizer: ChatTokenizer) -> list[_Answer]:
    """Find each trained answer by rendering the conversation with and without it."""
    answers = []
    for index, turn in enumerate(row.messages):
        if not turn.train:
            continue
        before = tokenizer.render(row.messages[:index], prompt=True)
        through = tokenizer.render(row.messages[: index + 1], prompt=False)
        if not through.startswith(before) or not text.startswith(through):
            raise _UnfitError("template-unstable", f"turn {index + 1} changes the text before it")
        # The newline that some templates put after the end token is never generated.
        token = tokenizer.last_special(through[len(before) :])
        if token is None:
            raise _UnfitError(
                "template-no-end", "the template ends no answer, so its end would not be learned"
            )
        start, end = token
        answers.append(_Answer(len(before), len(before) + end, len(before) + start))
    return answers


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


def _encoded(line: int, ids: list[int], supervised: list[bool]) -> EncodedRow:
    # The first token of a row has no left neighbour, so nothing predicts it.
    return EncodedRow(line, tuple(ids), (False, *supervised[1:]))
