"""Decodes JSON so that nothing in it gets lost: no digit of a number, no name that stands twice."""

import json
from typing import Any, Final

from slidepack.engine.data.rows import Number

JSON_SPACE: Final = " \t\r\n\ufeff"
"""White space between values; a byte-order mark stands where files were joined."""
_NEAR: Final = 200
"""How far an explanation looks around a mistake."""


class Decoder:
    """Reads JSON with numbers as they are written, and sees names that stand twice."""

    def __init__(self, *, strict: bool) -> None:
        """Take raw control characters in strings where it is not strict."""
        decoder = json.JSONDecoder(
            parse_float=Number,
            parse_int=Number,
            parse_constant=Number,
            strict=strict,
            object_pairs_hook=self._object,
        )
        self._raw_decode = decoder.raw_decode
        self._decode = decoder.decode
        self.name_twice: str | None = None
        """Of the last value: a name that an object of it has for two values that differ."""

    def decode(self, text: str) -> Any:
        """Return the value that makes up the text.

        Raises:
            json.JSONDecodeError: there is none.
        """
        self.name_twice = None
        return self._decode(text)

    def raw_decode(self, text: str, start: int) -> tuple[Any, int]:
        """Return the value at `start`, and where it ends.

        Raises:
            json.JSONDecodeError: there is none.
        """
        self.name_twice = None
        return self._raw_decode(text, start)

    def _object(self, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        value = dict(pairs)
        if len(value) != len(pairs):
            for name, content in pairs:
                if content != value[name]:
                    self.name_twice = name
        return value


def parse_json(text: str) -> Any:
    """Return the JSON value that a text holds, numbers as they are written.

    Raises:
        ValueError: it holds none, or one with a name that stands twice.
    """
    decoder = Decoder(strict=True)
    try:
        value = decoder.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if decoder.name_twice is not None:
        raise ValueError(f"{decoder.name_twice} stands twice")
    return value


def explain(error: json.JSONDecodeError) -> str:
    """Return what is wrong with a value, to stand before or after its place."""
    before = error.doc[max(0, error.pos - _NEAR) : error.pos].rstrip(JSON_SPACE)
    after = error.doc[error.pos : error.pos + _NEAR]
    following = after.lstrip(f"{JSON_SPACE},")[:1]
    if (before.endswith(",") or after.startswith(",")) and following in ("}", "]"):
        return f"a comma stands before {following}"
    return error.msg.removesuffix(" starting at").removesuffix(" at")


def breaks_off(error: json.JSONDecodeError) -> bool:
    """Return whether a value lacks its end, where nothing follows the text."""
    rest = error.doc[error.pos : error.pos + _NEAR]
    return error.msg.startswith("Unterminated string") or not rest.strip()
