"""Characters at which `str.splitlines` ends a line and no protocol of ours does."""

from collections.abc import Iterator
from typing import Final

import httpx

TEXT: Final = "".join(
    f"{number}{end}" for number, end in enumerate("\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029")
)
"""One line, which a model or a user may write."""


def lines_of(response: httpx.Response) -> Iterator[str]:
    """Yield the lines of a stream that LF ends; `iter_lines` cuts at the others too."""
    rest = ""
    for text in response.iter_text():
        *lines, rest = (rest + text).split("\n")
        yield from lines
