"""Rows to token ids with a loss mask: only what the assistant says, and its end, is learned.

The text is tokenised in the pieces that generation sees: everything up to an answer, as it stands
when the model starts to answer, then the answer. So a trained position always follows exactly the
ids that it will follow in use, and masks never depend on the value of an id.
"""

import msgspec

from slidepack.engine.data.rows import ChatRow, CompletionRow, Reject, Row, clip
from slidepack.engine.data.tokenizer import ChatTokenizer, TemplateRejectedError


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


class _Span(msgspec.Struct, frozen=True):
    text: str
    trained: bool


def encode_row(row: Row, tokenizer: ChatTokenizer, max_seq_len: int) -> EncodedRow | Reject:
    """Encode a row; one that is too long or that the template refuses becomes a `Reject`.

    Raises:
        SlidepackError: MODEL-NO-CHAT-TEMPLATE for a conversation and a model without template.
    """
    if isinstance(row, CompletionRow):
        encoded = _encode_completion(row, tokenizer)
    else:
        try:
            encoded = _encode_spans(row.line, _spans(row, tokenizer), tokenizer)
        except TemplateRejectedError as error:
            return Reject(line=row.line, reason="template-refused", detail=clip(error))
        except _UnstableTemplateError as error:
            return Reject(line=row.line, reason="template-unstable", detail=clip(error))
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
        return tokenizer.encode(row.prompt, special=True)
    before = []
    for turn in row.messages:
        if turn.role == "assistant":
            break
        before.append(turn)
    return tokenizer.encode(tokenizer.render(tuple(before), prompt=True))


class _UnstableTemplateError(Exception):
    """The template renders the start of a conversation differently once it goes on."""


def _spans(row: ChatRow, tokenizer: ChatTokenizer) -> list[_Span]:
    """Cut the rendered conversation at each trained answer, by rendering with and without it."""
    full = tokenizer.render(row.messages, prompt=False)
    spans: list[_Span] = []
    position = 0
    for index, turn in enumerate(row.messages):
        if not turn.train:
            continue
        before = tokenizer.render(row.messages[:index], prompt=True)
        through = tokenizer.render(row.messages[: index + 1], prompt=False)
        if not through.startswith(before) or not full.startswith(through):
            raise _UnstableTemplateError(f"turn {index + 1} changes the text before it")
        answer = through[len(before) :]
        # The newline that some templates put after the end token is never generated.
        kept = answer[: answer.rfind(tokenizer.eos_token) + len(tokenizer.eos_token)]
        answer = kept if tokenizer.eos_token in answer else answer.rstrip("\n")
        spans.append(_Span(full[position : len(before)], False))
        spans.append(_Span(answer, True))
        position = len(before) + len(answer)
    spans.append(_Span(full[position:], False))
    return spans


def _encode_spans(line: int, spans: list[_Span], tokenizer: ChatTokenizer) -> EncodedRow:
    ids: list[int] = []
    supervised: list[bool] = []
    for span in spans:
        piece = tokenizer.encode(span.text)
        ids += piece
        supervised += [span.trained] * len(piece)
    # What follows the last trained token is never predicted and never attended to.
    end = max((i for i, trained in enumerate(supervised) if trained), default=-1) + 1
    return EncodedRow(line, tuple(ids[:end]), tuple(supervised[:end]))


def _encode_completion(row: CompletionRow, tokenizer: ChatTokenizer) -> EncodedRow:
    prompt = tokenizer.encode(row.prompt, special=True)
    if prompt and prompt[-1] == tokenizer.eos_id:
        prompt = prompt[:-1]
    answer = [*tokenizer.encode(row.completion), tokenizer.eos_id]
    # The first token of a row has no left neighbour, so nothing predicts it.
    supervised = [False] * len(prompt) + [True] * len(answer)
    if not prompt:
        supervised[0] = False
    return EncodedRow(row.line, tuple(prompt + answer), tuple(supervised))
