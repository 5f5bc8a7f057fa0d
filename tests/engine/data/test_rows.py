"""Texts of rows: mended for our files, and clipped for messages."""

from typing import Any

import pytest

from slidepack.engine.data.rows import Number, clip, is_blank, mend_text


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "\ufeff \u2060", "\u3000"])
def test_blank(text: str) -> None:
    assert is_blank(text)
    for shown in ("a", ".", "木", "\ufffd"):
        assert not is_blank(text + shown)


def test_mend_text() -> None:
    assert mend_text("plain") == "plain"
    assert mend_text("a\0b") == "ab"
    assert mend_text("\udc00木\ud800\0") == "\ufffd木\ufffd"
    assert mend_text("\ufeffa🙂") == "\ufeffa🙂"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("a\n  b\tc", "a b c"),
        ("x" * 100, "x" * 79 + "…"),
        ("a" + " " * 1000, "a…"),
        ("\x1b[31mred\x00\x7f", "\ufffd[31mred\ufffd\ufffd"),
        ("\ud800", "\ufffd"),
        ({"a": Number("1.50")}, '{"a": 1.50}'),
        ({"b": {"d": 1, "c": {}}, "a": []}, '{"b": {"d": 1, "c": {}}, "a": []}'),
        (dict.fromkeys("fedcba", 0), '{"f": 0, "e": 0, "d": 0, "c": 0, …}'),
        (None, "null"),
        (True, "true"),
        ([None, False, "x\ny"], '[null, false, "x\\ny"]'),
    ],
)
def test_clip_is_short_and_safe(value: object, shown: str) -> None:
    assert clip(value) == shown


def test_clip_bears_deep_and_huge_values() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(clip(deep)) <= 80
    assert len(clip({str(i): ["x" * 1000] * 1000 for i in range(1000)})) <= 80
