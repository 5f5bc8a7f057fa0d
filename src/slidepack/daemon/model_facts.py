"""What a model's folder says about it, for its page: files, licence, tokenizer, template."""

from pathlib import Path
from typing import Any, Final

import msgspec

from slidepack.engine.contract.errors import ErrorReport, SlidepackError
from slidepack.engine.data.tokenizer_config import (
    read_object,
    read_special_tokens,
    read_template_source,
)
from slidepack.engine.shape import ModelShape, read_shape

__all__ = ["ModelFacts", "ModelFile", "TextFile", "TokenizerFacts", "read_facts"]

_MOST_FILES: Final = 200
_MOST_TEXT: Final = 40_000
_LICENSE_NAMES: Final = ("license", "licence", "notice", "copying", "use_policy", "usage_policy")


class ModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file of the folder."""

    name: str
    bytes: int


class TextFile(msgspec.Struct, frozen=True, kw_only=True):
    """A text that is shown."""

    name: str
    text: str
    cut: bool
    """Whether only its beginning is here."""


class TokenizerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the tokenizer's files say."""

    kind: str
    """As `tokenizer.json` names its model: BPE, Unigram, …; empty where it does not."""
    tokens: int
    """Of its vocabulary, those that were added among them."""
    special: dict[str, str]
    template: str
    """The chat template's text; empty where the model has none."""


class ModelFacts(msgspec.Struct, frozen=True, kw_only=True):
    """All of it. What cannot be read is None, and `problems` say why."""

    shape: ModelShape | None
    tokenizer: TokenizerFacts | None
    licenses: tuple[TextFile, ...]
    """Files of the folder that state terms."""
    files: tuple[ModelFile, ...]
    more_files: int
    """That are not listed."""
    problems: tuple[ErrorReport, ...]


def read_facts(folder: Path) -> ModelFacts:
    """Read a Hugging Face folder; weights are not opened. Takes a fraction of a second."""
    problems: list[ErrorReport] = []
    shape = tokenizer = None
    try:
        shape = read_shape(folder)
        tokenizer = _tokenizer(folder)
    except SlidepackError as error:
        problems.append(error.report)
    paths = _files(folder)
    return ModelFacts(
        shape=shape,
        tokenizer=tokenizer,
        licenses=tuple(_text(path) for path in paths if _states_terms(path)),
        files=tuple(
            ModelFile(name=path.name, bytes=path.stat().st_size) for path in paths[:_MOST_FILES]
        ),
        more_files=max(0, len(paths) - _MOST_FILES),
        problems=tuple(problems),
    )


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_file())
    except OSError:
        return []


def _states_terms(path: Path) -> bool:
    return path.name.casefold().startswith(_LICENSE_NAMES)


def _text(path: Path) -> TextFile:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(_MOST_TEXT + 1)
    except OSError as error:
        return TextFile(name=path.name, text=f"It cannot be read: {error.strerror}", cut=False)
    return TextFile(name=path.name, text=text[:_MOST_TEXT], cut=len(text) > _MOST_TEXT)


def _tokenizer(folder: Path) -> TokenizerFacts:
    """Read the tokenizer's files.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    config = read_object(folder / "tokenizer_config.json")
    whole = read_object(folder / "tokenizer.json")
    model: Any = whole.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    added = whole.get("added_tokens")
    known = set(vocabulary) if isinstance(vocabulary, dict) else set()
    extra = [
        entry
        for entry in (added if isinstance(added, list) else [])
        if isinstance(entry, dict) and entry.get("content") not in known
    ]
    counted = len(vocabulary) if isinstance(vocabulary, dict | list) else 0
    kind = model.get("type") if isinstance(model, dict) else None
    return TokenizerFacts(
        kind=kind if isinstance(kind, str) else "",
        tokens=counted + len(extra),
        special=read_special_tokens(folder, config),
        template=read_template_source(folder, config),
    )
