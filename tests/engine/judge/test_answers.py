"""When two answers are the same after normalisation."""

import pytest

from slidepack.engine.judge.answers import normalised


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("Yes", " yes. "),
        ("\uff21\uff22", "ab"),
        ("Straße", "STRASSE"),
        ("(B)", "b"),
        ("New  York\n", "new york"),
        ("e\u0301t\u00e9", "\u00e9te\u0301"),
        ("„ja“", "Ja!"),
    ],
)
def test_case_width_and_punctuation_around_do_not_count(one: str, other: str) -> None:
    assert normalised(one) == normalised(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("1.5", "15"), ("A", "B"), ("new york", "newyork"), ("?", "!"), ("-1", "1"), ("C#", "C")],
)
def test_what_is_inside_counts(one: str, other: str) -> None:
    assert normalised(one) != normalised(other)
