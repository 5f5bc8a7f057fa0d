"""The model's tokenizer and chat template, from a Hugging Face folder, without torch."""

import json
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.markers import Markers, find_markers
from slidepack.engine.data.messages import message_of
from slidepack.engine.data.named_templates import TemplateChoice, named_template
from slidepack.engine.data.rows import Turn
from slidepack.engine.data.template import ChatTemplate
from slidepack.engine.data.template_limits import TemplateLimitError
from slidepack.engine.data.tokenizer_config import (
    broken,
    read_object,
    read_special_tokens,
    read_template_source,
)
from slidepack.engine.data.tokenizer_files import read_tokenizer


class ChatTokenizer:
    """Text to token ids and back, and conversations to text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        special_tokens: dict[str, str],
        template_source: str,
        named: TemplateChoice = "auto",
        quick: bool = False,
    ) -> None:
        """Wrap a loaded tokenizer; use `load_tokenizer` to read one from a folder.

        Raises:
            ValueError: the template does not parse.
            SlidepackError: MODEL-BROKEN: the end token is not in the vocabulary.
        """
        # Files saved by a training script may carry its cut-off, which would shorten rows unseen.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._quick = quick
        self._special_tokens = special_tokens
        self.eos_token = special_tokens["eos_token"]
        self.eos_id: int = self._require_id(self.eos_token)
        self.has_template = bool(template_source)
        """Whether the model comes with a chat template."""
        self.template_name = "the model's own" if template_source else "none"
        """Of the template that conversations are rendered with: the model's own, or a named one."""
        self.template_reason = ""
        """Why a named template stands in; for people."""
        added = {token.content: token.special for token in _added_tokens(tokenizer)}
        markers: tuple[str, ...] = ()
        if not template_source:
            stand_in = named_template(named, frozenset(added), starts=self._starts())
            if stand_in is not None:
                template_source, markers = stand_in.source, stand_in.markers
                self.template_name, self.template_reason = stand_in.name, stand_in.reason
        self.template_source = template_source
        """Jinja; "" where there is none."""
        self._template = ChatTemplate(template_source) if template_source else None
        special = {text for text, flag in added.items() if flag or text in markers}
        special.add(self.eos_token)
        self.control_tokens = tuple(
            sorted(
                {
                    token
                    for token in special
                    if token in template_source or token in special_tokens.values()
                }.union(markers)
            )
        )
        """What marks turns in the template, and the model's own special tokens."""
        self._special = _any_of(special)
        self._ending = re.compile(rf"(?:{self._special.pattern})\s*\Z")
        self._turn_tokens = sorted(special.intersection(self.control_tokens), key=len)
        """Those of the control tokens that are tokens; a later one may contain an earlier one."""
        self._turn_ending = re.compile(rf"(?:{_any_of(set(self._turn_tokens)).pattern})\s*\Z")

    @cached_property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

    @property
    def has_marks(self) -> bool:
        """Whether the template itself marks what the assistant generates."""
        return self._template is not None and self._template.has_marks

    @cached_property
    def markers(self) -> Markers | None:
        """With what the template opens and closes answers; None where it does not say."""
        return find_markers(self)

    @property
    def stands_in(self) -> bool:
        """Whether the template is a named one, as the model has none."""
        return self.template_name in ("chatml", "alpaca")

    @property
    def answer_end_ids(self) -> frozenset[int]:
        """The token with which a stand-in template ends answers; the model's own say it elsewhere.

        Empty where the end is several tokens.
        """
        markers = self.markers if self.stands_in else None
        ids = self.encode(markers.end) if markers is not None else []
        return frozenset(ids) if len(ids) == 1 else frozenset()

    def plain_tokens_beyond(self, rows: int) -> list[str]:
        """Return the tokens for which an embedding of `rows` rows has no place.

        Special ones apart: Gemma 3 1B has a token for images, which text never needs, right behind
        its last row. A row of data that holds such a token is refused by itself.
        """
        added = self._tokenizer.get_added_tokens_decoder()
        vocab = self._tokenizer.get_vocab(with_added_tokens=True)
        return sorted(
            token
            for token, index in vocab.items()
            if index >= rows and not (index in added and added[index].special)
        )

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`.

        Args:
            text: any text; special tokens written in it are recognised.
            special: whether the tokenizer's own start and end tokens are added.
        """
        if self._quick:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=special)
        else:
            encoding = self._tokenizer.encode(text, add_special_tokens=special)
        return list(encoding.ids)

    def decode(self, ids: list[int], *, special: bool = False) -> str:
        """Return the text of `ids`; special tokens are left out unless asked for."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=not special))

    def first_special(self, text: str, start: int = 0) -> tuple[int, int] | None:
        """Return start and end of the first special token at or behind `start`."""
        found = self._special.search(text, start)
        return None if found is None else found.span()

    def last_special(self, text: str) -> tuple[int, int] | None:
        """Return start and end of the special token that ends the text, white space apart.

        Some templates close the conversation behind the end of the last turn, so that several
        tokens that they write stand at the end; the first of those ends the turn.
        """
        found = self._ending.search(text)
        if found is None:
            return None
        start = found.start()
        # `\Z` with `endpos` stands for the end of the part that is looked at.
        while earlier := self._turn_ending.search(text, 0, start):
            start = earlier.start()
        span = self.first_special(text, start)
        assert span is not None
        return span

    def last_turn_token(self, text: str, start: int, end: int) -> tuple[int, int]:
        """Return start and end of the last token of `text[start:end]` that marks turns.

        Both are `start` where there is none.
        """
        at, token = max(
            ((text.rfind(token, start, end), token) for token in self._turn_tokens),
            default=(-1, ""),
        )
        return (start, start) if at < 0 else (at, at + len(token))

    def render(self, messages: tuple[Turn, ...], *, prompt: bool, tools: str = "") -> str:
        """Render a conversation through the chat template.

        Args:
            messages: the turns.
            prompt: whether to end with the header of the assistant's next turn.
            tools: JSON list of the tools that may be called, or "".

        Raises:
            TemplateRejectedError: the template refused the conversation.
            SlidepackError: MODEL-NO-CHAT-TEMPLATE, or MODEL-BROKEN for a template beyond its
                limits.
        """
        template, values = self._values(messages, prompt, tools)
        try:
            return template.render(values)
        except TemplateLimitError as error:
            raise _unlimited(error) from error

    def render_marked(
        self, messages: tuple[Turn, ...], *, tools: str = ""
    ) -> tuple[str, list[tuple[int, int]]]:
        """Render as `render` does, and return where the template's own marks say answers stand.

        Raises:
            TemplateRejectedError: the template refused the conversation.
            SlidepackError: MODEL-NO-CHAT-TEMPLATE, or MODEL-BROKEN.
        """
        template, values = self._values(messages, False, tools)
        try:
            return template.render_marked(values)
        except TemplateLimitError as error:
            raise _unlimited(error) from error

    def _values(
        self, messages: tuple[Turn, ...], prompt: bool, tools: str
    ) -> tuple[ChatTemplate, dict[str, Any]]:
        if self._template is None:
            raise SlidepackError(
                "MODEL-NO-CHAT-TEMPLATE",
                "This model has no chat template, and the rows are conversations.",
                why="tokenizer_config.json has no chat_template, and no named template was wanted",
                fix="Choose the template chatml or alpaca, an instruction-tuned model, or rows "
                "with `prompt` and `completion`.",
            )
        # Templates ask whether tools and documents are none, and an undefined name is not none.
        values: dict[str, Any] = {
            "messages": [message_of(turn) for turn in messages],
            "add_generation_prompt": prompt,
            "tools": json.loads(tools) if tools else None,
            "documents": None,
        }
        return self._template, self._special_tokens | values

    def _starts(self) -> bool:
        """Return whether the tokenizer puts the model's start token before a text."""
        start = self._special_tokens.get("bos_token")
        if start is None or self._tokenizer.token_to_id(start) is None:
            return False
        return self.encode("a", special=True)[:1] == [self._tokenizer.token_to_id(start)]

    def _require_id(self, token: str) -> int:
        found = self._tokenizer.token_to_id(token)
        if found is None:
            raise SlidepackError(
                "MODEL-BROKEN",
                "The tokenizer lacks its own end token.",
                why=f"{token!r} is named in tokenizer_config.json and not in tokenizer.json",
                fix="Get the model's tokenizer files again.",
            )
        return int(found)


def load_tokenizer(
    folder: Path, named: TemplateChoice = "auto", *, quick: bool = False
) -> ChatTokenizer:
    """Load tokenizer and chat template from a Hugging Face folder.

    Args:
        folder: of the model.
        named: the template for conversations where the model has none.
        quick: encode by the library's call for batches, a quarter faster. It starts threads, which
            stay, unless TOKENIZERS_PARALLELISM is false.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    tokenizer = read_tokenizer(folder)
    config = read_object(folder / "tokenizer_config.json")
    try:
        return ChatTokenizer(
            tokenizer,
            special_tokens=read_special_tokens(folder, config),
            template_source=read_template_source(folder, config),
            named=named,
            quick=quick,
        )
    except ValueError as error:
        raise broken(folder, f"the chat template does not parse: {error}") from error


def _added_tokens(tokenizer: Tokenizer) -> list[Any]:
    return list(tokenizer.get_added_tokens_decoder().values())


def _any_of(tokens: set[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(tokens, key=len, reverse=True))) or "(?!)")


def _unlimited(error: TemplateLimitError) -> SlidepackError:
    return SlidepackError(
        "MODEL-BROKEN",
        "The model's chat template goes beyond what a template may spend.",
        why=f"chat_template: {error}",
        fix="Get the model from its maker again; a template of this kind can stop a computer.",
    )
