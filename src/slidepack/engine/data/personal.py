"""Secrets and personal data in a row: which kinds are there, never what they are."""

import re
from typing import Final, Literal

Kind = Literal[
    "private key", "AWS key", "GitHub token", "Hugging Face token", "API key", "Slack token",
    "Google key", "GitLab token", "e-mail address", "phone number", "card number",
]  # fmt: skip

SECRETS: Final[frozenset[Kind]] = frozenset(
    {
        "private key", "AWS key", "GitHub token", "Hugging Face token", "API key", "Slack token",
        "Google key", "GitLab token",
    }
)  # fmt: skip

_Mark = tuple[Kind, bytes, re.Pattern[bytes]]
"""A kind, a text that `in` finds at memory speed, and a pattern that is asked only then."""

_START: Final = rb"(?:(?<![A-Za-z0-9])|(?<=\\[nrt]))"
"""The start of a word; in JSON, the letter before it may be the end of an escaped newline."""

_WITH_UNDERSCORE: Final[tuple[_Mark, ...]] = (
    *(
        ("GitHub token", mark, re.compile(mark + rb"[A-Za-z0-9_]{30,}"))
        for mark in (b"ghp_", b"gho_", b"ghu_", b"ghs_", b"ghr_", b"github_pat_")
    ),
    ("Hugging Face token", b"hf_", re.compile(_START + rb"hf_[A-Za-z0-9]{30,}")),
)
_WITH_HYPHEN: Final[tuple[_Mark, ...]] = (
    ("private key", b"-----BEGIN ", re.compile(rb"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY")),
    ("API key", b"sk-", re.compile(_START + rb"sk-(?:[a-z]+-)?[A-Za-z0-9_-]{20,}")),
    ("Slack token", b"xox", re.compile(rb"xox[abprs]-[0-9A-Za-z-]{10,}")),
    ("GitLab token", b"glpat-", re.compile(rb"glpat-[0-9A-Za-z_-]{20}")),
)
_PLAIN: Final[tuple[_Mark, ...]] = (
    ("AWS key", b"AKIA", re.compile(_START + rb"AKIA[0-9A-Z]{16}(?![A-Za-z0-9])")),
    ("AWS key", b"ASIA", re.compile(_START + rb"ASIA[0-9A-Z]{16}(?![A-Za-z0-9])")),
    ("Google key", b"AIza", re.compile(rb"AIza[0-9A-Za-z_-]{35}")),
)

_AT: Final = re.compile(rb"@([A-Za-z0-9-]+\.)+[A-Za-z]{2,24}(?![A-Za-z0-9-])")
_PLACEHOLDERS: Final = (b"@example.", b"@test.", b"@domain.", b"@email.")
_LOCAL: Final = re.compile(rb"[A-Za-z0-9._%+-]{1,64}$")
_ESCAPES: Final = (b"\\n", b"\\t", b"\\r")

_DIGITS: Final = bytes(48 if 48 <= code <= 57 else 120 for code in range(256))
_BETWEEN_DIGITS: Final = b" -().+"
_NUMBER: Final = re.compile(rb"[+(]?[0-9][0-9 ().-]{8,24}[0-9](?!\w)")
_IN_A_WORD: Final = re.compile(rb"[\w.+]")
_AMERICAN: Final = re.compile(
    rb"(?:\+?1[ .-])?(?:\([0-9]{3}\) ?|[0-9]{3}[ .-])[0-9]{3}[ .-][0-9]{4}"
)
_INTERNATIONAL: Final = re.compile(rb"\+[1-9][0-9]{0,2}[ .()-][0-9 .()-]{6,18}|\+[1-9][0-9]{9,14}")


def kinds_in(line: bytes) -> set[Kind]:
    """Return the kinds of secrets and personal data in a row, given as its line of JSON."""
    marks = _PLAIN
    # One character is looked for some twenty times faster than a word is.
    if b"_" in line:
        marks += _WITH_UNDERSCORE
    if b"-" in line:
        marks += _WITH_HYPHEN
    found: set[Kind] = set()
    for kind, mark, pattern in marks:
        if mark in line and pattern.search(line):
            found.add(kind)
    if b"@" in line and _has_address(line):
        found.add("e-mail address")
    # Any ten digits with nothing but separators between them; the patterns look closer.
    if b"0000000000" in line.translate(_DIGITS, _BETWEEN_DIGITS):
        _add_numbers(line, found)
    return found


def _has_address(line: bytes) -> bool:
    for found in _AT.finditer(line):
        local = _LOCAL.search(line, max(0, found.start() - 64), found.start())
        if local is None or found.group().lower().startswith(_PLACEHOLDERS):
            continue
        # What looks like a letter may be the end of an escaped newline, as before decorators.
        escape = line[max(0, local.start() - 1) : local.end()]
        if escape in _ESCAPES:
            continue
        return True
    return False


def _add_numbers(line: bytes, found: set[Kind]) -> None:
    for match in _NUMBER.finditer(line):
        before = line[max(0, match.start() - 2) : match.start()]
        if before and before not in _ESCAPES and _IN_A_WORD.match(before[-1:]):
            continue
        text = match.group()
        if _AMERICAN.fullmatch(text) or _INTERNATIONAL.fullmatch(text):
            found.add("phone number")
        elif _is_card(text):
            found.add("card number")


def _is_card(text: bytes) -> bool:
    """Return whether the digits are those of a payment card: length, first digit, Luhn's sum."""
    digits = [code - 48 for code in text if 48 <= code <= 57]
    if not 13 <= len(digits) <= 19 or digits[0] not in (3, 4, 5, 6) or len(set(digits)) < 2:
        return False
    doubled = (2 * digit - 9 * (digit > 4) for digit in digits[-2::-2])
    return (sum(digits[-1::-2]) + sum(doubled)) % 10 == 0
