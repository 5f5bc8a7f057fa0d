"""Fields with a value on each line."""

from support.line_ends import TEXT

from slidepack.web.form_lines import lines_of_field


def test_a_value_is_a_line_of_the_field() -> None:
    assert lines_of_field("one\r\n\r\n  two \nthree\rfour") == ["one", "two", "three", "four"]
    assert lines_of_field(" \r\n") == []


def test_other_ends_of_lines_are_text() -> None:
    assert lines_of_field(f"<{TEXT}>\r\n<{TEXT}>") == [f"<{TEXT}>"] * 2
