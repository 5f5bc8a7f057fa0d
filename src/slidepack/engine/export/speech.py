"""How a result speaks: its tokenizer, the template it was trained with, and where answers end."""

from functools import cached_property
from pathlib import Path
from typing import Final

from tokenizers import Tokenizer

from slidepack.engine.data.rows import Role, Turn
from slidepack.engine.data.template import TemplateRejectedError
from slidepack.engine.data.tokenizer import ChatTokenizer
from slidepack.engine.data.tokenizer_config import (
    broken,
    read_object,
    read_special_tokens,
    read_template_source,
)
from slidepack.engine.data.tokenizer_files import read_tokenizer
from slidepack.engine.model.loading import eos_ids

__all__ = ["Speech", "read_speech"]

_TEMPLATE: Final = "chat_template.jinja"


class Speech:
    """Tokenizer and template of a result."""

    def __init__(
        self,
        pieces: Tokenizer,
        tokenizer: ChatTokenizer,
        special: dict[str, str],
        folder: Path,
        *,
        stands_in: bool,
    ) -> None:
        """Wrap them; use `read_speech`."""
        self._pieces = pieces
        self.tokenizer = tokenizer
        self.special = special
        """The special tokens' texts, by `bos_token` and so on."""
        self.template = tokenizer.template_source
        """Jinja; "" where there is none."""
        self.stands_in = stands_in
        """Whether the template came with the result, as the base has none."""
        self._folder = folder

    @cached_property
    def end_ids(self) -> frozenset[int]:
        """The tokens that end answers: the model's own, and that of the template."""
        ids = eos_ids(self._folder, self.tokenizer.eos_id)
        markers = self.tokenizer.markers if self.template else None
        end = [] if markers is None else self.tokenizer.encode(markers.end)
        return ids | frozenset(end) if len(end) == 1 else ids

    @cached_property
    def adds_start(self) -> bool:
        """Whether a text is begun with the start token."""
        plain, whole = self._both("a")
        return len(whole) > len(plain) and whole[0] == self.special_id("bos_token")

    @cached_property
    def adds_end(self) -> bool:
        """Whether a text is closed with the end token."""
        plain, whole = self._both("a")
        return len(whole) > len(plain) and whole[-1] == self.tokenizer.eos_id

    def special_id(self, role: str) -> int | None:
        """Return the id of a special token, e.g. of `bos_token`; None where there is none."""
        text = self.special.get(role)
        found = [] if text is None else self.tokenizer.encode(text)
        return found[0] if len(found) == 1 else None

    def text_of(self, index: int) -> str:
        """Return a token's text."""
        return self.tokenizer.decode([index], special=True)

    def first_token(self, text: str) -> str:
        """Return the first token of a text as the vocabulary writes it."""
        return str(self._pieces.encode(text, add_special_tokens=False).tokens[0])

    def render(self, *turns: tuple[Role, str]) -> str | None:
        """Return a conversation with the next answer begun, or None where the template refuses it.

        Args:
            turns: role and content of each.

        Raises:
            SlidepackError: MODEL-NO-CHAT-TEMPLATE, MODEL-BROKEN.
        """
        messages = tuple(Turn(role, content) for role, content in turns)
        try:
            return self.tokenizer.render(messages, prompt=True)
        except TemplateRejectedError:
            return None

    def _both(self, text: str) -> tuple[list[int], list[int]]:
        return self.tokenizer.encode(text), self.tokenizer.encode(text, special=True)


def read_speech(folder: Path, adapter: Path | None) -> Speech:
    """Read how a result speaks.

    Args:
        folder: of the base, or of a model that was trained as a whole.
        adapter: its folder; a template in it stands in for the base's own.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    config = read_object(folder / "tokenizer_config.json")
    special = read_special_tokens(folder, config)
    own = None if adapter is None else adapter / _TEMPLATE
    stands_in = own is not None and own.exists()
    try:
        if own is not None and stands_in:
            source = own.read_text(encoding="utf-8")
        else:
            source = read_template_source(folder, config)
        pieces = read_tokenizer(folder)
        tokenizer = ChatTokenizer(
            pieces, special_tokens=special, template_source=source, named="none"
        )
    except (ValueError, OSError) as error:
        raise broken(folder, f"the chat template cannot be read: {error}") from error
    return Speech(pieces, tokenizer, special, folder, stands_in=stands_in)
