"""How an exported model is called in files and in other programs; torch-free."""

import re
from typing import Final

__all__ = ["model_name"]

_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")
_MOST_NAME: Final = 60


def model_name(name: str) -> str:
    """Return a name as a file and as an Ollama model can have it: no separators, no dots ahead."""
    plain = _NOT_IN_NAMES.sub("-", name).strip("-._")[:_MOST_NAME].strip("-._")
    return plain.lower() or "model"
