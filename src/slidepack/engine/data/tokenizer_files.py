"""Loads a model's tokenizer from a Hugging Face folder."""

from pathlib import Path

from tokenizers import Tokenizer

from slidepack.engine.data.tokenizer_config import broken

__all__ = ["read_tokenizer"]


def read_tokenizer(folder: Path) -> Tokenizer:
    """Load `tokenizer.json`.

    Raises:
        SlidepackError: MODEL-BROKEN.
    """
    try:
        return Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower, missing files included
        raise broken(folder, f"tokenizer.json: {error}") from error
