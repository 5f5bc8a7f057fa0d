"""Values of the command line on their way out of the process, as UTF-8.

An argument whose bytes are not UTF-8, as a path out of an old archive may be, has lone surrogates
in their place, which neither JSON nor an address takes.
"""

from typing import Final

import msgspec

from slidepack.engine.contract.errors import SlidepackError
from slidepack.engine.data.rows import clip

__all__ = ["encoded", "not_utf8"]

_INVALID_REQUEST: Final = "DAEMON-REQUEST-INVALID"


def encoded(value: object, code: str = _INVALID_REQUEST) -> bytes:
    """Return a value as JSON.

    Args:
        value: what is sent.
        code: of the error where a text in it is not UTF-8.

    Raises:
        SlidepackError: `code`, naming the text.
    """
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise not_utf8(error.object, code) from error


def not_utf8(text: str, code: str = _INVALID_REQUEST) -> SlidepackError:
    """Return the refusal of a text that is not UTF-8."""
    return SlidepackError(
        code,
        "A name is not UTF-8, so it cannot be passed on.",
        why=clip(text, 200),
        fix="Rename it, or give another one.",
    )
