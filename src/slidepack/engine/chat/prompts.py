"""What a voice reads before it answers, and where its answers end: as training has it."""

from pathlib import Path

from slidepack.engine.chat.contract import Ask
from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.masking import encode_prompt
from slidepack.engine.data.rows import CompletionRow
from slidepack.engine.data.template import TemplateRejectedError
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.data.tokenizer_config import (
    read_object,
    read_special_tokens,
    read_template_source,
)
from slidepack.engine.data.tokenizer_files import read_tokenizer
from slidepack.engine.model.loading import eos_ids

__all__ = ["end_ids", "prompt_ids", "voice_tokenizer"]


def prompt_ids(ask: Ask, tokenizer: ChatTokenizer, vocab: int, context: int) -> list[int]:
    """Return the ids of a conversation with the header of its answer, or of a text to go on with.

    Args:
        ask: with messages or a prompt.
        tokenizer: of the voice.
        vocab: rows of the embedding.
        context: most tokens of a conversation; the answer needs one of them.

    Raises:
        SlidepackError: CHAT-PROMPT-INVALID, CHAT-CONTEXT-FULL, MODEL-NO-CHAT-TEMPLATE or
            MODEL-BROKEN.
    """
    if ask.prompt is not None:
        ids = encode_prompt(CompletionRow(0, ask.prompt, ""), tokenizer)
    else:
        turns = tuple(message.turn for message in ask.messages)
        try:
            text = tokenizer.render(turns, prompt=True, tools=ask.tools)
        except TemplateRejectedError as error:
            raise _invalid(f"the model's chat template refused it: {error}") from error
        ids = tokenizer.encode(text)
    if not ids:
        raise _invalid("it has no token")
    if max(ids) >= vocab:
        raise _invalid(f"token {max(ids)} has no place in the model's {vocab} tokens")
    if len(ids) >= context:
        raise SlidepackError(
            "CHAT-CONTEXT-FULL",
            "The conversation does not fit the context.",
            why=f"it has {len(ids)} tokens, and the context of {context} must hold the answer too",
            fix="Begin a new conversation, shorten it, or start the chat with a larger context.",
        )
    return ids


def end_ids(folder: Path, tokenizer: ChatTokenizer) -> frozenset[int]:
    """Return the tokens that end an answer: the model's own, and what the template ends turns with.

    Args:
        folder: of the base model.
        tokenizer: of the voice.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    ends = eos_ids(folder, tokenizer.eos_id) | tokenizer.answer_end_ids
    markers = tokenizer.markers if tokenizer.has_template else None
    if markers is None:
        return ends
    # A base model's `eos_token` ends documents; its template may end turns by another token.
    ids = tokenizer.encode(markers.end)
    is_special = tokenizer.first_special(markers.end) == (0, len(markers.end))
    return ends | frozenset(ids) if is_special and len(ids) == 1 else ends


def voice_tokenizer(base: Path, adapter: Path, shared: ChatTokenizer) -> ChatTokenizer:
    """Return the tokenizer of an adapter: the base's, with the template that came with the adapter.

    A base model without a template is trained with one that stands in, which is kept with the
    result.

    Raises:
        SlidepackError: MODEL-BROKEN: the adapter's template cannot be read.
    """
    if shared.has_template or not (adapter / "chat_template.jinja").exists():
        return shared
    source = read_template_source(adapter, {})
    if source == shared.template_source:
        return shared
    special = read_special_tokens(base, read_object(base / "tokenizer_config.json"))
    try:
        return ChatTokenizer(read_tokenizer(base), special_tokens=special, template_source=source)
    except ValueError as error:
        raise SlidepackError(
            "MODEL-BROKEN",
            "The adapter's chat template cannot be read.",
            why=f"{adapter.name}: {error}",
            fix="Take the template out of the adapter's folder, or train again.",
        ) from error


def _invalid(why: str) -> SlidepackError:
    return SlidepackError(
        "CHAT-PROMPT-INVALID",
        "The model cannot be asked this.",
        why=why,
        fix="Change the messages.",
    )
