"""Conversations to token ids: each answer is found by rendering with and without it.

Mostly one rendering holds all answers of a row. Where the template shows an answer otherwise once
the talk has gone on (Qwen 3 drops what was thought in earlier turns), the row becomes several
samples: each ends with the answer that it teaches, after exactly what generation sees there.
"""

import json

import msgspec

from slidepack.engine.data.messages import tool_calls_of
from slidepack.engine.data.rows import ChatRow, Turn, clip
from slidepack.engine.data.tokenizer import ChatTokenizer

_THOUGHT_END = "</think>"


class UnfitError(Exception):
    """The row and the model's template do not go together."""

    def __init__(self, reason: str, detail: str) -> None:
        """Build the error from a reject's reason and detail."""
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail


class Answer(msgspec.Struct, frozen=True):
    """Where an answer stands in a rendered conversation."""

    turn: int
    """Index among the row's turns."""
    start: int
    end: int
    """Behind its end token."""
    end_token: int
    """Where its end token starts."""


class Sample(msgspec.Struct, frozen=True):
    """A rendering and the answers that are learned from it."""

    text: str
    num_turns: int
    """How many turns of the row are rendered."""
    answers: tuple[Answer, ...]
    """In order; at least one."""


def find_samples(row: ChatRow, tokenizer: ChatTokenizer) -> list[Sample]:
    """Render a conversation, as few times as hold all of its trained answers, in order.

    Raises:
        TemplateRejectedError: the template refused the conversation.
        UnfitError: the template does not say where answers start or end, or drops text.
        SlidepackError: MODEL-NO-CHAT-TEMPLATE or MODEL-BROKEN.
    """
    _check_control_tokens(row, tokenizer)
    samples: list[Sample] = []
    text, num_turns, answers = "", 0, list[Answer]()
    trained = [i for i, turn in enumerate(row.messages) if turn.train and turn.role == "assistant"]
    for index in reversed(trained):
        through, answer = _render_answer(row, index, tokenizer)
        if answers and not text.startswith(through[: answer.end]):
            samples.append(Sample(text, num_turns, tuple(reversed(answers))))
            answers = []
        if not answers:
            text, num_turns = through, index + 1
        answers.append(answer)
    if answers:
        samples.append(Sample(text, num_turns, tuple(reversed(answers))))
    for sample in samples:
        _check_text(row, sample)
    return samples[::-1]


def encode_sample(sample: Sample, tokenizer: ChatTokenizer) -> tuple[list[int], list[bool]]:
    """Encode a rendering up to its last answer; return ids, and whether each is learned.

    An answer's ids are those that follow the ids of the text before it. What follows the last
    answer is never predicted and never attended to, so it is left out.
    """
    text = sample.text
    ids: list[int] = []
    supervised: list[bool] = []
    # Each stretch starts at a token that marks turns, which no other token can straddle, so the ids
    # of the stretches are the ids of the whole. That token itself is there already.
    stretch, known = 0, 0
    for answer in sample.answers:
        mark, mark_end = tokenizer.last_turn_token(text, stretch, answer.start)
        if mark > stretch:
            context = tokenizer.encode(text[stretch:mark_end])[known:]
            ids += context
            supervised += [False] * len(context)
            stretch, known = mark, 1
        before = tokenizer.encode(text[stretch : answer.start])[known:]
        through = tokenizer.encode(text[stretch : answer.end])[known:]
        following = through[len(before) :]
        if through[: len(before)] != before:
            # A token would straddle the start of the answer; in use the prompt ends there.
            following = tokenizer.encode(text[answer.start : answer.end])
        ids += [*before, *following]
        supervised += [False] * len(before) + [True] * len(following)
        stretch, known = answer.end_token, 1
    return ids, supervised


def _render_answer(row: ChatRow, index: int, tokenizer: ChatTokenizer) -> tuple[str, Answer]:
    """Return the rendering that ends with an answer, and where the answer stands in it."""
    before = tokenizer.render(row.messages[:index], prompt=True, tools=row.tools)
    through = tokenizer.render(row.messages[: index + 1], prompt=False, tools=row.tools)
    if not through.startswith(before):
        raise UnfitError("template-unstable", f"turn {index + 1} changes the text before it")
    # The newline that some templates put after the end token is never generated.
    token = tokenizer.last_special(through[len(before) :])
    if token is None:
        raise UnfitError(
            "template-no-end", "the template ends no answer, so its end would not be learned"
        )
    start, end = token
    base = len(before)
    return through, Answer(index, base, base + end, base + start)


def _check_control_tokens(row: ChatRow, tokenizer: ChatTokenizer) -> None:
    """Refuse turns that forge others."""
    for index, turn in enumerate(row.messages, start=1):
        for written in _written(turn):
            for token in tokenizer.control_tokens:
                if token in written:
                    raise UnfitError("control-token", f"turn {index} holds {clip(token)}")
    tools = json.dumps(json.loads(row.tools), ensure_ascii=False) if row.tools else ""
    for token in tokenizer.control_tokens:
        if token in tools:
            raise UnfitError("control-token", f"the list of tools holds {clip(token)}")


def _written(turn: Turn) -> list[str]:
    """Return all text of a turn that a template may write."""
    texts = [turn.content, turn.reasoning, turn.name, turn.tool_call_id]
    if turn.tool_calls:
        texts.append(json.dumps(tool_calls_of(turn), ensure_ascii=False))
    return [text for text in texts if text]


def _check_text(row: ChatRow, sample: Sample) -> None:
    """Refuse a template that leaves out in silence what the row says."""
    learned = {answer.turn for answer in sample.answers}
    for index, turn in enumerate(row.messages[: sample.num_turns]):
        missing = _missing(turn, sample.text, learned=index in learned)
        if missing:
            raise UnfitError(
                "template-drops-text",
                f"turn {index + 1} ({turn.role}): the prompt lacks its {missing}, or alters it",
            )
    for name in _tool_names(row.tools):
        if name not in sample.text:
            raise UnfitError("template-drops-text", f"the prompt lacks the tool {clip(name)}")


def _missing(turn: Turn, text: str, *, learned: bool) -> str:
    """Return what of a turn the text lacks; "" for nothing."""
    # Templates may change what tools say (as JSON, say); the other roles' text stays.
    if turn.role == "tool":
        return ""
    thought, _, said = turn.content.rpartition(_THOUGHT_END)
    # What was thought in earlier turns is dropped on purpose, as it is in use.
    parts = [said, thought.replace("<think>", "")] if learned else [said]
    if any(part.strip() not in text for part in parts):
        return "text"
    if learned and turn.reasoning.strip() not in text:
        return "reasoning"
    names = (_name_of(call) for call in tool_calls_of(turn)) if turn.tool_calls else ()
    return "" if all(name in text for name in names) else "tool calls"


def _tool_names(tools: str) -> list[str]:
    return [_name_of(tool) for tool in json.loads(tools)] if tools else []


def _name_of(entry: object) -> str:
    """Return the name of a tool or a call, in OpenAI's form or without its wrapper."""
    inner = entry.get("function", entry) if isinstance(entry, dict) else None
    name = inner.get("name") if isinstance(inner, dict) else None
    return name if isinstance(name, str) else ""
