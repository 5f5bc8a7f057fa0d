"""Numbers in headers, which reach us as any text that a client likes."""

import re
from typing import Final

_WHOLE: Final = re.compile(r"[0-9]{1,18}")
"""What SQLite and file sizes hold; Python refuses to read thousands of digits at all."""


def whole_number(text: str) -> int | None:
    """Return the number of a header, or None where it is none that can be meant."""
    return int(text) if _WHOLE.fullmatch(text) else None
