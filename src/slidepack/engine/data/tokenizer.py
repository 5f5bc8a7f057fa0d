"""The model's tokenizer and chat template, from a Hugging Face folder, without torch."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NoReturn

import jinja2
import jinja2.ext
import jinja2.sandbox
import msgspec
from tokenizers import Tokenizer

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import Turn


class TemplateRejectedError(Exception):
    """The chat template refused a conversation; the message is the template's own."""


class ChatTokenizer:
    """Text to token ids and back, and conversations to text."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        eos_token: str,
        template: jinja2.Template | None,
        special_tokens: dict[str, str],
    ) -> None:
        """Wrap a loaded tokenizer; use `load_tokenizer` to read one from a folder."""
        self._tokenizer = tokenizer
        self._template = template
        self._special_tokens = special_tokens
        self.eos_token = eos_token
        self.eos_id: int = self._require_id(eos_token)

    @property
    def has_template(self) -> bool:
        """Whether the model comes with a chat template."""
        return self._template is not None

    @property
    def vocab_size(self) -> int:
        """Number of ids, added tokens included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

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
        try:
            return self._template.render(
                messages=turns, add_generation_prompt=prompt, **self._special_tokens
            )
        except jinja2.TemplateError as error:
            raise TemplateRejectedError(str(error)) from error

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
    except Exception as error:
        raise _broken(folder, f"tokenizer.json: {error}") from error
    config = _read_object(folder / "tokenizer_config.json")
    special = {
        name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None
    }
    if "eos_token" not in special:
        raise _broken(folder, "tokenizer_config.json names no eos_token")
    return ChatTokenizer(
        tokenizer,
        eos_token=special["eos_token"],
        template=_load_template(folder, config),
        special_tokens=special,
    )


def _load_template(folder: Path, config: dict[str, Any]) -> jinja2.Template | None:
    source: object = config.get("chat_template")
    own_file = folder / "chat_template.jinja"
    if own_file.exists():
        source = own_file.read_text(encoding="utf-8")
    if isinstance(source, list):
        named = {entry.get("name"): entry.get("template") for entry in source}
        source = named.get("default")
    if not isinstance(source, str) or not source:
        return None
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[jinja2.ext.loopcontrols],
    )
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    environment.filters["tojson"] = _to_json
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise _broken(folder, f"the chat template does not parse: {error}") from error


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.now(UTC).astimezone().strftime(form)


def _to_json(value: object, indent: int | None = None) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _token_text(value: object) -> str | None:
    """Return a special token's text; older files hold it in an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _read_object(path: Path) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
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
