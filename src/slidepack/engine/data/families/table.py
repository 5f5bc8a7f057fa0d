"""All families, by name."""

from collections.abc import Callable
from typing import Final

from slidepack.engine.data.families import (
    alpaca,
    chat,
    completion,
    preference,
    qa,
    text,
    tokens,
)
from slidepack.engine.data.families.cells import Cells
from slidepack.engine.data.rows import Format, Row

CONVERTERS: Final[dict[Format, Callable[[int, Cells], Row]]] = {
    "chat": chat.convert,
    "sharegpt": chat.convert,
    "alpaca": alpaca.convert,
    "completion": completion.convert,
    "qa": qa.convert,
    "text": text.convert,
    "tokens": tokens.convert,
    "preference": preference.convert,
}
