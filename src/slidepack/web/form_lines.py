"""Fields of a form that hold one value on each line."""

import re
from typing import Final

__all__ = ["lines_of_field"]

_LINE_END: Final = re.compile(r"\r\n|\r|\n")
"""What a browser sends for one; `str.splitlines` cuts at U+2028 and others too, which are text."""


def lines_of_field(text: str) -> list[str]:
    """Return the lines that say something, without blanks around them."""
    lines = (line.strip() for line in _LINE_END.split(text))
    return [line for line in lines if line]
