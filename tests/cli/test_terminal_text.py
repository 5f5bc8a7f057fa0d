"""What a terminal is given of a text that somebody else wrote."""

import unicodedata
from typing import Final

import pytest
from support.line_ends import TEXT

from slidepack.cli.terminal_text import one_line, printable

_ALL: Final = "".join(map(chr, range(0x110000)))
_TURNS: Final = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
_ENDS: Final = "\x85\u2028\u2029"


@pytest.mark.parametrize(
    "text",
    [
        "Bonjour\u00a0! 10\u202f000\u2009km",
        "日本\u3000語",
        "می\u200cروم",
        "क्\u200dष",
        "👩\u200d👩\u200d👧\ufe0f",
        "\u200e\u200f\u061cبش",
        "soft\u00adhyphen \ufeff\u2060 \U000e0067",
        "private \ue000, unassigned \u0378",
        "a\tb\nc",
        "",
    ],
)
def test_words_of_every_language_stay(text: str) -> None:
    assert printable(text) == text


def test_only_what_steers_or_cannot_be_written_goes() -> None:
    changed = {one: printable(one) for one in _ALL if printable(one) != one}
    controls = {one for one in _ALL if unicodedata.category(one) in ("Cc", "Cs")}
    gone = (controls | set(_TURNS)) - {*_ENDS, "\n", "\t"}
    assert changed == dict.fromkeys(gone, "") | dict.fromkeys(_ENDS, "\n")


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\r\nb\r\n", "a\nb\n"),
        ("a\x85b\u2028c\u2029d", "a\nb\nc\nd"),
        ("x\x1b[2J\x1b]0;owned\x07", "x[2J]0;owned"),
        ("\x9b31mred", "31mred"),
        ("exe\u202etxt", "exetxt"),
        (TEXT, "012345\n6\n7\n"),
    ],
)
def test_pieces_of_a_text_give_what_the_whole_gives(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert "".join(map(printable, text)) == shown
    for at in range(len(text)):
        assert printable(text[:at]) + printable(text[at:]) == shown


@pytest.mark.parametrize("end", ["\n", "\r\n", "\t", "\x85", "\u2028", "\u2029"])
def test_one_line_is_one(end: str) -> None:
    assert one_line(f"a{end}\u00a0b\x1b{end}c") == "a \u00a0b c"
