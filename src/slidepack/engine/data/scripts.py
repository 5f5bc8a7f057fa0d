"""Which script a text is written in: enough to see that two roles speak different languages."""

from typing import Final, Literal

Script = Literal["Latin", "Greek", "Cyrillic", "Hebrew", "Arabic", "Indic", "Thai", "CJK", "Hangul"]

_LOOKED_AT: Final = 300
_MIN_LETTERS: Final = 8
_SHARE: Final = 0.3
"""A text is of a script that this share of its characters belongs to: names and code stay Latin
everywhere."""

_PAGES: Final[dict[Script, tuple[range, ...]]] = {
    "Greek": (range(0x03, 0x04),),
    "Cyrillic": (range(0x04, 0x05),),
    "Hebrew": (range(0x05, 0x06),),
    "Arabic": (range(0x06, 0x08),),
    "Indic": (range(0x09, 0x0E),),
    "Thai": (range(0x0E, 0x0F),),
    "CJK": (range(0x30, 0x32), range(0x34, 0xA0)),
    "Hangul": (range(0x11, 0x12), range(0xAC, 0xD8)),
}
"""High bytes of UTF-16: coarse, and one pass of C for a whole text."""
_SCRIPTS: Final[tuple[Script, ...]] = tuple(_PAGES)
_NO_LETTERS: Final = bytes(byte for byte in range(256) if not chr(byte).isalpha() or byte > 127)
_TABLE: Final = bytes(
    next(
        (
            number
            for number, pages in enumerate(_PAGES.values(), start=1)
            if any(high in page for page in pages)
        ),
        0,
    )
    for high in range(256)
)


def script_of(text: str) -> Script | None:
    """Return the script of the text's start; None where there are too few letters to tell."""
    start = text[:_LOOKED_AT]
    if not start.isascii():
        pages = start.encode("utf-16-le", "replace")[1::2].translate(_TABLE)
        counts = [pages.count(number) for number in range(1, len(_SCRIPTS) + 1)]
        most = max(counts)
        if most >= max(2, _SHARE * len(pages)):
            return _SCRIPTS[counts.index(most)]
    letters = start.encode("ascii", "ignore").translate(None, _NO_LETTERS)
    return "Latin" if len(letters) >= _MIN_LETTERS else None
