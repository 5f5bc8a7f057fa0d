"""The model's tokenizer and chat template, from a Hugging Face folder, without torch."""

import re
from pathlib import Path
from typing import Any, Final

import jinja2
import msgspec
from tokenizers import Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Turn
from slidepack.engine.data.template import parse_template, render_template


class ChatTokenizer:
    """Text to token ids and back, and conversations to text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_token: str,
        template: jinja2.Template | None,
        template_source: str,
        special_tokens: dict[str, str],
    ) -> None:
        """Wrap a loaded tokenizer; use `load_tokenizer` to read one from a folder."""
        # Files saved by a training script may carry its cut-off, which would shorten rows unseen.
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self._template = template
        self._special_tokens = special_tokens
        self.eos_token = eos_token
        self.eos_id: int = self._require_id(eos_token)
        added = tokenizer.get_added_tokens_decoder().values()
        special = {token.content for token in added if token.special} | {eos_token}
        alternatives = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
        self._ending = re.compile(rf"({alternatives})\s*\Z")
        self.control_tokens = tuple(
            sorted(
                token
                for token in special
                if token in template_source or token in special_tokens.values()
            )
        )
        """The special tokens with which the template marks turns, and the model's own."""

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        """One more than the highest id, added tokens included."""
        return 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())

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
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        """Return the text of `ids`, special tokens left out."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=True))

    def last_special(self, text: str) -> tuple[int, int] | None:
        """Return start and end of the special token with which `text` ends, white space apart."""
        found = self._ending.search(text)
        return None if found is None else found.span(1)

    def render(self, messages: tuple[Turn, ...], *, prompt: bool) -> str:
        """Render a conversation through the chat template.

        Args:
            messages: the turns.
            prompt: whether to end with the header of the assistant's next turn.

        Raises:
            TemplateRejectedError: the template refused the conversation.
            SlidepackError: MODEL-NO-CHAT-TEMPLATE.
        """
        if self._template is None:
            raise SlidepackError(
                "MODEL-NO-CHAT-TEMPLATE",
                "This model has no chat template, and the rows are conversations.",
                why="tokenizer_config.json has no chat_template",
                fix="Choose an instruction-tuned model, or rows with `prompt` and `completion`.",
            )
        turns = [{"role": turn.role, "content": turn.content} for turn in messages]
        # Templates ask whether tools and documents are none, and an undefined name is not none.
        values = {"messages": turns, "add_generation_prompt": prompt, "tools": None}
        return render_template(self._template, self._special_tokens | values | {"documents": None})

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


_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


def load_tokenizer(folder: Path) -> ChatTokenizer:
    """Load tokenizer and chat template from a Hugging Face folder.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    try:
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower, missing files included
        raise _broken(folder, f"tokenizer.json: {error}") from error
    config = _read_object(folder / "tokenizer_config.json")
    special = {
        name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None
    }
    if "eos_token" not in special:
        raise _broken(folder, "tokenizer_config.json names no eos_token")
    source = _template_source(folder, config)
    return ChatTokenizer(
        tokenizer,
        eos_token=special["eos_token"],
        template=_parse_template(source, folder) if source else None,
        template_source=source,
        special_tokens=special,
    )


def _template_source(folder: Path, config: dict[str, Any]) -> str:
    """Return the text of the chat template, or "" where the model has none."""
    source: object = config.get("chat_template")
    own_file = folder / "chat_template.jinja"
    if own_file.exists():
        try:
            source = own_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise _broken(folder, f"{own_file.name}: {error}") from error
    if isinstance(source, list):
        # Several named templates, for tools or retrieval beside plain talk.
        named = (entry for entry in source if isinstance(entry, dict))
        source = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return source if isinstance(source, str) else ""


def _parse_template(source: str, folder: Path) -> jinja2.Template:
    try:
        return parse_template(source)
    except (jinja2.TemplateError, RecursionError) as error:
        raise _broken(folder, f"the chat template does not parse: {error}") from error


def _token_text(value: object) -> str | None:
    """Return a special token's text; older files hold it in an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise _broken(path.parent, f"{path.name}: {error}") from error
    if not isinstance(value, dict):
        raise _broken(path.parent, f"{path.name} is not an object")
    return value


def _broken(folder: Path, why: str) -> SlidepackError:
    return SlidepackError(
        "MODEL-BROKEN",
        "The model's tokenizer cannot be read.",
        why=f"{folder.name}: {why}",
        fix="Get the model's tokenizer.json and tokenizer_config.json again.",
    )
