"""Reads what a model's `tokenizer_config.json` says, and says what is broken in it."""

from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError

_SPECIAL_NAMES: Final = ("bos_token", "eos_token", "pad_token", "unk_token")


def read_special_tokens(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Return the special tokens that the config names; `eos_token` is always among them.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    special = {
        name: text for name in _SPECIAL_NAMES if (text := _token_text(config.get(name))) is not None
    }
    if "eos_token" not in special:
        raise broken(folder, "tokenizer_config.json names no eos_token")
    return special


def read_template_source(folder: Path, config: dict[str, Any]) -> str:
    """Return the text of the chat template, or "" where the model has none.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    source: object = config.get("chat_template")
    own_file = folder / "chat_template.jinja"
    if own_file.exists():
        try:
            source = own_file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise broken(folder, f"{own_file.name}: {error}") from error
    if isinstance(source, list):
        # Several named templates, for tools or retrieval beside plain talk.
        named = (entry for entry in source if isinstance(entry, dict))
        source = next((e.get("template") for e in named if e.get("name") == "default"), None)
    return source if isinstance(source, str) else ""


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON object.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    try:
        value = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError) as error:
        raise broken(path.parent, f"{path.name}: {error}") from error
    if not isinstance(value, dict):
        raise broken(path.parent, f"{path.name} is not an object")
    return value


def broken(folder: Path, why: str) -> SlidepackError:
    """Return the error of a model whose tokenizer cannot be read."""
    return SlidepackError(
        "MODEL-BROKEN",
        "The model's tokenizer cannot be read.",
        why=f"{folder.name}: {why}",
        fix="Get the model's tokenizer.json and tokenizer_config.json again.",
    )


def _token_text(value: object) -> str | None:
    """Return a special token's text; older files hold it in an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
